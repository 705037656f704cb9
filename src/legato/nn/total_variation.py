"""Total variation denoising as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from legato._support.checks import (
    cheap_to_read,
    require_finite,
    require_image,
    require_iterations,
    require_like,
    require_nonnegative,
)
from legato._support.precision import full_precision, power_of_two_near
from legato.errors import InputError
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.nn.kernels.choice import require_known
from legato.nn.kernels.tv_choice import choose_kernel
from legato.nn.kernels.tv_iterates import Coupling, TVIterates, canonical_weight
from legato.nn.kernels.tv_reference import attach, by_engine, gap, model
from legato.problems import Saddle


@dataclass
class TotalVariationOutput:
    """What :class:`TotalVariation` returns; all but the gap is attached to the graph.

    ``value`` is u, the last iterate; ``dual`` is p (B, C, E, *spatial), with u = y − ∇ᵀp, which
    also starts another solve; ``kernel`` names the implementation that ran. The other fields are
    the data of the ``problem`` that was solved. Reference: :class:`TotalVariation`.
    """

    x: Tensor
    y: Tensor
    kernel: str
    image: Tensor
    weight: Tensor
    coupling: Coupling

    @cached_property
    def problem(self) -> Saddle:
        """The saddle-point problem that was solved, without the constant ½‖y‖²."""
        return model(self.image, self.weight, self.coupling)

    @cached_property
    def gap(self) -> Tensor:
        """The primal–dual gap, summed over the batch: by at most this the energy is too large.

        Also ½‖u − u*‖² is at most this, the energy being strongly convex.
        """
        with torch.no_grad():
            data = (self.image, self.weight, self.x, self.y)
            image, weight, value, dual = (t.detach().double() for t in data)
            return gap(image, weight, self.coupling, value, dual).to(self.x.dtype)

    @cached_property
    def energy(self) -> Tensor:
        """½‖u − y‖² + Σ λ|∇u|, summed over the batch."""
        slope = self.problem.operator(self.x)
        fidelity = 0.5 * (self.x - self.image).square().sum()
        return fidelity + self.problem.dual.conjugate(slope)


class TotalVariation(nn.Module):
    r"""Denoising that keeps edges: the proximal map of total variation.

    .. math:: u = \arg\min_u\; \tfrac12‖u − y‖² + \textstyle\sum λ\,|∇u|

    ``forward(image, weight)`` takes y (B, C, H, W) or (B, C, D, H, W) and λ ≥ 0: a number, one per
    image (B,), or a tensor whose axes are those of the image, or of (B, C, E, *spatial) for E
    directions, or one. ``isotropic`` takes the Euclidean norm of ∇u at each pixel, else the sum of
    absolute differences, which favours the axes. ``joint_channels`` takes the norm over the
    channels as well, so that their edges coincide; else they are denoised one by one. Along the
    axes of a Euclidean norm λ has size one. The last iterate of FISTA on the dual is returned, from
    zero or from the ``dual`` of an earlier output; its momentum starts anew every 400 iterations.
    ``gradient`` is Unroll (default; ``last``, ``checkpoint``), the derivative of that iterate, or
    any of the fixed-point family, the derivative of the solution. Over many hundred iterations, the
    more so in float32, rounding may spoil the former, which is warned about where it shows; then
    take ``Implicit(CG())``. ``kernel`` overrides the choice among "triton", "numba" and
    "reference".
    Reference: Rudin, Osher, Fatemi (1992); Beck and Teboulle (2009).
    """

    def __init__(
        self,
        iterations: int = 100,
        *,
        isotropic: bool = True,
        joint_channels: bool = False,
        gradient: GradientStrategy | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__()
        require_iterations(iterations, "TotalVariation")
        require_known(kernel)
        self.iterations = iterations
        self.coupling = Coupling(bool(isotropic), bool(joint_channels))
        self.gradient = Unroll() if gradient is None else gradient
        self.kernel = kernel
        if not isinstance(self.gradient, GradientStrategy):
            raise InputError(f"gradient must be a strategy such as Unroll(), not {gradient!r}.")
        if isinstance(self.gradient, Unroll):
            if self.gradient.checkpoint is not None and self.gradient.last is not None:
                raise InputError(
                    "TotalVariation takes Unroll(last=…) or Unroll(checkpoint=…), not both."
                )
            if self.gradient.tol is not None:
                raise InputError("TotalVariation does not take Unroll(tol=…): choose last=K.")

    def extra_repr(self) -> str:
        return (
            f"iterations={self.iterations}, isotropic={self.coupling.directions}, "
            f"joint_channels={self.coupling.channels}, gradient={self.gradient!r}"
        )

    def forward(
        self, image: Tensor, weight: Tensor | float, dual: Tensor | None = None
    ) -> TotalVariationOutput:
        with full_precision():
            require_image(image)
            w = _require_weight(weight, image, self.coupling)
            _require_dual(dual, image)
            name, u, p = self._solve_in_units(image, w, dual)
            return TotalVariationOutput(u, p, name, image, w, self.coupling)

    def _solve_in_units(
        self, image: Tensor, w: Tensor, dual: Tensor | None
    ) -> tuple[str, Tensor, Tensor]:
        """u and p grow with image and λ; where float32 cannot hold their squares, in other units.

        A power of two, which leaves the digits as they are. On a GPU sizes are not looked at.
        """
        unit = _unit(image, w)
        if unit == 1:
            return self._solve(image, w, dual)
        start = None if dual is None else dual * unit
        name, u, p = self._solve(image * unit, w * unit, start)
        return name, u / unit, p / unit

    def _solve(self, image: Tensor, w: Tensor, dual: Tensor | None) -> tuple[str, Tensor, Tensor]:
        if isinstance(self.gradient, Unroll):
            name, done = self._unroll(image, w, dual)
            return name, done.x, done.y
        if not isinstance(self.gradient, FixedPointGradient):
            solved = by_engine(image, w, self.coupling, dual, self.iterations, self.gradient)
            return ("reference", *solved)
        name, kernel = choose_kernel(image, self.coupling, self.kernel)
        if self.iterations > 1:
            with torch.no_grad():
                dual = kernel(
                    image, w, iterations=self.iterations - 1, coupling=self.coupling, dual=dual
                ).y
        elif dual is None:
            dual = image.new_zeros((*image.shape[:2], image.ndim - 2, *image.shape[2:]))
        return (name, *attach(image, w, self.coupling, dual, self.gradient))

    def _unroll(self, image: Tensor, w: Tensor, dual: Tensor | None) -> tuple[str, TVIterates]:
        assert isinstance(self.gradient, Unroll)
        name, kernel = choose_kernel(image, self.coupling, self.kernel)
        last, interval = self.gradient.last, self.gradient.checkpoint
        if last is not None and last < self.iterations:
            skipped = self.iterations - last
            with torch.no_grad():
                early = kernel(image, w, iterations=skipped, coupling=self.coupling, dual=dual)
            return name, kernel(
                image, w, iterations=last, coupling=self.coupling,
                dual=early.y, previous=early.previous, first=skipped,
            )  # fmt: skip
        if interval == "sqrt":
            interval = math.ceil(math.sqrt(self.iterations))
        assert not isinstance(interval, str)
        return name, kernel(
            image, w, iterations=self.iterations, coupling=self.coupling, dual=dual,
            checkpoint=interval,
        )  # fmt: skip


def _unit(image: Tensor, w: Tensor) -> float:
    """1, or a power of two that brings the largest number to the size of 1."""
    if not cheap_to_read(image):
        return 1.0
    arrays = [t.detach().numpy(force=True) for t in (image, w)]
    largest = max(max(float(a.max()), -float(a.min())) for a in arrays)
    room = torch.finfo(image.dtype).max ** 0.4
    if largest == 0 or 1 / room < largest < room:
        return 1.0
    return 1 / power_of_two_near(largest)


def _require_weight(weight: Tensor | float, image: Tensor, coupling: Coupling) -> Tensor:
    if isinstance(weight, (int, float)):
        weight = image.new_full((), float(weight))  # a GPU would wait for new_tensor
    if not isinstance(weight, Tensor):
        raise InputError(f"weight must be a number or a tensor, not {type(weight).__name__}.")
    require_like(weight, image, "weight")
    w = canonical_weight(weight, image, coupling)
    require_finite(w, "weight")
    if cheap_to_read(w):
        require_nonnegative(w, "weight")
    return w


def _require_dual(dual: Tensor | None, image: Tensor) -> None:
    if dual is None:
        return
    expected = (*image.shape[:2], image.ndim - 2, *image.shape[2:])
    if not isinstance(dual, Tensor) or tuple(dual.shape) != expected:
        found = tuple(dual.shape) if isinstance(dual, Tensor) else type(dual).__name__
        raise InputError(
            f"dual must have shape {expected}, like the dual of an earlier output, not {found}."
        )
    require_like(dual, image, "dual")
    require_finite(dual, "dual")
