"""Any image file as 8-bit RGB."""

from __future__ import annotations

import io
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from legato.studies.segment.data.errors import DataError

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "PPM", "GIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".pgm", ".gif")


def read_image(path: str | Path) -> Tensor:
    """The image in a file as a (3, H, W) uint8 tensor, RGB.

    Grey is repeated, 16 bits are scaled to 8, transparent pixels are laid over white, palettes and
    CMYK are converted, and the orientation that a camera wrote is applied.
    """
    return decode_image(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """The contents of a file that ought to be an image."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"There is no image {path}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not an image. Name the images in it.") from None
    except OSError as error:
        raise DataError(f"The image {path} cannot be read ({error}). Check the file.") from error


def decode_image(data: bytes, name: str) -> Tensor:
    """As ``read_image``, from the bytes of a file; ``name`` is for messages."""
    rgb = _rgb(open_image(data, name), name)
    return torch.from_numpy(rgb.transpose(2, 0, 1).copy())


def open_image(data: bytes, name: str) -> Image.Image:
    """The decoded image as Pillow sees it, with clear errors for all that can be wrong."""
    if not data:
        raise DataError(f"The image {name} is empty (0 bytes). Copy or download it again.")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _huge(name, str(error)) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{name} is not an image of a known format, or its beginning is damaged. Known are "
            f"{', '.join(FORMATS)}: convert it to PNG, or copy it again."
        ) from error
    except Exception as error:  # decoders meet a damaged header with whatever they stumble on
        raise _damaged(name, error) from error
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise _huge(name, f"{image.width} × {image.height} pixels, the limit is {limit}")
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise _damaged(name, error) from error
    return image


def _rgb(image: Image.Image, name: str) -> NDArray[numpy.uint8]:
    """An upright (H, W, 3) uint8 array."""
    try:
        image = ImageOps.exif_transpose(image)
    except Exception as error:  # as above
        raise _damaged(name, error) from error
    if image.mode == "F":
        raise DataError(
            f"The image {name} holds 32-bit floating-point numbers, for which black and white are "
            "not defined. Save it with 8 or 16 bits."
        )
    if image.mode.startswith("I"):
        values = numpy.asarray(image).astype(numpy.int64)
        if values.min() < 0 or values.max() > 65535:
            raise DataError(
                f"The image {name} holds 32-bit integers from {values.min()} to {values.max()}, "
                "for which black and white are not defined. Save it with 8 or 16 bits."
            )
        grey = ((values + 128) // 257).astype(numpy.uint8)
        return numpy.stack((grey,) * 3, axis=-1)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return numpy.asarray(image.convert("RGB"))


def _huge(name: str, why: str) -> DataError:
    return DataError(
        f"The image {name} is too large ({why}). Scale it down first, or raise "
        "PIL.Image.MAX_IMAGE_PIXELS if you have the memory."
    )


def _damaged(name: str, error: Exception) -> DataError:
    return DataError(
        f"The image {name} is truncated or damaged ({error}). Copy or download it again."
    )
