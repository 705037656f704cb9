"""Second derivatives of a function that only knows its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vjp, vmap

from legato._support.checks import inside_functional_transform, is_concrete
from legato._support.graph import fresh_leaf, leaves_behind
from legato._support.tree import Var
from legato.errors import InputError


def hessian_by_autograd(grad: Callable[[Var], Var], x: Tensor, name: str) -> Tensor:
    r"""∇²f(x) of shape (…, n, n) for x of shape (…, n), by differentiating the gradient.

    .. math:: H_{ij} = ∂(∇f)_i/∂x_j

    One product with the Hessian for each of the n entries, all batch elements at once; a few more
    check that those have nothing to do with each other.
    Reference: Griewank and Walther (2008), Section 5.4.
    """
    if inside_functional_transform():
        return _inside_transform(grad, x)
    attached = torch.is_grad_enabled()
    with torch.enable_grad():
        point = x if attached and x.requires_grad else fresh_leaf(x)
        slope = grad(point)
        if not slope.requires_grad:  # affine
            return x.new_zeros(*x.shape, x.shape[-1])
        # The leaf made here requires gradients itself: only what else does asks for a graph.
        attached = attached and (x.requires_grad or bool(leaves_behind([slope], [point])))
        rows = _rows(slope, point, attached)
    if x.ndim > 1 and is_concrete():
        _require_separate(slope, point, name)
    return rows


def _rows(slope: Tensor, point: Tensor, attached: bool) -> Tensor:
    units = _units(point)

    def pull(cotangents: Tensor, batched: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            slope,
            point,
            cotangents,
            retain_graph=True,
            create_graph=attached,
            allow_unused=True,
            is_grads_batched=batched,
        )
        return torch.zeros_like(cotangents) if found is None else found

    try:
        rows = pull(units, batched=True)
    except RuntimeError:  # an operation that cannot be batched
        rows = torch.stack([pull(unit, batched=False) for unit in units])
    return rows.movedim(0, -2)


def _require_separate(slope: Tensor, point: Tensor, name: str) -> None:
    """Refuse a function that couples batch elements: rows would be sums over all of them.

    A product with a vector that is zero on some elements is zero there if they are separate,
    exactly so; its other entries are random, since a coupling may not see constants. The bits of
    their numbers tell any two elements apart.
    """
    batch = point.shape[:-1]
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
    number = torch.arange(batch.numel(), device=point.device).reshape(*batch, 1)
    for bit in range((batch.numel() - 1).bit_length()):
        away = (number >> bit) & 1 == 0
        (pulled,) = torch.autograd.grad(
            slope,
            point,
            torch.where(away, 0, probe),
            retain_graph=True,
            allow_unused=True,
        )
        if pulled is not None and bool((away & (pulled != 0) & ~pulled.isnan()).any()):
            raise InputError(
                f"{name} couples the leading axes of a variable of shape {tuple(point.shape)}, but "
                "a Hessian takes them for a batch of separate problems. Write it as a function of "
                "a vector, or use ForwardBackward, which needs no Hessian."
            )


def _inside_transform(grad: Callable[[Var], Var], x: Tensor) -> Tensor:
    _, pull, *_ = vjp(grad, x)
    (rows,) = vmap(pull)(_units(x))
    return rows.movedim(0, -2)


def _units(x: Tensor) -> Tensor:
    """The n unit vectors, each for all batch elements: (n, …, n)."""
    n = x.shape[-1]
    units = torch.eye(n, dtype=x.dtype, device=x.device)
    return units.reshape(n, *(1,) * (x.ndim - 1), n).expand(n, *x.shape)
