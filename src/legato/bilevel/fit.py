"""The loop around an optimiser that people otherwise write by hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from legato._support import tree
from legato._support.telling import tell
from legato.bilevel.arguments import Maker, Parameters, build_optimizer, named_parameters
from legato.bilevel.checkpoint import Checkpoint, set_random_state
from legato.bilevel.evaluator import Evaluator, Loss
from legato.bilevel.history import Fit, History, Record
from legato.bilevel.inexact import Inexact, Progress
from legato.bilevel.inner import Tolerances
from legato.bilevel.state import FitState
from legato.bilevel.stopping import Until
from legato.errors import (
    FailedStepWarning,
    InputError,
    NoInfluenceError,
    NonFiniteLossError,
    NoStepError,
)
from legato.optim import DescentOptimizer

StoppingRule = Callable[[History], str | None]
Callback = Callable[[Record], object]


def fit(
    loss: Loss,
    params: Parameters,
    optimizer: Optimizer | Maker,
    steps: int,
    *,
    inexact: Inexact | None = None,
    until: StoppingRule | None = None,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
) -> Fit:
    r"""Minimise an upper loss over parameters, with warm starts, a history and a safety net.

    .. math:: \min_θ\, L(x^*(θ), θ) + g(θ), \qquad x^*(θ) ∈ \arg\min_x E(x, θ)

    An interrupt (Ctrl-C) undoes the unfinished step, saves, and returns what there is, with
    ``interrupted`` set. A step that fails is undone, too: the fit then ends with a warning and its
    history. Reference: Section 3 of Ochs et al. (2016).

    Args:
        loss: ``loss(inner)`` returns L as a tensor with a graph; it solves its lower levels with
            ``inner.solve`` (see :class:`InnerSolver`), which starts from the last solution.
        params: A tensor, tensors, or a dictionary of names and tensors; changed in place.
        optimizer: Any torch optimiser over ``params``, or what makes one of them
            (``legato.optim.IPiano``).
        steps: The number of steps in all, those of a resumed checkpoint included.
        inexact: How the lower level's tolerance follows the progress: HOAG() or MAID().
        until: A stopping rule such as Until(gradient=1e-6).
        callback: Sees the record of every step: a progress bar, or a learning-rate scheduler's
            ``step``.
        checkpoint: Saves the fit and takes it up again.

    >>> weight = torch.tensor(0.0, requires_grad=True)
    >>> def loss(inner):  # choose the penalty for which x = 1.5
    ...     data = lg.LeastSquares(torch.eye(1), torch.tensor([3.0]))
    ...     problem = lg.Composite(data, lg.L1(weight.exp()))
    ...     x = inner.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit()).x
    ...     return (x - 1.5).square().sum()
    >>> result = lg.fit(loss, [weight], lg.optim.IPiano, steps=30)
    >>> weight.exp().detach().round(decimals=2)
    tensor(1.5000)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps must be a positive integer, not {steps!r}.")
    return _Loop(loss, params, optimizer, inexact, checkpoint).run(steps, until, callback)


class _Loop:
    def __init__(
        self,
        loss: Loss,
        params: Parameters,
        optimizer: Optimizer | Maker,
        inexact: Inexact | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        names, tensors = named_parameters(params)
        self.optimizer = build_optimizer(optimizer, tensors)
        self.state = FitState(tuple(tensors), self.optimizer)
        self.inner = self.state.inner
        self.evaluate = Evaluator(loss, names, self.state.params, self.inner)
        self.inexact = inexact
        self.checkpoint = checkpoint
        self.clock = time.perf_counter()
        if inexact is not None:
            self._require_inexact(inexact)
            self.inner.tolerances = inexact.start()

    def _require_inexact(self, inexact: Inexact) -> None:
        if not isinstance(inexact, Inexact):
            raise InputError(f"inexact must be HOAG(…) or MAID(…), not {inexact!r}.")
        if inexact.needs_decrease and not self._descends:
            raise InputError(
                f"{type(inexact).__name__} certifies a decrease, which "
                f"{type(self.optimizer).__name__} does not promise. Use IPiano, ProximalGradient "
                "or NonlinearCG, or HOAG() for the tolerances."
            )

    @property
    def _descends(self) -> bool:
        return isinstance(self.optimizer, DescentOptimizer) and self.optimizer.descends

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, steps: int, until: StoppingRule | None, callback: Callback | None) -> Fit:
        self._resume()
        state, history = self.state, self.state.history
        committed = state.snapshot()
        # A fit that had ended is asked again by its own last step: another rule may go on.
        reason = self._met(until, history.records[-1].change > 0) if state.finished else None
        flags = {"converged": reason is not None}
        try:
            while reason is None and len(history) < steps:
                reason, moved = self._step(committed)
                if reason is not None:
                    flags = {"failed": True}
                    break
                reason = self._met(until, moved)
                state.finished = reason is not None
                flags = {"converged": state.finished}
                committed = state.snapshot()
                if callback is not None:
                    callback(history.records[-1])
                    committed = state.snapshot()  # a scheduler may have changed the optimiser
                self._save(committed, every=True)
        except KeyboardInterrupt:
            state.restore(committed)
            reason, flags = "interrupted", {"interrupted": True}
        self._save(committed)
        failures = list(history.failures)
        if flags.get("failed"):
            failures += [(len(history), text) for text in self.evaluate.trouble]
            tell(
                f"The fit ended after {len(history)} of {steps} steps: {reason}",
                FailedStepWarning,
            )
        return Fit(
            history,
            self._final_loss(waiting=flags.get("interrupted", False)),
            f"all {steps} steps are done" if reason is None else reason,
            failures=tuple(failures),
            **flags,
        )

    def _met(self, until: StoppingRule | None, moved: bool) -> str | None:
        """Why the fit may end; with loose tolerances it first goes on with the tightest ones."""
        met = None if until is None else until(self.state.history)
        if met is None and not moved and self._descends:
            met = "the parameters do not move any more"
        now = self.inner.tolerances
        if met is None or self.inexact is None or now is None or now.lower <= self.inexact.last:
            return met
        if isinstance(until, Until) and until.spent(self.state.history) is not None:
            return met
        self._tighten(Tolerances.both(self.inexact.last))
        return None

    def _step(self, before: dict[str, Any]) -> tuple[str | None, bool]:
        """One step, repeated as the tolerances demand; why it failed, and whether it moved."""
        counted = (self.inner.iterations, self.inner.adjoint_iterations)
        self.evaluate.begin_step()
        while True:
            failure = self._attempt()
            progress = self._progress(before["params"], failed=failure is not None)
            if failure is not None:
                self.evaluate.trouble.append(failure)
            tighter = None
            if self.inexact is not None and self.inner.tolerances is not None:
                tighter = self.inexact.repeat(self.inner.tolerances, progress)
            if tighter is None:
                break
            self.state.restore(before, keep_inner=True)
            self._tighten(tighter)
        if failure is not None:
            self.state.restore(before)
            return failure, False
        self._record(progress, counted)
        return None, progress.change > 0

    def _attempt(self) -> str | None:
        """Let the optimiser make a step; why it failed, if it did."""
        optimizer, evaluate = self.optimizer, self.evaluate
        known = optimizer.remembered() if isinstance(optimizer, DescentOptimizer) else None
        evaluate.start = None if known is None else (known.loss, tree.length(known.gradient))
        healthy = True

        def closure() -> Any:
            nonlocal healthy
            value, finite = evaluate()
            healthy = healthy and finite
            if finite and self._descends:
                optimizer.uncertainty = self.inner.error()  # type: ignore[attr-defined]
            return value

        try:
            optimizer.step(closure)
        except (NoStepError, NonFiniteLossError) as error:
            if evaluate.first_loss is None:
                raise
            return str(error)
        if not healthy and not self._descends:  # ours have refused the point by themselves
            return "; ".join(evaluate.trouble[-1:])
        if not tree.is_finite(self.state.params):
            return f"the step of {type(optimizer).__name__} made a parameter NaN or infinite"
        return None

    def _tighten(self, tighter: Tolerances) -> None:
        self.inner.tolerances = tighter
        if isinstance(self.optimizer, DescentOptimizer):
            self.optimizer.forget()  # what it remembers was computed less exactly

    def _progress(self, before: tuple[torch.Tensor, ...], *, failed: bool) -> Progress:
        now = tree.detach(self.state.params)
        change = tree.length(tree.tree_map(torch.sub, now, before))
        if not isinstance(self.optimizer, DescentOptimizer):
            return Progress(change, failed)
        return Progress(change, failed, self.optimizer.decrease, self.optimizer.decrease_error)

    def _record(self, progress: Progress, counted: tuple[int, int]) -> None:
        assert self.evaluate.start is not None
        (loss, size), state, now = self.evaluate.start, self.state, self.inner.tolerances
        if not state.history.records and size == 0 and progress.change == 0:
            raise NoInfluenceError(
                "The gradient is exactly zero at the start and no parameter moved: the parameters "
                "do not influence the loss there (for example, a penalty so large that the "
                "solution is 0 whatever it is). Start elsewhere."
            )
        state.history.records.append(
            Record(
                step=len(state.history),
                loss=loss,
                gradient_norm=size,
                change=progress.change,
                evaluations=self.evaluate.count,
                inner_iterations=self.inner.iterations - counted[0],
                adjoint_iterations=self.inner.adjoint_iterations - counted[1],
                tolerance=None if now is None else now.lower,
                seconds=time.perf_counter() - self.clock,
                failures=tuple(self.evaluate.trouble),
            )
        )
        if self.inexact is not None and now is not None:
            if state.first_change is None:
                state.first_change = progress.change
            self.inner.tolerances = self.inexact.following(now, progress, state.first_change)

    def _final_loss(self, *, waiting: bool) -> float:
        """The loss at the parameters as they are now; the last one known if somebody waits."""
        optimizer, history = self.optimizer, self.state.history
        known = optimizer.remembered() if isinstance(optimizer, DescentOptimizer) else None
        if known is not None:
            return known.loss
        if waiting:
            return history.loss[-1] if history.records else math.nan
        return self.evaluate.value()

    # --- checkpoints ------------------------------------------------------------------------------

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "optimizer": type(self.optimizer).__name__,
            "parameters": [f"{tuple(p.shape)} {p.dtype}" for p in self.state.params],
            "inexactness": type(self.inexact).__name__,
        }

    def _save(self, saved: dict[str, Any], *, every: bool = False) -> None:
        if self.checkpoint is None or (every and saved["records"] % self.checkpoint.every):
            return
        if self.evaluate.first_loss is None:
            return  # nothing was evaluated: there is nothing to save
        self.checkpoint.save(
            {
                **saved,
                "fingerprint": self._fingerprint(),
                "origin": self.evaluate.origin,
                "first_loss": self.evaluate.first_loss,
                "history": self.state.history.as_dicts(),
                "seconds": time.perf_counter() - self.clock,
            }
        )

    def _resume(self) -> None:
        if self.checkpoint is None:
            return
        content = self.checkpoint.load(self._fingerprint(), self.evaluate.value_at)
        if content is None:
            return
        self.evaluate.origin, self.evaluate.first_loss = content["origin"], content["first_loss"]
        self.state.history.records[:] = History.from_dicts(content["history"]).records
        self.state.restore(content)
        self.state.finished = content["finished"]
        set_random_state(content["random"])
        self.clock = time.perf_counter() - content["seconds"]
