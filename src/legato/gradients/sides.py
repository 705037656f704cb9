"""Weights of 0 at whose kinks iterates arrive from both sides in turn."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, is_concrete
from legato._support.telling import tell
from legato.errors import GradientError, InexactGradientWarning
from legato.gradients.base import Task
from legato.gradients.ties import weights_of_zero
from legato.running import Run

_STEPS = 12
"""Further steps in which a side that is not settled shows itself."""
_CHANGES = 0.05
"""Share of a derivative that may change with them without a word."""


def warn_if_sides_change(task: Task, done: Run) -> None:
    r"""The derivative at a weight of exactly 0 depends on the side of a kink, not on its distance.

    .. math:: \frac{∂}{∂w} \operatorname{prox}_{w|·|}(z) \Big|_{w = 0^+} = −\operatorname{sign}(z)

    Where x tends to the kink as its signs alternate, what an iteration adds to the derivative does
    so as well, however small the last change was. The next steps show it.
    Reference: Griewank and Walther (2008), Chapter 14.
    """
    if task.stop.tol is None or not is_concrete() or not torch.is_grad_enabled():
        return
    if not any(t.requires_grad for t in tree.leaves(done.state)):
        return
    weights = weights_of_zero(task.problem)
    if not weights or not bool(torch.as_tensor(done.converged).any()):
        return
    changes = _changes(task, done, weights)
    if changes > _CHANGES:
        tell(
            "Complementarity is not strict: a weight of exactly 0 belongs to an entry that ends at "
            "a kink of its term, and iterates come there from both sides in turn. What one "
            f"iteration adds to the gradient of such weights still changes by {changes:.0%}, so "
            "Unroll's gradient of them depends on where it stopped. Keep weights above 0, or use "
            "Implicit(), which takes one side.",
            InexactGradientWarning,
        )


def _changes(task: Task, done: Run, weights: list[Tensor]) -> float:
    """By how much A_θᵀr changes at weights of 0 in further steps, relative to its size."""
    chance = torch.Generator().manual_seed(0)
    algorithm, state = task.algorithm, tree.detach(done.state)
    with contextlib.suppress(GradientError):  # an average has no such map
        # Momentum and restarts weigh one iteration's share of the derivative by its number.
        algorithm, state = algorithm.fixed_point_map(state)
    cotangents: list[Tensor] | None = None
    first: list[Tensor] = []
    worst = 0.0
    for _ in range(_STEPS):
        with torch.enable_grad():
            try:
                after = algorithm.step(task.problem, state)
            except (GradientError, RuntimeError):
                return 0.0
            live = [t for t in tree.leaves(after) if t.requires_grad]
            if not live:
                return 0.0
            if cotangents is None:
                cotangents = [
                    torch.randn(t.shape, generator=chance, device="cpu").to(t) for t in live
                ]
            found = torch.autograd.grad(live, weights, cotangents, allow_unused=True)
        seen = [
            torch.where(w.detach() == 0, torch.zeros_like(w) if g is None else g, 0.0)
            for g, w in zip(found, weights, strict=True)
        ]
        first = first or seen
        for one, other in zip(seen, first, strict=True):
            size = torch.maximum(tree.norm((one,)), tree.norm((other,)))
            if bool(size > 0):
                worst = max(worst, as_number(tree.norm((one - other,)) / size))
        state = tree.detach(after)
    return worst
