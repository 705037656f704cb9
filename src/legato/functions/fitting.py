"""Why a term does not fit a variable, said in words after torch has refused.

Looking before every call would cost every iteration.
"""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.checks import require_tensor
from legato._support.holding import held_tensors
from legato._support.tree import Var, leaves
from legato.errors import InputError
from legato.functions.algebra import Composed, Conjugate, Scaled, Shifted, Sum
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.operators import Operator


def explain(function: Function, x: Var) -> None:
    """Raise an :class:`~legato.errors.InputError` where kinds or shapes are the reason."""
    for part in leaves(x):
        require_tensor(part, "x")
    if isinstance(function, Sum):
        for term in function.terms:
            explain(term, x)
    elif isinstance(function, Separable):
        for block, part in zip(function.blocks, x, strict=False):
            explain(block, part)
    elif isinstance(function, Composed):
        explain(function.function, function.operator(x))
    elif isinstance(function, Scaled | Conjugate):
        explain(function.function, x)
    elif isinstance(x, Tensor):
        _explain_term(function, x)
        if isinstance(function, Shifted):
            explain(function.function, x)


def _explain_term(function: Function, x: Tensor) -> None:
    shape = tuple(x.shape)
    for axis in function.prox_couples():
        if not -x.ndim <= axis < x.ndim:
            raise InputError(
                f"{_named(function)} acts along axis {axis}, but x has shape {shape}: it has no "
                f"such axis. Give x that axis, e.g. by x.unsqueeze({min(axis, -1)}), or the term "
                "another one by its dim."
            )
    if isinstance(function, Shifted):
        own = list(held_tensors(function.c, "c"))
    elif any(isinstance(part, Operator) for part in vars(function).values()):
        return  # which says itself what it needs
    elif function.prox_couples():
        return  # a weight for each group, and not for each entry
    else:
        own = [
            held
            for held in held_tensors(function)
            if held.tensor.is_floating_point() or held.tensor.is_complex()
        ]
    for path, tensor, _ in own:
        if not _broadcasts(tensor, x):
            raise InputError(
                f"{_named(function)} does not fit x: its {path} has shape {tuple(tensor.shape)} "
                f"and x has shape {shape}, which do not broadcast. Give one number, one for each "
                "entry of x, or size one along the axes that share them."
            )


def _broadcasts(tensor: Tensor, x: Tensor) -> bool:
    try:
        torch.broadcast_shapes(tensor.shape, x.shape)
    except RuntimeError:
        return False
    return True


def _named(function: Function) -> str:
    other = function.__dict__.get("_conjugate")
    return repr(function) if other is None else f"{function!r}, the conjugate of {other!r},"
