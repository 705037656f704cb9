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
from legato.nn.reconstruction.weights import as_weight
from legato.operators import Convolution, Differences


class TV(nn.Module):
    r"""Total variation, with one weight or one for each pixel.

    .. math:: R(x) = \sum_i λ_i\, |(∇x)_i|

    Args:
        weight (float, Tensor or Module): λ to start from, learned as exp(·): a number, a map
            (H, W), or a module from the first image to λ, such as :class:`WeightMap`. Default: 0.01
        isotropic (bool): take the Euclidean norm of the gradient at each pixel; else the sum of
            absolute differences. Default: True

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
        if weight.ndim > 1:
            weight = weight.unsqueeze(-3)  # the axis of directions
        penalty = GroupL1(weight, dim=-3) if self.isotropic else L1(weight)
        return penalty @ Differences()


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

    .. math:: R(x) = λ \sum_k \sum_i ψ_k\bigl((d_k * x)_i\bigr)

    ψ_k is an even :class:`ConvexSpline` with non-negative learned curvatures, so the energy
    is smooth and, with ½‖x − y‖², strongly convex: its solution has a derivative everywhere but at
    knots, and the equilibrium gradient, ``Implicit(CG())``, is the exact one.

    Args:
        filters (int): K. Default: 48
        size (int): pixels across a filter. Default: 13
        intervals (int): curvatures of a potential. Default: 60
        reach (float): where potentials become straight. Default: 0.6
        weight (float): λ to start from. Default: 1.0
        bend (float): up to here potentials start curved, beyond straight. Default: 0.02

    Shape:
        - image: (B, 1, H, W); the term is one of images of this shape

    Reference: Goujon et al. (2023), *A neural-network-based convex regularizer for inverse
    problems*.

    >>> prior = ConvexRidges(8, 3, intervals=20)
    >>> sum(p.numel() for p in prior.parameters())  # 8 filters, 8 potentials, λ
    225
    """

    def __init__(
        self,
        filters: int = 48,
        size: int = 13,
        *,
        intervals: int = 60,
        reach: float = 0.6,
        weight: float = 1.0,
        bend: float = 0.02,
    ) -> None:
        super().__init__()
        require_whole(filters, "filters")
        require_whole(size, "size", 2)
        require_whole(intervals, "intervals")
        require_positive(reach, "reach")
        require_positive(bend, "bend")
        self.size, self.spacing = size, reach / intervals
        self.coefficients = nn.Parameter(first_coefficients(filters, 1, size))
        self.weight = as_weight(weight)
        middles = (torch.arange(intervals) + 0.5) * self.spacing
        # softplus⁻¹ of a curvature of about 1 near zero that falls off like Huber's
        start = torch.exp(-((middles / bend) ** 2) / 2).clamp(min=1e-3)
        self.raw = nn.Parameter((start.expm1()).log().expand(filters, intervals).clone())

    @property
    def filters(self) -> Tensor:
        """The filters d (K, 1, size, size)."""
        return torch.einsum(
            "kcb,bij->kcij", self.coefficients, dct_basis(self.size, self.coefficients)
        )

    @property
    def curvatures(self) -> Tensor:
        """ψ'' on its intervals, (K, intervals)."""
        return nn.functional.softplus(self.raw)

    def forward(self, image: Tensor) -> Function:
        """The term R for a first image (B, 1, H, W)."""
        curvatures = self.weight(image) * self.curvatures[:, None, None]
        return ConvexSpline(curvatures, self.spacing) @ Convolution(self.filters, "mirror")
