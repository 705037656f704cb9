"""What the terms of a problem say about its variable: its shape, and which axes are a batch."""

from __future__ import annotations

from typing import Any

import torch

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.operators import Operator, Stack


def most_coupled(counts: Any) -> int | None:
    """The largest number of coupled axes, None (all) if one of them is None."""
    most = 0
    for count in counts:
        if count is None:
            return None
        most = max(most, count)
    return most


def coupled_through(operator: Operator, function: Function) -> int | None:
    """How many trailing axes of x belong together in f(Kx)."""
    if isinstance(operator, Stack) and isinstance(function, Separable):
        pairs = zip(operator.operators, function.blocks, strict=True)
        return most_coupled(coupled_through(K, f) for K, f in pairs)
    if operator.coupled is None or function.coupled is None:
        return None
    before, after = operator.coupled
    return before + max(0, function.coupled - after)


def first_start(terms: tuple[Function, ...]) -> Var | None:
    """The shape of x: what the data and weights of all terms broadcast to."""
    best = _from_data(terms)
    if best is None or isinstance(best, tuple):
        return best  # weights alone may have axes of size one in x's place
    try:
        shape = tree.joint_shape(best.shape, *(term.weight_shape() for term in terms))
    except RuntimeError:
        return best  # the term itself says what does not fit
    return best if shape == best.shape else best.new_zeros(shape)


def _from_data(terms: tuple[Function, ...]) -> Var | None:
    best: Var | None = None
    for term in terms:
        found = term.start()
        if best is None or found is None:
            best = found if best is None else best
            continue
        if isinstance(best, tuple) or isinstance(found, tuple):
            continue
        try:
            shape = tree.joint_shape(best.shape, found.shape)
        except RuntimeError:
            raise InputError(
                f"The terms do not act on one variable: {term!r} takes one of shape "
                f"{tuple(found.shape)}, those before it one of shape {tuple(best.shape)}."
            ) from None
        # A 0-dim tensor tells neither dtype nor device; one term of complex numbers makes all so.
        teller, other = (best, found) if best.ndim >= found.ndim else (found, best)
        kind = other.dtype if other.is_complex() and not teller.is_complex() else teller.dtype
        best = teller.new_zeros(shape, dtype=kind)
    return best


def start_behind(operator: Operator, function: Function) -> Var | None:
    """Zeros of the shape of x in f(Kx), from those of Kx or from the operator's own data."""
    image = function.start()
    if image is None:
        if isinstance(operator, Stack) and isinstance(function, Separable):
            pairs = zip(operator.operators, function.blocks, strict=True)
            known = (start_behind(K, f) for K, f in pairs)  # one of them is enough
            return next((found for found in known if found is not None), operator.start())
        return operator.start()
    try:
        with torch.no_grad():
            return tree_map(torch.zeros_like, operator.adjoint(image))
    except (InputError, RuntimeError, IndexError):
        if all(t.numel() == 1 for t in tree.leaves(image)):
            return operator.start()  # one number for all entries of Kx does not tell how many
        raise
