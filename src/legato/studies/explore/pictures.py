"""Pictures to look at: those that come along, and those a person drops."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from legato.console.pictures import decode_image
from legato.studies.segment.data import DataError, SyntheticScenes

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
    _require_harmless(data, path.name)
    return _scaled(decode_image(data, path.name))


def _require_harmless(data: bytes, name: str) -> None:
    """Refuse other types, and pictures that would unfold to too many pixels."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(name, str(error)) from error
    except Exception as error:  # decoders meet a damaged header with whatever they stumble on
        raise DataError(
            f"{name} is not a PNG, JPEG, WebP, TIFF or BMP picture, or its beginning is damaged. "
            "Convert it to PNG, or try another."
        ) from error
    if width * height > MAX_PIXELS:
        raise _too_many_pixels(name, f"{width} × {height}")


def _too_many_pixels(name: str, found: str) -> DataError:
    return DataError(
        f"{name} unfolds to too many pixels ({found}); at most {MAX_PIXELS // 10**6} million are "
        "read. Scale it down first."
    )


def _scaled(pixels: Tensor) -> Tensor:
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    longest = max(picture.size)
    if longest > LONGEST_SIDE:
        width, height = (max(1, round(side * LONGEST_SIDE / longest)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    array = numpy.array(picture, numpy.float32) / 255
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()
