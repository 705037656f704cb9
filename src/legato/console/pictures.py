"""Image files as numbers, and back: one reader for photographs, masks and noisy pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from legato._support.files import replacing
from legato.console.files import DataError, read_bytes
from legato.errors import InputError

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "PPM", "GIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".pgm", ".gif")

# Modes that are denoised as they are, and the same without a premultiplied opacity.
_STRAIGHT = {"L": "L", "RGB": "RGB", "LA": "LA", "RGBA": "RGBA", "La": "LA", "RGBa": "RGBA"}
_WRITTEN_MODES = {
    ".png": {"L", "LA", "RGB", "RGBA", "I;16"},
    ".tif": {"L", "LA", "RGB", "RGBA", "I;16", "F"},
    ".tiff": {"L", "LA", "RGB", "RGBA", "I;16", "F"},
    ".jpg": {"L", "RGB"},
    ".jpeg": {"L", "RGB"},
    ".webp": {"RGB", "RGBA"},
    ".bmp": {"L", "RGB"},
}


def open_image(
    data: bytes, name: str, formats: tuple[str, ...] = FORMATS, most_pixels: int | None = None
) -> Image.Image:
    """The decoded image as Pillow sees it, with clear errors for all that can be wrong.

    Args:
        data: the bytes of a file.
        name: what messages call it.
        formats: the formats to accept, by Pillow's names.
        most_pixels: refuse larger pictures before they are decoded; Pillow's limit otherwise.
    """
    if not data:
        raise DataError(f"The image {name} is empty (0 bytes). Copy or download it again.")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _huge(name, str(error), most_pixels) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{name} is not an image of a known format, or its beginning is damaged. Known are "
            f"{', '.join(formats)}: convert it to PNG, or copy it again."
        ) from error
    except Exception as error:  # decoders meet a damaged header with whatever they stumble on
        raise _damaged(name, error) from error
    limit = Image.MAX_IMAGE_PIXELS if most_pixels is None else most_pixels
    if limit is not None and image.width * image.height > limit:
        raise _huge(name, f"{image.width} × {image.height} pixels", most_pixels)
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise _damaged(name, error) from error
    return image


def read_image(path: str | Path) -> Tensor:
    """The image in a file as a (3, H, W) uint8 tensor, RGB.

    Grey is repeated, 16 bits are scaled to 8, transparent pixels are laid over white, palettes and
    CMYK are converted, and the orientation that a camera wrote is applied.
    """
    return decode_image(read_bytes(path), str(path))


def decode_image(
    data: bytes, name: str, formats: tuple[str, ...] = FORMATS, most_pixels: int | None = None
) -> Tensor:
    """As ``read_image``, from the bytes of a file, and with the limits of ``open_image``."""
    image = _upright(open_image(data, name, formats, most_pixels), name)
    if image.mode == "F":
        raise DataError(
            f"The image {name} holds 32-bit floating-point numbers, for which black and white are "
            "not defined. Save it with 8 or 16 bits."
        )
    if image.mode.startswith("I"):
        grey = ((_integers(image, name) + 128) // 257).astype(numpy.uint8)
        return torch.from_numpy(numpy.stack((grey,) * 3))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return torch.from_numpy(numpy.asarray(image.convert("RGB")).transpose(2, 0, 1).copy())


@dataclass(frozen=True)
class Picture:
    """A picture as numbers to compute with, and what its file was, to be written back like it.

    ``channels`` (C, H, W) lie in [0, 1], an ``opacity`` (H, W) is left alone, ``scale`` and
    ``offset`` lead back to the file's own numbers; ``notes`` say what had to change.
    """

    channels: Tensor
    mode: str
    opacity: Tensor | None = None
    scale: float = 255.0
    offset: float = 0.0
    notes: list[str] = field(default_factory=list)

    def with_channels(self, channels: Tensor) -> Picture:
        """The same picture with other contents."""
        return replace(self, channels=channels)

    @property
    def suffix(self) -> str:
        """Of a file that can hold it without loss."""
        return ".tiff" if self.mode == "F" else ".png"


def read_picture(path: Path) -> Picture:
    """The picture in a file, upright; what cannot be computed with is refused by name."""
    data = read_bytes(path)
    image = open_image(data, str(path))
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{path} holds {frames} pictures. Save the one you mean by itself.")
    image = _upright(image, str(path))
    if image.mode == "1":
        raise DataError(
            f"{path} has one bit a pixel: noise of a grey picture cannot be told from what it "
            "shows. Convert it to grey first if you want that."
        )
    if image.mode == "F":
        return _from_floats(numpy.array(image), path)
    if image.mode.startswith("I"):
        values = _integers(image, str(path)).astype(numpy.float32) / 65535
        return Picture(torch.from_numpy(values)[None], "I;16", scale=65535.0)
    notes = []
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[24] == 16:  # IHDR: the depth of a sample
        notes.append("16 bits a colour are read as 8")
    if image.mode not in _STRAIGHT or "transparency" in image.info:
        plain = _converted(image, path)
        if image.mode not in _STRAIGHT:
            notes.append(f"{image.mode} becomes {plain.mode}")
        image = plain
    image = image if image.mode == _STRAIGHT[image.mode] else image.convert(_STRAIGHT[image.mode])
    levels = torch.from_numpy(numpy.array(image)).float() / 255
    planes = levels[None] if levels.ndim == 2 else levels.permute(2, 0, 1)
    if image.mode in ("LA", "RGBA"):
        return Picture(planes[:-1].contiguous(), image.mode, planes[-1], notes=notes)
    return Picture(planes.contiguous(), image.mode, notes=notes)


def write_picture(picture: Picture, path: Path) -> None:
    """Write a picture, atomically; values beyond black and white are clipped, floats are not."""
    require_suffix(picture, path)
    image = Image.fromarray(_values(picture))
    kind = Image.registered_extensions()[path.suffix.lower()]
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    with replacing(path) as temporary:
        image.save(temporary, format=kind, **options)


def require_suffix(picture: Picture, path: Path) -> None:
    """Refuse a file type that cannot hold the picture."""
    known = _WRITTEN_MODES.get(path.suffix.lower())
    if known is None:
        raise InputError(
            f"Pictures are written as {', '.join(_WRITTEN_MODES)}, not as "
            f"{path.suffix or 'nothing'!r} ({path})."
        )
    if picture.mode not in known:
        raise InputError(
            f"{path.suffix} cannot hold a picture of mode {picture.mode}: write {path.name} as "
            f"{path.with_suffix(picture.suffix).name}."
        )


def _upright(image: Image.Image, name: str) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception as error:  # a damaged header, as in open_image
        raise _damaged(name, error) from error


def _integers(image: Image.Image, name: str) -> NDArray[numpy.int64]:
    values = numpy.asarray(image).astype(numpy.int64)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(
            f"The image {name} holds 32-bit integers from {values.min()} to {values.max()}, for "
            "which black and white are not defined. Save it with 8 or 16 bits."
        )
    return values


def _converted(image: Image.Image, path: Path) -> Image.Image:
    """In the nearest mode that is denoised as it is."""
    clear = "transparency" in image.info or image.mode in ("PA", "La", "RGBa")
    mode = ("L" if image.mode == "L" else "RGB") + ("A" if clear else "")
    try:
        return image.convert(mode)
    except ValueError as error:
        raise DataError(
            f"{path} has colours of mode {image.mode}, which cannot be converted to {mode} "
            f"({error}). Save it as RGB."
        ) from error


def _from_floats(values: NDArray[numpy.float32], path: Path) -> Picture:
    if not numpy.isfinite(values).all():
        raise DataError(f"{path} holds NaN or infinite values. Replace them first.")
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    span = high - low if high > low else 1.0
    channel = torch.from_numpy((values.astype(numpy.float64) - low) / span).float()
    notes = [] if (low, high) == (0.0, 1.0) else [f"σ is of 255 for a range of {low:g} to {high:g}"]
    return Picture(channel[None], "F", scale=span, offset=low, notes=notes)


def _values(picture: Picture) -> NDArray[numpy.generic]:
    planes = picture.channels
    if picture.mode == "F":
        values = planes[0].double().numpy() * picture.scale + picture.offset
        return values.astype(numpy.float32)
    if picture.opacity is not None:
        planes = torch.cat((planes, picture.opacity[None]))
    levels = (planes.clamp(0, 1) * picture.scale).round()
    if picture.mode == "I;16":
        return levels[0].numpy().astype(numpy.uint16)
    plain = levels.to(torch.uint8)
    return (plain[0] if len(plain) == 1 else plain.permute(1, 2, 0).contiguous()).numpy()


def _huge(name: str, found: str, most_pixels: int | None) -> DataError:
    if most_pixels is not None:
        limit = f"at most {most_pixels / 1e6:g} million pixels are read. Scale it down first."
    else:
        limit = (
            f"the limit is {Image.MAX_IMAGE_PIXELS} pixels. Scale it down first, or raise "
            "PIL.Image.MAX_IMAGE_PIXELS if you have the memory."
        )
    return DataError(f"The image {name} is too large ({found}): {limit}")


def _damaged(name: str, error: Exception) -> DataError:
    return DataError(
        f"The image {name} is truncated or damaged ({error}). Copy or download it again."
    )
