"""The problems of the race: data drawn from a seed, true solutions and true gradients.

Each problem is a dictionary of float64 arrays. ``x`` is the true solution, ``gradient`` the true
gradient of the loss (flat, parameters in the order of ``Problem.parameters``), and ``uncertainty``
that gradient's relative distance from a second computation: a consistency check that holds the
error of the second computation as well, not a bound of the first one's.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import truth
from truth import Array

SEED = 7
Data = dict[str, Array]


@dataclass(frozen=True)
class Problem:
    """What is solved, what is differentiated, and how the truth is known."""

    title: str
    energy: str
    loss: str
    parameters: tuple[str, ...]
    truth: str
    draw: Callable[[], Data]


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode()])


def _relative(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# --- regression -----------------------------------------------------------------------------------


def _regression(name: str, n: int, p: int, sparse: int, noise: float) -> Data:
    rng = _generator(name)
    truth_vector = np.zeros(p)
    truth_vector[rng.permutation(p)[:sparse]] = rng.choice([-1, 1], sparse) * rng.uniform(
        1, 2, sparse
    )
    X, V = rng.standard_normal((n, p)) / np.sqrt(n), rng.standard_normal((200, p)) / np.sqrt(n)
    return {
        "X": X,
        "y": X @ truth_vector + noise * rng.standard_normal(n),
        "V": V,
        "v": V @ truth_vector + noise * rng.standard_normal(200),
    }


def _sparse_regression(name: str, ridge: float) -> Data:
    data = _regression(name, n=500, p=2000, sparse=40, noise=0.1)
    X, y, V, v = data["X"], data["y"], data["V"], data["v"]
    peak = float(np.abs(X.T @ y).max())
    if name == "weighted_lasso":
        weights = peak * _generator("weights").uniform(0.05, 0.2, X.shape[1])
        theta = weights
    else:
        weights = np.full(X.shape[1], 0.1 * peak)
        theta = np.array([weights[0], ridge]) if ridge else weights[:1]

    def split(theta: Array) -> tuple[Array, float]:
        if name == "weighted_lasso":
            return theta, 0.0
        return np.full(X.shape[1], theta[0]), float(theta[1]) if ridge else 0.0

    solution = truth.elastic_net(X, y, weights, ridge)

    def loss(theta: Array) -> float:
        w = truth.elastic_net(X, y, *split(theta), start=solution)
        return 0.5 * float(((V @ w - v) ** 2).sum())

    w = solution
    each, in_ridge = truth.elastic_net_gradient(X, w, ridge, V.T @ (V @ w - v))
    if name == "weighted_lasso":
        gradient = each
        probe = np.argsort(-np.abs(each))[:1]  # one direction is enough to check a closed form

        def along(s: Array) -> float:
            moved = theta.copy()
            moved[probe] = s
            return loss(moved)

        uncertainty = _relative(truth.central(along, theta[probe], 1e-6), gradient[probe])
    else:
        gradient = np.array([each.sum(), in_ridge]) if ridge else np.array([each.sum()])
        uncertainty = _relative(truth.central(loss, theta, 1e-6), gradient)
    return data | {
        "theta": theta,
        "x": w,
        "gradient": gradient,
        "uncertainty": np.array(uncertainty),
    }


def lasso() -> Data:
    return _sparse_regression("lasso", 0.0)


def elastic_net() -> Data:
    return _sparse_regression("elastic_net", 0.05)


def weighted_lasso() -> Data:
    return _sparse_regression("weighted_lasso", 0.0)


def ridge() -> Data:
    data = _regression("ridge", n=500, p=200, sparse=200, noise=0.5)
    X, y, V, v = data["X"], data["y"], data["V"], data["v"]
    theta = _generator("ridge weights").uniform(0.05, 0.5, X.shape[1])

    def solve(theta: Array) -> Array:
        return np.linalg.solve(X.T @ X + np.diag(theta), X.T @ y)

    w = solve(theta)
    z = np.linalg.solve(X.T @ X + np.diag(theta), V.T @ (V @ w - v))
    return data | _checked(-z * w, theta, w, lambda t: _validation(V, v, solve(t)))


def logistic() -> Data:
    data = _regression("logistic", n=500, p=200, sparse=200, noise=0.5)
    X, V, v = data["X"], data["V"], data["v"]
    data["y"] = y = np.where(data["y"] > 0, 1.0, -1.0)
    theta = _generator("logistic weights").uniform(0.05, 0.5, X.shape[1])
    w = truth.logistic_ridge(X, y, theta)
    hessian = truth.logistic_hessian(X, y, w, theta)
    z = np.linalg.solve(hessian, V.T @ (V @ w - v))
    return data | _checked(
        -z * w, theta, w, lambda t: _validation(V, v, truth.logistic_ridge(X, y, t))
    )


def _validation(V: Array, v: Array, w: Array) -> float:
    return 0.5 * float(((V @ w - v) ** 2).sum())


def _checked(gradient: Array, theta: Array, x: Array, loss: Callable[[Array], float]) -> Data:
    """A closed form, with its distance from central differences in the three largest directions."""
    probe = np.argsort(-np.abs(gradient))[:3]

    def along(s: Array) -> float:
        moved = theta.copy()
        moved[probe] = s
        return loss(moved)

    off = _relative(truth.central(along, theta[probe], 1e-4), gradient[probe])
    return {"theta": theta, "x": x, "gradient": gradient, "uncertainty": np.array(off)}


# --- batches --------------------------------------------------------------------------------------


def simplex_projection() -> Data:
    rng = _generator("simplex_projection")
    theta = rng.standard_normal((1024, 50))
    target = rng.dirichlet(np.ones(50), 1024)
    x = truth.project_simplex(theta)
    gradient = truth.simplex_projection_gradient(x, x - target)

    def loss(step: float, direction: Array) -> float:
        moved = truth.project_simplex(theta + step * direction)
        return 0.5 * float(((moved - target) ** 2).sum())

    off = _directional(loss, gradient, rng)
    return {"theta": theta, "target": target, "x": x, "gradient": gradient, "uncertainty": off}


def _directional(
    loss: Callable[[float, Array], float], gradient: Array, rng: np.random.Generator
) -> Array:
    """The closed form against a central difference in one random direction."""
    direction, h = rng.standard_normal(gradient.shape), 1e-7
    slope = (loss(h, direction) - loss(-h, direction)) / (2 * h)
    return np.array(abs(slope - float((gradient * direction).sum())) / np.linalg.norm(gradient))


def simplex_least_squares() -> Data:
    rng = _generator("simplex_least_squares")
    A = rng.standard_normal((1024, 75, 50)) / np.sqrt(75)
    mixture = rng.dirichlet(np.full(50, 0.1), 1024)
    theta = np.einsum("bmn,bn->bm", A, mixture) + 0.05 * rng.standard_normal((1024, 75))
    target = rng.dirichlet(np.ones(50), 1024)
    x = truth.batched_least_squares(A, theta, truth.project_simplex, on_simplex=True)
    z = truth.batched_adjoint(A, x, x - target, on_simplex=True)
    gradient = np.einsum("bmn,bn->bm", A, z)

    def loss(step: float, direction: Array) -> float:
        moved = truth.batched_least_squares(
            A[:8], (theta + step * direction)[:8], truth.project_simplex, on_simplex=True
        )
        return 0.5 * float(((moved - target[:8]) ** 2).sum())

    first = np.zeros_like(gradient)
    first[:8] = gradient[:8]
    off = _directional(loss, first, rng)
    return {
        "A": A, "theta": theta, "target": target, "x": x, "gradient": gradient, "uncertainty": off,
    }  # fmt: skip


def nnls() -> Data:
    rng = _generator("nnls")
    A = rng.standard_normal((256, 50, 20)) / np.sqrt(50)
    sources = np.maximum(rng.standard_normal((256, 20)), 0)
    b = np.einsum("bmn,bn->bm", A, sources) + 0.3 * rng.standard_normal((256, 50))
    target = np.maximum(rng.standard_normal((256, 20)), 0)

    def orthant(v: Array) -> Array:
        return np.maximum(v, 0)

    x = truth.batched_least_squares(A, b, orthant, on_simplex=False)
    z = truth.batched_adjoint(A, x, x - target, on_simplex=False)
    in_b = np.einsum("bmn,bn->bm", A, z)
    residual = b - np.einsum("bmn,bn->bm", A, x)
    in_A = residual[:, :, None] * z[:, None, :] - in_b[:, :, None] * x[:, None, :]
    gradient = np.concatenate([in_A.ravel(), in_b.ravel()])

    def loss(step: float, direction: Array) -> float:
        dA, db = direction[: A.size].reshape(A.shape), direction[A.size :].reshape(b.shape)
        moved = truth.batched_least_squares(A + step * dA, b + step * db, orthant, on_simplex=False)
        return 0.5 * float(((moved - target) ** 2).sum())

    off = _directional(loss, gradient, rng)
    return {"A": A, "b": b, "target": target, "x": x, "gradient": gradient, "uncertainty": off}


# --- images ---------------------------------------------------------------------------------------


def _denoised(y: Array, weight: float, start: Array | None = None) -> tuple[Any, Array, Array]:
    """Regions, the solution that is exact on them, and the dual variable of anisotropic TV."""
    u, p, _ = truth.variational(-y[None], weight, start=start, iterations=60000, tol=1e-15)
    found = truth.regions(u[0])
    exact = found.value(y, weight)
    off = float(np.abs(exact - u[0]).max())
    truth.require(off < 1e-10, f"The regions' values are {off:.1e} from the iterate.")
    return found, exact, p


def _denoising(y: Array, clean: Array, weight: float) -> Data:
    found, u, p = _denoised(y, weight)
    gradient = np.array([found.gradient(u - clean)])

    def loss(theta: Array) -> float:
        return 0.5 * float(((_denoised(y, theta[0], p)[1] - clean) ** 2).sum())

    theta = np.array([weight])
    off = _relative(truth.central(loss, theta, 1e-7), gradient)
    return {
        "y": y, "target": clean, "theta": theta, "x": u, "gradient": gradient,
        "uncertainty": np.array(off),
    }  # fmt: skip


def tv1d() -> Data:
    rng = _generator("tv1d")
    n = 10_000
    jumps = np.sort(rng.permutation(n)[:100])
    clean = np.cumsum(np.bincount(jumps, weights=rng.standard_normal(100), minlength=n))
    y = clean + 0.2 * rng.standard_normal(n)
    data = _denoising(y[None], clean[None], 0.5)
    return data | {name: data[name][0] for name in ("y", "target", "x")}


def _picture(name: str, size: int) -> tuple[Array, Array]:
    """Rectangles and a wave, clean and with noise."""
    rng = _generator(name)
    axis = np.linspace(0, 1, size)
    clean = 0.5 + 0.2 * np.sin(12 * axis)[:, None] * np.cos(9 * axis)
    clean[size // 8 : size // 2, size // 4 : size // 2] = 0.9
    clean[size // 2 :, size // 3 : size // 2] -= 0.3
    return clean, clean + 0.1 * rng.standard_normal((size, size))


def tv2d() -> Data:
    clean, y = _picture("tv2d", 256)
    return _denoising(y, clean, 0.1)


def tv2d_isotropic() -> Data:
    clean, y = _picture("tv2d_isotropic", 256)
    theta = np.array([0.1])

    def solve(weight: float, start: Array | None, iterations: int) -> tuple[Array, Array]:
        u, p, _ = truth.variational(
            -y[None], weight, isotropic=True, start=start, iterations=iterations
        )
        return u[0], p

    u, p = solve(theta[0], None, 20000)

    def loss(theta: Array) -> float:
        start = p * (theta[0] / 0.1)
        return 0.5 * float(((solve(theta[0], start, 10000)[0] - clean) ** 2).sum())

    gradient, other = truth.central(loss, theta, 3e-3), truth.central(loss, theta, 1e-2)
    return {
        "y": y, "target": clean, "theta": theta, "x": u, "gradient": gradient,
        "uncertainty": np.array(_relative(other, gradient)),
    }  # fmt: skip


def _potts(size: int) -> Data:
    clean, noisy = _picture(f"potts{size}", size)
    centres = np.array([0.2, 0.5, 0.9])[:, None, None]
    cost = 4 * (noisy - centres) ** 2
    nearest = np.argmin((clean - centres) ** 2, 0)
    target = (nearest == np.arange(3)[:, None, None]).astype(float)
    theta = np.array([0.1, 2.0])  # λ and the scale of the costs

    def solve(theta: Array, start: Array | None = None) -> tuple[Array, Array]:
        u, p, change = truth.variational(
            theta[1] * cost, theta[0], simplex=True, start=start, tol=1e-13
        )
        truth.require(change < 1e-9, f"potts{size}: the reference still moves by {change:.1e}.")
        return u, p

    u, p = solve(theta)

    def loss(theta: Array) -> float:
        return 0.5 * float(((solve(theta, p)[0] - target) ** 2).sum())

    gradient = truth.central(loss, theta, 1e-5)
    other = truth.central(loss, theta, 3e-5)
    return {
        "cost": cost, "target": target, "theta": theta, "x": u, "gradient": gradient,
        "uncertainty": np.array(_relative(other, gradient)),
    }  # fmt: skip


def potts64() -> Data:
    return _potts(64)


def potts256() -> Data:
    return _potts(256)


_SUPPORT = "closed form on the support, checked by central differences"
_DIFFERENCES = "central differences of solutions accurate to 1e-9 or better"
_REGRESSION = "½‖Vw − v‖²"

PROBLEMS = {
    "lasso": Problem(
        "Lasso, 500 × 2000", "½‖Xw − y‖² + λ‖w‖₁", _REGRESSION, ("theta",), _SUPPORT, lasso
    ),
    "elastic_net": Problem(
        "Elastic net, 500 × 2000", "½‖Xw − y‖² + λ‖w‖₁ + ε/2 ‖w‖²", _REGRESSION, ("theta",),
        _SUPPORT, elastic_net,
    ),
    "weighted_lasso": Problem(
        "Weighted lasso, 500 × 2000", "½‖Xw − y‖² + Σ λⱼ|wⱼ|", _REGRESSION, ("theta",),
        _SUPPORT, weighted_lasso,
    ),
    "simplex_projection": Problem(
        "Projection onto the simplex, 1024 × 50", "½‖x − θ‖², x ∈ Δ", "½‖x − t‖²", ("theta",),
        _SUPPORT, simplex_projection,
    ),
    "simplex_least_squares": Problem(
        "Least squares on the simplex, 1024 × (75 × 50)", "½‖Ax − θ‖², x ∈ Δ", "½‖x − t‖²",
        ("theta",), _SUPPORT, simplex_least_squares,
    ),
    "nnls": Problem(
        "Nonnegative least squares, 256 × (50 × 20)", "½‖Ax − b‖², x ≥ 0", "½‖x − t‖²",
        ("A", "b"), _SUPPORT, nnls,
    ),
    "tv1d": Problem(
        "Total variation in 1-D, 10 000", "½‖u − y‖² + λ Σ|Du|", "½‖u − t‖²", ("theta",),
        "closed form on regions, checked by central differences", tv1d,
    ),
    "tv2d": Problem(
        "Anisotropic total variation, 256²", "½‖u − y‖² + λ Σ|D₁u| + |D₂u|", "½‖u − t‖²",
        ("theta",), "closed form on regions, checked by central differences", tv2d,
    ),
    "tv2d_isotropic": Problem(
        "Isotropic total variation, 256²", "½‖u − y‖² + λ Σ|∇u|₂", "½‖u − t‖²", ("theta",),
        _DIFFERENCES, tv2d_isotropic,
    ),
    "potts64": Problem(
        "Potts + ½‖u‖², 3 × 64²", "⟨s c, u⟩ + ½‖u‖² + λ Σ|∇u|₁, u ∈ Δ", "½‖u − t‖²",
        ("theta",), _DIFFERENCES, potts64,
    ),
    "potts256": Problem(
        "Potts + ½‖u‖², 3 × 256²", "⟨s c, u⟩ + ½‖u‖² + λ Σ|∇u|₁, u ∈ Δ", "½‖u − t‖²",
        ("theta",), _DIFFERENCES, potts256,
    ),
    "ridge": Problem(
        "Ridge, 500 × 200, one weight a feature", "½‖Xw − y‖² + ½Σ λⱼwⱼ²", _REGRESSION,
        ("theta",), "closed form, checked by central differences", ridge,
    ),
    "logistic": Problem(
        "Logistic, 500 × 200, one weight a feature", "Σ log(1 + exp(−y·Xw)) + ½Σ λⱼwⱼ²",
        _REGRESSION, ("theta",), "closed form, checked by central differences", logistic,
    ),
}  # fmt: skip


def source_hash() -> str:
    """Changes when a problem or its truth does (not its layout): no stale file is ever read."""
    here = Path(__file__).parent
    trees = [ast.parse((here / name).read_text()) for name in ("instances.py", "truth.py")]
    return hashlib.sha256("".join(map(ast.dump, trees)).encode()).hexdigest()[:12]


def ensure(name: str, folder: Path) -> Path:
    """The problem's file, drawn and solved unless it exists."""
    path = folder / f"{name}-{source_hash()}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = PROBLEMS[name].draw()
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **data)
        partial.replace(path)
    return path
