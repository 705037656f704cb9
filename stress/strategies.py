"""Random problems through every algorithm × gradient × dtype: strategies held against each other.

Three rules. Strategies that differentiate the same iterations exactly agree to rounding. One that
differentiates the fixed point is as close to the written-out derivative as its own certificate
says. And none is far off without having said so.
"""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from random_problems import DTYPES, FAMILIES, Case, build, draw, kinds
from tally import Tally
from torch import Tensor
from written_out import Truth, flat_gradient, truth_at

import legato as lg
from legato.errors import GradientError, LegatoError, LegatoWarning

FAR = 0.02
"""A relative error of a gradient that its user has to be told about."""

CANCELLED = 1e-3
"""A gradient this much smaller than what it is summed from is not held to its own size.

Default tolerances are 1e-6 of a cotangent, which the system may amplify a hundred times.
"""

EXACT_ROUNDINGS = 1e4
"""Units of eps by which two exact strategies may differ after a few dozen iterations."""


@dataclass
class Outcome:
    """A gradient, or the refusal to give one, and everything that was said."""

    gradient: Tensor | None
    report: Any = None
    warnings: list[str] = field(default_factory=list)
    refusal: str | None = None


def attempt(case: Case, gradient: Any, stop: lg.Stop, state: Any = None) -> Outcome:
    """Solve and differentiate; ``gradient`` may be a function of θ, as Forward needs."""
    theta = case.leaves()
    problem, algorithm, x0 = case.make(*theta)
    strategy = gradient(*theta) if callable(gradient) else gradient
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            start = x0 if state is None else state
            done = lg.solve(problem, algorithm, start, gradient=strategy, stop=stop)
            grads = torch.autograd.grad(case.loss(done.x), theta, allow_unused=True)
        except LegatoError as error:
            return Outcome(None, refusal=f"{type(error).__name__}: {error}")
    own = [w for w in said if issubclass(w.category, LegatoWarning)]
    texts = [f"{w.category.__name__}: {w.message}" for w in own]
    return Outcome(flat_gradient(grads, theta), done.backward, texts)


def exact_strategies(iterations: int) -> dict[str, Any]:
    return {
        "Unroll(checkpoint='sqrt')": lg.Unroll(checkpoint="sqrt"),
        "Unroll(checkpoint=3)": lg.Unroll(checkpoint=3),
        "Unroll(last=N)": lg.Unroll(last=iterations),
        "Forward": lambda *theta: lg.Forward(*theta),
    }


FIXED_POINT = {
    "OneStep": lg.OneStep(),
    "FixedPoint": lg.FixedPoint(),
    "FixedPoint(7 terms)": lg.FixedPoint(7, tol=None),
    "Implicit(GMRES)": lg.Implicit(),
    "Implicit(BiCGStab)": lg.Implicit(lg.BiCGStab()),
    "Implicit(CG)": lg.Implicit(lg.CG()),
    "Implicit(Neumann)": lg.Implicit(lg.Neumann()),
    "Implicit(Dense)": lg.Implicit(lg.Direct()),
    "Piggyback": lg.Piggyback(),
}
UNPROMISING = ("OneStep", "FixedPoint(7 terms)")
"""Biased by design: their residual says by how much, and no more is asked of them."""


class Comparison:
    """All strategies on one problem."""

    def __init__(self, case: Case, tally: Any) -> None:
        self.case = case
        self.tally = tally
        self.eps = torch.finfo(DTYPES[case.recipe.dtype]).eps
        self.inertial = case.recipe.variant in ("inertia", "Nesterov")
        self.averaged = case.recipe.variant == "average"

    def finding(self, kind: str, name: str, detail: str) -> None:
        self.tally.finding(kind, f"{name}: {detail}; {self.case.recipe!r}")

    def tried(self, name: str, outcome: Outcome) -> bool:
        """Count an outcome; whether it holds a finite gradient."""
        self.tally.count("gradients asked for")
        self.tally.count(f"{name} in {self.case.recipe.dtype}")
        if outcome.refusal is not None:
            self.tally.count("refusals")
            return False
        if outcome.warnings:
            self.tally.count("gradients with a warning")
        assert outcome.gradient is not None
        if not bool(torch.isfinite(outcome.gradient).all()):
            self.tally.count("not finite")
            if not outcome.warnings:
                self.finding("silent NaN", name, "a gradient that is not finite")
            return False
        return True

    def compare(self, kind: str, name: str, error: float, allowed: float, said: str = "") -> bool:
        self.tally.count("comparisons")
        if error <= allowed:
            return True
        self.tally.count("disagreements")
        self.finding(kind, name, f"off by {error:.3g}, allowed {allowed:.3g} {said}")
        return False

    def exact(self, iterations: int) -> None:
        stop = lg.Stop(iterations)
        reference = attempt(self.case, lg.Unroll(), stop)
        if not self.tried("Unroll", reference):
            return
        g = reference.gradient
        scale = float(g.norm())
        for name, strategy in exact_strategies(iterations).items():
            outcome = attempt(self.case, strategy, stop)
            if not self.tried(name, outcome):
                self.finding("refused where Unroll works", name, str(outcome.refusal))
                continue
            error = float((outcome.gradient - g).norm())
            allowed = EXACT_ROUNDINGS * self.eps * (scale + self.eps)
            self.compare("exact strategies disagree", name, error, allowed)

    @cached_property
    def solved(self) -> tuple[Any, Any, Any, lg.Solution]:
        """θ, problem, algorithm and a solution as good as the precision allows, or nearly."""
        theta = self.case.leaves()
        problem, algorithm, x0 = self.case.make(*theta)
        tol = 1e-13 if self.eps < 1e-10 else 1e-7
        with torch.no_grad():
            done = lg.solve(problem, algorithm, x0, stop=lg.Stop(1000, tol=tol))
        return theta, problem, algorithm, done

    def fixed_point(self) -> None:
        try:
            theta, problem, algorithm, before = self.solved
        except LegatoError as error:
            self.tally.count("refusals")
            self.tally.count(f"problems refused: {type(error).__name__}")
            return
        if self.averaged:
            self.refuses_averages(before.state)
            return
        outcomes = {}
        for name, strategy in FIXED_POINT.items():
            outcome = attempt(self.case, strategy, lg.Stop(1), before.state)
            if not self.tried(name, outcome):
                self.expected_refusal(name, algorithm, outcome)
                continue
            outcomes[name] = outcome
        with torch.no_grad():
            # A state is a start: its momentum stays behind, as in the attempts.
            differentiated = algorithm.step(problem, algorithm.resume(problem, before.state))
        truth = truth_at(problem, algorithm, differentiated, theta, self.case.loss)
        self.tally.count("problems with a singular I - A_x", int(truth.singular))
        for name, outcome in outcomes.items():
            self.as_certified(name, outcome, truth)
        self.truncated(before, truth)

    def as_certified(self, name: str, outcome: Outcome, truth: Truth) -> None:
        error = float((outcome.gradient - truth.gradient).norm())
        residual = outcome.report.residual
        scale = float(truth.gradient.norm())
        said = f"(residual {residual:.2g}, rho {truth.radius:.9g}, |g| {scale:.3g})"
        if not truth.determined:
            self.undetermined(name, outcome, truth)
            return
        if math.isfinite(residual):
            self.compare("worse than certified", name, error, truth.tolerance(residual), said)
        if name in UNPROMISING or outcome.warnings:
            return
        self.tally.count("silent gradients held against the truth")
        if error > FAR * max(scale, CANCELLED * truth.terms) + truth.rounding:
            self.tally.count("disagreements")
            self.finding("silently wrong", name, f"off by {error:.3g} {said}")

    def undetermined(self, name: str, outcome: Outcome, truth: Truth) -> None:
        """Along the null space of I − M anything solves the equation, and θ sees it: say so."""
        self.tally.count("gradients that are not determined")
        if name in UNPROMISING or outcome.warnings:
            return
        error = float((outcome.gradient - truth.gradient).norm())
        if error > FAR * float(truth.gradient.norm()) + truth.rounding:
            self.finding(
                "silent where undetermined", name, f"off by {error:.3g}, rho {truth.radius:.9g}"
            )

    def truncated(self, before: lg.Solution, truth: Truth) -> None:
        """At a solution, K back-iterations are K terms of the geometric series."""
        room = 1 - truth.radius
        arrived = float(before.residual.amax()) < 100 * self.eps * max(room, 0)
        if self.inertial or not truth.determined or not arrived:
            self.tally.count("truncation not compared: momentum, or not at a fixed point")
            return
        terms = 40
        outcome = attempt(self.case, lg.Unroll(last=terms), lg.Stop(terms + 5), before.state)
        if not self.tried("Unroll(last=K)", outcome):
            self.finding("refused where Unroll works", "Unroll(last=K)", str(outcome.refusal))
            return
        error = float((outcome.gradient - truth.series(terms)).norm())
        # The state still moves by rounding/(1 − ρ), which the derivative sees.
        allowed = truth.rounding * (1 + 1 / room)
        self.compare("truncated", "Unroll(last=K)", error, allowed, f"rho {truth.radius:.6g}")
        outcome = attempt(self.case, lg.Unroll(tol=1e-4), lg.Stop(400), before.state)
        if not self.tried("Unroll(tol)", outcome) or not outcome.report.converged:
            return
        error = float((outcome.gradient - truth.gradient).norm())
        allowed = 10 * truth.tolerance(outcome.report.residual or 0.0) + truth.rounding / room
        self.compare("truncated", "Unroll(tol)", error, allowed, f"rho {truth.radius:.6g}")

    def expected_refusal(self, name: str, algorithm: Any, outcome: Outcome) -> None:
        if outcome.refusal is None:
            return  # not finite, said so
        expected = {
            "Piggyback": not isinstance(algorithm, lg.PrimalDual),
            "Implicit(CG)": "symmetric" in outcome.refusal,
        }
        if not (expected.get(name) and outcome.refusal.startswith("GradientError")):
            self.finding("refused where it should work", name, outcome.refusal)

    def refuses_averages(self, state: Any) -> None:
        """An average is no fixed point: every strategy of that family has to refuse it."""
        for name, strategy in FIXED_POINT.items():
            outcome = attempt(self.case, strategy, lg.Stop(1), state)
            self.tried(name, outcome)
            if outcome.refusal is None or not outcome.refusal.startswith(GradientError.__name__):
                self.finding("averages differentiated", name, "did not refuse")

    def too_early(self, iterations: int) -> None:
        """A solve that was stopped early: the fixed-point family is right or says so."""
        outcome = attempt(self.case, lg.Implicit(), lg.Stop(iterations))
        if self.averaged or not self.tried("Implicit(GMRES), early", outcome):
            return
        if outcome.warnings:
            self.tally.count("early solves: warned")
            return
        try:
            theta, problem, algorithm, done = self.solved
        except LegatoError:
            return
        truth = truth_at(problem, algorithm, done.state, theta, self.case.loss)
        room = 1 - truth.radius
        if not truth.determined or not float(done.residual.amax()) < 1e-4 * room:
            self.tally.count("early solves: silent, truth unknown")
            return
        error = float((outcome.gradient - truth.gradient).norm())
        if error <= 0.1 * float(truth.gradient.norm()) + truth.rounding:
            self.tally.count("early solves: silent and within 10 %")
        else:
            self.tally.count("early solves: silent and off by more than 10 %")


def chunk(number: int, tally: Tally) -> None:
    """One problem of every family, variant of its algorithm and dtype."""
    numbers = random.Random(number)
    for kind in kinds(tuple(FAMILIES)):
        recipe = draw(kind, numbers)
        tally.count("problems")
        tally.count(f"problems: {recipe.family}")
        iterations = numbers.randint(1, 12)
        comparison = Comparison(build(recipe), tally)
        comparison.exact(iterations)
        comparison.fixed_point()
        comparison.too_early(3 * iterations)
