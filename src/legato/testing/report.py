"""What a check measured, law by law, and the error where a law does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

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
        allowed = "" if self.bound is None else f"at most {self.bound:.1e}"
        return f"{self.law:<34}{self.value:<10.1e}{allowed or self.note}"


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


def hold(law: str, value: Any, bound: float, look_at: str) -> Measured:
    """The law as measured; an error unless value ≤ bound, so also where the value is NaN."""
    value = float(value)
    if not value <= bound:
        raise LawError(
            f"The law “{law}” does not hold: it is off by {value:.2g}, and {bound:.2g} is allowed. "
            f"{look_at}"
        )
    return Measured(law, value, bound)


def skip(law: str, why: str) -> Measured:
    return Measured(law, None, note=why)


def worst(values: Any) -> float:
    """The largest number; NaN if there is one (Python's max may lose it)."""
    return float(torch.tensor([float(v) for v in values], dtype=torch.float64).amax())
