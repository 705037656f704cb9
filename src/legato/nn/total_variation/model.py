"""What the total variation layer solves, and the form in which kernels take and return it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from legato._support import momentum as fista
from legato._support.tree import Var, inner
from legato.errors import InputError
from legato.functions import L1, Function, GroupL1, LeastSquares, SquaredDistance
from legato.nn.fused.operator import Tensors
from legato.operators import Differences, Operator
from legato.problems import Composite, Saddle

RESTART_AFTER = 400
"""Iterations after which the momentum starts anew: else the derivatives swing on, and may grow."""


class Coupling(NamedTuple):
    """Over which axes of (B, C, E, *spatial) the ℓ2 norm runs; the ℓ1 norm runs over the others."""

    directions: bool
    channels: bool

    def is_grouped(self, channels: int) -> bool:
        """Whether entries are projected in groups; one by one, their norms are absolute values."""
        return self.directions or (self.channels and channels > 1)


@dataclass(frozen=True, eq=False, repr=False)
class _Flat(Operator):
    """∇ with its channels and directions on one axis, (B, C·E, *spatial), for a norm over both."""

    gradient: Differences
    channels: int

    @property
    def _axis(self) -> int:
        return -len(self.gradient.dims) - 1

    @property
    def coupled(self) -> tuple[int, int]:
        return -self._axis, -self._axis

    def __call__(self, x: Var) -> Var:
        return self.gradient(x).flatten(self._axis - 1, self._axis)

    def adjoint(self, y: Var) -> Var:
        return self.gradient.adjoint(y.unflatten(self._axis, (self.channels, -1)))

    def norm(self, like: Var | None = None) -> Tensor:
        return self.gradient.norm(like)


class Terms:
    """∇ and the norm λ|·| with its dual ball, in the shapes that the engine's functions take."""

    def __init__(self, image: Tensor, w: Tensor, coupling: Coupling) -> None:
        self.image = image
        axes = image.dim() - 2
        gradient = Differences(dims=tuple(range(-axes, 0)))
        self.flat = coupling.directions and coupling.channels
        self.operator: Operator = _Flat(gradient, image.shape[1]) if self.flat else gradient
        if self.flat:
            self.norm: Function = GroupL1(w.squeeze(2), dim=-axes - 1)
        elif coupling.directions:
            self.norm = GroupL1(w, dim=-axes - 1)
        elif coupling.channels:
            self.norm = GroupL1(w, dim=-axes - 2)
        else:
            self.norm = L1(w)

    def pack(self, p: Tensor) -> Tensor:
        return p.flatten(1, 2) if self.flat else p

    def unpack(self, p: Tensor) -> Tensor:
        return p.unflatten(1, (self.image.shape[1], -1)) if self.flat else p

    def value(self, packed: Tensor) -> Tensor:
        """u = y − ∇ᵀp."""
        return self.image - self.operator.adjoint(packed)

    def dual_problem(self) -> Composite:
        """min_p ½‖∇ᵀp − y‖² over |p| ≤ λ, which every kernel solves."""
        return Composite(LeastSquares(self.operator.T, self.image), self.norm.conjugate())


def model(image: Tensor, w: Tensor, coupling: Coupling) -> Saddle:
    """½‖u − y‖² + λ|∇u|, whose dual has |p| ≤ λ."""
    terms = Terms(image, w, coupling)
    return Saddle(terms.operator, terms.norm, nonsmooth=SquaredDistance(image))


def gap(image: Tensor, w: Tensor, coupling: Coupling, value: Tensor, dual: Tensor) -> Tensor:
    """λ|∇u| − ⟨∇u, p⟩ + ½‖u − y + ∇ᵀp‖² of each image, a sum of terms that are ≥ 0."""
    terms = Terms(image, w, coupling)
    p, slope = terms.pack(dual), terms.operator(value)
    rest = value - terms.value(p)
    return terms.norm.values(slope, 1) - inner(slope, p, 1) + 0.5 * inner(rest, rest, 1)


class TVSettings(NamedTuple):
    """The part of a solve that is not a tensor; `checkpoint` is zero where the tape is kept."""

    iterations: int
    first: int
    directions: bool
    channels: bool
    checkpoint: int

    @property
    def coupling(self) -> Coupling:
        return Coupling(bool(self.directions), bool(self.channels))


class TVIterates(NamedTuple):
    """The last iterates: u = y − ∇ᵀp (B, C, *spatial), p and the one before (B, C, E, *spatial)."""

    x: Tensor
    y: Tensor
    previous: Tensor


TVFunction = Callable[..., TVIterates]
"""What :func:`tv_function` returns."""


def tv_function(solve: Callable[[Tensors, TVSettings], Tensors]) -> TVFunction:
    """The function that every kernel offers, from one of (y, λ, p, p₋) and settings."""

    def tv(
        image: Tensor,
        weight: Tensor,
        *,
        iterations: int,
        coupling: Coupling,
        dual: Tensor | None = None,
        previous: Tensor | None = None,
        first: int = 0,
        checkpoint: int | None = None,
    ) -> TVIterates:
        w = canonical_weight(weight, image, coupling)
        start = with_edges(dual, image)
        before = start if previous is None else with_edges(previous, image)
        settings = TVSettings(iterations, first, *coupling, checkpoint or 0)
        return TVIterates(*solve((image, w, start, before), settings))

    return tv


def momentum(iterations: int, first: int = 0) -> list[float]:
    """β_k of FISTA with restarts, for k = first, …, first + iterations − 1."""
    return fista.momentum(iterations, first, RESTART_AFTER)


def step_size(axes: int) -> float:
    """1/L for L = ‖∇‖² ≤ 4·axes."""
    return 1 / (4 * axes)


def dual_shape(image: Tensor) -> tuple[int, ...]:
    """(B, C, E, *spatial)."""
    return (*image.shape[:2], image.dim() - 2, *image.shape[2:])


def canonical_weight(weight: Tensor, image: Tensor, coupling: Coupling) -> Tensor:
    """View λ with all axes of (B, C, E, *spatial), broadcast ones kept at size one.

    It may come as a scalar, as one number per image (B,), with the axes of the image, or with all.
    """
    batch, channels, *spatial = image.shape
    axes = len(spatial)
    w = weight
    if w.dim() == 1 and w.shape[0] == batch:
        w = w.reshape(batch, *(1,) * (axes + 2))
    elif w.dim() == 0:
        w = w.reshape((1,) * (axes + 3))
    elif w.dim() == axes + 2:
        w = w.unsqueeze(2)
    # One λ per group: along the axes of the ℓ2 norm there is nothing to vary.
    full = (
        batch,
        1 if coupling.channels else channels,
        1 if coupling.directions else axes,
        *spatial,
    )
    if w.dim() != axes + 3 or any(s not in (1, f) for s, f in zip(w.shape, full, strict=True)):
        names = ("channels", "directions")
        both = (coupling.channels, coupling.directions)
        shared = [name for name, yes in zip(names, both, strict=True) if yes]
        why = f" (the ℓ2 norm over {' and '.join(shared)} takes one weight)" if shared else ""
        raise InputError(
            f"weight of shape {tuple(weight.shape)} does not broadcast to (batch, channels, "
            f"directions, *spatial) = {full}{why}: give a scalar, one number per image "
            f"({batch},), or every axis at its size or one, with or without the directions."
        )
    return w


def with_edges(dual: Tensor | None, image: Tensor) -> Tensor | None:
    """A start for p, zero where there is no pair of neighbours."""
    if dual is None:
        return None
    spatial = image.shape[2:]
    mask = image.new_ones((len(spatial), *spatial))
    for axis in range(len(spatial)):
        mask[axis].narrow(axis, spatial[axis] - 1, 1).zero_()
    return dual * mask
