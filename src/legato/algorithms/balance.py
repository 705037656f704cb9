"""A balance between primal and dual steps that the iteration finds by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.algorithms.start import require_positive_step
from legato.errors import InputError

_FIRST = 10
"""Iterations before the first change."""
_AT_ONCE = 10.0
"""Factor by which r changes at most: one run may have moved a variable by chance."""
_RANGE = 1e5
"""Factor by which r differs from its start at most."""


@dataclass(frozen=True)
class AdaptiveBalance:
    r"""The balance r between primal and dual steps, taken from how far both variables move.

    .. math:: \log r ← θ \log\frac{‖Δx‖}{‖Δy‖} + (1 − θ) \log r

    r changes by a factor of 10 at most at a time, and of 10⁵ in all. Δx and Δy lead from where the
    last run began to where it ended: from one restart to the next, or
    without ``restart`` from iteration 10, 20, 40, … to the next of these. After so many changes r
    stays, and the method is that with a fixed balance. Each element of a batch has its own r, which
    carries no derivative; ``Solution.steps["balance"]`` reports it. The primal weight of PDLP is
    1/r. Reference: Applegate, Díaz, Hinder, Lu, Lubin, O'Donoghue and Schudy (2021), *Practical
    large-scale linear programming using primal-dual hybrid gradient*.

    Args:
        start: the first r.
        share: θ in (0, 1].
        changes: how many changes at most.

    >>> energy = lg.SquaredDistance(torch.linspace(0, 1, 50)) + lg.L1(5.0) @ lg.Differences((-1,))
    >>> for balance in 1.0, lg.AdaptiveBalance():
    ...     found = lg.solve(energy, lg.PrimalDual(balance=balance), stop=lg.Stop(500))
    ...     print(bool(found.gap < 1e-3))
    False
    True
    """

    start: float = 1.0
    share: float = 0.5
    changes: int = 100

    def __post_init__(self) -> None:
        require_positive_step(self.start, "start")
        if isinstance(self.start, Tensor):
            raise InputError(
                "AdaptiveBalance: start is a number. What is learned is a balance of its own: "
                "PrimalDual(balance=tensor)."
            )
        if not 0 < self.share <= 1:
            raise InputError(f"AdaptiveBalance: share lies in (0, 1], not {self.share!r}.")
        if isinstance(self.changes, bool) or not isinstance(self.changes, int) or self.changes < 1:
            raise InputError(
                f"AdaptiveBalance: changes must be a positive integer, not {self.changes!r}."
            )

    def due(self, number: Tensor, total: Tensor) -> Tensor:
        """Without restarts: whether iterations 10, 20, 40, … are reached."""
        return number >= (0.5 * total).clamp(min=_FIRST)

    def changed(
        self, balance: Tensor, primal: Tensor, dual: Tensor, sound: Tensor, made: Tensor
    ) -> tuple[Tensor, Tensor]:
        """r and the number of changes made, after both variables have moved so far.

        ``sound`` says that both moved by more than rounding.
        """
        sound = sound & (made < self.changes)
        ratio = torch.where(sound, primal, 1.0) / torch.where(sound, dual, 1.0)
        new = ratio**self.share * balance ** (1 - self.share)
        new = torch.maximum(torch.minimum(new, balance * _AT_ONCE), balance / _AT_ONCE)
        new = new.clamp(min=self.start / _RANGE, max=self.start * _RANGE)
        return torch.where(sound, new, balance), made + sound.to(made.dtype)
