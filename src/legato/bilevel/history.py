"""What a fit leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """One step: loss and gradient norm where it began, how far it went, and what it cost.

    ``inner_iterations`` are those of the lower level, ``adjoint_iterations`` those of the backward
    solves. ``tolerance`` is None unless it is adaptive. ``failures`` says in words which trials
    or attempts of this step failed.
    """

    step: int
    loss: float
    gradient_norm: float
    change: float
    evaluations: int
    inner_iterations: int
    adjoint_iterations: int
    tolerance: float | None
    seconds: float
    failures: tuple[str, ...] = ()


@dataclass
class History:
    """The records of all steps, and each of their numbers as a list."""

    records: list[Record] = field(default_factory=list)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no steps)"
        first, last = self.records[0], self.records[-1]
        return f"History({len(self)} steps, loss {first.loss:.4g} → {last.loss:.4g})"

    @property
    def loss(self) -> list[float]:
        return [r.loss for r in self.records]

    @property
    def gradient_norm(self) -> list[float]:
        return [r.gradient_norm for r in self.records]

    @property
    def change(self) -> list[float]:
        return [r.change for r in self.records]

    @property
    def inner_iterations(self) -> list[int]:
        return [r.inner_iterations for r in self.records]

    @property
    def adjoint_iterations(self) -> list[int]:
        return [r.adjoint_iterations for r in self.records]

    @property
    def evaluations(self) -> list[int]:
        return [r.evaluations for r in self.records]

    @property
    def tolerance(self) -> list[float | None]:
        return [r.tolerance for r in self.records]

    @property
    def failures(self) -> list[tuple[int, str]]:
        return [(r.step, text) for r in self.records for text in r.failures]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain data, for JSON."""
        return [{**asdict(r), "failures": list(r.failures)} for r in self.records]

    @classmethod
    def from_dicts(cls, rows: list[dict[str, Any]]) -> History:
        return cls([Record(**{**row, "failures": tuple(row["failures"])}) for row in rows])


@dataclass(frozen=True)
class Fit:
    """The result of :func:`legato.fit`; the parameters themselves were changed in place.

    ``loss`` is the loss (without prox terms) at the final parameters, or the last one known where
    the fit was interrupted; ``reason`` says in words why it ended. ``converged``: a stopping rule
    was met, or no parameter moves any more. ``failures`` pairs steps with what failed in them, the
    last one included.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> loss = lambda inner: (theta - 1).square().sum()
    >>> result = lg.fit(loss, [theta], lg.optim.IPiano, steps=50)
    >>> result.loss < 1e-6, result.failed
    (True, False)
    >>> first = result.history.records[0]
    >>> first.step, first.loss, first.gradient_norm, result.history.loss[0]
    (0, 4.0, 4.0, 4.0)
    """

    history: History
    loss: float
    reason: str
    converged: bool = False
    interrupted: bool = False
    failed: bool = False
    failures: tuple[tuple[int, str], ...] = ()
