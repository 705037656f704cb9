"""When the primal–dual algorithm begins anew, and what it remembers of its beginning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.tree import Var, tree_map
from legato.errors import InputError

_FIRST = 10
"""Iterations of a run before its length alone ends it."""


@dataclass(frozen=True)
class Restart:
    r"""Halpern's iteration, drawn back to where it began, which begins anew as its residual falls.

    .. math:: z^{k+1} = \tfrac{k+1}{k+2}\,\big((1 + ρ)\,T(z^k) − ρ\, z^k\big)
                        + \tfrac{1}{k+2}\, z^0

    T is one primal–dual step, z = (x, y), and ρ as large as keeps this sound: 1 without a smooth
    term, 1/2 with one whose Lipschitz constant is known. With r_k = ‖z^k − T(z^k)‖, in the norm of
    the steps, it begins anew at T(z^k) once r_k ≤ sufficient·r_0, or r_k ≤ necessary·r_0 and r_k
    rises, or k is that share of all iterations. Each element of a batch decides for itself; the
    decisions carry no derivative. PDLP restarts on the normalised duality gap, which is a problem
    of its own; r_k stands for it here, because it costs nothing and every term has it.
    Reference: Lu and Yang (2024), *Restarted Halpern PDHG for linear programming*; Applegate,
    Hinder, Lu and Lubin (2023) for restarts.

    Args:
        sufficient: the share of r_0 that is a reason of its own.
        necessary: the share of r_0 that is a reason where r_k rises.
        longest: the share of all iterations that one run may take.

    >>> A, b = torch.tensor([[1.0, 1.0]]), torch.tensor([1.0])
    >>> cost = lg.Linear(torch.tensor([1.0, 2.0]).double()) + lg.NonNegative()
    >>> program = lg.Saddle(A.double(), lg.Equality(b.double()), nonsmooth=cost)
    >>> for restart in None, lg.Restart():
    ...     algorithm = lg.PrimalDual(restart=restart)
    ...     print(lg.solve(program, algorithm, stop=lg.Stop(1000, tol=1e-9)).iterations)
    59
    9
    """

    sufficient: float = 0.2
    necessary: float = 0.8
    longest: float = 0.2

    def __post_init__(self) -> None:
        for name in ("sufficient", "necessary", "longest"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"Restart: {name} is a share, between 0 and 1, not {value!r}.")
        if self.sufficient > self.necessary:
            raise InputError(
                f"Restart: sufficient = {self.sufficient:g} must not be above necessary = "
                f"{self.necessary:g}."
            )

    def due(
        self, residual: Tensor, first: Tensor, last: Tensor, number: Tensor, total: Tensor
    ) -> Tensor:
        """Whether to begin anew after ``number`` iterations of this run and ``total`` in all."""
        fallen = residual <= self.sufficient * first
        turned = (residual <= self.necessary * first) & (residual > last)
        return (number > 1) & (
            fallen | turned | (number >= (self.longest * total).clamp(min=_FIRST))
        )

    def drawn(
        self, old: Var, new: Var, begun: Var, number: Tensor, anew: Tensor, reflection: float
    ) -> Var:
        """z^{k+1} from z^k, T(z^k) and z⁰, with k + 1 = ``number``; T(z^k) where it begins anew."""

        def move(z: Tensor, image: Tensor, start: Tensor) -> Tensor:
            axes = (1,) * (z.ndim - number.ndim)
            shape = (*number.shape, *axes)
            k, again = number.reshape(shape), anew.reshape(shape)
            weight = torch.where(again, 1.0, k / (k + 1)).to(start.real.dtype)
            further = reflection * torch.where(again, 0.0, 1.0).to(weight)
            ahead = image + further * (image - z)
            return start + weight * (ahead - start)

        return tree_map(move, old, new, begun)
