"""One gradient strategy, measured."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support import tree
from legato.diagnostics.memory import peak_bytes
from legato.diagnostics.replica import flat
from legato.diagnostics.setting import Setting, checked_loss
from legato.diagnostics.strategies import label
from legato.errors import GradientError, LegatoWarning
from legato.gradients import BiCGStab, GradientStrategy, Implicit
from legato.running import Stop
from legato.solving import Solution, solve


@dataclass(frozen=True, eq=False)
class Row:
    """What one strategy gave; ``skipped`` says why if it does not apply, and then the rest is None.

    ``error`` is ‖g − ḡ‖/‖ḡ‖ for the reference ḡ (absolute where ḡ = 0) and ``cosine`` their angle.
    ``bound`` is never below ``error``: the part that comes from an unfinished forward solve,
    measured, plus the part that comes from the backward solve, from its residual. ``estimate`` is
    ‖r‖/(1 − ρ), relative to ‖ξ‖, as the strategy itself reports it. ``products`` counts iterations
    of the backward pass. ``warnings`` are the names of the warnings that the strategy gave.
    Reference: :func:`legato.diagnose`.

    >>> [row.error < 1e-6 for row in diagnosis.rows if row.gradient == lg.Implicit()]
    [True]
    """

    gradient: GradientStrategy
    skipped: str | None = None
    value: Tensor | None = None
    error: float | None = None
    cosine: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    residual: float | None = None
    products: int | None = None
    bound: float | None = None
    estimate: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return label(self.gradient)


def measure(
    setting: Setting,
    gradient: GradientStrategy,
    stop: Stop,
    params: list[Tensor],
    reference: Tensor,
) -> Row:
    """Run a strategy twice: once for its memory, once for its time, its gradient and its words."""

    def once() -> tuple[Solution, Tensor]:
        with torch.enable_grad():
            solution = solve(
                setting.problem, setting.algorithm, setting.x0, gradient=gradient, stop=stop
            )
            value = checked_loss(setting.loss, solution.x)
            grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
        return solution, flat(grads, params)

    device = params[0].device
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            memory = peak_bytes(once, device)
            heard.clear()
            begin = time.perf_counter()
            solution, found = once()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - begin
        except GradientError as error:
            return Row(gradient, skipped=str(error))
    ours = _pass_on(heard)
    found = found.to(reference)
    products = solution.backward.iterations
    if products is None:  # unrolling: one product for each iteration kept
        last = getattr(gradient, "last", None)
        products = solution.iterations if last is None else min(last, solution.iterations)
    elif isinstance(gradient, Implicit) and isinstance(gradient.solver, BiCGStab):
        products *= 2
    return Row(
        gradient,
        value=found,
        error=relative(found, reference),
        cosine=_cosine(found, reference),
        seconds=seconds,
        peak_bytes=memory,
        residual=solution.backward.residual,
        products=products,
        estimate=solution.backward.bound,
        warnings=tuple(sorted({w.category.__name__ for w in ours})),
    )


def _pass_on(heard: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    """legato's own warnings; those of others, e.g. of the loss, are none of our business."""
    ours = [w for w in heard if issubclass(w.category, LegatoWarning)]
    for w in heard:
        if not issubclass(w.category, LegatoWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return ours


def scale(reference: Tensor) -> float:
    """‖ḡ‖, or 1 where the reference is zero and only absolute errors mean something."""
    size = float(torch.linalg.vector_norm(reference))
    return size if size > 0 else 1.0


def relative(found: Tensor, reference: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - reference)) / scale(reference)


def _cosine(found: Tensor, reference: Tensor) -> float | None:
    sizes = float(tree.norm(found)), float(tree.norm(reference))
    if 0 in sizes:
        return None
    return float(found @ reference) / sizes[0] / sizes[1]
