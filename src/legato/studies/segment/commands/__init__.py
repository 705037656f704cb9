"""The commands of ``legato segment``, one a file."""
