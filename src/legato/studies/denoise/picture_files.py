"""A user's picture as numbers to be denoised, and back, in the mode and depth that it had."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageOps
from torch import Tensor

from legato._support.files import replacing
from legato.errors import InputError
from legato.studies.segment.data.errors import DataError
from legato.studies.segment.data.image_files import open_image, read_bytes

_STRAIGHT = {"L": "L", "RGB": "RGB", "LA": "LA", "RGBA": "RGBA", "La": "LA", "RGBa": "RGBA"}
_SUFFIXES = {
    ".png": {"L", "LA", "RGB", "RGBA", "I;16"},
    ".tif": {"L", "LA", "RGB", "RGBA", "I;16", "F"},
    ".tiff": {"L", "LA", "RGB", "RGBA", "I;16", "F"},
    ".jpg": {"L", "RGB"},
    ".jpeg": {"L", "RGB"},
    ".webp": {"RGB", "RGBA"},
    ".bmp": {"L", "RGB"},
}


@dataclass(frozen=True)
class Picture:
    """Channels (C, H, W) in [0, 1], an opacity (H, W) that is left alone, and what it was.

    ``scale`` and ``offset`` lead back to the file's own numbers; ``notes`` say what had to change.
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
    """The picture in a file, upright; what cannot be denoised is refused by name."""
    data = read_bytes(path)
    image = open_image(data, str(path))
    if getattr(image, "n_frames", 1) > 1:
        raise DataError(f"{path} holds {image.n_frames} pictures. Save the one you mean by itself.")  # type: ignore[attr-defined]
    try:
        image = ImageOps.exif_transpose(image)
    except Exception as error:  # whatever a damaged header makes decoders stumble on
        raise DataError(f"The image {path} is damaged ({error}).") from error
    if image.mode == "1":
        raise DataError(
            f"{path} has one bit a pixel: noise of a grey picture cannot be told from what it "
            "shows. Convert it to grey first if you want that."
        )
    if image.mode == "F":
        return _from_floats(numpy.array(image), path)
    if image.mode.startswith("I"):
        return _from_integers(numpy.array(image).astype(numpy.int64), path)
    notes = []
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[24] == 16:  # IHDR: the depth of a sample
        notes.append("16 bits a colour are read as 8")
    if image.mode not in _STRAIGHT or "transparency" in image.info:
        plain = _converted(image, _plain_mode(image), path)
        if image.mode not in _STRAIGHT:
            notes.append(f"{image.mode} becomes {plain.mode}")
        image = plain
    image = image if image.mode == _STRAIGHT[image.mode] else image.convert(_STRAIGHT[image.mode])
    values = torch.from_numpy(numpy.array(image)).float() / 255
    planes = values[None] if values.ndim == 2 else values.permute(2, 0, 1)
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
    known = _SUFFIXES.get(path.suffix.lower())
    if known is None:
        raise InputError(
            f"Pictures are written as {', '.join(_SUFFIXES)}, not as {path.suffix or 'nothing'!r} "
            f"({path})."
        )
    if picture.mode not in known:
        raise InputError(
            f"{path.suffix} cannot hold a picture of mode {picture.mode}: write {path.name} as "
            f"{path.with_suffix(picture.suffix).name}."
        )


def _plain_mode(image: Image.Image) -> str:
    clear = "transparency" in image.info or image.mode in ("PA", "La", "RGBa")
    if image.mode == "L":
        return "LA" if clear else "L"
    return "RGBA" if clear else "RGB"


def _converted(image: Image.Image, mode: str, path: Path) -> Image.Image:
    try:
        return image.convert(mode)
    except ValueError as error:
        raise DataError(
            f"{path} has colours of mode {image.mode}, which cannot be converted to {mode} "
            f"({error}). Save it as RGB."
        ) from error


def _from_floats(values: numpy.ndarray, path: Path) -> Picture:
    if not numpy.isfinite(values).all():
        raise DataError(f"{path} holds NaN or infinite values. Replace them first.")
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    span = high - low
    if not span > 0:
        span = 1.0
    channel = torch.from_numpy((values.astype(numpy.float64) - low) / span).float()
    notes = [] if (low, high) == (0.0, 1.0) else [f"σ is of 255 for a range of {low:g} to {high:g}"]
    return Picture(channel[None], "F", scale=span, offset=low, notes=notes)


def _from_integers(values: numpy.ndarray, path: Path) -> Picture:
    if values.min() < 0 or values.max() > 65535:
        raise DataError(
            f"{path} holds integers from {values.min()} to {values.max()}, for which black and "
            "white are not defined. Save it with 8 or 16 bits."
        )
    channel = torch.from_numpy(values.astype(numpy.float32) / 65535)
    return Picture(channel[None], "I;16", scale=65535.0)


def _values(picture: Picture) -> numpy.ndarray:
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
