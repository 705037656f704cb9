"""The lower level for more than two classes: multinomial logistic regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from legato.errors import InputError
from legato.sklearn.criterion import Fold, Hypergradient, Uniqueness, ValidationRows
from legato.sklearn.design import Columns
from legato.sklearn.lower_level import TOLERANCE, Fitted, LogLoss, LowerLevel
from legato.sklearn.penalties import Groups, Indices, Matrix, Vector, Weights
from legato.sklearn.quadratic import Factor, SparseQuadratic, factorise, violations

MOST_UNKNOWNS = 5000
"""A ridge has so many coefficients at most: its systems hold all of them at once."""
_STAY = 1e-9
"""The weight, relative, by which a Newton model holds on to where it began."""


def probabilities(z: Matrix) -> Matrix:
    """exp z_k / Σ exp z_m; SciPy's spends most of its time on other kinds of arrays."""
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


class MultinomialLoss(LogLoss):
    """ℓ(z, y) = log Σ_k exp z_k − z_y, whose value alone is asked for, for labels 0, 1, …"""

    def value(self, z: Matrix, y: Vector) -> Vector:
        top = z.max(1)
        chosen = z[np.arange(len(y)), y.astype(np.intp)]
        return np.asarray(np.log(np.exp(z - top[:, None]).sum(1)) + (top - chosen))


class MultinomialLevel(LowerLevel):
    r"""min over W and b of the mean multinomial loss with the penalties of each feature.

    .. math:: \sum_i ω_i \Big(\log \sum_k e^{z_{ik}} − z_{i y_i}\Big)
              + \sum_j \sum_k \big(a_j |w_{jk}| + \tfrac12 b_j w_{jk}^2\big), \qquad z = XW + b

    Every class has its coefficients, as in scikit-learn; w_{jk} is entry jK + k of ``Fitted.w``.
    The loss does not change when all coefficients of a feature, or all intercepts, move by the same
    amount. Intercepts have mean 0, and where a₀ alone leaves such a move open (an even number of
    classes, half of them above zero and half below) it is made until one coefficient is zero.
    Reference: Friedman, Hastie, Tibshirani (2010), *Regularization paths for generalized linear
    models via coordinate descent*.
    """

    def __init__(
        self, columns: Columns, y: Vector, classes: int, groups: Groups, *, intercept: bool
    ) -> None:
        self.classes = classes
        self.hot: Matrix = np.eye(classes)[y.astype(np.intp)]
        super().__init__(columns, y, MultinomialLoss(), groups, intercept=False)
        self.groups = Groups.singletons(len(groups.of) * self.classes, groups.positive)
        self.fit_intercept = intercept
        self.size = 1.0
        self.null = np.zeros(self.classes)
        if intercept:
            shares = np.log(self.design.weights @ self.hot)
            self.null = shares - shares.mean()

    def scaled(self, weights: Weights) -> Weights:
        at = super().scaled(weights)
        return Weights(np.repeat(at.a, self.classes), np.repeat(at.b, self.classes))

    def _live(self) -> Indices:
        return np.flatnonzero(np.repeat(self.design.live, self.classes))

    def null_gradient(self) -> Vector:
        r = self._residuals(np.tile(self.null, (len(self.y), 1)))
        pulls = self.groups.pulls(self._correlate(r)).reshape(-1, self.classes)
        return np.asarray(pulls.max(1) * self.design.group_scale)

    def without_features(self) -> Fitted:
        w = np.zeros(self.design.shape[1] * self.classes)
        z = np.tile(self.null, (len(self.y), 1))
        return Fitted(w, self.null, z, np.zeros_like(w), 0.0, 0)

    def coefficients(self, at: Fitted) -> tuple[Matrix, Vector]:
        W = at.w.reshape(-1, self.classes)
        found = [self.design.coefficients(W[:, k], at.intercept[k]) for k in range(self.classes)]
        return np.array([coef for coef, _ in found]), np.array([b for _, b in found])

    # --- the loss in z, and products with all of X ------------------------------------------------

    def _residuals(self, z: Matrix) -> Matrix:
        """Of the weighted loss in z."""
        return np.asarray(self.design.weights[:, None] * (probabilities(z) - self.hot))

    def _correlate(self, r: Matrix) -> Vector:
        return np.column_stack([self.design.correlate(c) for c in r.T]).reshape(-1)

    def _examine(self, w: Vector, intercept: Vector, at: Weights, rounds: int) -> Fitted:
        z = intercept + self._predicted(w)
        r = self._residuals(z)
        gradient = self._correlate(r) + at.b * w
        wrong = violations(gradient, w, at.a, self.groups).max(initial=0.0)
        off = np.abs(r.sum(0)).max() if self.fit_intercept else 0.0
        return Fitted(w, intercept, z, gradient, max(float(wrong), float(off)), rounds)

    def _predicted(self, w: Vector) -> Matrix:
        W = w.reshape(-1, self.classes)
        features = np.flatnonzero(W.any(1))
        return np.asarray(self.columns.of(features) @ W[features])

    # --- Newton -----------------------------------------------------------------------------------

    def curved(self, z: Matrix, entries: Indices) -> tuple[Matrix, Matrix, Factor]:
        r"""∇²f in some coefficients, in them and b, and in b, where 11ᵀ makes it definite.

        .. math:: \sum_i ω_i x_{ij} x_{il} (p_{ik} δ_{km} − p_{ik} p_{im})
        """
        p, X, of = probabilities(z), self._columns(entries), entries % self.classes
        omega = self.design.weights
        V = X * p[:, of]
        weighted = omega[:, None] * V
        H = -(V.T @ weighted)
        mixed = -(weighted.T @ p)
        mixed[np.arange(len(of)), of] += weighted.sum(0)
        for k in range(self.classes):
            own = np.flatnonzero(of == k)
            H[np.ix_(own, own)] += X[:, own].T @ weighted[:, own]
        inner = np.diag(omega @ p) - (p.T * omega) @ p + 1 / self.classes
        return H, mixed, factorise(inner)

    def eliminated(self, z: Matrix, entries: Indices) -> tuple[Matrix, Matrix, Factor | None]:
        """∇²f with the intercepts eliminated, and how they follow the coefficients."""
        H, mixed, inner = self.curved(z, entries)
        if not self.fit_intercept:
            return H, np.zeros_like(mixed), None
        follow = inner.solve(mixed.T).T
        return H - follow @ mixed.T, follow, inner

    def _columns(self, entries: Indices) -> Matrix:
        features, place = np.unique(entries // self.classes, return_inverse=True)
        return self.columns.of(features)[:, place]

    def _restricted(
        self, w: Vector, intercept: Vector, working: Indices, at: Weights
    ) -> tuple[Vector, Vector]:
        if self.dense(at) and len(working) > MOST_UNKNOWNS:
            raise InputError(
                f"A ridge for {self.classes} classes has {len(working)} coefficients here, all in "
                f"one system; more than {MOST_UNKNOWNS} are not supported. Choose features first, "
                "reduce their dimension, or take l1_ratio > 0."
            )
        new = np.zeros_like(w)
        part, intercept = self._proximal_newton(
            w[working], intercept, working, at.a[working], at.b[working], self.groups
        )
        new[working] = part
        return self._settled(new, at), intercept

    def _proximal_newton(
        self, w: Vector, b0: Vector, working: Indices, a: Vector, b: Vector, groups: Groups
    ) -> tuple[Vector, Vector]:
        X, omega, of = self._columns(working), self.design.weights, working % self.classes
        spread = np.eye(self.classes)[of]
        groups, tol = groups.among(working)[0], 0.2 * TOLERANCE

        def predicted(w: Vector, b0: Vector) -> Matrix:
            return (X * w) @ spread + b0

        def value(w: Vector, b0: Vector) -> float:
            fit = float(omega @ self.loss.value(predicted(w, b0), self.y))
            return fit + float(a @ np.abs(w)) + 0.5 * float(b @ w**2)

        here = value(w, b0)
        for _ in range(100):
            z = predicted(w, b0)
            r = self._residuals(z)
            gradient = np.einsum("ia,ia->a", X, r[:, of])
            off = r.sum(0) if self.fit_intercept else np.zeros(self.classes)
            wrong = violations(gradient + b * w, w, a, groups).max(initial=0.0)
            if max(float(wrong), float(np.abs(off).max())) <= tol:
                break
            H, follow, inner = self.eliminated(z, working)
            H[np.diag_indices_from(H)] += _STAY * max(float(np.diagonal(H).mean()), 1e-12)
            slope = gradient - follow @ off
            P = H + np.diag(b)
            if self.dense(Weights(a, b)):
                target = w - factorise(P).solve(slope + b * w)
            else:
                target, _ = SparseQuadratic(P, H @ w - slope, a, groups).minimise(w, 0.1 * tol)
            step = target - w
            shift = np.zeros_like(b0) if inner is None else -inner.solve(off) - follow.T @ step
            t, rounding = 1.0, 4 * np.finfo(float).eps * abs(here)
            while (new := value(w + t * step, b0 + t * shift)) > here + rounding and t > 1e-10:
                t *= 0.5
            if t <= 1e-10:
                break
            w = target if t == 1.0 else w + t * step  # keeps exact zeros
            b0, here = b0 + t * shift, new
        return w, b0 - b0.mean() if self.fit_intercept else b0

    def _settled(self, w: Vector, at: Weights) -> Vector:
        """w with a zero in every feature whose coefficients may move together at no cost."""
        W = w.reshape(-1, self.classes).copy()
        free = (np.sign(W).sum(1) == 0) & W.all(1) & ~at.b.reshape(W.shape).any(1)
        if self.groups.positive or not free.any():
            return w
        above = np.where(W > 0, W, np.inf).min(1)
        below = np.where(W < 0, -W, np.inf).min(1)
        W[free] -= np.where(above <= below, above, -below)[free, None]
        return W.reshape(-1)


@dataclass
class MultinomialFold(Fold):
    """A fold of more than two classes."""

    level: MultinomialLevel

    def _predict(self, at: Fitted, held: ValidationRows) -> tuple[Matrix, Indices, Matrix]:
        """Predictions for held-out rows, the features that make them, and these columns."""
        W = at.w.reshape(-1, self.level.classes)
        features = np.flatnonzero(W.any(1))
        rows = self.level.design.rows(held.X, features)
        return at.intercept + rows @ W[features], features, rows

    def loss(self, at: Fitted, held: ValidationRows) -> float:
        z, _, _ = self._predict(at, held)
        return float(held.weights @ self.level.loss.value(z, held.y))

    def hypergradient(self, at: Fitted, weights: Weights) -> tuple[float, Hypergradient]:
        r"""The loss, and its derivative on the support, in the penalties of each feature.

        .. math:: K v = ∇L, \qquad \frac{dL}{da_j} = −\sum_k v_{jk} \operatorname{sign} w_{jk},
                  \qquad \frac{dL}{db_j} = −\sum_k v_{jk} w_{jk}
        """
        level, held, K = self.level, self.held, self.level.classes
        z, features, rows = self._predict(at, held)
        value = float(held.weights @ level.loss.value(z, held.y))
        da, db = (np.zeros(level.design.shape[1]) for _ in range(2))
        entries = at.support
        if len(entries) == 0:
            return value, Hypergradient(da, db, 1.0)
        q = held.weights[:, None] * (probabilities(z) - np.eye(K)[held.y.astype(np.intp)])
        place = np.searchsorted(features, entries // K)
        right = (rows.T @ q)[place, entries % K]
        H, follow, _ = level.eliminated(at.z, entries)
        scaled = level.scaled(weights)
        H[np.diag_indices_from(H)] += scaled.b[entries]
        solved = factorise(H)
        v, w = solved.solve(right - follow @ q.sum(0)), at.w[entries]
        scale, of = level.design.scale, entries // K
        np.add.at(da, of, -v * np.sign(w) / scale[of])
        np.add.at(db, of, -v * w / scale[of] ** 2)
        regular = level.dense(scaled) and bool((scaled.b[entries] > 0).all())
        return value, Hypergradient(da, db, 1.0 if regular else solved.pivot)

    def uniqueness(self, at: Fitted, weights: Weights) -> Uniqueness:
        """Whether there is no other solution, but for coefficients of a feature moved together."""
        level, scaled = self.level, self.level.scaled(weights)
        if (scaled.b[level._live()] > 0).all():
            return Uniqueness(0, 1.0)
        slack = scaled.a - level.groups.pulls(at.gradient)
        active = at.w != 0
        tied = (active | (slack <= 1e-9)) & (np.repeat(level.design.live, level.classes) > 0)
        entries = np.flatnonzero(tied)
        count = int((tied & ~active).sum())
        if len(entries) == 0:
            return Uniqueness(0, 1.0)
        if len(entries) > 4 * level.hot.size:
            return Uniqueness(count, 0.0)
        H, _, _ = level.eliminated(at.z, entries)
        H[np.diag_indices_from(H)] += scaled.b[entries]
        of, together = entries // level.classes, tied.reshape(-1, level.classes).all(1)
        H += (of[:, None] == of) & together[of][:, None]
        return Uniqueness(count, factorise(H).pivot)
