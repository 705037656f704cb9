"""Users' own data: a folder of images and a folder of label masks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch
from torch import Tensor

from legato.console.files import DataError, read_bytes, some
from legato.console.pictures import SUFFIXES, open_image, read_image
from legato.studies.segment.data.datasets import IGNORE, Dataset, Sample, check_sample


class ImageFolder(Dataset):
    """Images and masks that share their names up to the suffix, subfolders included.

    A mask is an image file with one channel (grey or palette, PNG say) whose values are the
    classes 0, 1, …; 255 is unknown. Everything is read once at the start, so that what is wrong
    shows there and not hours later; without ``class_names`` the largest label tells how many
    classes there are.
    """

    def __init__(
        self, images: str | Path, masks: str | Path, class_names: Sequence[str] | None = None
    ) -> None:
        image_files, mask_files = _files(Path(images)), _files(Path(masks))
        unlabelled = sorted(set(image_files) - set(mask_files))
        if unlabelled:
            raise DataError(
                f"{len(unlabelled)} of {len(image_files)} images in {images} have no mask of the "
                f"same name in {masks}: {some(unlabelled)}. An image a.jpg needs a mask a.png; "
                "remove images that have none."
            )
        self.names = sorted(image_files)
        self._images = [image_files[name] for name in self.names]
        self._masks = [mask_files[name] for name in self.names]
        self.class_names = () if class_names is None else tuple(class_names)
        if class_names is not None and not 2 <= len(self.class_names) <= IGNORE:
            raise DataError(f"A data set has 2 to {IGNORE} classes, not {len(self.class_names)}.")
        if len(set(self.class_names)) < len(self.class_names):
            raise DataError(f"Two classes have the same name: {', '.join(self.class_names)}.")
        with ThreadPoolExecutor() as pool:  # decoding leaves the interpreter's lock
            present = set[int]().union(*pool.map(self._labels_of, range(len(self))))
        if present == {0}:
            raise DataError(
                f"The masks in {masks} hold no label but 0: there is nothing to tell apart. "
                "255 means unknown: where it is meant as a second class, save it as 1."
            )
        if class_names is None:
            missing = sorted(set(range(max(present) + 1)) - present)
            if missing:
                raise DataError(
                    f"The masks in {masks} hold labels up to {max(present)}, but none is "
                    f"{some([str(label) for label in missing])}: these look like grey levels, or "
                    "one mask holds a wrong value. Labels are meant to be 0, 1, …, 255 where "
                    "unknown; name all classes (--names) if this is right."
                )
            self.class_names = tuple(f"class {index}" for index in range(max(present) + 1))

    def __getitem__(self, index: int) -> Sample:
        image, labels = read_image(self._images[index]), read_mask(self._masks[index])
        sample = Sample(image, labels, self.names[index])
        check_sample(sample)
        return sample

    def _labels_of(self, index: int) -> set[int]:
        present = set(numpy.unique(self[index].labels.numpy()).tolist()) - {IGNORE}
        if self.class_names and max(present) >= len(self.class_names):
            raise DataError(
                f"The mask {self._masks[index]} holds the label {max(present)}, and there are "
                f"{len(self.class_names)} classes: {', '.join(self.class_names)}. Labels are "
                f"0 to {len(self.class_names) - 1}, or 255 where unknown."
            )
        return present


def read_mask(path: str | Path) -> Tensor:
    """The labels in an image file, (H, W) uint8."""
    mask = open_image(read_bytes(path), str(path))
    if mask.format in ("JPEG", "MPO"):
        raise DataError(
            f"The mask {path} is a JPEG, which does not keep labels as they are. Save it as PNG "
            "from the original labels."
        )
    if mask.mode not in ("1", "L", "P", "I", "I;16"):
        raise DataError(
            f"The mask {path} has the mode {mask.mode}, with colours instead of labels. Save it "
            "with one channel: each value is the number of a class, 255 is unknown."
        )
    labels = numpy.array(mask)
    if labels.max() > IGNORE or labels.min() < 0:
        raise DataError(
            f"The mask {path} holds values from {labels.min()} to {labels.max()}. Labels are 0 to "
            "254, and 255 is unknown."
        )
    return torch.from_numpy(labels.astype(numpy.uint8))


def _files(folder: Path) -> dict[str, Path]:
    """The image files in a folder, by their path in it without suffix."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give a folder with image files.")
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in SUFFIXES or path.name.startswith(".") or path.is_dir():
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise DataError(
                f"{files[name]} and {path} have the same name up to the suffix, so that it is not "
                "clear which is meant. Remove or rename one."
            )
        files[name] = path
    if not files:
        raise DataError(f"The folder {folder} holds no image files ({', '.join(SUFFIXES)}).")
    return files
