"""What all laws are measured with: random points, copies, batches, slopes by differences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.holding import held_tensors
from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.testing.report import Measured, hold, skip

H = 1e-6
"""The step of central differences: in float64 their error is about 1e-10 from h² and eps/h."""


def require_double(x: Var) -> None:
    if any(tree.real_dtype(t.dtype) != torch.float64 for t in tree.leaves(x)):
        raise InputError("Laws are measured in float64: pass a float64 point, e.g. x.double().")


def normal(like: Var, seed: int) -> Var:
    """Standard normal numbers in the shape of ``like``."""
    generator = torch.Generator().manual_seed(seed)
    return tree_map(lambda t: _randn(t, generator), like)


def _randn(t: Tensor, generator: torch.Generator) -> Tensor:
    kind = torch.complex64 if t.is_complex() else torch.float32
    return torch.randn(t.shape, generator=generator, dtype=kind).to(t)


def moved(x: Var, size: float, direction: Var) -> Var:
    return tree_map(lambda t, d: t + size * d, x, direction)


def minus(a: Var, b: Var) -> Var:
    return tree_map(torch.sub, a, b)


def apart(a: Var, b: Var, scale: float = 1.0) -> float:
    """‖a − b‖ relative to the larger of the two and ``scale``; equal infinities are 0 apart."""
    a, b = tree.flatten(a).detach().double(), tree.flatten(b).detach().double()
    difference = torch.where(a == b, 0.0, a - b).norm()
    return float(difference / max(scale, float(a.norm()), float(b.norm())))


def batch_law(coupled: Any, *maps: tuple[Callable[[Var], Var], Sequence[Var]]) -> Measured:
    """Each map of a batch of points, along a new first axis, is the batch of their images."""
    law = "batch = elements"
    if coupled is None:
        return skip(law, "coupled is None, so that there is no batch")

    def stacked(points: Sequence[Var]) -> Var:
        return tree_map(lambda *ts: torch.stack(ts), points[0], *points[1:])

    errors = [apart(map_(stacked(p)), stacked([map_(z) for z in p])) for map_, p in maps]
    rounding = 1e5 * torch.finfo(tree.leaves(maps[0][1][0])[0].dtype).eps
    look = "Elements of a batch must not see each other: look at axes that count from the front."
    return hold(law, errors, rounding, look)


def replica(thing: Any) -> tuple[Any, list[Tensor]]:
    """A copy whose floating-point tensors are fresh leaves, and these leaves."""
    fresh: dict[int, Any] = {}
    for held in held_tensors(thing):
        if id(held.tensor) not in fresh:
            copied = held.tensor.detach().clone()
            fresh[id(held.tensor)] = copied.requires_grad_(
                copied.is_floating_point() or copied.is_complex()
            )
    found = [t for t in fresh.values() if t.requires_grad]
    return copy.deepcopy(thing, fresh), found


def slope_errors(
    function: Callable[[], Var],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor] | None = None,
    seed: int = 0,
) -> list[float]:
    """How far autograd (or ``gradients`` of a scalar) is from central differences, relatively.

    ``function`` reads ``tensors``, leaves that are moved in place and put back. Each is compared on
    its own, so that a small gradient does not hide behind a large one, and relative to the product
    of the norms of gradient and direction. What rounding does to differences is not counted.
    """
    found = function()
    weights = tree_map(torch.ones_like, found) if gradients else normal(found, seed)
    value = tree.inner(weights, found)
    slopes: Sequence[Tensor | None] = gradients or [None] * len(tensors)
    if gradients is None and value.requires_grad:
        slopes = torch.autograd.grad(value, tensors, allow_unused=True)
    rounding = 100 * torch.finfo(value.dtype).eps / (2 * H)
    noise = rounding * tree.length(weights) * tree.length(tree.detach(found))
    errors = []
    for k, (tensor, slope) in enumerate(zip(tensors, slopes, strict=True)):
        gradient = torch.zeros_like(tensor) if slope is None else slope
        for again in range(2):
            direction = normal(tensor, seed + 10 * k + again + 1)
            direction = torch.where(torch.isfinite(tensor.detach()), direction, 0.0)
            original, ends = tensor.detach().clone(), []
            with torch.no_grad():
                for size in (H, -H):
                    tensor.copy_(original + size * direction)
                    ends.append(float(tree.inner(weights, function())))
                tensor.copy_(original)
            expected = (ends[0] - ends[1]) / (2 * H)
            error = abs(expected - float(tree.product(gradient, direction).sum())) - noise
            scale = max(abs(expected), float(gradient.norm() * direction.norm()))
            errors.append(error / scale if scale > 0 else error)
    return errors
