"""Which images train and which test, drawn once and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from legato._support.files import write_text
from legato.console.files import DataError, some


class Split(NamedTuple):
    """The names to train on and the names to test on."""

    train: list[str]
    test: list[str]
    seed: int

    def save(self, path: str | Path) -> None:
        """Write the split as JSON."""
        write_text(Path(path), json.dumps(self._asdict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Split:
        """The split in a file that ``save`` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            parts = cls(list(content["train"]), list(content["test"]), int(content["seed"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} holds no split ({type(error).__name__}: {error}). It has to be JSON with "
                'the lists "train" and "test" and the number "seed", as Split.save writes it.'
            ) from error
        if not all(isinstance(name, str) for name in parts.train + parts.test):
            raise DataError(f"{path} holds names that are not text. Names are quoted in JSON.")
        _unique(parts.train + parts.test, f"the split {path}")
        return parts


def split(names: Iterable[str], test: int | float = 0.2, seed: int = 0) -> Split:
    """Draw ``test`` of the names (a number, or a share below 1) for testing.

    The same names and seed give the same split, whatever the order of the names.
    """
    ordered = sorted(names)
    _unique(ordered, "the names to split")
    count = round(test * len(ordered)) if isinstance(test, float) else test
    if not 0 < count < len(ordered):
        raise DataError(
            f"A split of {len(ordered)} images with {count} for testing (test={test!r}) leaves one "
            "side empty. Give a number of images, or a share between 0 and 1."
        )
    places = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = set(places[:count])
    return Split(
        train=[name for index, name in enumerate(ordered) if index not in chosen],
        test=[name for index, name in enumerate(ordered) if index in chosen],
        seed=seed,
    )


def _unique(names: list[str], where: str) -> None:
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(f"{len(twice)} names occur twice in {where}: {some(twice)}.")
