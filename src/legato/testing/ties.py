"""Derivatives of a prox exactly where it has none: on a kink, and at the end of a weight's domain.

A proximal map is continuous and has derivatives almost everywhere. On a kink the derivative in y
must be that of one side, row by row, or where more kinks meet than can be told apart lie between
those of the sides, entry by entry; in a weight that is zero, it is the one into its domain. What
lies beyond all sides is the derivative of no map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from legato._support import tree
from legato._support.holding import held_weights
from legato._support.tree import Var
from legato.functions import Function, mirror_prox, prox
from legato.geometry import Geometry
from legato.testing.report import Measured, hold
from legato.testing.sampling import minus, normal, replica

AWAY, SMALL = 1e-5, 1e-8
"""How far from a kink its sides are looked at, and the step of differences there."""
SHORT = 0.02
"""By what share of their spread the sides that chance found fall short of the outermost."""
SIDES = 80
"""Random directions away from a kink: where several meet, few of them keep to one side of each."""


def one_sided(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """The derivatives at ties are those of a side, and of the side inside a weight's domain."""
    errors = _of_data(g, geometry, y, step, seed)
    for k, _ in enumerate(held_weights(g)):
        zeroed, _ = replica(g)
        weight = list(held_weights(zeroed))[k].tensor
        with torch.no_grad():
            weight.zero_()
        errors += _of_weight(zeroed, weight, geometry, y, step, seed)
        errors += _of_data(zeroed, geometry, y, step, seed)
    look = (
        "On a kink, or where a weight is 0, the derivative belongs to no side: look at torch.clamp "
        "with equal ends, at 0/0, and at comparisons that treat equality as neither."
    )
    return hold("one-sided at ties", errors, 1e-3, look)


def _of_data(g: Function, geometry: Geometry, y: Var, step: Any, seed: int) -> list[float]:
    errors = []
    for place in _ties(g, geometry, y, step):
        flat = tree.flatten(place).detach()

        def map_(t: Tensor, place: Var = place) -> Tensor:
            return tree.flatten(prox(g, geometry, tree.unflatten(place, t), step))

        found = jacobian(map_, flat)
        nearest = torch.full((len(found),), torch.inf, dtype=flat.dtype)
        least, most = torch.full_like(found, torch.inf), torch.full_like(found, -torch.inf)
        # Towards 0 and away from it as well: chance hardly finds the inside of a corner.
        inwards = [-flat, flat] if bool(flat.any()) else []
        for s in range(SIDES):
            chance = tree.flatten(normal(place, seed + s))
            aside = flat + AWAY * (inwards[s] if s < len(inwards) else chance)
            if bool(geometry.mirror_interior(tree.unflatten(place, aside)).all()):
                side = _differences(map_, aside)
                nearest = torch.minimum(nearest, (found - side).abs().amax(1))
                least, most = torch.minimum(least, side), torch.maximum(most, side)
            if bool((nearest < 1e-4).all()):
                break
        missed = SHORT * (most - least)
        beyond = torch.maximum(least - missed - found, found - most - missed).amax(1).clamp(min=0)
        errors += [float(e) for e in torch.minimum(nearest, beyond) / (1 + found.abs().amax())]
    return errors


def _ties(g: Function, geometry: Geometry, y: Var, step: Any) -> list[Var]:
    """Points that lie on kinks: 0, what a projection leaves alone, what a norm just sets to 0."""
    with torch.no_grad():
        image = mirror_prox(g, geometry, y, step)
        found = [tree.tree_map(torch.zeros_like, y), image, minus(y, image)]
        found = [tree.tree_map(lambda t: torch.where(t.abs() < 1e-12, 0.0, t), z) for z in found]
    return [z for z in found if bool(geometry.mirror_interior(z).all())]


def _differences(map_: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The Jacobian by central differences, which no kink is near enough to spoil."""
    with torch.no_grad():
        columns = [
            (map_(at + SMALL * e) - map_(at - SMALL * e)) / (2 * SMALL)
            for e in torch.eye(at.numel(), dtype=at.dtype)
        ]
    return torch.stack(columns, 1)


def _of_weight(
    g: Function, weight: Tensor, geometry: Geometry, y: Var, step: Any, seed: int
) -> list[float]:
    """The slope towards positive weights, from a weight of zero."""
    errors = []
    for place in (y, *_ties(g, geometry, y, step)):
        found = prox(g, geometry, place, step)
        direction = normal(weight, seed).abs()
        cotangent = normal(found, seed + 1)
        slope = torch.zeros_like(weight)
        if any(t.requires_grad for t in tree.leaves(found)):
            value = tree.inner(cotangent, found)
            (known,) = torch.autograd.grad(value, weight, allow_unused=True)
            slope = slope if known is None else known
        with torch.no_grad():
            before = tree.inner(cotangent, found)
            weight.add_(1e-7 * direction)
            after = tree.inner(cotangent, prox(g, geometry, place, step))
            weight.zero_()
        expected = float((after - before) / 1e-7)
        errors.append(abs(float((slope * direction).sum()) - expected) / (1 + abs(expected)))
    return errors
