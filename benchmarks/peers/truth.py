"""True solutions and gradients, in float64, by methods that none of the contestants uses.

Where the solution is a closed form on its active set, that set is found by a slow and safe method,
the closed form is evaluated, and optimality is checked. Where it is not, gradients are central
differences of solutions that are accurate to about 1e-12. Reference for the identities on active
sets: Bertrand et al. (2022), *Implicit differentiation for fast hyperparameter selection in
non-smooth convex learning*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class TruthError(RuntimeError):
    """A reference did not reach the accuracy that a reference needs."""


def require(fine: bool, message: str) -> None:
    if not fine:
        raise TruthError(message)


# --- sparse regression ----------------------------------------------------------------------------


def elastic_net(
    X: Array, y: Array, weights: Array, ridge: float, start: Array | None = None
) -> Array:
    """argmin ½‖Xw − y‖² + Σ weights|w| + ridge/2 ‖w‖², exact on its support."""
    columns = np.ascontiguousarray(X.T)
    w = np.zeros(X.shape[1]) if start is None else start.copy()
    for _ in range(200):
        _coordinate_descent(columns, y, weights, ridge, w, 20)
        S = np.flatnonzero(w)
        signs = np.sign(w[S])
        exact = np.zeros_like(w)
        Q = columns[S] @ columns[S].T + ridge * np.eye(len(S))
        exact[S] = np.linalg.solve(Q, columns[S] @ y - weights[S] * signs)
        slope = np.abs(columns @ (y - X @ exact))
        slope[S] = 0
        if bool(np.all(np.sign(exact[S]) == signs)) and bool(np.all(slope < weights)):
            return exact
    raise TruthError("Coordinate descent did not identify the support.")


@numba.njit(cache=True)
def _coordinate_descent(columns, y, weights, ridge, w, sweeps):  # type: ignore[no-untyped-def]
    r = y - w @ columns
    squares = (columns * columns).sum(1)
    for _ in range(sweeps):
        for j in range(len(w)):
            old = w[j]
            u = columns[j] @ r + squares[j] * old
            new = np.sign(u) * max(abs(u) - weights[j], 0.0) / (squares[j] + ridge)
            if new != old:
                r += (old - new) * columns[j]
                w[j] = new


def elastic_net_gradient(X: Array, w: Array, ridge: float, cotangent: Array) -> tuple[Array, float]:
    """Derivatives of a loss in each ℓ1 weight and in the ridge, from its gradient at w."""
    S = np.flatnonzero(w)
    Q = X[:, S].T @ X[:, S] + ridge * np.eye(len(S))
    z = np.linalg.solve(Q, cotangent[S])
    gradient = np.zeros_like(w)
    gradient[S] = -z * np.sign(w[S])
    return gradient, float(-z @ w[S])


# --- batches of small problems --------------------------------------------------------------------


def project_simplex(v: Array) -> Array:
    """Euclidean projection of the last axis onto the unit simplex."""
    ordered = -np.sort(-v, axis=-1)
    excess = np.cumsum(ordered, -1) - 1
    rank = np.arange(1, v.shape[-1] + 1)
    size = (ordered * rank > excess).sum(-1, keepdims=True)
    return np.maximum(v - np.take_along_axis(excess, size - 1, -1) / size, 0)


def simplex_projection_gradient(x: Array, cotangent: Array) -> Array:
    """The projection's Jacobian is symmetric: remove the mean over the support."""
    support = x > 0
    mean = (cotangent * support).sum(-1, keepdims=True) / support.sum(-1, keepdims=True)
    return np.where(support, cotangent - mean, 0.0)


def batched_least_squares(
    A: Array, b: Array, project: Callable[[Array], Array], on_simplex: bool
) -> Array:
    """argmin ½‖Ax − b‖² on the simplex or the orthant for each batch element, exact on supports."""
    Q, c = np.swapaxes(A, 1, 2) @ A, np.einsum("bmn,bm->bn", A, b)
    L = np.linalg.eigvalsh(Q)[:, -1:]
    x = ahead = project(np.zeros_like(c))
    t = np.ones_like(L)
    for _ in range(3000):
        new = project(ahead - (np.einsum("bij,bj->bi", Q, ahead) - c) / L)
        restart = ((ahead - new) * (new - x)).sum(-1, keepdims=True) > 0
        t = np.where(restart, 1.0, t)
        later = (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead, x, t = new + (t - 1) / later * (new - x), new, later
    exact = np.zeros_like(x)
    for k in range(len(x)):
        S = np.flatnonzero(x[k] > 1e-9)
        exact[k, S], shift = _on_support(Q[k][np.ix_(S, S)], c[k, S], on_simplex)
        slope = Q[k] @ exact[k] - c[k] + shift
        inside = bool(np.all(exact[k, S] > 0)) and bool(np.all(slope >= -1e-9))
        require(inside, f"Batch element {k} is not optimal on its support.")
    return exact


def _on_support(Q: Array, c: Array, on_simplex: bool) -> tuple[Array, float]:
    """The stationary point on a support, and the multiplier of Σx = 1."""
    if not on_simplex:
        return np.linalg.solve(Q, c), 0.0
    both = np.linalg.solve(Q, np.stack([c, np.ones_like(c)], 1))
    shift = (both[:, 0].sum() - 1) / both[:, 1].sum()
    return both[:, 0] - shift * both[:, 1], float(shift)


def batched_adjoint(A: Array, x: Array, cotangent: Array, on_simplex: bool) -> Array:
    """z with dL = zᵀ d(Aᵀb − AᵀAx) for perturbations of the data: the inverse on the support."""
    z = np.zeros_like(x)
    for k in range(len(x)):
        S = np.flatnonzero(x[k] > 0)
        Q = A[k][:, S].T @ A[k][:, S]
        inverse = np.linalg.inv(Q)
        if on_simplex:
            row = inverse.sum(1)
            inverse = inverse - np.outer(row, row) / row.sum()
        z[k, S] = inverse @ cotangent[k, S]
    return z


# --- smooth problems ------------------------------------------------------------------------------


def logistic_ridge(X: Array, y: Array, ridge: Array) -> Array:
    """argmin Σ log(1 + exp(−y·Xw)) + ½Σ ridge w², by Newton's method."""
    w = np.zeros(X.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(y * (X @ w)))
        gradient = -X.T @ (y * p) + ridge * w
        step = np.linalg.solve(logistic_hessian(X, y, w, ridge), gradient)
        w = w - step
        if np.abs(step).max() < 1e-15:
            break
    require(bool(np.abs(gradient).max() < 1e-10), "Newton's method did not converge.")
    return w


def logistic_hessian(X: Array, y: Array, w: Array, ridge: Array) -> Array:
    p = 1 / (1 + np.exp(y * (X @ w)))
    return X.T @ ((p * (1 - p))[:, None] * X) + np.diag(ridge)


# --- total variation and Potts --------------------------------------------------------------------


@dataclass(frozen=True)
class Regions:
    """The regions of equal value of an anisotropic TV denoiser's output.

    On a region R: u = mean of y − λ·slope, where slope is the number of its lower neighbours minus
    that of its higher ones, divided by |R|.
    """

    labels: Any
    size: Array
    slope: Array

    def value(self, y: Array, weight: float) -> Array:
        """u, exact if the regions are the right ones."""
        mean = self._total(y) / self.size
        return (mean - weight * self.slope)[self.labels]

    def gradient(self, cotangent: Array) -> float:
        """d/dλ of a loss with the given gradient in u."""
        return float(-self.slope @ self._total(cotangent))

    def _total(self, values: Array) -> Array:
        return np.bincount(self.labels.ravel(), weights=values.ravel(), minlength=len(self.size))


def regions(u: Array, touching: float = 1e-8) -> Regions:
    """Connected pixels whose values differ by less than ``touching``."""
    labels = _components(u, touching)
    count = int(labels.max()) + 1
    size = np.bincount(labels.ravel(), minlength=count).astype(float)
    slope = np.zeros(count)
    for axis in (0, 1):
        first, second = _neighbours(labels, axis)
        before, after = _neighbours(u, axis)
        edge = first != second
        rise = np.sign(after - before)[edge]
        np.add.at(slope, second[edge], rise)
        np.add.at(slope, first[edge], -rise)
    return Regions(labels, size, slope / size)


def _neighbours(values: Any, axis: int) -> tuple[Any, Any]:
    if axis == 0:
        return values[:-1], values[1:]
    return values[:, :-1], values[:, 1:]


@numba.njit(cache=True)
def _components(grid, touching):  # type: ignore[no-untyped-def]
    rows, columns = grid.shape
    labels = np.full((rows, columns), -1)
    stack = np.empty(rows * columns, np.int64)
    found = 0
    for i in range(rows):
        for j in range(columns):
            if labels[i, j] >= 0:
                continue
            labels[i, j] = found
            stack[0] = i * columns + j
            top = 1
            while top:
                top -= 1
                a, b = divmod(stack[top], columns)
                for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                    k, l = a + di, b + dj
                    if not (0 <= k < rows and 0 <= l < columns) or labels[k, l] >= 0:
                        continue
                    if abs(grid[k, l] - grid[a, b]) < touching:
                        labels[k, l] = found
                        stack[top] = k * columns + l
                        top += 1
            found += 1
    return labels


@numba.njit(cache=True, fastmath=True)
def _dual_fista(cost, weight, isotropic, simplex, p, iterations, tol):  # type: ignore[no-untyped-def]
    """Restarted FISTA on the dual of min_u ½‖u‖² + ⟨cost, u⟩ + weight·TV(u), perhaps with u ∈ Δ.

    Returns the last relative change; p (L, 2, H, W) is updated in place.
    """
    L, H, W = cost.shape
    alpha = 1 / 8 if min(H, W) > 1 else 1 / 4
    ahead, before = p.copy(), p.copy()
    u = np.empty((L, H, W))
    t, change = 1.0, 1.0
    for _ in range(iterations):
        _primal(cost, ahead, simplex, u)
        turn, moved, size = 0.0, 0.0, 1e-300
        for l in range(L):
            for i in range(H):
                for j in range(W):
                    a = (
                        ahead[l, 0, i, j] + (u[l, i + 1, j] - u[l, i, j]) * alpha
                        if i + 1 < H
                        else 0.0
                    )
                    b = (
                        ahead[l, 1, i, j] + (u[l, i, j + 1] - u[l, i, j]) * alpha
                        if j + 1 < W
                        else 0.0
                    )
                    if isotropic:
                        r = np.sqrt(a * a + b * b)
                        s = weight / r if r > weight else 1.0
                        a, b = a * s, b * s
                    else:
                        a = min(max(a, -weight), weight)
                        b = min(max(b, -weight), weight)
                    da, db = a - before[l, 0, i, j], b - before[l, 1, i, j]
                    turn += (ahead[l, 0, i, j] - a) * da + (ahead[l, 1, i, j] - b) * db
                    moved += da * da + db * db
                    size += a * a + b * b
                    p[l, 0, i, j], p[l, 1, i, j] = a, b
        change = np.sqrt(moved / size)
        if turn > 0:
            t = 1.0
        later = (1 + np.sqrt(1 + 4 * t * t)) / 2
        beta = (t - 1) / later
        t = later
        for l in range(L):
            for d in range(2):
                for i in range(H):
                    for j in range(W):
                        new = p[l, d, i, j]
                        ahead[l, d, i, j] = new + beta * (new - before[l, d, i, j])
                        before[l, d, i, j] = new
        if change <= tol:
            break
    return change


@numba.njit(cache=True, fastmath=True)
def _primal(cost, p, simplex, u):  # type: ignore[no-untyped-def]
    """u = −(cost + ∇ᵀp), projected onto the simplex across labels where asked."""
    L, H, W = cost.shape
    column = np.empty(L)
    for i in range(H):
        for j in range(W):
            for l in range(L):
                v = -cost[l, i, j] + p[l, 0, i, j] + p[l, 1, i, j]
                if i > 0:
                    v -= p[l, 0, i - 1, j]
                if j > 0:
                    v -= p[l, 1, i, j - 1]
                column[l] = v
            if simplex:
                shift, count = -np.inf, 0
                while True:  # drop what the shift makes negative until nothing is (Michelot, 1986)
                    total, kept = 0.0, 0
                    for l in range(L):
                        if column[l] > shift:
                            total += column[l]
                            kept += 1
                    shift = (total - 1) / kept
                    if kept == count:
                        break
                    count = kept
                for l in range(L):
                    column[l] = max(column[l] - shift, 0.0)
            for l in range(L):
                u[l, i, j] = column[l]


def variational(
    cost: Array,
    weight: float,
    *,
    isotropic: bool = False,
    simplex: bool = False,
    start: Array | None = None,
    iterations: int = 40000,
    tol: float = 1e-14,
) -> tuple[Array, Array, float]:
    """u, p and the last relative change of p for the problem of :func:`_dual_fista`."""
    p = np.zeros((cost.shape[0], 2, *cost.shape[1:])) if start is None else start.copy()
    change = _dual_fista(cost, float(weight), isotropic, simplex, p, iterations, tol)
    u = np.empty_like(cost)
    _primal(cost, p, simplex, u)
    return u, p, float(change)


def central(loss: Callable[[Array], float], theta: Array, step: float) -> Array:
    """Central differences with a step relative to each parameter."""
    gradient = np.zeros_like(theta)
    for k in range(len(theta)):
        h = step * abs(theta[k])
        up, down = theta.copy(), theta.copy()
        up[k] += h
        down[k] -= h
        gradient[k] = (loss(up) - loss(down)) / (2 * h)
    return gradient
