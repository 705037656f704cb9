"""iPiano: inertial proximal gradient steps that keep a Lyapunov value from rising."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from legato.errors import InputError, NoStepError, ProxError
from legato.functions import Function
from legato.optim import vectors
from legato.optim.base import Closure, DescentOptimizer, Evaluation, is_convex
from legato.optim.rules import Backtracking, Coefficients, Rule, Search


@dataclass(frozen=True)
class _Trial:
    point: list[Tensor]
    move: list[Tensor]
    found: Evaluation
    used: Coefficients


class IPiano(DescentOptimizer):
    r"""The inertial proximal method for f + g with smooth f and prox-friendly g.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻)), \quad
              H = h(x) + δ‖x − x⁻‖² \text{ never rises}

    ``rule`` is Backtracking() (the default: ∇f need only be locally Lipschitz), Constant(α, β),
    VariableInertia() or NonConvex(). Each parameter group may have its own ``prox``. The state
    holds H, the estimate L, α, β, δ and γ. A step on a NaN loss is never taken; where no step
    works, :class:`~legato.errors.NoStepError` says so and the parameters stay.
    Reference: Ochs, Chen, Brox, Pock (2014); Ochs (2015), Chapter 6.

    >>> theta = torch.tensor([0.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], prox=lg.L1(1.0))
    >>> loss = lambda level: 0.5 * (theta - 3).square().sum()
    >>> result = lg.fit(loss, [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([2.])
    """

    def __init__(
        self, params: Iterable[Any], rule: Rule | None = None, prox: Function | None = None
    ) -> None:
        self.rule = Backtracking() if rule is None else rule
        if not isinstance(self.rule, Rule):
            raise InputError(
                f"rule must be one of legato.optim's Constant, Backtracking, VariableInertia and "
                f"NonConvex, not {self.rule!r}."
            )
        super().__init__(params, prox)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if self.rule.convex_only and not is_convex(group["prox"]):
            raise ProxError(
                f"{type(group['prox']).__name__} is not convex, and {type(self.rule).__name__} "
                "does not decrease the Lyapunov value then. Use rule=legato.optim.NonConvex()."
            )

    @property
    def H(self) -> float | None:
        """The Lyapunov value at the current point, or None before the first step."""
        return self._memory.get("H")

    @property
    def L(self) -> float | None:
        """The estimate of the Lipschitz constant of ∇f that the last step used.

        For a constant step without a given L it is the largest that the step allows.
        """
        return self._memory.get("L")

    @property
    def alpha(self) -> float | None:
        """The last step size α."""
        return self._memory.get("alpha")

    @property
    def beta(self) -> float | None:
        """The last inertia β; 0 where the step had to do without."""
        return self._memory.get("beta")

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """One accepted step; returns the loss at the point where it began."""
        untouched = self._recall("point")
        here = self._here(closure)
        x = self._recall("point")
        assert x is not None
        previous = self._recall("previous")
        if previous is None or untouched is None or not vectors.same(untouched, x):
            previous = x  # the first step, or somebody moved the parameters: no inertia
        try:
            if self.rule.search is None:
                taken = self._fixed_step(closure, x, previous, here)
            else:
                taken = self._searched_step(closure, x, previous, here, self.rule.search)
        except BaseException:
            self._write(x)
            raise
        self._accept(x, previous, here, taken)
        return here.loss

    def _accept(
        self, x: list[Tensor], previous: list[Tensor], here: Evaluation, taken: _Trial
    ) -> None:
        used = taken.used
        self._write(taken.point)
        before = self._lyapunov(here, x, previous, self._memory.get("delta", 0.0))
        H = self._lyapunov(taken.found, taken.point, x, used.delta)
        self._remember(taken.point, taken.found)
        self._keep("previous", x)
        self._memory.update(
            H=H,
            L=used.L,
            alpha=used.alpha,
            beta=used.beta,
            delta=used.delta,
            gamma=used.gamma,
            decrease=before - H,
            doubt=here.error + taken.found.error,
        )

    def _lyapunov(
        self, found: Evaluation, x: list[Tensor], previous: list[Tensor], delta: float
    ) -> float:
        """H = f(x) + g(x) + δ‖x − x⁻‖²."""
        move = vectors.difference(x, previous)
        return found.loss + self._penalty(x) + delta * vectors.dot(move, move)

    def _try(
        self,
        closure: Closure | None,
        x: list[Tensor],
        inertia: list[Tensor],
        here: Evaluation,
        used: Coefficients,
    ) -> _Trial:
        half = vectors.combine(x, -used.alpha, here.gradient)
        point = self._prox(vectors.combine(half, used.beta, inertia), used.alpha)
        self._write(point)
        move = vectors.difference(point, x)
        return _Trial(point, move, self._evaluate(closure), used)

    def _fixed_step(
        self, closure: Closure | None, x: list[Tensor], previous: list[Tensor], here: Evaluation
    ) -> _Trial:
        used = self.rule.coefficients(0.0, None)
        trial = self._try(closure, x, vectors.difference(x, previous), here, used)
        if not trial.found.finite:
            raise NoStepError(
                f"The step with α = {used.alpha:g}, β = {used.beta:g} leads to a loss of "
                f"{trial.found.loss:g} or a gradient that is not finite, and was not taken. Give a "
                "smaller α, or use rule=legato.optim.Backtracking()."
            )
        return trial

    def _searched_step(
        self,
        closure: Closure | None,
        x: list[Tensor],
        previous: list[Tensor],
        here: Evaluation,
        search: Search,
    ) -> _Trial:
        memory = self._memory
        inertia, still = vectors.difference(x, previous), [torch.zeros_like(t) for t in x]
        L = memory.get("next_L")
        L = first = self._first_estimate(closure, x, here, search) if L is None else L
        delta = memory.get("delta")
        now = self._lyapunov(here, x, previous, delta or 0.0)
        promise, slack, seen = 0.0, 0.0, here.loss
        for _ in range(search.trials):
            moving = any(bool(t.any()) for t in inertia)
            used = self.rule.coefficients(L, delta)
            if not moving:
                used = replace(used, beta=0.0)
            trial = self._try(closure, x, inertia, here, used)
            seen = trial.found.loss
            if not trial.found.finite:
                inertia = still  # inertia alone might lead to NaN
                L *= search.grow
                continue
            slack = here.rounding + trial.found.rounding
            stake = vectors.dot(trial.move, trial.move) / used.alpha
            promise = max(promise, stake)
            if _descends(here, trial, L, slack):
                new = self._lyapunov(trial.found, trial.point, x, used.delta)
                room = now - used.gamma * vectors.dot(inertia, inertia) + slack
                hopeless = stake < slack < 1e-6 * promise and first < 1e-6 * L
                if new <= room and not hopeless:
                    memory["next_L"] = L * _relaxation(here, trial, L, search)
                    return trial
                if moving:  # δ grew with L, and H with it: the same L without inertia
                    inertia = still
                    continue
            if not moving and stake < slack + here.error + trial.found.error:
                break  # a shorter step could not be told from noise
            L *= search.grow
        if 0 < promise < 100 * slack:
            return _Trial(x, still, here, used)  # at rest, up to noise
        raise NoStepError(
            f"No step works: points were tried with L up to {L:.3g} (the last step was "
            f"{used.alpha:.3g}), and the loss did not fall as its gradient promises; it is "
            f"{here.loss:.6g} at the current point and {seen:.6g} at the last trial. The gradient "
            "is wrong or too inexact, or the loss is NaN or not smooth around this point. Tighten "
            "the lower level's tolerance, check the gradient (torch.autograd.gradcheck), or start "
            "elsewhere."
        )

    def _first_estimate(
        self, closure: Closure | None, x: list[Tensor], here: Evaluation, search: Search
    ) -> float:
        """L from the change of ∇f over a short step, at least such that no step is a wild leap."""
        if search.first is not None:
            return search.first
        size, reach = vectors.norm(here.gradient), max(1.0, vectors.norm(x))
        if size == 0:
            return 1.0
        shortest = size / (10 * reach)
        length = 1e-3 * reach
        for _ in range(10):
            point = self._prox(vectors.combine(x, -length / size, here.gradient), length / size)
            move = vectors.norm(vectors.difference(point, x))
            if move == 0:
                break
            self._write(point)
            found = self._evaluate(closure)
            if found.finite:
                bend = vectors.norm(vectors.difference(found.gradient, here.gradient))
                return max(bend / move, shortest)
            length /= 10
        return shortest


def _descends(here: Evaluation, trial: _Trial, L: float, slack: float) -> bool:
    """The descent inequality; where rounding hides it, L bounds the slope of ∇f along the move."""
    square = vectors.dot(trial.move, trial.move)
    model = here.loss + vectors.dot(here.gradient, trial.move) + L / 2 * square
    excess = trial.found.loss - model
    if abs(excess) > slack:
        return excess < 0
    bend = vectors.difference(trial.found.gradient, here.gradient)
    return vectors.dot(bend, trial.move) <= L * square


def _relaxation(here: Evaluation, trial: _Trial, L: float, search: Search) -> float:
    """The factor by which the next step lowers L: faster where ∇f bends far less than L says."""
    bend = vectors.norm(vectors.difference(trial.found.gradient, here.gradient))
    far = search.relax < 1 and bend < 0.1 * L * vectors.norm(trial.move)
    return 1 / search.grow if far else search.relax
