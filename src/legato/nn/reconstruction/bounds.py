"""How far a reconstruction may be from the solution, told from where it ended."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, inner, leaves, tree_map
from legato.functions import Function, Zero
from legato.operators import Blur, Identity, Operator
from legato.problems import Saddle


@torch.no_grad()
def gap(problem: Any, x: Var, y: Var | None, modulus: float) -> Tensor:
    r"""By at most this the energy of each element is above its minimum.

    .. math:: E(x) − \min E ≤ h(Kx) + h^*(y) − ⟨Kx, y⟩ + g(x) + ⟨v, x⟩
              + (g + \tfrac m2‖· − x‖²)^*(−v), \qquad v = ∇f(x) + K^*y

    Any convex f lies above its tangent at x, and by m/2‖·‖² more where its modulus is m (not that
    of g): no
    conjugate of f is asked for. Infinite where neither m nor the domain of g bounds the last term.
    """
    batch = problem.batch(x)
    v = tree_map(torch.zeros_like, x)
    if not isinstance(problem.smooth, Zero):
        v = problem.smooth.grad(x)
    slack = x_free_zero(x, batch)
    if isinstance(problem, Saddle):
        assert y is not None
        answers = problem.operator(x)
        slack = problem.penalty.values(answers, batch) + problem.conjugate.values(y, batch)
        slack = slack - inner(answers, y, batch)
        v = tree_map(torch.add, v, problem.operator.adjoint(y))
    return slack + _beyond(problem.nonsmooth, x, v, modulus, batch)


def _beyond(g: Function, x: Var, v: Var, modulus: float, batch: int) -> Tensor:
    """g(x) + ⟨v, x⟩ minus the minimum over z of g(z) + ⟨v, z⟩ + m/2‖z − x‖²."""
    if isinstance(g, Zero):
        if modulus > 0:
            return inner(v, v, batch) / (2 * modulus)
        size = inner(v, v, batch)
        return torch.where(size > 0, torch.inf, 0.0)
    if modulus > 0:  # attained at a prox
        z = g.prox(tree_map(lambda a, b: a - b / modulus, x, v), 1 / modulus)
        move = tree_map(torch.sub, x, z)
        fall = g.values(x, batch) - g.values(z, batch) + inner(v, move, batch)
        return fall - 0.5 * modulus * inner(move, move, batch)
    down = tree_map(torch.neg, v)
    return g.values(x, batch) + inner(v, x, batch) + g.conjugate().values(down, batch)


def x_free_zero(x: Var, batch: int) -> Tensor:
    """Zeros, one for each element of a batch."""
    first = leaves(x)[0]
    return first.new_zeros(first.shape[:batch])


@torch.no_grad()
def least_singular_value(operator: Operator, like: Tensor) -> float:
    """The smallest singular value of an operator where it is known in closed form, else 0."""
    if isinstance(operator, Identity):
        return 1.0
    if isinstance(operator, Blur) and operator.boundary == "circular":
        axes = tuple(range(-operator.kernel.ndim, 0))
        sizes = tuple(like.shape[a] for a in axes)
        return float(torch.fft.fftn(operator.kernel.detach().double(), s=sizes).abs().amin())
    return 0.0
