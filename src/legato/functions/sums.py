"""Sums of two or more terms whose prox is known although none of them is linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from legato._support.checks import cheap_to_read
from legato._support.tree import Var, sum_beyond
from legato.errors import EmptyDomainError, InputError, MissingConjugateError
from legato.functions.algebra import Scaled, Shifted
from legato.functions.base import Function, indicator
from legato.functions.losses import Hinge, Huber, Quantile
from legato.functions.monotone import Monotone
from legato.functions.norms import L1, AsymmetricL1, GroupL1
from legato.functions.prox import mirror_prox, register_prox, times_end
from legato.functions.sets import Box, L2Ball, NonNegative
from legato.functions.sparse_group import SparseGroupL1
from legato.functions.variation_1d import TotalVariation1D
from legato.geometry import Euclidean

Number = Tensor | float
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, eq=False, repr=False)
class Successive(Function):
    r"""Two terms of which the prox of the sum is one prox after the other.

    .. math:: \mathrm{prox}_{α(g + h)} = \mathrm{prox}_{αh} ∘ \mathrm{prox}_{αg}

    A sum of terms for which that holds makes it, such as ``L1(w) + Box(lo, hi)``. At ties the
    derivative is that of the chain. Reference: Yu (2013), *On decomposing the proximal map*.

    >>> g = lg.L1(1.0) + lg.Box(-1.0, 1.0)
    >>> g.prox(torch.tensor([3.0, -0.5, -1.5]))
    tensor([ 1.0000,  0.0000, -0.5000])
    """

    first: Function
    second: Function

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    def values(self, x: Var, batch: int) -> Tensor:
        return self.first.values(x, batch) + self.second.values(x, batch)

    @property
    def coupled(self) -> int | None:
        axes = (self.first.coupled, self.second.coupled)
        return None if axes[0] is None or axes[1] is None else max(axes[0], axes[1])

    def prox_couples(self) -> tuple[int, ...]:
        return self.first.prox_couples() + self.second.prox_couples()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """Slopes on a box: the supremum is attained at an end or at the kink."""
        if not (isinstance(self.first, L1 | AsymmetricL1) and isinstance(self.second, Box)):
            raise MissingConjugateError(
                f"The conjugate of {self!r} is not known in closed form, so the primal–dual gap "
                "cannot be computed. Use the residual instead."
            )
        below, above = _slopes(self.first)
        lo, hi = (torch.as_tensor(e, dtype=y.dtype, device=y.device) for e in _ends(self.second))
        kink = torch.zeros_like(lo).clamp(min=lo, max=hi)
        found = kink * y - _sloped(kink, below, above)
        for end in (lo, hi):
            infinite = torch.isinf(end)
            x = torch.where(infinite, 0.0, end)
            past = torch.where(end > 0, y - above, below - y)
            beyond = torch.where(indicator(past) > 0, torch.inf, -torch.inf)
            value = torch.where(infinite, beyond, x * y - _sloped(x, below, above))
            found = torch.maximum(found, value)
        return sum_beyond(found, batch)


@register_prox(Successive, Euclidean)
def _(g: Successive, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    return mirror_prox(g.second, geometry, mirror_prox(g.first, geometry, y, alpha), alpha)


def together(terms: Sequence[tuple[Function, Any]]) -> Function | None:
    r"""One term for Σ c_j f_j where the table, or one prox after another, has it; else None.

    ``terms`` are pairs (f_j, c_j), with None for c = 1. Slopes add, boxes intersect; slopes on a
    box are a chain, and so are moved slopes, Huber, hinge and quantile losses on one. Before or
    after these comes at most one term that is not separable.
    Whatever the order of the terms, the result is the same.
    """
    slopes = [(f, c) for f, c in terms if isinstance(f, L1 | AsymmetricL1)]
    boxes = [f for f, _ in terms if isinstance(f, Box | NonNegative)]
    rest = [(f, c) for f, c in terms if not isinstance(f, L1 | AsymmetricL1 | Box | NonNegative)]
    if len(rest) > 1:
        return None
    norm = _added(slopes)
    box = _intersected(boxes)
    if not rest:
        return _on_box(norm, box)
    core, factor = rest[0]
    if _is_finite_of_entries(core):
        inner = core if factor is None else Scaled(factor, core)
        return None if norm is not None or box is None else Successive(inner, box)
    if isinstance(core, GroupL1 | L2Ball):
        return _grouped(core, factor, norm, box)
    if isinstance(core, Monotone | TotalVariation1D):
        if not (_is_alike(norm) and _is_alike(box)):
            return None
        outer = _on_box(norm, box)
        inner = core if factor is None else Scaled(factor, core)
        return None if outer is None else Successive(inner, outer)
    return None


def _is_finite_of_entries(core: Function) -> bool:
    """Whether a convex term is one of single entries, and allows all of them: a box may follow."""
    inner = core.function if isinstance(core, Shifted) else core
    return isinstance(inner, Huber | Quantile | Hinge) or (inner is not core and type(inner) is L1)


def _unchecked(kind: type[F], **fields: Any) -> F:
    """A term whose arguments were looked at when its parts were made: here, in a step, not again.

    To look makes a GPU wait.
    """
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _multiple(factor: Any, end: Any) -> Any:
    return end if factor is None else times_end(factor, end)


def _added(slopes: Sequence[tuple[Function, Any]]) -> L1 | AsymmetricL1 | None:
    if not slopes:
        return None
    if all(isinstance(f, L1) for f, _ in slopes):
        weights = [_multiple(c, f.weight) for f, c in slopes if isinstance(f, L1)]
        return _unchecked(L1, weight=sum(weights[1:], start=weights[0]))
    lows, highs = zip(*(_scaled_slopes(f, c) for f, c in slopes), strict=True)
    lo, hi = sum(lows[1:], start=lows[0]), sum(highs[1:], start=highs[0])
    return _unchecked(AsymmetricL1, lo=lo, hi=hi)


def _scaled_slopes(f: Function, c: Any) -> tuple[Any, Any]:
    lo, hi = _slopes(f)
    return _multiple(c, lo), _multiple(c, hi)


def _slopes(f: Function) -> tuple[Any, Any]:
    if isinstance(f, L1):
        return -f.weight, f.weight
    assert isinstance(f, AsymmetricL1)
    return f.lo, f.hi


def _sloped(x: Tensor, below: Any, above: Any) -> Tensor:
    """max(below·x, above·x), where 0·∞ is 0."""
    rise = torch.where(x > 0, x, 0.0)
    fall = torch.where(x < 0, x, 0.0)
    return torch.where(x > 0, above * rise, torch.where(x < 0, below * fall, 0.0))


def _ends(box: Function) -> tuple[Any, Any]:
    return (0.0, torch.inf) if isinstance(box, NonNegative) else (box.lo, box.hi)  # type: ignore[attr-defined]


def _intersected(boxes: Sequence[Function]) -> Box | NonNegative | None:
    if not boxes or all(isinstance(b, NonNegative) for b in boxes):
        return NonNegative() if boxes else None
    ends = [_ends(b) for b in boxes]
    lo, hi = ends[0]
    for other_lo, other_hi in ends[1:]:
        lo, hi = _larger(lo, other_lo), -_larger(-hi, -other_hi)
    if not all(cheap_to_read(e) for e in (lo, hi) if isinstance(e, Tensor)):
        return _unchecked(Box, lo=lo, hi=hi)
    try:
        return Box(lo, hi)
    except InputError:
        raise EmptyDomainError(
            f"{' + '.join(map(repr, boxes))} allows no x: the boxes have no common point in some "
            "entry. Look at their ends."
        ) from None


def _larger(one: Number, other: Number) -> Number:
    """The larger of two ends; where they are equal its derivative goes to the first."""
    if not isinstance(one, Tensor) and not isinstance(other, Tensor):
        return max(one, other)
    like = one if isinstance(one, Tensor) else other
    assert isinstance(like, Tensor)
    one, other = (torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in (one, other))
    return torch.where(one >= other, one, other)


def _on_box(norm: L1 | AsymmetricL1 | None, box: Box | NonNegative | None) -> Function | None:
    if norm is None or box is None:
        return norm if box is None else box
    if isinstance(box, NonNegative):  # only the slope above counts
        return _unchecked(AsymmetricL1, lo=-torch.inf, hi=_slopes(norm)[1])
    return Successive(norm, box)


def _grouped(
    core: GroupL1 | L2Ball, factor: Any, norm: Function | None, box: Function | None
) -> Function | None:
    """Groups after what keeps signs and shrinks: an ℓ1 norm, x ≥ 0, or both."""
    if isinstance(box, Box):
        return None
    if isinstance(core, GroupL1) and isinstance(norm, L1) and box is None:
        weight, own = norm.weight, _multiple(factor, core.weight)
        return _unchecked(
            SparseGroupL1, weight=weight, group_weight=own, dim=core.dim, groups=core.groups
        )
    scaled = core if factor is None or isinstance(core, L2Ball) else Scaled(factor, core)
    inner = _on_box(norm, box)  # type: ignore[arg-type]
    return None if inner is None or box is None else Successive(inner, scaled)


def _is_alike(f: Function | None) -> bool:
    """Whether a separable term is the same one for every entry."""
    if f is None or isinstance(f, NonNegative):
        return True
    ends = _slopes(f) if isinstance(f, L1 | AsymmetricL1) else _ends(f)
    return all(not isinstance(e, Tensor) or e.numel() == 1 for e in ends)
