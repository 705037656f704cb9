"""Boxes cut by a plane: bounds on entries, and a budget for their weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from legato._support.checks import holds, require_below, require_tensor_or_number
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.base import indicator
from legato.functions.norms import require_one_each
from legato.functions.prox import clip, register_prox
from legato.functions.sets import Indicator
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class BoxSection(AlongAxis, Indicator):
    r"""The indicator of a box cut by a plane, along ``dim``: a budget for bounded entries.

    .. math:: lo ≤ x ≤ hi, \qquad \sum_i w_i x_i = c

    Its prox is exact, clip(y − τw, lo, hi) with τ from a line between two of its kinks. With
    lo = 0, hi = 1 and w = 1 it chooses c entries, softly. At ties, where an entry just reaches an
    end, the derivative is that for a slightly smaller c. Its conjugate is the value of a knapsack
    that may be cut. A budget that the bounds cannot have is refused; on a GPU the prox is NaN.
    Reference: Pardalos and Kovoor (1990); Malaviya, Ferreira, Martins (2018).

    Args:
        total: c, a number or a tensor of size one along ``dim``.
        weights: w, a number or a tensor that broadcasts to x, of either sign.
        lo: the lower bounds, likewise; may be −∞.
        hi: the upper bounds, likewise; may be ∞.
        dim: the axis.

    >>> lg.BoxSection(2.0).prox(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    tensor([0.0000, 0.1250, 0.3750, 0.6250, 0.8750])
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lo", "hi")

    total: Tensor | float = 1.0
    weights: Tensor | float = 1.0
    lo: Tensor | float = 0.0
    hi: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_tensor_or_number(self.total, "The total of BoxSection")
        require_tensor_or_number(self.weights, "The weights of BoxSection")
        require_below(self.lo, self.hi, strict=False, name="BoxSection")

    def violation(self, x: Var) -> Tensor:
        part = _in_front(self, x)
        spent = ((part.w * part.y).sum(-1, keepdim=True) - part.total).abs()
        beyond = torch.maximum(torch.maximum(part.lo - part.y, part.y - part.hi), spent)
        return beyond.movedim(-1, self.dim)

    def bounds(self) -> tuple[Any, Any]:
        return self.lo, self.hi

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        """How far each entry is from where it reaches or leaves an end, while the others stay."""
        part = _in_front(self, y)
        inner = _solved(part).inner
        away = torch.minimum((inner - part.lo).abs(), (inner - part.hi).abs())
        return away.movedim(-1, self.dim)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """min_λ λc + Σ max(lo(y − λw), hi(y − λw)), which is attained where an entry turns."""
        part = _in_front(self, y)
        turns = part.w != 0
        price = torch.where(turns, part.y / torch.where(turns, part.w, 1.0), 0.0)
        rest = part.y.unsqueeze(-2) - price.unsqueeze(-1) * part.w.unsqueeze(-2)
        end = torch.where(rest > 0, part.hi.unsqueeze(-2), part.lo.unsqueeze(-2))
        # Without an end nothing may be left to gain, up to rounding: 0 · ∞ is 0 here.
        gain = torch.where(end.isinf(), indicator(rest.abs()), rest * end.nan_to_num(0.0, 0.0, 0.0))
        gain = gain.sum(-1)
        found = (gain + price * part.total).amin(-1, keepdim=True)
        return sum_beyond(found.movedim(-1, self.dim), batch)


class _Section(NamedTuple):
    """A point and its constraints: tensors whose last axis is the one that is coupled."""

    y: Tensor
    w: Tensor
    lo: Tensor
    hi: Tensor
    total: Tensor


def _in_front(g: BoxSection, y: Tensor) -> _Section:
    if y.ndim == 0:
        raise InputError(f"{g!r} needs an axis, but x has shape (): it is one number.")
    data = (torch.as_tensor(t, dtype=y.dtype, device=y.device) for t in (g.weights, g.lo, g.hi))
    w, lo, hi = (t.expand_as(y).movedim(g.dim, -1) for t in data)
    total = torch.as_tensor(g.total, dtype=y.dtype, device=y.device)
    one_each = y.narrow(g.dim, 0, min(1, y.shape[g.dim]))
    if total.ndim > 0:
        require_one_each(total, one_each, "BoxSection: the total")
    return _Section(y.movedim(g.dim, -1), w, lo, hi, total.expand_as(one_each).movedim(g.dim, -1))


class _Solved(NamedTuple):
    """y − τw with Σ w clip(y − τw) = c, which entries are free there, and the others' ends."""

    inner: Tensor
    free: Tensor
    end: Tensor


def _solved(part: _Section) -> _Solved:
    """The sum falls along a line with kinks: halving their list finds the two around c.

    Between them everything is linear, and that is where the derivatives come from.
    """
    y, w, lo, hi, total = part
    with torch.no_grad():
        counts = w != 0
        safe = torch.where(counts, w, 1.0)
        reached, left = (y - hi) / safe, (y - lo) / safe
        first = torch.where(counts, torch.minimum(reached, left), -torch.inf)
        last = torch.where(counts, torch.maximum(reached, left), torch.inf)
        kinks = torch.cat((first, last), -1).sort(-1).values

        def is_spent(tau: Tensor) -> Tensor:
            """Whether at least c is spent at τ: at −∞ yes, at ∞ no."""
            near = torch.where(tau.isinf(), 0.0, tau)
            spent = (w * torch.clamp(y - near * w, lo, hi)).sum(-1, keepdim=True) >= total
            return torch.where(tau.isinf(), tau < 0, spent)

        low = torch.zeros_like(total, dtype=torch.long)
        high = torch.full_like(low, kinks.shape[-1] - 1)
        for _ in range(kinks.shape[-1].bit_length()):
            middle = (low + high) // 2
            enough = is_spent(kinks.gather(-1, middle))
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        before, after = kinks.gather(-1, low), kinks.gather(-1, high)
        # Far from 0 both kinks of an entry are one number, at which its whole way is a jump.
        jumps = (first == after) & (last == after) & counts
        jump = torch.where(jumps, w.abs() * (hi - lo), 0.0).sum(-1, keepdim=True)
        far = torch.where(after.isinf(), 0.0, after)
        at_after = (w * torch.clamp(y - far * w, lo, hi)).sum(-1, keepdim=True)
        there = (jump > 0) & (total <= at_after + jump)
        free = torch.where(there, jumps, (first <= before) & (last >= after) & counts)
        lower = (last <= torch.where(there, after, before)) == (w > 0)
        near = torch.where(before.isfinite(), before, torch.where(after.isfinite(), after, 0.0))
        near = torch.where(there, after, near)
    end = torch.where(counts, torch.where(lower, lo, hi), clip(y, lo, hi))
    end = torch.where(free, 0.0, end)
    y = y - near * w  # around τ, so that rounding does not see how far from 0 all are
    spent = torch.where(free, w * y, w * end).sum(-1, keepdim=True)
    square = torch.where(free, w * w, 0.0).sum(-1, keepdim=True)
    none = square == 0  # all are on their ends, for a range of τ
    more = torch.where(none, 0.0, (spent - total) / torch.where(none, 1.0, square))
    return _Solved(y - more * w, free, end)


def _is_possible(part: _Section) -> Tensor:
    """Whether some point between the bounds has the sum, up to rounding."""
    ends = torch.stack((part.w * part.lo, part.w * part.hi))
    ends = torch.where(part.w == 0, 0.0, ends)
    least, most = ends.amin(0).sum(-1, keepdim=True), ends.amax(0).sum(-1, keepdim=True)
    size = torch.where(ends.isinf(), 0.0, ends.abs()).sum((0, -1)).unsqueeze(-1)
    slack = 8 * torch.finfo(part.y.dtype).eps * (size + part.total.abs())
    return (least <= part.total + slack) & (most >= part.total - slack)


@register_prox(BoxSection, Euclidean)
def _(g: BoxSection, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    part = _in_front(g, y)
    if y.shape[g.dim] == 0:
        return y
    possible = _is_possible(part).detach()
    if y.device.type == "cpu" and not holds(possible):
        raise InputError(
            f"No point of {g!r} exists: with these bounds the weighted sum of {y.shape[g.dim]} "
            "entries cannot be what total says. Widen the bounds or change the total."
        )
    inner, free, end = _solved(part)
    # Rounding must not carry a free entry over its ends.
    inner = inner + (torch.clamp(inner, part.lo, part.hi) - inner).detach()
    known = possible & ~part.y.isnan().any(-1, keepdim=True)
    found = torch.where(known, torch.where(free, inner, end), torch.nan)
    return found.movedim(-1, g.dim)
