"""Is this archive the whole Stanford Background data set?"""

from __future__ import annotations

from pathlib import Path

from legato.console.files import DataError, some
from legato.console.pictures import decode_image
from legato.studies.segment.data.label_text import parse_labels
from legato.studies.segment.data.stanford import CLASS_NAMES, IMAGES
from legato.studies.segment.data.stanford_files import stanford_files

_KINDS = frozenset(("image", "surfaces", "regions", "horizons"))


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
