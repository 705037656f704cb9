"""One step T of forward–backward or primal–dual splitting, taken apart where its prox stands."""

from __future__ import annotations

import operator as arithmetic
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.functions import Function, Zero, mirror_prox
from legato.geometry import Euclidean
from legato.problems import Composite, Saddle


class Halves(NamedTuple):
    """The arguments of the proxes, and what they make of them: T(z) = (x, y)."""

    u: Var
    x: Var
    v: Var
    y: Var


@dataclass(frozen=True)
class Splitting:
    r"""z ↦ T(z) for z = (x,) or (x, y), in the Euclidean geometry.

    .. math:: u = x − τ(∇f(x) + K^*y), \quad x^+ = \mathrm{prox}_{τg}(u), \quad
              v = y + σK(2x^+ − x), \quad y^+ = \mathrm{prox}_{σh^*}(v)

    Reference: Chambolle and Pock (2016). Without K this is forward–backward splitting.

    Args:
        problem: f + g, or f + g + h∘K.
        tau: τ, which broadcasts to x.
        sigma: σ, which broadcasts to y; None without K.
    """

    problem: Composite | Saddle
    tau: Any
    sigma: Any = None

    def __call__(self, z: tuple[Var, ...]) -> tuple[Var, ...]:
        halves = self.halves(z)
        return (halves.x, halves.y) if self.sigma is not None else (halves.x,)

    def halves(self, z: tuple[Var, ...]) -> Halves:
        x, problem = z[0], self.problem
        slope: Var = None
        if not self.is_affine:
            slope = problem.smooth.grad(x)
        if isinstance(problem, Saddle):
            back = problem.operator.adjoint(z[1])
            slope = back if slope is None else tree_map(torch.add, slope, back)
        u = x if slope is None else tree.sub_scaled(x, self.tau, slope)
        new = self.primal(u)
        if not isinstance(problem, Saddle):
            return Halves(u, new, (), ())
        rise = problem.operator(tree.extrapolate(new, x))
        down = tree.map_steps(arithmetic.neg, self.sigma)
        v = tree.sub_scaled(z[1], down, rise)
        return Halves(u, new, v, self.dual(v))

    def primal(self, u: Var) -> Var:
        """The prox of τg."""
        return mirror_prox(self.problem.nonsmooth, Euclidean(), u, self.tau)

    def dual(self, v: Var) -> Var:
        """The prox of σh*."""
        return mirror_prox(self.conjugate, Euclidean(), v, self.sigma)

    @property
    def is_affine(self) -> bool:
        """Whether f has no curvature at all."""
        return isinstance(self.problem.smooth, Zero)

    @property
    def conjugate(self) -> Function:
        return self.problem.conjugate  # type: ignore[union-attr]

    @property
    def detached(self) -> Splitting:
        """The same with steps that count as constants."""
        return Splitting(self.problem, _constant(self.tau), _constant(self.sigma))


def _constant(step: Any) -> Any:
    return tree.map_steps(lambda s: s.detach() if isinstance(s, Tensor) else s, step)
