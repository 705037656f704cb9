"""``legato segment``: train, apply and compare segmentations with and without the global layer."""

from legato.cli.segment.app import segment

__all__ = ["segment"]
