"""The mean of the iterates of the primal–dual algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from legato.errors import InputError


@dataclass(frozen=True)
class Average:
    """The mean of the iterates first..N as output: first=1 (all computed ones) or 0 (the start).

    The ergodic mean, (1/N) Σ xⁿ. Reference: Chambolle and Pock (2016), Theorem 1.

    >>> A, mixed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), lg.Simplex()
    >>> pennies = lg.Saddle(A, mixed.conjugate(), nonsmooth=mixed)
    >>> algorithm = lg.PrimalDual(average=lg.Average(first=1))
    >>> found = lg.solve(pennies, algorithm, torch.tensor([0.9, 0.1]), stop=lg.Stop(500))
    >>> found.x.round(decimals=1)
    tensor([0.5000, 0.5000])
    """

    first: int = 1

    def __post_init__(self) -> None:
        if self.first not in (0, 1):
            raise InputError(f"Average runs over 1..N or 0..N: first is 0 or 1, not {self.first}.")
