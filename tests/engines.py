"""A solve and its gradient, by an engine and step by step, and what was said meanwhile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato._support import tree
from legato.errors import EagerWarning, LegatoWarning

REPLAYED = lg.Replayed()


@dataclass
class Outcome:
    """Everything that two engines must agree on; ``reasons`` are why one ran step by step."""

    x: list[Tensor]
    gradients: list[Tensor | None]
    iterations: Tensor
    residual: Tensor
    reasons: list[str]
    kinds: set[str]

    @property
    def fell_back(self) -> bool:
        return bool(self.reasons)


def loss(x: Any) -> Tensor:
    """Neither symmetric nor linear, so that it sees every entry differently."""
    parts = []
    for t in tree.leaves(x):
        slope = torch.cos(torch.arange(t.numel(), dtype=t.dtype)).reshape(t.shape)
        parts.append((slope * t + 0.5 * t * t).sum())
    return torch.stack(parts).sum()


def outcome(
    problem: Any, algorithm: Any = None, x0: Any = None, *, learned: Sequence[Tensor] = (),
    engine: Any = REPLAYED, stop: Any = None, gradient: Any = None,
) -> Outcome:  # fmt: skip
    """Solve, and differentiate with respect to what is learned."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        solution = lg.solve(problem, algorithm, x0, gradient=gradient, stop=stop, engine=engine)
        gradients: Sequence[Tensor | None] = ()
        if learned:
            gradients = torch.autograd.grad(loss(solution.x), learned, allow_unused=True)
    ours = [w for w in said if issubclass(w.category, LegatoWarning)]
    return Outcome(
        [t.detach() for t in tree.leaves(solution.x)],
        list(gradients),
        torch.as_tensor(solution.iterations),
        solution.residual,
        [str(w.message) for w in ours if w.category is EagerWarning],
        {w.category.__name__ for w in ours if w.category is not EagerWarning},
    )


def assert_alike(one: Outcome, other: Outcome, rtol: float | None = None) -> None:
    """The same numbers, as far as other orders of summation leave them, and the same words."""
    for a, b in zip([*one.x, *one.gradients], [*other.x, *other.gradients], strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            allowed = rtol or (1e-10 if a.dtype == torch.float64 else 1e-5)
            torch.testing.assert_close(a, b, rtol=allowed, atol=allowed)
    assert torch.equal(one.iterations, other.iterations)
    assert one.kinds == other.kinds


def compare(
    build: Callable[..., Any], learned: Callable[[], Sequence[Tensor]], **k: Any
) -> Outcome:
    """``build(*learned())`` gives what solve takes; the outcome of the replayed run."""
    found = []
    for engine in (lg.Eager(), REPLAYED):
        theta = learned()
        given = {n: v(*theta) if callable(v) else v for n, v in k.items()}
        found.append(outcome(*build(*theta), learned=theta, engine=engine, **given))
    assert_alike(*found)
    return found[1]
