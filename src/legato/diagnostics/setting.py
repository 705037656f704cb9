"""What is being diagnosed: a problem, an algorithm, a loss and a start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import InputError, NonFiniteLossError

Loss = Callable[[Var], Tensor]


@dataclass(frozen=True, eq=False)
class Setting:
    """The bilevel problem as a whole: x*(θ) from ``problem`` by ``algorithm``, then L(x*)."""

    problem: Any
    algorithm: Algorithm
    loss: Loss
    x0: Var | None = None

    def start(self) -> Any:
        """The first state; a given state (of an earlier solution) is one already."""
        if isinstance(self.x0, tuple) and hasattr(self.x0, "_fields"):
            return self.x0
        return self.algorithm.init(self.problem, self.x0)

    def value(self, state: Any) -> Tensor:
        """L at the solution that a state stands for."""
        return checked_loss(self.loss, self.algorithm.solution(state))


def checked_loss(loss: Loss, x: Var) -> Tensor:
    """L(x), refused where it is no number."""
    value = loss(x)
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"The loss must be a function of the solution that returns one number as a tensor, "
            f"not {given}. Reduce it, e.g. with .sum() or .mean()."
        )
    if not bool(torch.isfinite(value.detach())):
        raise NonFiniteLossError(
            f"The loss is {float(value.detach()):g} at the solution, so no gradient of it means "
            "anything. Look for log(0), 0/0 or overflow in the loss."
        )
    return value.reshape(())


def require_dependence(loss: Loss, x: Var) -> None:
    """Refuse a loss that does not see the solution."""
    with torch.enable_grad():
        points = [t.detach().requires_grad_() for t in tree.leaves(x)]
        value = checked_loss(loss, tree.rebuild(x, points))
        seen: tuple[Tensor | None, ...] = (None,)
        if value.requires_grad:
            seen = torch.autograd.grad(value, points, allow_unused=True)
    if all(g is None for g in seen):
        raise InputError(
            "The loss does not depend on the solution through autograd, so every gradient strategy "
            "gives the same. Pass loss=function of x, computed with torch operations from the x it "
            "is given, without detach(), item() or numpy."
        )
    if not all(bool(torch.isfinite(g).all()) for g in seen if g is not None):
        raise NonFiniteLossError(
            "The gradient of the loss in the solution holds NaN or infinity. Look for log(0), "
            "sqrt(0) or a norm at 0 in the loss."
        )
