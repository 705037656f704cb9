"""iPiano: inertial proximal gradient steps that keep a Lyapunov value from rising."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from legato._support import tree
from legato.errors import InputError, NoStepError, ProxError
from legato.functions import Function
from legato.functions.convexity import is_convex
from legato.optim.base import DescentOptimizer, Vector
from legato.optim.evaluation import Closure, Evaluation
from legato.optim.groups import Group
from legato.optim.rules import Coefficients, LipschitzSearch, SearchedStep, StepRule

NO_SHORTER_THAN = 1e-6
"""The fraction of what the first trial promised below which a step is no progress any more."""


@dataclass(frozen=True)
class _Trial:
    point: Vector
    move: Vector
    found: Evaluation
    used: list[Coefficients]


class IPiano(DescentOptimizer):
    r"""The inertial proximal method for f + g with smooth f and prox-friendly g.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻)), \quad
              H = h(x) + δ‖x − x⁻‖² \text{ never rises}

    A step on a NaN loss is never taken; where no step works,
    :class:`~legato.errors.NoStepError` says so and the parameters stay.
    Reference: Ochs, Chen, Brox, Pock (2014); Ochs (2015), Chapter 6.

    Args:
        params: Tensors or parameter groups; a group may have its own prox, and its own value of
            every number that the rule takes from the groups.
        rule: SearchedStep() (the default: ∇f need only be locally Lipschitz), VariableMomentum() or
            NonConvexStep(), which find their steps and refuse a scheduler, or
            ConstantStep(lr, momentum), whose numbers groups and schedulers set.
        prox: The function g; None is no function.

    >>> theta = torch.tensor([0.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], prox=lg.L1(1.0))
    >>> loss = lambda inner: 0.5 * (theta - 3).square().sum()
    >>> result = lg.fit(loss, [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([2.])
    """

    def __init__(
        self, params: Iterable[Any], rule: StepRule | None = None, prox: Function | None = None
    ) -> None:
        self.rule = SearchedStep() if rule is None else rule
        if not isinstance(self.rule, StepRule):
            raise InputError(
                "rule must be one of legato.optim's ConstantStep, SearchedStep, VariableMomentum "
                f"and NonConvexStep, not {self.rule!r}."
            )
        super().__init__(params, prox, self.rule.defaults)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if self.rule.needs_convex_prox and not is_convex(group["prox"]):
            raise ProxError(
                f"{type(group['prox']).__name__} is not convex, and {type(self.rule).__name__} "
                "does not decrease the Lyapunov value then. Use rule=legato.optim.NonConvexStep()."
            )
        self.rule.coefficients(group, 1.0, None)  # refuses numbers that no step could use

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
    def steps(self) -> list[Coefficients]:
        """What each group used in the last step; empty before the first.

        ``momentum`` is 0 where the step had to do without.
        """
        known = self._memory.get("used", [])
        same_groups = len(known) == len(self.param_groups)
        return [Coefficients(**used) for used in known] if same_groups else []

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """One accepted step; returns the loss at the point where it began."""
        x, here, undisturbed = self._begin(closure)
        previous = self._recall("previous")
        if previous is None or not undisturbed:
            previous = x  # the first step, or somebody moved the parameters: no momentum
        last_move = tree.tree_map(torch.sub, x, previous)
        try:
            if self.rule.search is None:
                taken = self._constant_step(closure, x, last_move, here)
            else:
                taken = self._searched_step(closure, x, last_move, here, self.rule.search)
        except BaseException:
            self._write(x)
            raise
        self._accept(x, last_move, here, taken)
        return here.loss

    def _accept(self, x: Vector, last_move: Vector, here: Evaluation, taken: _Trial) -> None:
        self._write(taken.point)
        before = self._lyapunov(here, x, last_move, self._last_deltas())
        H = self._lyapunov(taken.found, taken.point, taken.move, [c.delta for c in taken.used])
        self._remember(taken.point, taken.found)
        self._keep("previous", x)
        self._memory.update(
            H=H,
            L=min(c.L for c in taken.used),
            used=[asdict(c) for c in taken.used],
            decrease=before - H,
            decrease_error=here.error + taken.found.error,
        )

    def _last_deltas(self) -> list[float]:
        return [c.delta for c in self.steps] or [0.0] * len(self.param_groups)

    def _squares(self, move: Vector) -> list[float]:
        """‖move‖² in each group."""
        return [tree.dot(part, part) for part in self._by_group(move)]

    def _lyapunov(
        self, found: Evaluation, x: Vector, move: Vector, deltas: Sequence[float]
    ) -> float:
        """H = f(x) + g(x) + δ‖x − x⁻‖², summed over the groups."""
        weighted = zip(deltas, self._squares(move), strict=True)
        return found.loss + self._penalty(x) + sum(delta * square for delta, square in weighted)

    def _try(
        self,
        closure: Closure | None,
        x: Vector,
        last_move: Vector,
        here: Evaluation,
        used: list[Coefficients],
    ) -> _Trial:
        numbers = [(c.lr, c.momentum) for c in used]
        point = self._inertial_step(x, here.gradient, last_move, numbers)
        self._write(point)
        return _Trial(point, tree.tree_map(torch.sub, point, x), self._evaluate(closure), used)

    def _constant_step(
        self, closure: Closure | None, x: Vector, last_move: Vector, here: Evaluation
    ) -> _Trial:
        used = [self.rule.coefficients(group, 0.0, None) for group in self.param_groups]
        trial = self._try(closure, x, last_move, here, used)
        if not trial.found.finite:
            numbers = "; ".join(f"lr = {c.lr:g}, momentum = {c.momentum:g}" for c in used)
            raise NoStepError(
                f"The step with {numbers} leads to a loss of {trial.found.loss:g} or a gradient "
                "that is not finite, and was not taken. Give a smaller lr, or use "
                "rule=legato.optim.SearchedStep()."
            )
        return trial

    def _searched_step(
        self,
        closure: Closure | None,
        x: Vector,
        last_move: Vector,
        here: Evaluation,
        search: LipschitzSearch,
    ) -> _Trial:
        memory, last = self._memory, [c.delta for c in self.steps]
        deltas: Sequence[float | None] = last or [None] * len(self.param_groups)
        still: Vector = tree.tree_map(torch.zeros_like, x)
        L = memory.get("next_L")
        L = first = self._first_estimate(closure, x, here, search) if L is None else L
        now = self._lyapunov(here, x, last_move, self._last_deltas())
        most, slack, seen = 0.0, 0.0, here.loss
        for _ in range(search.trials):
            moving = any(bool(t.any()) for t in last_move)
            groups = zip(self.param_groups, deltas, strict=True)
            used = [self.rule.coefficients(group, L, delta) for group, delta in groups]
            if not moving:
                used = [replace(c, momentum=0.0) for c in used]
            trial = self._try(closure, x, last_move, here, used)
            seen = trial.found.loss
            if not trial.found.finite:
                last_move = still  # momentum alone might lead to NaN
                L *= search.grow
                continue
            slack = here.rounding + trial.found.rounding
            squares = zip(self._squares(trial.move), used, strict=True)
            promised = sum(square / c.lr for square, c in squares)  # the decrease, to first order
            most = max(most, promised)
            if _descends(here, trial, L, slack):
                lost = zip(self._squares(last_move), used, strict=True)
                allowed = now - sum(c.gamma * square for square, c in lost) + slack
                new = self._lyapunov(trial.found, trial.point, trial.move, [c.delta for c in used])
                # A step so short that rounding alone accepts it would hide a wrong gradient.
                shrunk = first < NO_SHORTER_THAN * L
                vacuous = promised < slack < NO_SHORTER_THAN * most and shrunk
                if new <= allowed and not vacuous:
                    memory["next_L"] = L * _relaxation(here, trial, L, search)
                    return trial
                if moving:  # δ grew with L, and H with it: the same L without momentum
                    last_move = still
                    continue
            if not moving and promised < slack + here.error + trial.found.error:
                break  # a shorter step could not be told from noise
            L *= search.grow
        if 0 < most < 100 * slack:
            return _Trial(x, still, here, used)  # at rest, up to noise
        raise NoStepError(
            f"No step works: points were tried with L up to {L:.3g} (the last step was "
            f"{used[0].lr:.3g}), and the loss did not fall as its gradient promises; it is "
            f"{here.loss:.6g} at the current point and {seen:.6g} at the last trial. The gradient "
            "is wrong or too inexact, or the loss is NaN or not smooth around this point. Tighten "
            "the lower level's tolerance, check the gradient (torch.autograd.gradcheck), or start "
            "elsewhere."
        )

    def _first_estimate(
        self, closure: Closure | None, x: Vector, here: Evaluation, search: LipschitzSearch
    ) -> float:
        """L from the change of ∇f over a short step, at least such that no step is a wild leap."""
        if search.first is not None:
            return search.first
        size, reach = tree.length(here.gradient), max(1.0, tree.length(x))
        if size == 0:
            return 1.0
        smallest = size / (10 * reach)
        length = 1e-3 * reach
        for _ in range(10):
            numbers = [(length / size, 0.0)] * len(self.param_groups)
            point = self._inertial_step(x, here.gradient, None, numbers)
            move = tree.length(tree.tree_map(torch.sub, point, x))
            if move == 0:
                break
            self._write(point)
            found = self._evaluate(closure)
            if found.finite:
                return max(_bend(here, found) / move, smallest)
            length /= 10
        return smallest


def _bend(here: Evaluation, there: Evaluation) -> float:
    """How far ∇f changes between two points."""
    return tree.length(tree.tree_map(torch.sub, there.gradient, here.gradient))


def _descends(here: Evaluation, trial: _Trial, L: float, slack: float) -> bool:
    """The descent inequality; where rounding hides it, L bounds the slope of ∇f along the move."""
    square = tree.dot(trial.move, trial.move)
    model = here.loss + tree.dot(here.gradient, trial.move) + L / 2 * square
    excess = trial.found.loss - model
    if abs(excess) > slack:
        return excess < 0
    change = tree.tree_map(torch.sub, trial.found.gradient, here.gradient)
    return tree.dot(change, trial.move) <= L * square


def _relaxation(here: Evaluation, trial: _Trial, L: float, search: LipschitzSearch) -> float:
    """The factor by which the next step lowers L: faster where ∇f bends far less than L says."""
    far_less = _bend(here, trial.found) < 0.1 * L * tree.length(trial.move)
    return 1 / search.grow if search.relax < 1 and far_less else search.relax
