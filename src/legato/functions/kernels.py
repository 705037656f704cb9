"""Multiples of a geometry's own ψ, which every prox of that geometry absorbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import holds, require_floating, require_nonnegative
from legato._support.tree import Var, inner, product, real_dtype, square, sum_beyond, tree_map
from legato.errors import InputError, MissingConjugateError
from legato.functions.affine import Zero
from legato.functions.base import Function, ProxParts, indicator
from legato.geometry import Entropy, Euclidean, Geometry


@dataclass(frozen=True, eq=False, repr=False)
class BregmanTerm(Function):
    r"""A multiple of a geometry's ψ, g(x) = ε ψ(x), which makes a solution unique.

    .. math:: \mathrm{prox}_{α(g + εψ)}(y) = \mathrm{prox}_{\frac{α}{1+αε} g}(y / (1 + αε))

    In the geometry ψ it costs one division, and adds no ties. See :func:`SquaredNorm` and
    :func:`NegativeEntropy`. Reference: Nesterov (2005), smoothing.

    >>> ridge = lg.BregmanTerm(lg.Euclidean(), 3.0)
    >>> ridge.prox(torch.tensor([8.0]))  # y/(1 + ε)
    tensor([2.])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)

    geometry: Geometry
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of a Bregman term")

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    @property
    def takes_complex(self) -> bool:  # type: ignore[override]
        return self.geometry.takes_complex

    def values(self, x: Var, batch: int) -> Tensor:
        weight = self.weight
        if not isinstance(weight, Tensor) or weight.ndim == 0:
            return weight * self.geometry.values(x, batch)
        if isinstance(x, tuple):
            raise InputError(
                "A Bregman term of a tuple of variables needs one number as its weight, not a "
                f"tensor of shape {tuple(weight.shape)}."
            )
        return inner(weight, self.geometry.summands(x), batch)

    @property
    def coupled(self) -> int | None:
        return self.geometry.coupled

    def weight_shape(self) -> torch.Size:
        return self.weight.shape if isinstance(self.weight, Tensor) else torch.Size()

    def grad(self, x: Var) -> Var:
        return tree_map(lambda t: self.weight * t, self.geometry.mirror(x))

    def hessian(self, x: Tensor) -> Tensor:
        if not isinstance(self.geometry, Euclidean):
            return super().hessian(x)
        return diagonal_hessian(self.weight, x)

    def lipschitz(self) -> Tensor | float | None:
        if not isinstance(self.geometry, Euclidean):
            return None
        return self.weight

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        if not same_geometry(self.geometry, geometry):
            raise InputError(
                f"{self!r} has a closed-form prox in its own geometry {self.geometry!r} only, not "
                f"in {geometry!r}. Give the algorithm geometry={self.geometry!r}, or move the term "
                "to the smooth one."
            )
        return ProxParts(Zero(), epsilon=self.weight)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """εψ*(y/ε), the supremum being attained at x = ∇ψ*(y/ε)."""
        if not holds(torch.as_tensor(self.weight) > 0):
            raise MissingConjugateError(
                f"The conjugate of {self!r} is not computed where its weight is 0, so there is no "
                "primal–dual gap. Leave the term out, or use the residual instead."
            )
        x = self.geometry.unmirror(tree_map(lambda t: t / self.weight, y))
        return inner(x, y, batch) - self.values(x, batch)

    def __repr__(self) -> str:
        name = {Euclidean: "SquaredNorm", Entropy: "NegativeEntropy"}.get(type(self.geometry))
        text = super().__repr__()
        if name is None:
            return text
        return f"{name}({text.partition('(')[2].partition(', ')[2].removesuffix(')')})"


def SquaredNorm(weight: Tensor | float = 1.0) -> BregmanTerm:
    """Half a squared norm, g(x) = ½ Σ w_i x_i²: ridge, weight decay, half of the elastic net.

    Reference: Zou and Hastie (2005) for the elastic net.

    >>> lg.SquaredNorm(2.0)(torch.tensor([1.0, 2.0]))
    tensor(5.)
    >>> (lg.L1(1.0) + lg.SquaredNorm(1.0)).prox(torch.tensor([5.0]))
    tensor([2.])
    """
    return BregmanTerm(Euclidean(), weight)


def NegativeEntropy(weight: Tensor | float = 1.0) -> BregmanTerm:
    """The negative entropy, g(x) = Σ w_i x_i log x_i; on the simplex it makes solutions unique.

    Reference: Nesterov (2005), smoothing.

    >>> g = lg.Simplex() + lg.NegativeEntropy(1.0) + lg.Linear(torch.tensor([0.0, 1.0]))
    >>> x = lg.prox(g, lg.Entropy(), torch.zeros(2), 1e6)  # nearly the minimiser: softmax(−c)
    >>> torch.allclose(x, torch.softmax(torch.tensor([0.0, -1.0]), 0), atol=1e-4)
    True
    """
    return BregmanTerm(Entropy(), weight)


@dataclass(frozen=True, eq=False, repr=False)
class SquaredDistance(Function):
    r"""Half the squared distance to data, f(x) = ½ Σ w_i (x_i − y_i)².

    Smooth, with ∇f(x) = w(x − y) and L = w; in the Euclidean geometry any prox absorbs it. Through
    an operator, ``SquaredDistance(b) @ A``, it is least squares.

    >>> f = lg.SquaredDistance(torch.tensor([1.0, 3.0]))
    >>> f(torch.zeros(2)), f.grad(torch.zeros(2)), f.prox(torch.zeros(2))
    (tensor(5.), tensor([-1., -3.]), tensor([0.5000, 1.5000]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    y: Tensor
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_floating(self.y, "The data y of SquaredDistance")
        require_nonnegative(self.weight, "The weight of SquaredDistance")

    def summands(self, x: Var) -> Tensor:
        return 0.5 * self.weight * square(x - self.y)

    @property
    def coupled(self) -> int:
        return 0

    def start(self) -> Var | None:
        weight = torch.zeros_like(self.weight) if isinstance(self.weight, Tensor) else 0
        return torch.zeros_like(self.y) + weight

    def grad(self, x: Var) -> Var:
        rest = x - self.y
        return rest if isinstance(self.weight, float) and self.weight == 1.0 else self.weight * rest

    def hessian(self, x: Tensor) -> Tensor:
        return diagonal_hessian(self.weight, x)

    def lipschitz(self) -> Tensor | float:
        return self.weight

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        if not isinstance(geometry, Euclidean):
            raise InputError(
                f"{self!r} has a closed-form prox in the Euclidean geometry only, not in "
                f"{geometry!r}. Move it to the smooth term."
            )
        return ProxParts(Zero(), shifts=((-self.weight, self.y),), epsilon=self.weight)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """½ Σ p²/w + ⟨y, p⟩ at p; where w = 0 the indicator of p = 0."""
        weight = torch.as_tensor(self.weight, dtype=real_dtype(y.dtype), device=y.device)
        curved = weight > 0
        bent = 0.5 * square(y) / torch.where(curved, weight, 1.0)
        rest = torch.where(curved, bent + product(self.y, y), indicator(y.abs()))
        return sum_beyond(rest, batch)


def same_geometry(one: Geometry, other: Geometry) -> bool:
    """Whether two geometries are the same ψ: one object, or of one type with the same data.

    Numbers are the same where they are equal; a tensor, which may change, only where it is one.
    """
    return one is other or (type(one) is type(other) and _same_data(vars(one), vars(other)))


def _same_data(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Geometry) and isinstance(other, Geometry):
        return same_geometry(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_same_data, one, other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(_same_data(one[key], other[key]) for key in one)
    return False


def diagonal_hessian(weight: Tensor | float, x: Tensor) -> Tensor:
    """diag(w), of shape (…, n, n) where w has batch axes, for x of shape (…, n)."""
    w: Any = torch.as_tensor(weight, dtype=x.dtype, device=x.device)
    if w.ndim == 0 or w.shape[-1] == 1:
        w = w.expand(*w.shape[:-1], x.shape[-1])
    return torch.diag_embed(w)
