"""What the referee says of a law, and of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from legato.errors import LawError

State = Literal["sound", "wrong", "not decided", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """One law: whether it holds, in words with numbers, and the largest relative error measured."""

    law: str
    state: State
    words: str
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.law:<24}{self.state:<14}{self.words}"


@dataclass(frozen=True, repr=False)
class LayerReport:
    """All verdicts on a layer; ``report["gradient"]`` is one of them.

    Args:
        subject: which layer.
        verdicts: one for each law, in the order they were tried.
        notes: what else was seen, such as warnings of the layer.
    """

    subject: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """Wrong if a law is broken, else not decided if one could not be, else sound."""
        found = {v.state for v in self.verdicts}
        return next((s for s in ("wrong", "not decided") if s in found), "sound")

    @property
    def sound(self) -> bool:
        """No law is broken, and all that were measured could be decided."""
        return self.state == "sound"

    def that_are(self, state: State) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.state == state)

    def require(self, *, decided: bool = False) -> LayerReport:
        """The report itself; a :class:`~legato.errors.LawError` where a law is broken.

        Args:
            decided: also where a law could not be decided.
        """
        failed = self.that_are("wrong") + (self.that_are("not decided") if decided else ())
        if failed:
            lines = [f"{self.subject} is {self.state}:"]
            raise LawError("\n  ".join([*lines, *(f"{v.law}: {v.words}" for v in failed)]))
        return self

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __getitem__(self, law: str) -> Verdict:
        return {v.law: v for v in self.verdicts}[law]

    def __repr__(self) -> str:
        lines = [f"{self.subject}: {self.state}", *map(str, self.verdicts)]
        return "\n  ".join([*lines, *(f"note: {n}" for n in self.notes)])


def sound(law: str, words: str, value: float | None = None) -> Verdict:
    return Verdict(law, "sound", words, value)


def wrong(law: str, words: str, value: float | None = None) -> Verdict:
    return Verdict(law, "wrong", words, value)


def not_decided(law: str, words: str, value: float | None = None) -> Verdict:
    return Verdict(law, "not decided", words, value)


def not_measured(law: str, words: str) -> Verdict:
    return Verdict(law, "not measured", words)
