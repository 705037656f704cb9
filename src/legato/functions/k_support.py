"""Convex envelopes of sparsity: of a square on vectors with few entries, and of a limit on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative, require_whole
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.entmax import HALVINGS
from legato.functions.norms import require_one_each
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


class _Shares(NamedTuple):
    """θ_i of min Σ y_i²/(θ_i + v) over 0 ≤ θ ≤ 1, Σθ = k: which are 1, which between, and μ.

    θ_i = |y_i|/μ − v in between, with μ = Σ|y_i|/room over these; only μ carries derivatives.
    """

    whole: Tensor
    between: Tensor
    total: Tensor
    room: Tensor

    @property
    def mu(self) -> Tensor:
        return self.total / torch.where(self.room > 0, self.room, 1.0)


def _shares(size: Tensor, v: Tensor, count: int, dim: int) -> _Shares:
    n = size.shape[dim]
    k = min(count, n)
    with torch.no_grad():
        kth = size.topk(k, dim).values.narrow(dim, k - 1, 1)
        # Σθ falls with μ, from k or more to k or less. Halved is the ratio, for μ has any size.
        low, high = kth / (1 + v), size.amax(dim, keepdim=True) / (v + k / n)
        for _ in range(HALVINGS.get(size.dtype, 60) + 20):
            middle = low.sqrt() * high.sqrt()
            share = (size / torch.where(middle > 0, middle, 1.0) - v).clamp(0, 1)
            enough = share.sum(dim, keepdim=True) > k
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        high = torch.where(kth == 0, 0.0, high)  # there is a whole share for each
        whole = ~(size < (1 + v) * high)  # NaN stays
        between = ~whole & (size > v * high)
    total = torch.where(between, size, 0.0).sum(dim, keepdim=True)
    room = k - whole.sum(dim, keepdim=True) + v * between.sum(dim, keepdim=True)
    return _Shares(whole, between, total, room.to(size.dtype))


class _OfFewEntries(AlongAxis):
    """What the two envelopes share."""

    of_moduli: ClassVar[bool] = True

    count: int
    weight: Tensor | float
    dim: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_whole(self.count, f"The count of {name}", least=1)
        require_nonnegative(self.weight, f"The weight of {name}")

    def _on_an_axis(self, x: Tensor) -> Tensor:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        require_one_each(
            self.weight, x.narrow(self.dim, 0, 1), f"{type(self).__name__}: the weight"
        )
        return x

    def _half_squares(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """½‖x‖² of the k-support norm, and how much it is larger than that of the Euclidean one."""
        size = self._on_an_axis(x).abs()
        found = _shares(size, size.new_zeros(()), self.count, self.dim)
        squares = size * size
        whole = torch.where(found.whole, squares, 0.0).sum(self.dim, keepdim=True)
        rest = torch.where(found.whole, 0.0, squares).sum(self.dim, keepdim=True)
        shared = torch.where(found.room > 0, found.total * found.mu, rest)
        return 0.5 * (whole + shared), 0.5 * (shared - rest)


@dataclass(frozen=True, eq=False, repr=False)
class KSupport(_OfFewEntries):
    r"""Half the square of the k-support norm along ``dim``.

    .. math:: f(x) = \tfrac w2 \min_{0 ≤ θ ≤ 1, \; \sum_i θ_i ≤ k} \sum_i \frac{x_i^2}{θ_i}

    The largest convex function that is ½w‖x‖² where at most k entries are not 0: ½w‖x‖₁² for k = 1,
    ½w‖x‖² for k = n. Entries that are correlated are taken together, which the ℓ1 norm does not.
    Its conjugate is Σ y_i²/(2w) over the k largest |y_i|. At ties the derivative of the prox is
    that of entries in between. Reference: Argyriou, Foygel, Srebro (2012).

    >>> f = legato.functions.KSupport(2)
    >>> f(torch.tensor([3.0, 4.0, 0.0])), f.prox(torch.tensor([3.0, 4.0, 1.0]))
    (tensor(12.5000), tensor([1.5000, 2.0000, 0.0000]))
    """

    count: int
    weight: Tensor | float = 1.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        return self.weight * self._half_squares(x)[0]

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        size = self._on_an_axis(y).abs()
        most = size.topk(min(self.count, size.shape[self.dim]), self.dim).values
        total = (most * most).sum(self.dim, keepdim=True)
        weight = torch.as_tensor(self.weight, dtype=size.dtype, device=size.device)
        zero = torch.where(total > 0, torch.inf, total)
        found = torch.where(weight > 0, total / (2 * torch.where(weight > 0, weight, 1.0)), zero)
        return sum_beyond(found, batch) if batch else found.sum()

    def moved(self, size: Tensor, alpha: Any) -> tuple[Tensor, Tensor]:
        """The prox of sizes, and its slope in each where μ stays."""
        v = torch.as_tensor(alpha * self.weight, dtype=size.dtype, device=size.device)
        return _shrunk(size, v, self.count, self.dim)


@dataclass(frozen=True, eq=False, repr=False)
class L0BallEnvelope(_OfFewEntries):
    r"""The quadratic envelope of at most ``count`` entries along ``dim``: 0 for these, else above.

    .. math:: g(x) = \tfrac w2 \bigl(‖x‖_{k\text{-support}}^2 − ‖x‖^2\bigr)

    With ½w‖x − b‖² beside it, it is the convex envelope of :class:`L0Ball` with that square. Not
    convex by itself: a solver finds a stationary point. For α ≥ 1/w its prox keeps the k largest
    entries, below it shrinks the others. Of equals the first are kept.
    Reference: Carlsson (2019); Andersson, Carlsson, Olsson (2017).

    >>> g = legato.functions.L0BallEnvelope(2)
    >>> g(torch.tensor([3.0, 0.0, 1.0])), g.prox(torch.tensor([3.0, 1.0, 0.9]), 0.5)
    (tensor(0.), tensor([3.0000, 0.7333, 0.5333]))
    """

    convex: ClassVar[bool] = False

    count: int
    weight: Tensor | float = 1.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        return self.weight * self._half_squares(x)[1].clamp(min=0)

    def moved(self, size: Tensor, alpha: Any) -> tuple[Tensor, Tensor]:
        """The prox of sizes, and its slope in each where μ stays."""
        a = torch.as_tensor(alpha * self.weight, dtype=size.dtype, device=size.device)
        gentle = a < 1
        left = 1 - torch.where(gentle, a, 0.5)
        x, slope = _shrunk(size / left, (1 - left) / left, self.count, self.dim)
        order = torch.nan_to_num(size.detach(), nan=torch.inf)
        order = order.argsort(dim=self.dim, descending=True, stable=True)
        first = order.narrow(self.dim, 0, min(self.count, size.shape[self.dim]))
        kept = torch.zeros_like(size, dtype=torch.bool).scatter(self.dim, first, True)
        hard = torch.where(kept, size, torch.zeros_like(size))
        return torch.where(gentle, x, hard), torch.where(gentle, slope / left, kept.to(slope.dtype))


def _shrunk(size: Tensor, v: Tensor, count: int, dim: int) -> tuple[Tensor, Tensor]:
    """argmin ½‖x − size‖² + ½v‖x‖² of the k-support norm, and its slopes where μ stays."""
    found = _shares(size, v, count, dim)
    between = torch.where(found.between, size - v * found.mu, torch.zeros_like(size))
    x = torch.where(found.whole, size / (1 + v), between)
    return x, torch.where(found.whole, 1 / (1 + v), found.between.to(size.dtype))


@register_prox(KSupport, Euclidean)
@register_prox(L0BallEnvelope, Euclidean)
def _(g: KSupport | L0BallEnvelope, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    side = torch.where(y.detach() < 0, -1.0, 1.0).to(y.dtype)
    return side * g.moved(side * g._on_an_axis(y), alpha)[0]
