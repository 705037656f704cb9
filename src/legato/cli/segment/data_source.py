"""From options to labelled images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from legato.errors import InputError

if TYPE_CHECKING:
    from legato.studies.segment.data import Dataset, Split

SCENES, QUICK_SCENES = (200, (96, 128)), (60, (48, 64))


@dataclass(frozen=True)
class Source:
    """Where labelled images come from: Stanford's, the user's own, or scenes drawn on the spot."""

    stanford: str | None = None
    classes: str = "surfaces"
    images: str | None = None
    masks: str | None = None
    names: tuple[str, ...] | None = None
    scenes: int | None = None
    size: tuple[int, int] | None = None

    def open(self) -> Dataset:
        """The data set, checked."""
        from legato.studies.segment.data import ImageFolder, StanfordBackground, SyntheticScenes

        if self.images is not None and self.masks is not None:
            return ImageFolder(self.images, self.masks, self.names)
        if self.stanford is not None:
            return StanfordBackground(self.stanford, self.classes).in_memory()  # type: ignore[arg-type]
        assert self.scenes is not None
        assert self.size is not None
        return SyntheticScenes(self.scenes, size=self.size).in_memory()


def source_of(
    data: Path | None,
    images: Path | None,
    masks: Path | None,
    *,
    classes: str = "surfaces",
    names: Sequence[str] | None = None,
    quick: bool = False,
) -> Source:
    """The source that the options name; those that contradict each other raise InputError."""
    if (images is None) != (masks is None):
        raise InputError("Give both --images and --masks: a mask for every image.")
    if data is not None and images is not None:
        raise InputError("Give --data, or --images and --masks, not both.")
    if classes not in ("surfaces", "regions"):
        raise InputError(f"--classes is surfaces or regions, not {classes!r}.")
    if names is not None and images is None:
        raise InputError("--names is for masks of your own; other data sets name their classes.")
    # Absolute: `evaluate` finds the data again from another folder.
    if images is not None and masks is not None:
        own = None if names is None else tuple(names)
        return Source(images=str(images.absolute()), masks=str(masks.absolute()), names=own)
    if data is not None:
        return Source(stanford=str(data.absolute()), classes=classes)
    if classes != "surfaces":
        raise InputError(
            "The scenes that legato draws have the classes surfaces; give --data for others."
        )
    count, size = QUICK_SCENES if quick else SCENES
    return Source(scenes=count, size=size)


def open_split(data: Dataset, file: Path | None, own: Path) -> Split:
    """The split in ``file``, else in the run's own file, else a fresh one: always the same."""
    from legato.studies.segment.data import Split, split

    if file is not None:
        return Split.load(file)
    return Split.load(own) if own.exists() else split(data.names, 0.2, seed=0)


def open_for_model(
    folder: Path,
    classes: Sequence[str] | None,
    data: Path | None,
    images: Path | None,
    masks: Path | None,
    split: Path | None = None,
    kind: str = "surfaces",
) -> tuple[Dataset, str]:
    """Images to test a model on, and which these are, in words.

    Without options the data that the settings in the model's ``folder`` name; of these the test
    images of ``split``, or of the split in the folder, or all where neither fits. Where the model's
    ``classes`` are not known, ``kind`` tells which of Stanford's are meant.
    """
    from legato.studies.segment.data import Split
    from legato.studies.segment.data.stanford import CLASS_NAMES

    if data is None and images is None and masks is None:
        source = _source_in(folder) or source_of(None, None, None)
    else:
        if data is not None and classes is not None and tuple(classes) == CLASS_NAMES["regions"]:
            kind = "regions"
        names = None if images is None else classes
        source = source_of(data, images, masks, classes=kind, names=names)
    found = source.open()
    if classes is not None and tuple(found.class_names) != tuple(classes):
        raise InputError(
            f"The model tells {', '.join(classes)} apart, and the data set has "
            f"{', '.join(found.class_names)}. Give data of the model's classes."
        )
    file = split or folder / "split.json"
    if split is not None or file.exists():
        parts = Split.load(file)
        if split is not None or set(parts.test) <= set(found.names):
            return found.subset(parts.test), f"the {len(parts.test)} test images of {file}"
    return found, f"all {len(found)} images"


def palette_of(classes: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """The colours of these classes, the same in every picture."""
    from legato.studies.segment.data.palettes import REGIONS, SURFACES, distinct_colours
    from legato.studies.segment.data.stanford import CLASS_NAMES

    known = {CLASS_NAMES["surfaces"]: SURFACES, CLASS_NAMES["regions"]: REGIONS}
    return known.get(tuple(classes), distinct_colours(len(classes)))


def _source_in(folder: Path) -> Source | None:
    """The source that a run's settings name; None where there are none to read."""
    try:
        stored = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        source = stored["settings"]["data"]
        for name in ("names", "size"):
            source[name] = None if source[name] is None else tuple(source[name])
        return Source(**source)
    except (OSError, ValueError, KeyError, TypeError):
        return None
