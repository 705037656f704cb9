"""Evaluating an upper loss with its gradient, and telling what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato.bilevel.arguments import as_scalar
from legato.bilevel.checkpoint import random_state, set_random_state
from legato.bilevel.inner import InnerSolver
from legato.errors import LegatoError, NonFiniteLossError
from legato.optim.evaluation import no_influence

Loss = Callable[[InnerSolver], Tensor]


class Evaluator:
    """Calls the loss and backward. Errors are raised at the first point, and noted at later ones.

    A later point is a trial of an optimiser, which may well lie where the lower level fails; then
    the loss counts as infinite and ``trouble`` says why.
    """

    def __init__(
        self, loss: Loss, names: list[str], params: tuple[Tensor, ...], inner: InnerSolver
    ) -> None:
        self.loss, self.names, self.params, self.inner = loss, names, params, inner
        self.first_loss: float | None = None
        self.origin: dict[str, Any] | None = None
        self.trouble: list[str] = []
        self.count = 0
        self.start: tuple[float, float] | None = None
        """Loss and gradient norm of the first healthy evaluation since :meth:`begin_step`."""

    def begin_step(self) -> None:
        self.trouble, self.count, self.start = [], 0, None

    def __call__(self) -> tuple[Tensor, bool]:
        """The loss, with gradients left in the parameters, and whether all of it is finite."""
        if self.first_loss is None:
            self.origin = {"params": tree.copy(self.params), "random": random_state()}
        for p in self.params:
            p.grad = None
        self.count += 1
        self.inner.begin()
        try:
            with torch.enable_grad():
                value = as_scalar(self.loss(self.inner))
        except (LegatoError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            if self.first_loss is None:
                raise
            self.trouble.append(f"{type(error).__name__}: {error}")
            return self.params[0].new_full((), math.inf), False
        number = float(value.detach())
        if not math.isfinite(number):
            self._complain(f"the loss is {number:g}")
            return value.detach(), False
        self._backward(value)
        size = tree.length(tuple(p.grad for p in self.params))
        if not math.isfinite(size):
            self._complain("the gradient of the loss is not finite")
            return value.detach(), False
        self.first_loss = number if self.first_loss is None else self.first_loss
        self.start = (number, size) if self.start is None else self.start
        return value.detach(), True

    def _backward(self, value: Tensor) -> None:
        if not value.requires_grad:
            raise no_influence(self.names)
        with self.inner.suppress_inexact_warnings():
            value.backward()
        missing = [n for n, p in zip(self.names, self.params, strict=True) if p.grad is None]
        if missing:
            raise no_influence(missing)
        self.inner.close()

    def _complain(self, what: str) -> None:
        if self.first_loss is None:
            raise NonFiniteLossError(
                f"At the start {what}. Check the data and the starting parameters; "
                "torch.autograd.set_detect_anomaly(True) finds where NaN begins."
            )
        self.trouble.append(f"at a trial point {what}")

    def value(self) -> float:
        """The loss alone."""
        self.inner.begin()
        with torch.no_grad():
            return float(as_scalar(self.loss(self.inner)))

    def value_at(self, origin: dict[str, Any]) -> float:
        """The loss at an ``origin``; the parameters stay, the random state does not."""
        current = tree.copy(self.params)
        tree.write(self.params, tuple(origin["params"]))
        set_random_state(origin["random"])
        try:
            return self.value()
        finally:
            tree.write(self.params, current)
