"""Total variation denoising as a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato._support.checks import (
    CONVERT,
    cheap_to_read,
    require_finite,
    require_image,
    require_iterations,
    require_like,
    require_nonnegative,
    require_range,
)
from legato._support.compiling import constant_when_compiled
from legato._support.lazy import lazy
from legato._support.precision import full_precision, out_of_autocast
from legato.errors import InputError
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.nn.fused.choice import KernelRegistry, require_known
from legato.nn.fused.unrolling import require_strategy, schedule
from legato.nn.total_variation.model import (
    Coupling,
    TVFunction,
    canonical_weight,
    dual_shape,
    gap,
    model,
)
from legato.problems import Saddle


@dataclass
class TotalVariationOutput:
    """What :meth:`TotalVariation.solve` returns; all but the gap is attached to the graph.

    Attributes:
        x: u (B, C, *spatial), the last iterate.
        y: p (B, C, E, *spatial), the dual variable, with u = y − ∇ᵀp; starts another solve.
        kernel: the implementation that ran.
        image, weight, coupling: the data of the ``problem`` that was solved.

    >>> output = TotalVariation(iterations=50).solve(torch.rand(1, 1, 8, 8), 0.1)
    >>> output.x.shape, output.y.shape, bool(output.gap < 1e-2)
    (torch.Size([1, 1, 8, 8]), torch.Size([1, 1, 2, 8, 8]), True)
    """

    x: Tensor
    y: Tensor
    kernel: str
    image: Tensor
    weight: Tensor
    coupling: Coupling

    @lazy
    def problem(self) -> Saddle:
        """The saddle-point problem that was solved."""
        return model(self.image, self.weight, self.coupling)

    @lazy
    def gap(self) -> Tensor:
        """The primal–dual gap of each image (B,): by at most this its energy is too large.

        Also ½‖u − u*‖² is at most this, the energy being strongly convex.
        """
        with torch.no_grad():
            data = (self.image, self.weight, self.x, self.y)
            image, weight, value, dual = (t.detach().double() for t in data)
            return gap(image, weight, self.coupling, value, dual).to(self.x.dtype)

    @lazy
    def energy(self) -> Tensor:
        """½‖u − y‖² + Σ λ|∇u| of each image (B,)."""
        slope = self.problem.operator(self.x)
        return self.problem.nonsmooth.values(self.x, 1) + self.problem.penalty.values(slope, 1)


class TotalVariation(nn.Module):
    r"""Denoising that keeps edges: the proximal map of total variation.

    .. math:: u = \arg\min_u\; \tfrac12‖u − y‖² + \textstyle\sum λ\,|∇u|

    The last iterate of FISTA on the dual problem is returned; its momentum starts anew every 400
    iterations. With ``Unroll`` gradients are those of that iterate, with the fixed-point family
    those of the solution. Over many hundred iterations, the more so in float32, rounding may spoil
    the former, which is warned about where it shows; then take ``Implicit(CG())``.

    Default: ``iterations=100``.

    Args:
        iterations (int): of FISTA. Default: 100
        isotropic (bool): take the Euclidean norm of ∇u at each pixel; else the sum of absolute
            differences, which favours edges along the axes. Default: True
        joint_channels (bool): take the norm over the channels as well, so that their edges
            coincide; else channels are denoised one by one. Default: False
        gradient (GradientStrategy, optional): ``Unroll()`` (``last``, ``checkpoint``) or any of the
            fixed-point family. Default: ``Unroll()``
        kernel (str, optional): "triton", "numba" or "reference". Default: None, the fastest that
            there is for the device; all compute the same, and "reference", plain torch, is slow

    Shape:
        - image: y, (B, C, H, W) or (B, C, D, H, W), float32 or float64. Its largest entry lies
          between 1e-9 and 1e9 (float64: 1e-75 and 1e75), or is zero. On a GPU, where
          reading it would make the host wait, this is not checked.
        - weight: λ ≥ 0 as

          - a number;
          - one number for each image, (B,);
          - one for each pixel, (B, C, H, W), each axis at its full size or at size one;
          - one for each pixel and direction, (B, C, E, H, W) likewise, with E = 2 in the plane
            (down, right) and 3 in space.

          Where a norm joins directions (``isotropic``) or channels (``joint_channels``) they share
          one weight, and that axis has size one.
        - output: u, like the image.

    Reference: Rudin, Osher, Fatemi (1992); Beck and Teboulle (2009).

    >>> noisy, weight = torch.rand(1, 3, 16, 16), torch.tensor(0.1, requires_grad=True)
    >>> clean = TotalVariation(iterations=50)(noisy, weight)
    >>> clean.var().backward()
    >>> bool(weight.grad < 0)  # the more weight, the less varies
    True
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
        require_strategy(self.gradient, "TotalVariation")

    def extra_repr(self) -> str:
        return (
            f"iterations={self.iterations}, isotropic={self.coupling.directions}, "
            f"joint_channels={self.coupling.channels}, gradient={self.gradient!r}"
        )

    def forward(self, image: Tensor, weight: Tensor | float) -> Tensor:
        """Denoise images.

        Args:
            image (Tensor): y (B, C, *spatial).
            weight (Tensor or float): λ ≥ 0, in one of the forms above.

        Returns:
            Tensor: u, like the image.
        """
        return self.solve(image, weight).x

    def solve(
        self, image: Tensor, weight: Tensor | float, dual: Tensor | None = None
    ) -> TotalVariationOutput:
        """The full record of a solve.

        Args:
            image (Tensor): as of :meth:`forward`.
            weight (Tensor or float): as of :meth:`forward`.
            dual (Tensor, optional): where to start, the ``y`` of an earlier solve. Default: zero

        Returns:
            TotalVariationOutput: x (u), y (p), gap, energy, problem, kernel.
        """
        image, weight = out_of_autocast(image), out_of_autocast(weight)
        with full_precision():
            require_image(image)
            require_range(image, "image")
            w = _require_weight(weight, image, self.coupling)
            _require_dual(dual, image)
            name, u, p = self._iterate(image, w, dual)
            return TotalVariationOutput(u, p, name, image, w, self.coupling)

    def _iterate(self, image: Tensor, w: Tensor, dual: Tensor | None) -> tuple[str, Tensor, Tensor]:
        if isinstance(self.gradient, Unroll):
            return self._unroll(image, w, dual)
        from legato.nn.total_variation.reference import attach, by_engine

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
            dual = image.new_zeros(dual_shape(image))
        return (name, *attach(image, w, self.coupling, dual, self.gradient))

    def _unroll(self, image: Tensor, w: Tensor, dual: Tensor | None) -> tuple[str, Tensor, Tensor]:
        assert isinstance(self.gradient, Unroll)
        name, kernel = choose_kernel(image, self.coupling, self.kernel)
        skipped, attached, checkpoint = schedule(self.gradient, self.iterations)
        previous = None
        if skipped:
            with torch.no_grad():
                early = kernel(image, w, iterations=skipped, coupling=self.coupling, dual=dual)
            dual, previous = early.y, early.previous
        done = kernel(
            image, w, iterations=attached, coupling=self.coupling, dual=dual, previous=previous,
            first=skipped, checkpoint=checkpoint,
        )  # fmt: skip
        return name, done.x, done.y


# --- kernels --------------------------------------------------------------------------------------


def _load(name: str) -> TVFunction:
    if name == "triton":
        from legato.nn.total_variation.triton.host import tv
    elif name == "numba":
        from legato.nn.total_variation.numba import tv
    else:
        from legato.nn.total_variation.reference import tv
    return tv


KERNELS = KernelRegistry(
    title="total variation",
    data="image",
    triton_limit=8,  # channels under one norm are all held at once
    triton_limit_of="channels under one norm",
    load=_load,
)


def choose_kernel(
    image: Tensor, coupling: Coupling, override: str | None = None
) -> tuple[str, TVFunction]:
    """The name and function of the kernel for this image."""
    coupled = int(image.shape[1]) if coupling.channels else 1
    name = _choose(image.device.type, coupled, override)
    return name, KERNELS.loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@constant_when_compiled
def _choose(device: str, coupled: int, override: str | None) -> str:
    return KERNELS.choose(device, coupled, override)


# --- bad input ------------------------------------------------------------------------------------


def _require_weight(weight: Tensor | float, image: Tensor, coupling: Coupling) -> Tensor:
    if isinstance(weight, (int, float)):
        weight = image.new_full((), float(weight))  # a GPU would wait for new_tensor
    if not isinstance(weight, Tensor):
        what = f"a number or a tensor, not {type(weight).__name__}"
        raise InputError(f"weight must be {what}.{CONVERT}")
    require_like(weight, image, "weight")
    w = canonical_weight(weight, image, coupling)
    require_finite(w, "weight")
    if cheap_to_read(w):
        require_nonnegative(w, "weight")
    require_range(w, "weight", lower=False)
    return w


def _require_dual(dual: Tensor | None, image: Tensor) -> None:
    if dual is None:
        return
    expected = dual_shape(image)
    if not isinstance(dual, Tensor) or tuple(dual.shape) != expected:
        found = tuple(dual.shape) if isinstance(dual, Tensor) else type(dual).__name__
        raise InputError(
            f"dual must have shape {expected}, like the dual of an earlier output, not {found}."
        )
    require_like(dual, image, "dual")
    require_finite(dual, "dual")
