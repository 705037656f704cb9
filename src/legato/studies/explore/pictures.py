"""Pictures to look at: those that come along, and those a person drops."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from legato.console.files import DataError
from legato.console.pictures import decode_image
from legato.studies.segment.data import SyntheticScenes

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
MAX_BYTES = 20 * 2**20
MAX_PIXELS = 50_000_000
"""More than any telephone's photograph, and 150 MB once decoded."""

LONGEST_SIDE = 320
"""Pixels to which larger pictures are scaled: enough to look at, and answered at once."""

_SCENES = (4, 2, 6, 9)
_SCENE_SIZE = (192, 256)


@lru_cache(maxsize=1)
def example_pictures() -> dict[str, Tensor]:
    """Synthetic landscapes (3, H, W) in [0, 1], by name."""
    scenes = SyntheticScenes(count=max(_SCENES) + 1, size=_SCENE_SIZE)
    pictures = (scenes[place].image for place in _SCENES)
    return {f"Scene {n}": image.float() / 255 for n, image in enumerate(pictures, 1)}


def read_picture(path: str | Path) -> Tensor:
    """A picture that somebody dropped as (3, H, W) in [0, 1], its longest side at most 320.

    Nothing is decoded before the file's size, type and number of pixels are known to be harmless.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(
                f"{path.name} has {size / 2**20:.1f} MB; at most {MAX_BYTES // 2**20} MB are read. "
                "Save it smaller, or as JPEG."
            )
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name} cannot be read ({error}). Drop it again.") from error
    pixels = decode_image(data, path.name, FORMATS, MAX_PIXELS)
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    longest = max(picture.size)
    if longest > LONGEST_SIDE:
        width, height = (max(1, round(side * LONGEST_SIDE / longest)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    array = numpy.array(picture, numpy.float32) / 255
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()
