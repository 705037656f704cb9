"""Regularisers as modules: given a first image, each is a convex term of the image sought."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from legato._support.checks import require_finite, require_positive, require_whole
from legato.errors import InputError
from legato.functions import L1, Function, GroupL1
from legato.nn.filter_bank import dct_basis, first_coefficients
from legato.nn.reconstruction.convex_spline import ConvexSpline
from legato.nn.reconstruction.over_fields import OverFields
from legato.nn.reconstruction.weights import as_weight
from legato.operators import Convolution, Differences, Operator


class TV(nn.Module):
    r"""Total variation, with one weight or one for each pixel.

    .. math:: R(x) = \sum_i λ_i\, |(∇x)_i|

    Args:
        weight (float, Tensor or Module): λ to start from, learned as exp(·): a number, a map
            (H, W), or a module from the first image to λ, such as :class:`WeightMap`. Default: 0.01
        isotropic (bool): take the Euclidean norm of the gradient at each pixel; else the sum of
            absolute differences, and ``WeightMap(2)`` weighs the two directions of grey images
            apart, vertical differences first. Default: True

    Shape:
        - image: (B, C, H, W); the term is one of images of this shape

    >>> TV(0.1)(torch.rand(1, 1, 8, 8))
    GroupL1(0.1, -3) @ Differences()
    """

    def __init__(
        self, weight: float | Tensor | nn.Module = 0.01, *, isotropic: bool = True
    ) -> None:
        super().__init__()
        self.weight = as_weight(weight)
        self.isotropic = bool(isotropic)

    def forward(self, image: Tensor) -> Function:
        """The term R for a first image (B, C, H, W)."""
        weight = self.weight(image)
        if self._is_directional(weight, image):
            weight = weight.unsqueeze(1)  # the axis of channels
        else:
            weight = _of_pixels(weight)
        penalty = GroupL1(weight, dim=-3) if self.isotropic else L1(weight)
        return penalty @ Differences()

    def _is_directional(self, weight: Tensor, image: Tensor) -> bool:
        """Whether λ (B, 2, H, W) has a map for each direction."""
        two = weight.ndim == 4 and weight.shape[1] == 2
        return not self.isotropic and two and image.shape[1] == 1


class TGV(nn.Module):
    r"""Total generalised variation of second order: slopes are free where they change little.

    .. math:: R(x) = \min_v\; \sum_i λ_{1,i}\,|(∇x − v)_i| + \sum_i λ_{0,i}\,‖(Ev)_i‖_F

    E is :class:`~legato.SymmetrisedGradient`. Affine images cost nothing, where :class:`TV` prefers
    steps; for λ₀ = 0 no image costs anything. :class:`Reconstruction` finds the field v (2, H, W)
    beside each image x, and its record holds it as ``field``.

    Args:
        weight (float, Tensor or Module): λ₁ of edges, to start from, learned as exp(·): a number,
            a map (H, W), or a module from the first image to λ₁, such as :class:`WeightMap`.
            Default: 0.01
        bending (float, Tensor or Module): λ₀ of changes of slope, likewise. Default: 0.02

    Shape:
        - image: (B, C, H, W); the term is one of images of this shape

    Reference: Bredies, Kunisch, Pock (2010), *Total generalized variation*.

    >>> ramp = torch.linspace(0, 1, 8).expand(1, 1, 8, 8)
    >>> record = Reconstruction(lg.Identity(), TGV(0.1, 0.2), iterations=200).solve(ramp)
    >>> torch.testing.assert_close(record.x, ramp, atol=1e-3, rtol=0)
    >>> record.field.shape
    torch.Size([1, 1, 2, 8, 8])
    """

    def __init__(
        self,
        weight: float | Tensor | nn.Module = 0.01,
        bending: float | Tensor | nn.Module = 0.02,
    ) -> None:
        super().__init__()
        self.weight, self.bending = as_weight(weight), as_weight(bending)

    def forward(self, image: Tensor) -> Function:
        """The term R for a first image (B, C, H, W)."""
        return OverFields(_of_pixels(self.weight(image)), _of_pixels(self.bending(image)))


def _of_pixels(weight: Tensor) -> Tensor:
    """Weights of pixels for the groups that stand at them: with the axis of directions."""
    return weight.unsqueeze(-3) if weight.ndim > 1 else weight


class Filters(nn.Module):
    r"""An analysis prior: K learned filters d_k and a convex penalty of their answers.

    .. math:: R(x) = \sum_k \sum_i φ_{λ_k}\bigl((d_k * x)_i\bigr), \qquad φ_λ = λ|·|

    Filters are combinations of the DCT basis without its constant, so their mean is zero whatever
    is learned.

    Args:
        filters (int, optional): K. Default: None, as many as the basis has, size² − 1
        size (int): pixels across a filter. Default: 5
        weight (float, Tensor or Module): λ to start from: a number for every filter; a tensor that
            broadcasts to (K, H, W); or a module from the first image to λ (B, K, H, W), such as
            ``WeightMap(K)``. Default: 0.01
        potential (callable): from weights to the penalty φ of the answers: ``L1``, or a function
            such as ``lambda weight: lg.Huber(0.01, weight)``. Default: ``L1``

    Shape:
        - image: (B, 1, H, W); answers (B, K, H, W)

    Reference: Peyré and Fadili (2011); Chen, Ranftl, Pock (2014).

    >>> prior = Filters(8, 3)
    >>> prior(torch.rand(1, 1, 16, 16))
    L1(tensor(8×1×1)) @ Convolution(tensor(8×1×3×3), 'mirror')
    """

    def __init__(
        self,
        filters: int | None = None,
        size: int = 5,
        *,
        weight: float | Tensor | nn.Module = 0.01,
        potential: Callable[[Tensor], Function] = L1,
    ) -> None:
        super().__init__()
        require_whole(size, "size", 2)
        filters = size * size - 1 if filters is None else filters
        require_whole(filters, "filters")
        self.size = size
        self.coefficients = nn.Parameter(first_coefficients(filters, 1, size))
        if isinstance(weight, int | float):
            weight = torch.full((filters, 1, 1), float(weight))
        self.weight = as_weight(weight)
        self.potential = potential

    @property
    def filters(self) -> Tensor:
        """The filters d (K, 1, size, size)."""
        return torch.einsum(
            "kcb,bij->kcij", self.coefficients, dct_basis(self.size, self.coefficients)
        )

    @torch.no_grad()
    def set_filters(self, filters: Tensor) -> None:
        """Take filters (K, 1, size, size) of mean zero."""
        shape = (len(self.coefficients), 1, self.size, self.size)
        if tuple(filters.shape) != shape:
            raise InputError(f"filters must have shape {shape}, not {tuple(filters.shape)}.")
        filters = filters.to(self.coefficients)
        require_finite(filters, "filters")
        if filters.mean((2, 3)).abs().max() > 1e-5 * filters.abs().max():
            raise InputError("filters must have mean zero: subtract their means.")
        basis = dct_basis(self.size, self.coefficients)
        self.coefficients.copy_(torch.einsum("kcij,bij->kcb", filters, basis))

    def forward(self, image: Tensor) -> Function:
        """The term R for a first image (B, 1, H, W)."""
        return self.potential(self.weight(image)) @ Convolution(self.filters, "mirror")


class ConvexRidges(nn.Module):
    r"""A convex ridge regulariser: learned filters, each with a learned convex potential.

    .. math:: R(x) = λ \sum_k \sum_i ψ_k\bigl((d_k * x)_i\bigr), \qquad \max ψ_k'' = 1

    ψ_k is an even :class:`ConvexSpline` with non-negative learned curvatures, so the energy
    is smooth and, with ½‖x − y‖², strongly convex: its solution has a derivative everywhere but at
    knots, and the equilibrium gradient, ``Implicit(CG())``, is the exact one.

    The filters are learned as compositions d_k = b_k * a of small ones, with a of mean zero, which
    is easier than learning large ones, and divided by the norm of all of them together: λ is the
    Lipschitz constant of ∇R. A potential starts as Huber's function, with slopes of up to λ·bend.

    Args:
        filters (int): K. Default: 32
        size (int): pixels across a filter. Default: 13
        through (int): how many filters a has. Default: 8
        intervals (int): curvatures of a potential. Default: 20
        reach (float): where potentials become straight. Default: 0.02
        weight (float): λ to start from. Default: 20.0
        bend (float): up to here potentials start curved, beyond straight. Default: 0.002

    Shape:
        - image: (B, 1, H, W); the term is one of images of this shape

    Reference: Goujon et al. (2023), *A neural-network-based convex regularizer for inverse
    problems*.

    >>> prior = ConvexRidges()
    >>> sum(p.numel() for p in prior.parameters())  # a, b, 32 potentials, λ
    13577
    """

    def __init__(
        self,
        filters: int = 32,
        size: int = 13,
        *,
        through: int = 8,
        intervals: int = 20,
        reach: float = 0.02,
        weight: float = 20.0,
        bend: float = 0.002,
    ) -> None:
        super().__init__()
        require_whole(filters, "filters")
        require_whole(size, "size", 2)
        require_whole(through, "through")
        require_whole(intervals, "intervals")
        require_positive(reach, "reach")
        require_positive(bend, "bend")
        self.size, self.spacing = size, reach / intervals
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(_small((through, 1), size // 2 + 1, generator))
        self.second = nn.Parameter(_small((filters, through), size - size // 2, generator))
        self.weight = as_weight(weight)
        middles = (torch.arange(intervals) + 0.5) * self.spacing
        # softplus⁻¹ of a curvature of about 1 near zero that falls off like Huber's
        start = torch.exp(-((middles / bend) ** 2) / 2).clamp(min=1e-3)
        self.raw = nn.Parameter((start.expm1()).log().expand(filters, intervals).clone())

    @property
    def filters(self) -> Tensor:
        """The filters d (K, 1, size, size)."""
        a = self.first - self.first.mean((2, 3), keepdim=True)
        composed = nn.functional.conv_transpose2d(a.transpose(0, 1), self.second.transpose(0, 1))
        power = torch.fft.rfft2(composed, s=(4 * self.size, 4 * self.size)).abs().square()
        return (composed / power.sum((0, 1)).amax().sqrt()).transpose(0, 1)

    @property
    def curvatures(self) -> Tensor:
        """ψ'' on its intervals, (K, intervals)."""
        free = nn.functional.softplus(self.raw)
        return free / free.amax(1, keepdim=True)

    def operator(self) -> Operator:
        """K, the bank of filters."""
        return Convolution(self.filters, "mirror")

    def forward(self, image: Tensor) -> Function:
        """The term R for a first image (B, 1, H, W)."""
        curvatures = self.weight(image) * self.curvatures[:, None, None]
        return ConvexSpline(curvatures, self.spacing) @ self.operator()


def _small(count: tuple[int, int], size: int, generator: torch.Generator) -> Tensor:
    """Random filters that begin narrow: normal numbers under a Gaussian of one pixel."""
    n = torch.arange(size, device=generator.device) - (size - 1) / 2
    window = torch.exp(-(n[:, None] ** 2 + n**2) / 2)
    return window * torch.randn(*count, size, size, generator=generator, device=generator.device)
