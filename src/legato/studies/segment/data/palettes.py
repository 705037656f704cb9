"""Colours for label maps."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]

SURFACES: tuple[Colour, ...] = ((86, 156, 230), (104, 176, 92), (226, 120, 62))
REGIONS: tuple[Colour, ...] = (
    (86, 156, 230),  # sky
    (38, 112, 52),  # tree
    (128, 128, 136),  # road
    (140, 204, 84),  # grass
    (34, 74, 168),  # water
    (226, 120, 62),  # building
    (150, 106, 78),  # mountain
    (222, 62, 112),  # foreground object
)


def distinct_colours(count: int) -> tuple[Colour, ...]:
    """``count`` colours that differ: hues a golden angle apart, in three brightnesses."""
    colours = []
    for index in range(count):
        hue = (0.58 + index * 0.61803398875) % 1
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.62, (0.9, 0.62, 0.76)[index % 3])
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)
