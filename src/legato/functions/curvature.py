"""Second derivatives of a function that only knows its gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import vjp, vmap

from legato._support.checks import is_concrete
from legato._support.graph import (
    beyond_autograd,
    fresh_leaf,
    kept_as_they_are,
    leaves_behind,
    where_transforms_work,
)
from legato._support.tree import Var
from legato.errors import InputError


def hessian_by_autograd(grad: Callable[[Var], Var], x: Tensor, name: str) -> Tensor:
    r"""∇²f(x) of shape (…, n, n) for x of shape (…, n), by differentiating the gradient.

    .. math:: H_{ij} = ∂(∇f)_i/∂x_j

    One product with the Hessian for each of the n entries, all batch elements at once; a few more
    check that those have nothing to do with each other.
    Reference: Griewank and Walther (2008), Section 5.4.
    """
    if beyond_autograd([x]):
        with where_transforms_work():
            return _by_transforms(grad, x, name)
    attached = torch.is_grad_enabled()
    with torch.enable_grad():
        point = x if attached and x.requires_grad else fresh_leaf(x)
        with kept_as_they_are():
            slope = grad(point)
        if not slope.requires_grad:  # affine
            return x.new_zeros(*x.shape, x.shape[-1])
        # The leaf made here requires gradients itself: only what else does asks for a graph.
        attached = attached and (x.requires_grad or bool(leaves_behind([slope], [point])))

        def pull(cotangents: Tensor, *, batched: bool, differentiable: bool = attached) -> Tensor:
            (found,) = torch.autograd.grad(
                slope,
                point,
                cotangents,
                retain_graph=True,
                create_graph=differentiable,
                allow_unused=True,
                is_grads_batched=batched,
            )
            return torch.zeros_like(cotangents) if found is None else found

        try:
            rows = pull(_units(x), batched=True)
        except RuntimeError:  # an operation that cannot be batched
            rows = torch.stack([pull(unit, batched=False) for unit in _units(x)])
    if is_concrete():
        _require_separate(partial(pull, batched=False, differentiable=False), x, name)
    return rows.movedim(0, -2)


def _by_transforms(grad: Callable[[Var], Var], x: Tensor, name: str) -> Tensor:
    _, transposed, *_ = vjp(grad, x)

    def pull(cotangent: Tensor) -> Tensor:
        return transposed(cotangent)[0]

    rows = vmap(pull)(_units(x))
    if is_concrete():
        _require_separate(pull, x, name)
    return rows.movedim(0, -2)


def _require_separate(pull: Callable[[Tensor], Tensor], x: Tensor, name: str) -> None:
    """Refuse a function that couples batch elements: rows would be sums over all of them.

    A product with a vector that is zero on some elements is zero there if they are separate,
    exactly so; its other entries are random, since a coupling may not see constants. The bits of
    their numbers tell any two elements apart.
    """
    batch = x.shape[:-1]
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu").to(x)
    number = torch.arange(batch.numel(), device=x.device).reshape(*batch, 1)
    for bit in range((batch.numel() - 1).bit_length()):
        away = (number >> bit) & 1 == 0
        pulled = pull(torch.where(away, 0, probe))
        if bool((away & (pulled != 0) & ~pulled.isnan()).any()):
            raise InputError(
                f"{name} couples the leading axes of a variable of shape {tuple(x.shape)}, but "
                "a Hessian takes them for a batch of separate problems. Write it as a function of "
                "a vector, or use ForwardBackward, which needs no Hessian."
            )


def _units(x: Tensor) -> Tensor:
    """The n unit vectors, each for all batch elements: (n, …, n)."""
    n = x.shape[-1]
    units = torch.eye(n, dtype=x.dtype, device=x.device)
    return units.reshape(n, *(1,) * (x.ndim - 1), n).expand(n, *x.shape)
