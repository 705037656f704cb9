"""What ``legato explore`` shows, computed: a picture segmented, the toy's gradients at any θ."""

from legato.studies.explore.colour_model import colour_cost
from legato.studies.explore.gradients import LIMITS, GradientControls, GradientView, see_gradients
from legato.studies.explore.pictures import (
    FORMATS,
    LONGEST_SIDE,
    MAX_BYTES,
    MAX_PIXELS,
    SUFFIXES,
    example_pictures,
    read_picture,
)
from legato.studies.explore.segmentation import RANGES, Controls, Segmentation, segment_picture

__all__ = [
    "FORMATS",
    "LIMITS",
    "LONGEST_SIDE",
    "MAX_BYTES",
    "MAX_PIXELS",
    "RANGES",
    "SUFFIXES",
    "Controls",
    "GradientControls",
    "GradientView",
    "Segmentation",
    "colour_cost",
    "example_pictures",
    "read_picture",
    "see_gradients",
    "segment_picture",
]
