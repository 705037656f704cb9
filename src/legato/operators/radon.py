"""Projections of an image along parallel rays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import require_whole
from legato._support.tree import Var, real_like
from legato.errors import InputError
from legato.operators.base import Operator, by_parts
from legato.operators.nonnegative import perron_norm


@dataclass(frozen=True, eq=False, repr=False)
class Radon(Operator):
    r"""The Radon transform of a square image in parallel beams, (…, size, size) to (…, angles, D).

    .. math:: (Kx)_{θ, s} = \int x(s\cosθ − t\sinθ,\; s\sinθ + t\cosθ)\, \mathrm dt

    The image, in units of its pixels around its centre, is interpolated linearly between pixels,
    0 outside, and summed at unit steps t. The adjoint spreads with the same weights: it is exact.
    The norm is bounded from both sides, within 1 % and mostly 0.1 %, and remembered.
    Reference: Natterer (2001), Section 1.1.

    Args:
        angles: θ in radians, from the first to the second axis of the image; distinct in [0, π).
        size: the side of the image.
        detectors: how many rays an angle has; None for as many as reach the corners.

    >>> K = lg.Radon([0.0, torch.pi / 2], 2)
    >>> K(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 3., 7., 0.],
            [0., 4., 6., 0.]])
    """

    angles: tuple[float, ...]
    size: int
    detectors: int | None = None
    _norms: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "angles", _angles(self.angles))
        require_whole(self.size, "The size of Radon")
        if self.detectors is None:
            object.__setattr__(self, "detectors", _reaching_corners(self.size))
        require_whole(self.detectors, "The detectors of Radon")

    @property
    def coupled(self) -> tuple[int, int]:
        return 2, 2

    @property
    def _rays(self) -> int:
        return int(self.detectors or 0)

    def __call__(self, x: Var) -> Var:
        if tuple(x.shape[-2:]) != (self.size, self.size):
            raise InputError(
                f"Radon of size {self.size} needs images of shape (…, {self.size}, {self.size}), "
                f"but got {tuple(x.shape)}."
            )
        return by_parts(lambda t: _along_rays(t, self, False), x)

    def adjoint(self, y: Var) -> Var:
        if tuple(y.shape[-2:]) != (len(self.angles), self._rays):
            raise InputError(
                f"The adjoint of Radon needs sinograms of shape (…, {len(self.angles)}, "
                f"{self._rays}), one row an angle, but got {tuple(y.shape)}."
            )
        return by_parts(lambda t: _along_rays(t, self, True), y)

    @torch.no_grad()
    def norm(self, like: Var | None = None) -> Tensor:
        if "norm" not in self._norms:
            example = torch.zeros(self.size, self.size, dtype=torch.float64)
            self._norms["norm"] = float(perron_norm(self, example))
        found = self._norms["norm"]
        return torch.tensor(found) if like is None else real_like(like).new_full((), found)

    def absolute(self) -> Operator:
        return self  # all weights are at least 0

    @torch.no_grad()
    def matrix(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """K as a dense matrix, of shape (angles · detectors, size²), for pictures seen often."""
        like = torch.empty(0, dtype=dtype, device=device)
        found = like.new_zeros(len(self.angles), self._rays, self.size * self.size)
        for number, angle in enumerate(self.angles):
            for pixel, weight in self._corners(angle, like):
                found[number].scatter_add_(1, pixel, weight)
        return found.flatten(0, 1)

    @torch.no_grad()
    def sparse(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """K as a sparse matrix, for :class:`Sparse`: on a CPU fifty times faster than ray by ray.

        It has about 3 · angles · size² numbers.

        >>> K = lg.Radon([0.0, 0.7], 3)
        >>> torch.allclose(K.sparse().to_dense(), K.matrix())
        True
        """
        like = torch.empty(0, dtype=dtype, device=device)
        rays, pixels, weights = [], [], []
        for number, angle in enumerate(self.angles):
            for pixel, weight in self._corners(angle, like):
                met = weight > 0
                first = number * self._rays
                ray = torch.arange(first, first + self._rays, device=device)
                rays.append(ray[:, None].expand_as(pixel)[met])
                pixels.append(pixel[met])
                weights.append(weight[met])
        index = torch.stack([torch.cat(rays), torch.cat(pixels)])
        shape = (len(self.angles) * self._rays, self.size**2)
        found = torch.sparse_coo_tensor(index, torch.cat(weights), shape, check_invariants=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that such matrices are in beta
            return found.coalesce().to_sparse_csr()

    # --- rays, one angle after the other, so that no index is kept --------------------------------

    def _corners(self, angle: float, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Four (pixels, weights) of shape (rays, steps) for the points along one angle's rays."""
        steps = _reaching_corners(self.size)
        s = torch.arange(self._rays, dtype=like.dtype, device=like.device) - (self._rays - 1) / 2
        t = torch.arange(steps, dtype=like.dtype, device=like.device) - (steps - 1) / 2
        cos, sin, middle = math.cos(angle), math.sin(angle), (self.size - 1) / 2
        row = middle + s[:, None] * cos - t * sin
        column = middle + s[:, None] * sin + t * cos
        top, left = torch.floor(row), torch.floor(column)
        found = []
        for down in (0, 1):
            for right in (0, 1):
                i, j = top + down, left + right
                weight = (1 - (row - i).abs()) * (1 - (column - j).abs())
                inside = (i >= 0) & (i < self.size) & (j >= 0) & (j < self.size)
                pixel = torch.where(inside, i * self.size + j, 0.0).long()
                found.append((pixel, torch.where(inside, weight, 0.0)))
        return found

    def project(self, x: Tensor) -> Tensor:
        """Kx."""
        flat = x.flatten(-2)
        rows = []
        for angle in self.angles:
            total: Any = 0.0
            for pixel, weight in self._corners(angle, x):
                seen = flat.index_select(-1, pixel.flatten()).unflatten(-1, pixel.shape)
                total = total + (weight * seen).sum(-1)
            rows.append(total)
        return torch.stack(rows, -2)

    def spread(self, y: Tensor) -> Tensor:
        """K*y."""
        image = y.new_zeros(*y.shape[:-2], self.size * self.size)
        for number, angle in enumerate(self.angles):
            for pixel, weight in self._corners(angle, y):
                values = (y[..., number, :, None] * weight).flatten(-2)
                image = image.index_add(-1, pixel.flatten(), values)
        return image.unflatten(-1, (self.size, self.size))


class _AlongRays(torch.autograd.Function):
    """Kx with derivative K and K*y with derivative K*, which save nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, operator: Radon, adjoint: bool) -> Tensor:
        return operator.spread(t) if adjoint else operator.project(t)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.operator, ctx.adjoint = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _along_rays(grad, ctx.operator, not ctx.adjoint), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _along_rays(tangent, ctx.operator, ctx.adjoint)


def _along_rays(t: Tensor, operator: Radon, adjoint: bool) -> Tensor:
    found: Tensor = _AlongRays.apply(t, operator, adjoint)  # type: ignore[no-untyped-call]
    return found


def _reaching_corners(size: int) -> int:
    """The diagonal in pixels, rounded up, with a middle where the image has one."""
    count = math.ceil(math.sqrt(2) * size)
    return count + (count - size) % 2


def _angles(angles: Any) -> tuple[float, ...]:
    if isinstance(angles, Tensor):
        angles = angles.detach().flatten().tolist()
    if not isinstance(angles, Iterable):
        raise InputError(f"Radon needs a list of angles in radians, not {angles!r}.")
    found = tuple(float(a) for a in angles)
    if not found:
        raise InputError("Radon needs at least one angle.")
    if not all(map(math.isfinite, found)):
        raise InputError("An angle of Radon is NaN or infinite.")
    if max(map(abs, found)) > 2 * math.pi and all(a == int(a) for a in found):
        raise InputError(
            f"The angles of Radon are radians, but these are whole numbers up to {max(found):g}. "
            "If they are degrees: torch.deg2rad(angles)."
        )
    turned = sorted(a % math.pi for a in found)
    gaps = [b - a for a, b in zip(turned, [*turned[1:], turned[0] + math.pi], strict=True)]
    if len(found) > 1 and min(gaps) < 1e-9:
        raise InputError(
            "Two angles of Radon are equal, up to half a turn: their rays are the same. Leave one "
            "out, e.g. torch.linspace(0, torch.pi, n + 1)[:-1]."
        )
    return found
