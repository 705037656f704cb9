"""Looking into the autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad


def leaves_behind(outputs: Iterable[Tensor], known: Iterable[Tensor]) -> list[Tensor]:
    """Leaf tensors requiring a gradient that influence ``outputs`` other than through ``known``."""
    known, outputs = list(known), list(outputs)
    passed = {id(t) for t in known}
    barriers = {t.grad_fn for t in known if t.grad_fn is not None}
    stack = [out.grad_fn for out in outputs if out.grad_fn is not None]
    visited: set[Any] = set()
    leaves = [t for t in outputs if t.is_leaf and t.requires_grad and id(t) not in passed]
    found = {id(t): t for t in leaves}
    while stack:
        node = stack.pop()
        if node in visited or node in barriers:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in passed:
            found[id(variable)] = variable
        stack.extend(parent for parent, _ in node.next_functions if parent is not None)
    return list(found.values())


def fresh_leaf(tensor: Tensor) -> Tensor:
    """A point to differentiate at: the same numbers without history, which require a gradient.

    Of a dual number of forward mode it keeps the tangent, which detach() drops: a derivative that
    is computed at this point then has the tangent that it should have.
    """
    leaf = tensor.detach().requires_grad_()
    if forward_ad._current_level < 0:
        return leaf
    tangent = forward_ad.unpack_dual(tensor).tangent
    return leaf if tangent is None else forward_ad.make_dual(leaf, tangent)
