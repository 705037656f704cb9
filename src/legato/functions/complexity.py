"""Complex numbers: which functions take them, and how a map of moduli moves them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function


def moduli(x: Tensor) -> Tensor:
    """|x_i| of complex numbers; real ones as they are."""
    return x.abs() if x.is_complex() else x


def by_moduli(move: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    r"""A map of real numbers, odd in each of them, on the moduli of complex ones.

    .. math:: x_i ↦ \frac{x_i}{|x_i|}\, p(|x|)_i

    At x_i = 0 the quotient is that of the smallest numbers, the derivative of p.
    """
    if not x.is_complex():
        return move(x)
    size = x.abs()
    size = torch.where(size == 0, torch.finfo(size.dtype).tiny ** 0.5, size)
    return x * (move(size) / size)


def require_real(function: Function, x: Var) -> None:
    """Refuse complex numbers for a function that compares them, or is not known to take them."""
    if isinstance(x, Tensor) and x.is_complex():
        raise InputError(
            f"{function!r} is a function of real numbers, but x is {x.dtype}. Apply it to a real "
            "quantity, e.g. behind operators.AsComplex().T, which takes the real part; or, where "
            "your own formulas hold for complex numbers, say takes_complex = True in its class."
        )


def require_same_numbers(x: Var, gradient: Var) -> Var:
    """The gradient; refused where it is complex although x is real."""
    complex_ = isinstance(gradient, Tensor) and gradient.is_complex()
    if complex_ and isinstance(x, Tensor) and not x.is_complex():
        raise InputError(
            "The adjoint of an operator made complex numbers for a real variable. If the variable "
            "is to be real, see it as complex first, operator @ operators.AsComplex(); else start "
            "at a complex x0."
        )
    return gradient
