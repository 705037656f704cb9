"""Symmetric positive definite systems Mx = r by conjugate gradients, with an exact derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, is_concrete
from legato._support.compiling import UnrecordableError, is_being_recorded, never_compiled
from legato._support.telling import tell
from legato._support.tree import Var, tree_map
from legato.errors import NotConvergedWarning

ITERATIONS = 1000
"""Products at most for one right side."""

TOLERANCE = 1e-12
"""Residual relative to r at which a system counts as solved; 50 units of rounding in float32."""

Product = Callable[[Var], Var]


def solved(product: Product, r: Var, start: Var, batch: int = 0) -> Var:
    r"""The solution of Mx = r, attached to everything that ``product`` and r depend on.

    .. math:: dx = M^{-1}(dr − dM\, x)

    Each element of a batch is solved to the tolerance by itself.
    Reference: Hestenes and Stiefel (1952).

    Args:
        product: x ↦ Mx, with M symmetric and positive definite in the inner product Re⟨x, y⟩.
        r: the right side.
        start: where the iteration begins; it counts as a constant.
        batch: how many leading axes are a batch.
    """
    if is_being_recorded():
        raise UnrecordableError("conjugate gradients stop by their residual")
    with torch.no_grad():
        x = _iterated(product, tree.detach(r), tree.detach(start), batch)
    if not torch.is_grad_enabled():
        return x
    rest = tree_map(torch.sub, r, product(x))
    flat = _Inverse.apply(tree.flatten(rest), x, product, batch)  # type: ignore[no-untyped-call]
    return tree_map(torch.add, x, tree.unflatten(x, flat))


class _Inverse(torch.autograd.Function):
    """Zeros with the derivative M⁻¹, at a solution whose residual is (nearly) zero."""

    @staticmethod
    def forward(rest: Tensor, like: Var, product: Product, batch: int) -> Tensor:
        return torch.zeros_like(rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.like, ctx.product, ctx.batch = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _inverse(ctx, grad), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _inverse(ctx, tangent)

    @staticmethod
    def vmap(info: Any, dims: Any, rest: Tensor, *others: Any) -> Any:
        rows = rest.movedim(dims[0], 0) if dims[0] is not None else [rest] * info.batch_size
        return torch.stack([_Inverse.apply(row, *others) for row in rows]), 0  # type: ignore[no-untyped-call]


def _inverse(ctx: Any, v: Tensor) -> Tensor:
    if v.ndim > 1:  # a batch of cotangents
        return torch.stack([_inverse(ctx, row) for row in v])
    r = tree.unflatten(ctx.like, v)
    zeros = tree_map(torch.zeros_like, tree.detach(ctx.like))
    return tree.flatten(solved(ctx.product, r, zeros, ctx.batch))


@never_compiled("conjugate gradients stop by their residual")
def _iterated(product: Product, r: Var, x: Var, batch: int) -> Var:
    # In units of r, for squares of small cotangents are no numbers.
    unit = _unit(r, batch)
    r, x = (tree_map(lambda t: t / _lifted(unit, t), v) for v in (r, x))
    found = _in_units(product, r, x, batch)
    return tree_map(lambda t: t * _lifted(unit, t), found)


def _unit(r: Var, batch: int) -> Tensor:
    tops = [tree.largest_over(t.abs(), t.ndim - batch) for t in tree.leaves(r)]
    top = tops[0] if len(tops) == 1 else torch.stack(tops).amax(0)
    return torch.where(top > 0, top, 1.0)


def _lifted(per_element: Tensor, t: Tensor) -> Tensor:
    return per_element.reshape(per_element.shape + (1,) * (t.ndim - per_element.ndim))


def _in_units(product: Product, r: Var, x: Var, batch: int) -> Var:
    eps = torch.finfo(tree.leaves(r)[0].dtype).eps
    target = max(TOLERANCE, 50 * eps) * tree.inner(r, r, batch).sqrt()
    rest = tree_map(torch.sub, r, product(x))
    p, square = rest, tree.inner(rest, rest, batch)
    for _ in range(ITERATIONS):
        alive = square.sqrt() > target
        if is_concrete() and not bool(alive.any()):
            return x
        image = product(p)
        curvature = tree.inner(p, image, batch)
        alpha = torch.where(alive & (curvature > 0), square / curvature, 0.0)
        x = _moved(x, alpha, p)
        rest = _moved(rest, -alpha, image)
        new = tree.inner(rest, rest, batch)
        beta = torch.where(alive & (square > 0), new / torch.where(square > 0, square, 1.0), 0.0)
        p = _moved(rest, beta, p)
        square = new
    if is_concrete():
        _say(square.sqrt(), target)
    return x


def _moved(x: Var, amount: Tensor, direction: Var) -> Var:
    return tree_map(lambda t, d: t + _lifted(amount, t) * d, x, direction)


def _say(residual: Tensor, target: Tensor) -> None:
    """Warn where the tolerance was missed by more than its rounding."""
    excess = residual / torch.where(target > 0, target, 1.0)
    worst = as_number(excess.amax())
    if worst > 100:
        tell(
            f"A quadratic subproblem was left after {ITERATIONS} conjugate gradients with a "
            f"residual {worst:.1e} times as large as its tolerance: it is badly conditioned, or "
            "has no unique solution. Take a larger rho or a smaller step, or scale the data.",
            NotConvergedWarning,
        )
