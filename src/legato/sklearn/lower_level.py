"""The lower level: a linear model's loss with a sparse penalty, solved on working sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from legato.sklearn.design import Columns
from legato.sklearn.penalties import Groups, Indices, Matrix, Vector, Weights
from legato.sklearn.quadratic import SparseQuadratic, ridge_system, violations

TOLERANCE = 1e-11
"""Optimality, relative to the correlation of the data with a feature: near machine precision."""
ACCEPTED_RESIDUAL = 1e-8
"""The residual above which a solution is reported as not solved."""
MAX_ROUNDS = 100
"""Working sets tried in one solve."""


class Squares:
    """ℓ(z, y) = ½(z − y)²; validated by (z − y)², as scikit-learn's mean squared error is."""

    quadratic = True
    validation_factor = 2.0  # the validation loss in units of value

    def value(self, z: Vector, y: Vector) -> Vector:
        return 0.5 * (z - y) ** 2

    def derivative(self, z: Vector, y: Vector) -> Vector:
        return z - y

    def second_derivative(self, z: Vector, y: Vector) -> Vector:
        return np.ones_like(z)

    def intercept(self, y: Vector, weights: Vector) -> float:
        """The best constant prediction."""
        return float(weights @ y)

    def size(self, y: Vector, weights: Vector) -> float:
        """The size of ℓ′ for the best constant prediction: residuals are measured by it."""
        return float(np.sqrt(weights @ (y * y)))


class LogLoss:
    """ℓ(z, y) = log(1 + e^z) − yz for y in {0, 1}."""

    quadratic = False
    validation_factor = 1.0

    def value(self, z: Vector, y: Vector) -> Vector:
        return np.logaddexp(0.0, z) - y * z

    def derivative(self, z: Vector, y: Vector) -> Vector:
        return expit(z) - y

    def second_derivative(self, z: Vector, y: Vector) -> Vector:
        return expit(z) * expit(-z)

    def intercept(self, y: Vector, weights: Vector) -> float:
        share = float(weights @ y)
        return float(np.log(share) - np.log1p(-share)) if 0 < share < 1 else 0.0

    def size(self, y: Vector, weights: Vector) -> float:
        return 1.0


LinearLoss = Squares | LogLoss
"""Value and derivatives in the prediction z are for every sample."""


@dataclass
class Fitted:
    """A solution in scaled coordinates; ``residual`` is its relative violation of optimality."""

    w: Vector
    intercept: Any
    z: Vector
    gradient: Vector
    residual: float
    rounds: int

    @property
    def support(self) -> Indices:
        return np.flatnonzero(self.w)


class LowerLevel:
    r"""min over w and b of a linear model's loss with a sparse penalty.

    .. math:: \sum_i ω_i ℓ(x_i^⊤w + b, y_i) + \sum_g a_g‖w_g‖ + \tfrac12 \sum_j b_j w_j^2

    A working set holds the groups that are not zero or violate optimality; on it, Newton models are
    minimised exactly (see :class:`SparseQuadratic`). For squares the model is the problem, and its
    matrix is kept. ``lg.solve(…, lg.Newton(), gradient=lg.OneStep())`` ends at the same point with
    the same derivative, but a fit makes hundreds of small solves, in which calls of torch cost more
    than what they compute: it takes two to fifteen times as long
    (benchmarks/results/sparse_newton_cpu.json).
    Reference: Massias, Gramfort, Salmon (2018), *Celer*; Lee, Sun, Saunders (2014), *Proximal
    Newton-type methods*.
    """

    def __init__(
        self, columns: Columns, y: Vector, loss: LinearLoss, groups: Groups, *, intercept: bool
    ) -> None:
        self.columns, self.design = columns, columns.design
        self.y, self.loss, self.groups = y, loss, groups
        self.fit_intercept = intercept
        design = self.design
        self.null: Any = loss.intercept(y, design.weights) if intercept else 0.0
        self.size = loss.size(y - self.null, design.weights) or 1.0
        self.last: Fitted | None = None
        self.slope: Vector | None = None

    # --- scaled penalties -------------------------------------------------------------------------

    def scaled(self, weights: Weights) -> Weights:
        return Weights(weights.a / self.design.group_scale, weights.b / self.design.scale**2)

    def null_gradient(self) -> Vector:
        """‖∇f_g‖ at w = 0, in the scale of the data: the penalties that make everything zero."""
        z = np.full(len(self.y), self.null)
        r = self.design.weights * self.loss.derivative(z, self.y)
        return self.groups.pulls(self.design.correlate(r)) * self.design.group_scale

    def without_features(self) -> Fitted:
        """The best constant prediction."""
        w = np.zeros(self.design.shape[1])
        return Fitted(w, self.null, np.full(len(self.y), self.null), np.zeros_like(w), 0.0, 0)

    def coefficients(self, at: Fitted) -> tuple[Vector, Any]:
        """Coefficients and intercept for the data as given."""
        return self.design.coefficients(at.w, at.intercept)

    # --- solving ----------------------------------------------------------------------------------

    def solve(self, weights: Weights, start: Fitted | None = None) -> Fitted:
        """The solution, from the given start, else the last solution, else zero."""
        at = self.scaled(weights)
        start = self.last if start is None else start
        w = self.without_features().w if start is None else start.w.copy()
        intercept = self.null if start is None else start.intercept
        best: Fitted | None = None
        working = self._live() if self.dense(at) else np.flatnonzero(w)
        for rounds in range(MAX_ROUNDS):
            if len(working):
                w, intercept = self._restricted(w, intercept, working, at)
            elif self.fit_intercept:
                intercept = self.null
            here = self._examine(w, intercept, at, rounds)
            if best is None or here.residual < best.residual:
                best, failures = here, 0
            else:
                failures += 1
            if here.residual <= TOLERANCE or failures >= 3:
                break
            working = self._grown(here, at)
        assert best is not None
        self.last = best
        return best

    def _live(self) -> Indices:
        return np.flatnonzero(self.design.live)

    def dense(self, at: Weights) -> bool:
        """Whether no coefficient has a reason to be zero: a ridge alone."""
        return not at.a.any() and not self.groups.positive

    def _examine(self, w: Vector, intercept: Any, at: Weights, rounds: int) -> Fitted:
        support = np.flatnonzero(w)
        z = intercept + self.columns.times(w, support)
        r = self.design.weights * self.loss.derivative(z, self.y)
        gradient = self.design.correlate(r) + at.b * w
        wrong = violations(gradient, w, at.a, self.groups)
        # For squares the intercept is eliminated exactly; what is left of Σr is rounding.
        eliminated = self.loss.quadratic or not self.fit_intercept
        off = 0.0 if eliminated else abs(float(r.sum()))
        residual = max(float(wrong.max(initial=0.0)), off) / self.size
        return Fitted(w, intercept, z, gradient, residual, rounds)

    def _grown(self, here: Fitted, at: Weights) -> Indices:
        """The groups that are not zero, and those that violate optimality most."""
        active = self.groups.norms(here.w) > 0
        wrong = np.where(active, 0.0, self.groups.pulls(here.gradient) - at.a)
        violating = np.flatnonzero(wrong > 0.5 * TOLERANCE * self.size)
        room = max(100, 2 * int(active.sum()))
        if len(violating) > room:
            violating = violating[np.argsort(-wrong[violating])[:room]]
        active[violating] = True
        return self.groups.features(active)

    def _restricted(
        self, w: Vector, intercept: Any, working: Indices, at: Weights
    ) -> tuple[Vector, Any]:
        """Minimise over the features of a working set; all others are 0."""
        groups, old = self.groups.among(working)
        a, b = at.a[old], at.b[working]
        tol = 0.2 * TOLERANCE * self.size
        if self.loss.quadratic and self.dense(at):
            Z = np.sqrt(self.design.weights)[:, None] * self.columns.of(working)
            target = np.sqrt(self.design.weights) * (self.y - self.null)
            part = ridge_system(Z, b).solve(Z.T @ target)
        elif self.loss.quadratic:
            P = self.columns.gram_of(working)
            P[np.diag_indices_from(P)] += b
            c = self._slope_of_squares()[working]
            part, _ = SparseQuadratic(P, c, a, groups).minimise(w[working], tol)
        else:
            part, intercept = self._proximal_newton(w[working], intercept, working, a, b, groups)
        new = np.zeros_like(w)
        new[working] = part
        return new, intercept

    def _slope_of_squares(self) -> Vector:
        """X̃ᵀΩ(y − ȳ), which no penalty changes."""
        if self.slope is None:
            self.slope = self.design.correlate(self.design.weights * (self.y - self.null))
        return self.slope

    def _proximal_newton(
        self, w: Vector, b0: Any, working: Indices, a: Vector, b: Vector, groups: Groups
    ) -> tuple[Vector, Any]:
        X, omega = self.columns.of(working), self.design.weights
        tol = 0.2 * TOLERANCE * self.size

        def value(w: Vector, b0: float) -> float:
            fit = float(omega @ self.loss.value(X @ w + b0, self.y))
            return fit + float(a @ groups.norms(w)) + 0.5 * float(b @ w**2)

        here = value(w, b0)
        for _ in range(100):
            z = X @ w + b0
            r = omega * self.loss.derivative(z, self.y)
            gradient, off = X.T @ r, float(r.sum()) if self.fit_intercept else 0.0
            wrong = violations(gradient + b * w, w, a, groups).max(initial=0.0)
            if max(float(wrong), abs(off)) <= tol:
                break
            # Points far on their own side hardly bend the loss: a floor keeps the model definite.
            D = omega * np.maximum(self.loss.second_derivative(z, self.y), 1e-12)
            if not a.any() and not groups.positive:
                Z, mean = centred_rows(X, D, centre=self.fit_intercept)
                right = Z.T @ (Z @ w) - (gradient - mean * off)
                target = ridge_system(Z, b).solve(right)
            else:
                H, mean = centred_products(X, D, centre=self.fit_intercept)
                slope = gradient - mean * off
                model = SparseQuadratic(H + np.diag(b), H @ w - slope, a, groups)
                target, _ = model.minimise(w, 0.1 * tol)
            step = target - w
            shift = -off / float(D.sum()) - float(mean @ step) if self.fit_intercept else 0.0
            t, rounding = 1.0, 4 * np.finfo(float).eps * abs(here)
            while (new := value(w + t * step, b0 + t * shift)) > here + rounding and t > 1e-10:
                t *= 0.5
            if t <= 1e-10:
                break
            w = target if t == 1.0 else w + t * step  # keeps exact zeros
            b0, here = b0 + t * shift, new
        return w, b0


def centred_products(X: Matrix, D: Vector, *, centre: bool) -> tuple[Matrix, Vector]:
    """XᵀDX with columns centred by the weights D: what eliminating the intercept leaves."""
    scaled, mean = centred_rows(X, D, centre=centre)
    return scaled.T @ scaled, mean


def centred_rows(X: Matrix, D: Vector, *, centre: bool) -> tuple[Matrix, Vector]:
    """Z with ZᵀZ = XᵀDX for columns centred by the weights D, and their means."""
    mean = D @ X / D.sum() if centre else np.zeros(X.shape[1])
    return (X - mean) * np.sqrt(D)[:, None], mean
