"""Looking into the autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from legato._support.checks import inside_functional_transform

_MADE_INSIDE = "_made_by_legato"
"""The mark of a leaf that no user knows."""


def leaves_behind(outputs: Iterable[Tensor], known: Iterable[Tensor]) -> list[Tensor]:
    """Leaf tensors requiring a gradient that influence ``outputs`` other than through ``known``.

    Points that were made inside to differentiate at are nobody's parameters, and left out.
    """
    known, outputs = list(known), list(outputs)
    passed = {id(t) for t in known}
    barriers = {t.grad_fn for t in known if t.grad_fn is not None}
    stack = [out.grad_fn for out in outputs if out.grad_fn is not None]
    visited: set[Any] = set()
    found = {id(t): t for t in outputs if t.is_leaf and t.requires_grad}
    while stack:
        node = stack.pop()
        if node in visited or node in barriers:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and not hasattr(variable, _MADE_INSIDE):
            found.setdefault(id(variable), variable)
        stack.extend(parent for parent, _ in node.next_functions if parent is not None)
    return [t for key, t in found.items() if key not in passed]


def fresh_leaf(tensor: Tensor) -> Tensor:
    """A point to differentiate at: the same numbers without history, which require a gradient.

    Of a dual number of forward mode it keeps the tangent, which detach() drops: a derivative that
    is computed at this point then has the tangent that it should have.
    """
    leaf = tensor.detach().requires_grad_()
    setattr(leaf, _MADE_INSIDE, True)
    if forward_ad._current_level < 0:
        return leaf
    tangent = forward_ad.unpack_dual(tensor).tangent
    return leaf if tangent is None else forward_ad.make_dual(leaf, tangent)


def beyond_autograd(tensors: Iterable[Tensor]) -> bool:
    """Whether a derivative taken here has to come from torch.func.

    Inside its transforms autograd would not see the outer ones; in inference mode, and for tensors
    made there, it records nothing.
    """
    return (
        inside_functional_transform()
        or torch.is_inference_mode_enabled()
        or any(t.is_inference() for t in tensors)
    )


def where_transforms_work() -> AbstractContextManager[Any]:
    """Leave inference mode where torch.func would give zeros inside it, as torch 2.11 does."""
    return nullcontext() if _transforms_work_in_inference_mode() else torch.inference_mode(False)


@cache
def _transforms_work_in_inference_mode() -> bool:
    with torch.inference_mode():
        return float(torch.func.grad(torch.square)(torch.ones((), device="cpu"))) == 2.0


def kept_as_they_are() -> AbstractContextManager[Any]:
    """Keep what a graph made here needs, if it is used up on the spot.

    A checkpoint around it would compute its whole segment again for what it keeps.
    """
    return saved_tensors_hooks(_identity, _identity)


def _identity(tensor: Tensor) -> Tensor:
    return tensor
