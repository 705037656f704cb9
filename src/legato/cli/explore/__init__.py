"""``legato explore``: the segmentation layer and the toy's gradients on a local web page."""

from legato.cli.explore.command import explore

__all__ = ["explore"]
