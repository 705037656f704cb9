"""``legato denoise``."""

from legato.cli.denoise.app import denoise

__all__ = ["denoise"]
