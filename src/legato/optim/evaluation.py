"""One evaluation of a loss with its gradient, and the errors that may come of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.lazy import lazy
from legato.errors import ClosureError, NoInfluenceError, NonFiniteLossError

Closure = Callable[[], Any]
"""Computes the loss, calls ``backward()`` on it and returns it."""


@dataclass(frozen=True)
class Evaluation:
    """f(x) and ∇f(x); ``error`` bounds how far the loss may be off, ``eps`` is its precision."""

    loss: float
    gradient: tuple[Tensor, ...]
    error: float = 0.0
    eps: float = torch.finfo(torch.float64).eps

    @lazy
    def finite(self) -> bool:
        return math.isfinite(self.loss) and tree.is_finite(self.gradient)

    @property
    def rounding(self) -> float:
        """What a comparison of losses may overlook: rounding, and ``error`` up to 0.1 %."""
        return 4 * self.eps * abs(self.loss) + min(self.error, 1e-3 * abs(self.loss))


def require_finite(found: Evaluation) -> None:
    """Refuse to start from a loss or gradient that is not a number."""
    if not math.isfinite(found.loss):
        what = f"The loss is {found.loss:g} at the current parameters"
    elif not found.finite:
        what = "The gradient of the loss is not finite at the current parameters"
    else:
        return
    raise NonFiniteLossError(
        f"{what}: there is nothing to descend from. Check the data and the loss at this point "
        "(torch.autograd.set_detect_anomaly finds where NaN begins), or start elsewhere."
    )


def as_float(returned: Any) -> float:
    """What a closure returned, as a number."""
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return float(returned.detach())
    if isinstance(returned, (int, float)):
        return float(returned)
    tensor = isinstance(returned, Tensor)
    what = f"shape {tuple(returned.shape)}" if tensor else type(returned).__name__
    raise ClosureError(
        f"The closure must return the loss, one number, not {what}. End it with `return loss`."
    )


def no_influence(described: list[str]) -> NoInfluenceError:
    """The error for parameters that no gradient reaches."""
    return NoInfluenceError(
        f"The loss does not depend on {', '.join(described)}: no gradient reaches it. It was "
        "detached (.detach(), .item(), .data, torch.no_grad()), replaced by a copy, or never used. "
        "Use it in the loss or leave it out of the optimiser."
    )
