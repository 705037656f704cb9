"""What a check measured, law by law, and the error where a law does not hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from legato._support.checks import as_number
from legato.errors import LawError


@dataclass(frozen=True)
class Measured:
    """One law: how far off it was and what is allowed, or (value None) why it was not measured."""

    law: str
    value: float | None
    bound: float | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.law:<34}not measured: {self.note}"
        allowed = self.note if self.bound is None else f"at most {self.bound:.1e}"
        return f"{self.law:<34}{self.value:<10.1e}{allowed}"


@dataclass(frozen=True, repr=False)
class Report:
    """What was checked, with the measured numbers; ``report["adjoint identity"]`` is one of them.

    >>> legato.testing.check_operator(2.0 * lg.Identity(), torch.zeros(3))["norm over true norm"]
    1.0
    """

    subject: str
    laws: tuple[Measured, ...]

    def __getitem__(self, law: str) -> float | None:
        return {m.law: m.value for m in self.laws}[law]

    def __repr__(self) -> str:
        return "\n  ".join([self.subject, *map(str, self.laws)])


def hold(law: str, errors: Iterable[Any], bound: float, look: str) -> Measured:
    """The law with its largest error; raises unless that is at most ``bound``, so also for NaN."""
    numbers = [0.0, *(as_number(e) for e in errors)]
    value = float(torch.tensor(numbers, dtype=torch.float64).amax())  # Python's max may lose NaN
    if not value <= bound:
        raise LawError(
            f"The law “{law}” does not hold: it is off by {value:.3g}, and {bound:.3g} is allowed. "
            f"{look}"
        )
    return Measured(law, value, bound)


def skip(law: str, why: str) -> Measured:
    return Measured(law, None, note=why)
