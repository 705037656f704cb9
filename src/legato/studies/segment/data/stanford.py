"""Stanford Background: 715 outdoor scenes, with 3 geometric or 8 semantic classes."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Literal

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from legato.console.files import DataError, DataWarning, some
from legato.console.pictures import decode_image
from legato.studies.segment.data.cache import Encoded, cache_folder, cached
from legato.studies.segment.data.datasets import Dataset, Sample, check_sample
from legato.studies.segment.data.palettes import REGIONS, SURFACES
from legato.studies.segment.data.stanford_files import (
    HOW_TO_GET_IT,
    fingerprint,
    parse_labels,
    stanford_files,
)

Classes = Literal["surfaces", "regions"]

CLASS_NAMES: dict[Classes, tuple[str, ...]] = {
    "surfaces": tuple(SURFACES),
    "regions": tuple(REGIONS),
}
IMAGES = 715
_KINDS = frozenset(("image", "surfaces", "regions", "horizons"))


class StanfordBackground(Dataset):
    """Gould, Fulton, Koller: Decomposing a scene into geometric and semantically consistent
    regions, ICCV 2009.

    ``path`` is the original archive, the folder that holds ``iccv09Data``, or that folder. What
    was read and checked is kept as one file in the folder ``cache`` (``cache_folder()`` unless
    given; False for none), and read from there while the source stays the same.
    """

    def __init__(
        self,
        path: str | Path,
        classes: Classes = "surfaces",
        cache: str | Path | Literal[False] | None = None,
    ) -> None:
        if classes not in CLASS_NAMES:
            raise DataError(
                f"Stanford Background has no classes {classes!r}. Choose one of "
                f"{', '.join(map(repr, CLASS_NAMES))}."
            )
        path = Path(path)
        self.class_names = CLASS_NAMES[classes]
        if cache is False:
            self._encoded = read_stanford(path, classes)
        else:
            self._encoded = cached(
                folder=cache_folder() if cache is None else Path(cache),
                source=path,
                kind=f"stanford-{classes}",
                fingerprint=fingerprint(path),
                build=lambda: read_stanford(path, classes),
            )
        self.names = list(self._encoded)
        if len(self) != IMAGES:
            warnings.warn(
                f"{path} holds {len(self)} images; the original data set has {IMAGES}. Results "
                "on a part of it do not compare with published ones.",
                DataWarning,
                stacklevel=2,
            )

    def __getitem__(self, index: int) -> Sample:
        name = self.names[index]
        image, labels = self._encoded[name]
        return Sample(decode_image(image, name), _decode_labels(labels), name)


def read_stanford(path: Path, classes: Classes) -> Encoded:
    """Every image with its labels, both as compressed bytes; all of them checked."""
    images: dict[str, bytes] = {}
    labels: dict[str, NDArray[numpy.uint8]] = {}
    for kind, name, data in stanford_files(path, frozenset(("image", classes))):
        if name in (images if kind == "image" else labels):
            raise DataError(f"{path} holds the {kind} file of {name} twice. {HOW_TO_GET_IT}")
        if kind == "image":
            images[name] = data
        else:
            where = f"labels/{name}.{classes}.txt"
            labels[name] = parse_labels(data, len(CLASS_NAMES[classes]), where)
    if not images:
        raise DataError(f"{path} holds no images of Stanford Background. {HOW_TO_GET_IT}")
    missing = sorted(set(images) - set(labels))
    if missing:
        raise DataError(
            f"{len(missing)} of {len(images)} images in {path} have no labels/ID.{classes}.txt: "
            f"{some(missing)}. Remove these images, or fetch the data set again."
        )
    encoded: Encoded = {}
    for name in sorted(images):
        image = decode_image(images[name], f"images/{name}.jpg")
        check_sample(Sample(image, torch.from_numpy(labels[name]), name))
        encoded[name] = images[name], _encode_labels(labels[name])
    return encoded


def _encode_labels(labels: NDArray[numpy.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(labels).save(buffer, "PNG")
    return buffer.getvalue()


def _decode_labels(data: bytes) -> Tensor:
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        return torch.from_numpy(numpy.array(image))


def verify_stanford(path: str | Path) -> None:
    """Raise unless all 715 images can be decoded and have both label maps, of the sizes that
    ``horizons.txt`` states.
    """
    classes: dict[str, int] = {kind: len(names) for kind, names in CLASS_NAMES.items()}
    stated: dict[str, tuple[int, int]] = {}
    found: dict[str, dict[str, tuple[int, int]]] = {"image": {}, "surfaces": {}, "regions": {}}
    for kind, name, data in stanford_files(Path(path), _KINDS):
        if kind == "horizons":
            stated = _stated_sizes(data)
        elif kind == "image":
            _, height, width = decode_image(data, f"images/{name}.jpg").shape
            found[kind][name] = height, width
        else:
            labels = parse_labels(data, classes[kind], f"labels/{name}.{kind}.txt")
            found[kind][name] = labels.shape[0], labels.shape[1]
    if len(stated) != IMAGES:
        raise DataError(f"{path} states {len(stated)} images in horizons.txt, not {IMAGES}.")
    for kind, sizes in found.items():
        if len(sizes) != IMAGES:
            what = "images" if kind == "image" else f"{kind} label files"
            raise DataError(f"{path} holds {len(sizes)} {what}, not {IMAGES}.")
        wrong = sorted(name for name, size in sizes.items() if stated.get(name) != size)
        if wrong:
            raise DataError(
                f"{path} holds {len(wrong)} {kind} files of another size than horizons.txt states: "
                f"{some(wrong)}."
            )


def _stated_sizes(text: bytes) -> dict[str, tuple[int, int]]:
    """Lines of name, width, height and the row of the horizon."""
    sizes = {}
    for line in text.decode(errors="replace").splitlines():
        try:
            name, width, height, _ = line.split()
            sizes[name] = int(height), int(width)
        except ValueError:
            raise DataError(f"horizons.txt has a line {line!r} that names no image size.") from None
    return sizes
