"""When a fit may end early."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from legato.bilevel.history import History
from legato.errors import InputError


@dataclass(frozen=True)
class Until:
    """End a fit once a measure of progress is at most its bound, ``patience`` steps in a row.

    Any callable History → reason or None serves as well.
    Reference: Nocedal and Wright (2006), Section 3.1.

    Args:
        gradient: A bound on ‖∇f(θ)‖, useful without prox.
        change: A bound on ‖θ⁺ − θ‖.
        decrease: A bound on the relative decrease of the loss in a step.
        loss: A target for the loss.
        seconds: A budget of time, after which the fit ends in any case.
        patience: The number of steps in a row that have to meet a bound.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], lg.optim.IPiano, 500,
    ...                 until=lg.bilevel.Until(gradient=1e-4))
    >>> result.converged
    True
    """

    gradient: float | None = None
    change: float | None = None
    decrease: float | None = None
    loss: float | None = None
    seconds: float | None = None
    patience: int = 1

    def __post_init__(self) -> None:
        bounds = (self.gradient, self.change, self.decrease, self.seconds)
        if any(b is not None and not b >= 0 for b in bounds) or self.patience < 1:
            raise InputError(f"Until needs non-negative bounds and patience ≥ 1, not {self!r}.")

    def __call__(self, history: History) -> str | None:
        return self.spent(history) or self._met(history)

    def spent(self, history: History) -> str | None:
        """Why the fit has to end whether it has converged or not."""
        if self.seconds is not None and history.records[-1].seconds >= self.seconds:
            return f"the {self.seconds:g} seconds are spent"
        return None

    def _met(self, history: History) -> str | None:
        n, losses = self.patience, history.loss[-self.patience - 1 :]
        falls = [abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairwise(losses)]
        measures = (
            ("gradient norm", history.gradient_norm[-n:], self.gradient),
            ("change", history.change[-n:], self.change),
            ("relative decrease", falls, self.decrease),
            ("loss", history.loss[-n:], self.loss),
        )
        for name, values, bound in measures:
            if bound is not None and len(values) == n and all(v <= bound for v in values):
                return f"{name} {values[-1]:.3g} ≤ {bound:.3g}"
        return None
