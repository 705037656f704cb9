"""A primal–dual iteration that begins anew and finds its balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import wide_norm
from legato._support.tree import Var, expand_over, tree_map
from legato.algorithms.balance import AdaptiveBalance
from legato.algorithms.restart import Restart
from legato.algorithms.saddle.states import AdaptiveState, MirrorPair
from legato.algorithms.saddle.steps import Steps, Units

_ROUNDING = 1e3
"""Units of rounding by which a variable must have moved for its way to count."""


@dataclass(frozen=True)
class Adaptation:
    r"""What follows a primal–dual step T(z) in the Euclidean geometry: a restart, a new balance.

    The fields are those of :class:`PrimalDual`, which has at least one of them; None is left out.
    """

    restart: Restart | None
    balance: AdaptiveBalance | None

    def begin(self, start: MirrorPair, units: Units, batch: tuple[int, ...]) -> AdaptiveState:
        """The first state; ``batch`` is the shape of the axes whose elements adapt alone."""
        zero = tree.real_like(tree.leaves(start.primal)[0]).new_zeros(batch)
        r = torch.full_like(zero, 1.0 if self.balance is None else self.balance.start)
        endless = torch.full_like(zero, torch.inf)
        return AdaptiveState(*start, *start, units, r, start, zero, zero, endless, endless, zero)

    def after(
        self, state: AdaptiveState, found: MirrorPair, steps: Steps, reflection: float
    ) -> AdaptiveState:
        """The state after ``found`` = T(z), made with ``steps`` (see ``Restart`` for ρ)."""
        here = MirrorPair(state.primal, state.dual)
        number, total = state.number + 1, state.total + 1
        with torch.no_grad():
            move, batch = tree_map(torch.sub, found, here), number.ndim
            residual = torch.hypot(
                _weighted_norm(move.primal, _reciprocal(steps.tau), batch),
                _weighted_norm(move.dual, _reciprocal(steps.sigma), batch),
            )
            first = torch.where(number == 1, residual.to(number), state.first)
            if self.restart is None:
                assert self.balance is not None
                anew = self.balance.due(number, total)
            else:
                anew = self.restart.due(residual, first, state.last, number, total)
            balance, changes = self._balanced(state, found, anew)
        moved = found
        if self.restart is not None:
            moved = self.restart.drawn(here, found, state.begun, number, anew, reflection)
        begun = tree_map(lambda z, z0: torch.where(_beside(anew, z), z, z0), found, state.begun)
        return AdaptiveState(
            *moved,
            *found,
            state.units,
            balance,
            begun,
            torch.where(anew, 0.0, number),
            total,
            first,
            torch.where(anew, torch.inf, residual).to(first),
            changes,
        )

    def _balanced(
        self, state: AdaptiveState, found: MirrorPair, anew: Tensor
    ) -> tuple[Tensor, Tensor]:
        """r and the number of its changes, after a run that ends at ``found`` where ``anew``."""
        if self.balance is None:
            return state.balance, state.changes
        batch, units, r = anew.ndim, state.units, state.balance
        sizes = (units.coupling, _reciprocal(units.dual))
        ways = tree_map(torch.sub, found, state.begun)
        primal, dual = (_weighted_norm(v, s, batch) for v, s in zip(ways, sizes, strict=True))
        # In the norm of the steps rounding in one variable is as large as that in the other: a y
        # that is 0 but for cancellation moves by nothing else.
        shares = (r**-0.5, r**0.5)
        lengths = [_weighted_norm(z, s, batch) for z, s in zip(found, sizes, strict=True)]
        size = torch.hypot(*(n * share for n, share in zip(lengths, shares, strict=True)))
        least = _ROUNDING * torch.finfo(r.dtype).eps * size
        sound = anew
        for way, share in zip((primal, dual), shares, strict=True):
            sound = sound & (way * share > least) & way.isfinite()
        return self.balance.changed(r, primal.to(r), dual.to(r), sound, state.changes)


def change_at_balance_one(before: AdaptiveState, after: AdaptiveState, batch: int) -> Tensor:
    r"""How far T would move z with steps of balance 1, for each element of a batch, at most.

    .. math:: \sqrt{\max(1, 1/r)^2 ‖x^+ − x‖^2 + \max(1, r)^2 ‖y^+ − y‖^2}

    A variable that moves little because its step is short has not arrived; with a longer step
    it moves by no more than the steps' ratio (Beck 2017, Theorem 10.9).
    """
    r = before.balance if before.balance.ndim == batch else before.balance.reshape(-1)
    along = tree_map(torch.sub, after.x, before.primal)
    across = tree_map(torch.sub, after.y, before.dual)
    return torch.hypot(
        _weighted_norm(along, 1.0, batch) * _largest(1 / r, batch),
        _weighted_norm(across, 1.0, batch) * _largest(r, batch),
    )


def _beside(t: Tensor, like: Tensor) -> Any:
    """One number for each element of a batch, such that it broadcasts against its entries."""
    return expand_over(t, like.ndim - t.ndim)


def _reciprocal(steps: Any) -> Any:
    return tree.map_steps(lambda s: 1 / s, steps)


def _weighted_norm(x: Var, weights: Any, batch: int) -> Tensor:
    """(Σ w_j |x_j|²)^½ for each element of a batch."""
    if isinstance(x, tuple):
        each = weights if isinstance(weights, tuple) else (weights,) * len(x)
        parts = [_weighted_norm(t, w, batch) for t, w in zip(x, each, strict=True)]
        return torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scaled = x * weights**0.5
    if scaled.ndim == batch:
        return scaled.abs()
    return wide_norm(scaled, tuple(range(batch, scaled.ndim)))


def _largest(factor: Tensor, batch: int) -> Tensor:
    """At least 1, for each element of a batch or, where that is not asked for, for all."""
    factor = factor.clamp(min=1)
    return factor if factor.ndim == batch else factor.amax()
