"""Counts: the Kullback–Leibler divergence, the negative logarithm of Poisson's likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative, require_tensor
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.base import Function, indicator
from legato.functions.data import readable
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class KullbackLeibler(Function):
    r"""How unlikely counts y are where x + background is expected; +∞ where x + background < 0.

    .. math:: g(x) = \sum_i x_i + b_i − y_i \log(x_i + b_i) + y_i \log y_i − y_i

    Photons seen through an operator are ``KullbackLeibler(y, background) @ A``; where the expected
    counts x themselves have to be non-negative, add :class:`NonNegative`. Its conjugate is
    −Σ y log(1 − p) + b p. The one tie, y_i = 0 and v_i + b_i = α at the argument v, has the
    derivative 1 of the side x + b > 0. Reference: Csiszár (1991).

    >>> f = lg.KullbackLeibler(torch.tensor([4.0, 0.0]))
    >>> f(torch.tensor([4.0, 1.0])), f.prox(torch.tensor([1.0, 3.0]))
    (tensor(1.), tensor([2., 2.]))
    """

    y: Tensor
    background: Tensor | float = 0.0

    def __post_init__(self) -> None:
        require_counts(self.y)
        require_nonnegative(self.background, "The background of KullbackLeibler")

    def summands(self, x: Var) -> Tensor:
        expected = x + self.background
        none = self.y == 0
        # Within rounding of the boundary counts of 0 are certain, others impossible.
        inside = expected > 0
        log = torch.log(torch.where(inside, expected, 1.0))
        known = torch.xlogy(self.y, torch.where(none, 1.0, self.y)) - self.y
        value = expected - torch.where(none, 0.0, self.y * log) + known
        boundary = torch.where(none, expected + indicator(-expected), torch.inf)
        return torch.where(expected <= 0, boundary, value)

    @property
    def coupled(self) -> int:
        return 0

    def start(self) -> Var:
        return torch.zeros_like(self.y)

    def bounds(self) -> tuple[Any, Any]:
        return -self.background, torch.inf

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        """Only entries without counts have one."""
        away = (y + self.background - step).abs()
        return torch.where(self.y == 0, away, torch.inf)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        slack = 1 - y
        none = self.y == 0
        log = torch.log(torch.where(slack > 0, slack, 1.0))
        inside = torch.where(none, 0.0, -self.y * log) - self.background * y
        boundary = torch.where(none, indicator(-slack) - self.background * y, torch.inf)
        return sum_beyond(torch.where(slack <= 0, boundary, inside), batch)


def require_counts(y: Tensor) -> None:
    """Refuse what is no tensor of numbers y ≥ 0: fractions are fine, as of averaged counts."""
    require_tensor(y, "The counts y of KullbackLeibler")
    if not y.is_floating_point():
        raise InputError("KullbackLeibler needs its counts as floating-point numbers: y.double().")
    if readable(y) and bool((y.detach() < 0).any()):
        raise InputError(
            f"KullbackLeibler needs counts y ≥ 0, but {int((y < 0).sum())} of {y.numel()} are "
            f"negative, the smallest {float(y.detach().min()):g}. If something was subtracted from "
            "them, give it as background= instead; for noise that is not Poisson's use "
            "SquaredDistance."
        )


@register_prox(KullbackLeibler, Euclidean)
def _(g: KullbackLeibler, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    """The positive root z = x + b of z² − tz − αy = 0, with t = v + b − α."""
    t = y + g.background - alpha
    product = alpha * g.y
    # In units of its size, so that no square over- or underflows.
    size = torch.maximum(t.abs(), 2 * torch.sqrt(product.abs())).detach()
    none = size == 0
    size = torch.where(none, 1.0, size)
    square = (t / size) ** 2 + 4 * product / size / size
    root = size * torch.sqrt(torch.where(none, 1.0, square))
    below = t < 0  # where t + root would cancel
    grown = 0.5 * (t + root)
    shrunk = 2 * product / torch.where(below, root - t, 1.0)
    expected = torch.where(none, t, torch.where(below, shrunk, grown))
    return expected - g.background
