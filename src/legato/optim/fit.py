"""The loop around an optimiser that people otherwise write by hand."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from legato.errors import (
    CheckpointError,
    FailedStepWarning,
    InputError,
    NoInfluenceError,
    NonFiniteLossError,
    NoStepError,
)
from legato.optim import vectors
from legato.optim.arguments import Maker, Parameters, made, named
from legato.optim.base import DescentOptimizer, Evaluation
from legato.optim.checkpoint import Checkpoint, random_state, set_random_state
from legato.optim.evaluator import Evaluator, Loss
from legato.optim.history import Fit, History, Record
from legato.optim.inexact import Inexact, Progress, tolerances
from legato.optim.level import Level, Tolerances
from legato.optim.stopping import Until

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

    ``loss(level)`` returns L as a tensor with a graph; it solves its lower levels with
    ``level.solve`` (see :class:`Level`), which starts from the last solution. ``optimizer`` is any
    torch optimiser over ``params``, or what makes one of them (``legato.optim.IPiano``).
    ``inexact`` is HOAG() or MAID(); ``until`` a stopping rule such as Until(gradient=1e-6);
    ``callback`` sees the record of every step (a progress bar); ``checkpoint`` saves the fit and
    takes it up again. An interrupt (Ctrl-C) undoes the unfinished step, saves, and returns what
    there is, with ``interrupted`` set. A step that fails is undone, too: the fit then ends with a
    warning and its history. Reference: Section 3 of Ochs et al. (2016).

    >>> weight = torch.tensor(0.0, requires_grad=True)
    >>> def loss(level):  # choose the penalty for which x = 1.5
    ...     data = lg.LeastSquares(torch.eye(1), torch.tensor([3.0]))
    ...     problem = lg.Composite(data, lg.L1(weight.exp()))
    ...     x = level.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit()).x
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
        names, self.params = named(params)
        self.optimizer = made(optimizer, self.params)
        self.inexact = inexact
        self.checkpoint = checkpoint
        self.level = Level()
        self.evaluate = Evaluator(loss, names, self.params, self.level)
        self.history = History()
        self.reference: Progress | None = None
        self.finished = False
        self.clock = time.perf_counter()
        if inexact is not None:
            self._require_inexact(inexact)
            self.level.tolerances = inexact.start()

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
        committed = self._snapshot()
        reason = until(self.history) if self.finished and until is not None else None
        flags = {"converged": reason is not None}
        try:
            while reason is None and len(self.history) < steps:
                reason, moved = self._step(committed)
                if reason is not None:
                    flags = {"failed": True}
                    break
                reason = self._met(until, moved)
                self.finished = reason is not None
                flags = {"converged": self.finished}
                committed = self._snapshot()
                self._save(committed, every=True)
                if callback is not None:
                    callback(self.history.records[-1])
        except KeyboardInterrupt:
            self._restore(committed)
            reason, flags = "interrupted", {"interrupted": True}
        self._save(committed)
        failures = list(self.history.failures)
        if flags.get("failed"):
            failures += [(len(self.history), text) for text in self.evaluate.trouble]
            warnings.warn(
                f"The fit ended after {len(self.history)} of {steps} steps: {reason}",
                FailedStepWarning,
                stacklevel=3,
            )
        return Fit(
            self.history,
            self._final_loss(waiting=flags.get("interrupted", False)),
            f"all {steps} steps are done" if reason is None else reason,
            failures=tuple(failures),
            **flags,
        )

    def _met(self, until: StoppingRule | None, moved: bool) -> str | None:
        """Why the fit may end; with loose tolerances it first goes on with the tightest ones."""
        met = None if until is None else until(self.history)
        if met is None and not moved and self._descends:
            met = "the parameters do not move any more"
        now = self.level.tolerances
        if met is None or self.inexact is None or now is None or now.lower <= self.inexact.last:
            return met
        if isinstance(until, Until) and until.spent(self.history) is not None:
            return met
        self._tighten(tolerances(self.inexact.last))
        return None

    def _step(self, before: dict[str, Any]) -> tuple[str | None, bool]:
        """One step, repeated as the tolerances demand; why it failed, and whether it moved."""
        counted = (self.level.iterations, self.level.adjoint_iterations)
        self.evaluate.begin_step()
        while True:
            failure = self._attempt()
            move = vectors.difference([p.detach() for p in self.params], before["params"])
            progress = self._progress(vectors.norm(move), failure is not None)
            if failure is not None:
                self.evaluate.trouble.append(failure)
            tighter = None
            if self.inexact is not None and self.level.tolerances is not None:
                tighter = self.inexact.repeat(self.level.tolerances, progress)
            if tighter is None:
                break
            self._restore(before, keep_level=True)
            self._tighten(tighter)
        if failure is not None:
            self._restore(before)
            return failure, False
        self._record(progress, counted)
        return None, progress.change > 0

    def _attempt(self) -> str | None:
        """Let the optimiser make a step; why it failed, if it did."""
        known = self._remembered()
        self.evaluate.start = None if known is None else (known.loss, vectors.norm(known.gradient))
        healthy = True

        def closure() -> Any:
            nonlocal healthy
            value, fine = self.evaluate()
            healthy = healthy and fine
            if fine and self._descends:
                self.optimizer.uncertainty = self.level.error()  # type: ignore[attr-defined]
            return value

        try:
            self.optimizer.step(closure)
        except (NoStepError, NonFiniteLossError) as error:
            if self.evaluate.first_loss is None:
                raise
            return str(error)
        if not healthy and not self._descends:  # ours have refused the point by themselves
            return "; ".join(self.evaluate.trouble[-1:])
        if not vectors.finite(self.params):
            return f"the step of {type(self.optimizer).__name__} made a parameter NaN or infinite"
        return None

    def _tighten(self, tighter: Tolerances) -> None:
        self.level.tolerances = tighter
        if isinstance(self.optimizer, DescentOptimizer):
            self.optimizer.forget()  # what it remembers was computed less exactly

    def _progress(self, change: float, failed: bool) -> Progress:
        if not isinstance(self.optimizer, DescentOptimizer):
            return Progress(change, failed)
        return Progress(change, failed, self.optimizer.decrease, self.optimizer.doubt)

    def _record(self, progress: Progress, counted: tuple[int, int]) -> None:
        assert self.evaluate.start is not None
        loss, size = self.evaluate.start
        if not self.history.records and size == 0 and progress.change == 0:
            raise NoInfluenceError(
                "The gradient is exactly zero at the start and no parameter moved: the parameters "
                "do not influence the loss there (for example, a penalty so large that the "
                "solution is 0 whatever it is). Start elsewhere."
            )
        now = self.level.tolerances
        self.history.records.append(
            Record(
                step=len(self.history),
                loss=loss,
                gradient_norm=size,
                change=progress.change,
                evaluations=self.evaluate.count,
                inner_iterations=self.level.iterations - counted[0],
                adjoint_iterations=self.level.adjoint_iterations - counted[1],
                tolerance=None if now is None else now.lower,
                seconds=time.perf_counter() - self.clock,
                failures=tuple(self.evaluate.trouble),
            )
        )
        if self.inexact is not None and now is not None:
            self.reference = progress if self.reference is None else self.reference
            self.level.tolerances = self.inexact.following(now, progress, self.reference)

    def _remembered(self) -> Evaluation | None:
        known = isinstance(self.optimizer, DescentOptimizer)
        return self.optimizer.remembered() if known else None  # type: ignore[attr-defined]

    def _final_loss(self, *, waiting: bool) -> float:
        """The loss at the parameters as they are now; the last one known if somebody waits."""
        known = self._remembered()
        if known is not None:
            return known.loss
        if waiting:
            return self.history.loss[-1] if self.history.records else math.nan
        return self.evaluate.value()

    # --- going back -------------------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "params": vectors.copy(self.params),
            "optimizer": self._own(self.optimizer.state_dict()),
            "level": self.level.state_dict(),
            "records": len(self.history),
            "reference": None if self.reference is None else self.reference.change,
            "random": random_state(),
            "finished": self.finished,
        }

    def _own(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state that no step changes: our optimisers replace tensors, others write to them."""
        return state if isinstance(self.optimizer, DescentOptimizer) else copy.deepcopy(state)

    def _restore(self, saved: dict[str, Any], *, keep_level: bool = False) -> None:
        vectors.write(self.params, saved["params"])
        self.optimizer.load_state_dict(self._own(saved["optimizer"]))
        if not keep_level:
            self.level.load_state_dict(saved["level"])
        del self.history.records[saved["records"] :]
        change = saved["reference"]
        self.reference = None if change is None else Progress(change)

    # --- checkpoints ------------------------------------------------------------------------------

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
                "history": self.history.as_dicts(),
                "seconds": time.perf_counter() - self.clock,
            }
        )

    def _fingerprint(self) -> dict[str, Any]:
        return {
            "optimizer": type(self.optimizer).__name__,
            "parameters": [f"{tuple(p.shape)} {p.dtype}" for p in self.params],
            "inexactness": type(self.inexact).__name__,
        }

    def _resume(self) -> None:
        content = None if self.checkpoint is None else self.checkpoint.load()
        if content is None or self.checkpoint is None:
            return
        for what, mine in self._fingerprint().items():
            theirs = content["fingerprint"][what]
            if theirs != mine:
                raise self._foreign(f"its {what} is {theirs}, not {mine}")
        if self.checkpoint.probe:
            self._probe(content["origin"], content["first_loss"])
        self.evaluate.origin, self.evaluate.first_loss = content["origin"], content["first_loss"]
        self.history = History.from_dicts(content["history"])
        self._restore(content)
        set_random_state(content["random"])
        self.finished = content["finished"]
        self.clock = time.perf_counter() - content["seconds"]

    def _probe(self, origin: dict[str, Any], expected: float) -> None:
        """Compute the first loss of the saved fit again: it must be the same."""
        current = vectors.copy(self.params)
        vectors.write(self.params, origin["params"])
        set_random_state(origin["random"])
        found = self.evaluate.value()
        vectors.write(self.params, current)
        eps = torch.finfo(self.params[0].dtype).eps
        if not abs(found - expected) <= 100 * math.sqrt(eps) * max(abs(expected), abs(found)):
            raise self._foreign(
                f"its first loss was {expected:.9g}, but this loss is {found:.9g} at the same "
                "parameters (if it is random by design, use Checkpoint(…, probe=False))"
            )

    def _foreign(self, why: str) -> CheckpointError:
        path = None if self.checkpoint is None else self.checkpoint.path
        return CheckpointError(
            f"The checkpoint {path} belongs to another problem: {why}. Choose another path, or "
            "delete the file to start over."
        )
