"""The upper level: the mean validation loss over folds, with its gradient."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from legato.errors import InexactGradientWarning
from legato.sklearn.adjoint import SINGULAR, Held, hypergradient, uniqueness, validation_loss
from legato.sklearn.groups import Vector
from legato.sklearn.lower_level import ACCEPTED, Fitted, LowerLevel
from legato.sklearn.penalties import Penalties


@dataclass
class Fold:
    """The training rows of a fold as a lower level, its held-out rows, and rows for a judge."""

    level: LowerLevel
    held: Held
    judge: Held | None = None


@dataclass
class Trouble:
    """What went wrong below, counted, so that it is said once and not at every evaluation."""

    evaluations: int = 0
    unsolved: int = 0
    residual: float = 0.0
    singular: int = 0
    pivot: float = 1.0

    def note(self, residual: float, pivot: float) -> None:
        self.evaluations += 1
        self.unsolved += residual > ACCEPTED
        self.residual = max(self.residual, residual)
        self.singular += pivot <= SINGULAR
        self.pivot = min(self.pivot, pivot)


@dataclass
class Criterion:
    r"""The mean over folds of the validation loss of the model fitted on the other rows.

    .. math:: C(θ) = \frac1K \sum_k L_k\big(w_k^*(θ)\big)
    """

    folds: list[Fold]
    penalties: Penalties
    trouble: Trouble = field(default_factory=Trouble)
    last: tuple[Vector, tuple[float, Vector, list[Fitted]]] | None = None

    def __call__(
        self, theta: Vector, starts: list[Fitted] | None = None
    ) -> tuple[float, Vector, list[Fitted]]:
        """C(θ), ∇C(θ) and the solutions, from the given starts or the last solutions."""
        if self.last is not None and np.array_equal(self.last[0], theta):
            return self.last[1]
        weights = self.penalties.weights(theta)
        total, gradient, solutions = 0.0, np.zeros(self.penalties.size), []
        for k, fold in enumerate(self.folds):
            found = fold.level.solve(weights, None if starts is None else starts[k])
            value, slope = hypergradient(fold.level, found, weights, fold.held)
            self.trouble.note(found.residual, slope.pivot)
            total += value / len(self.folds)
            gradient += self.penalties.pull_back(theta, slope.a, slope.b) / len(self.folds)
            solutions.append(found)
        self.last = (np.array(theta), (total, gradient, solutions))
        return total, gradient, solutions

    def judged(self) -> float | None:
        """The mean loss of the last solutions on the rows kept for a judge."""
        losses = [
            validation_loss(fold.level, fold.level.last, fold.judge)
            for fold in self.folds
            if fold.judge is not None and fold.level.last is not None
        ]
        return float(np.mean(losses)) if losses else None

    def report(self, theta: Vector) -> None:
        """Warn about what went wrong, in words and numbers."""
        seen = self.trouble
        if seen.unsolved:
            warnings.warn(
                f"{seen.unsolved} of {seen.evaluations} lower-level solves ended with a relative "
                f"residual above {ACCEPTED:.0e} (the largest: {seen.residual:.1e}): the validation "
                "loss and its gradient are that inexact. Raise alpha_min_ratio, or remove features "
                "that nearly repeat each other.",
                ConvergenceWarning,
                stacklevel=5,
            )
        weights = self.penalties.weights(theta)
        checks = [uniqueness(fold.level, fold.level.solve(weights), weights) for fold in self.folds]
        bad = [c for c in checks if not c.unique]
        if bad or seen.singular:
            pivot = min([c.pivot for c in bad] + ([seen.pivot] if seen.singular else []))
            warnings.warn(
                f"The lower level has more than one solution in {len(bad)} of {len(self.folds)} "
                f"folds at the chosen penalties, and had in {seen.singular} of {seen.evaluations} "
                "evaluations: features that satisfy the optimality condition with equality are "
                f"linearly dependent (relative squared pivot {pivot:.1e} ≤ {SINGULAR:.0e}; "
                f"{max((c.tied for c in bad), default=0)} of them inactive). Predictions are not "
                "affected by the choice, but coef_ is one of many, and derivatives in single "
                "penalties are one-sided. Remove repeated features, share their penalty by "
                "groups=, or use ElasticNetBilevel.",
                InexactGradientWarning,
                stacklevel=5,
            )
