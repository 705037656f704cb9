"""Small random problems of every kind, each the value of one printable recipe.

A recipe is what is drawn and what a report prints: `build(recipe)` gives the same problem again, on
any machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import legato as lg

Theta = tuple[Tensor, ...]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Recipe:
    """What makes a problem: a family with its variant of the algorithm, sizes, conditioning, seed.

    ``condition`` is the ratio of the largest to the smallest singular value of the matrix in it;
    from 1e3 on, a few hundred iterations do not solve the problem, and a strategy has to say so.
    """

    family: str
    variant: str
    dtype: str
    size: int
    condition: float
    strength: float
    batch: int
    seed: int


@dataclass
class Case:
    """A problem ready to be solved: θ, how it is built from θ, and a loss of its solution."""

    recipe: Recipe
    theta: Theta
    make: Callable[..., tuple[Any, lg.Algorithm, Tensor | None]]

    def leaves(self) -> Theta:
        return tuple(t.detach().clone().requires_grad_() for t in self.theta)

    def loss(self, x: Tensor) -> Tensor:
        slope = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
        return (slope * x + 0.5 * x * x).sum()


class Numbers:
    """Random tensors of one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.dtype = DTYPES[recipe.dtype]
        self.generator = torch.Generator().manual_seed(recipe.seed)

    def normal(self, *shape: int) -> Tensor:
        # Drawn in double precision, so that both dtypes see the same problem.
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=self.dtype)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Of norm 1 and the recipe's condition number."""
        draw = torch.randn(rows, columns, generator=self.generator, dtype=torch.float64)
        left, _, right = torch.linalg.svd(draw, full_matrices=False)
        k = min(rows, columns)
        values = torch.logspace(0, -1, k, base=self.recipe.condition, dtype=torch.float64)
        return (left * values @ right).to(self.dtype)

    def batch(self, *shape: int) -> tuple[int, ...]:
        return (self.recipe.batch, *shape) if self.recipe.batch > 1 else shape


# --- forward–backward -----------------------------------------------------------------------------


def _euclidean(recipe: Recipe) -> lg.ForwardBackward:
    """The variants of the algorithm, for matrices of norm 1."""
    return {
        "plain": lambda: lg.ForwardBackward(inertia=0.0),
        "fixed step": lambda: lg.ForwardBackward(0.8),
        "inertia": lambda: lg.ForwardBackward(inertia=0.3),
        "Nesterov": lambda: lg.ForwardBackward(inertia=lg.Nesterov()),
        "backtracking": lambda: lg.ForwardBackward(lg.Backtracking()),
    }[recipe.variant]()


EUCLIDEAN = ("plain", "fixed step", "inertia", "Nesterov", "backtracking")


def _regression(draw: Numbers) -> tuple[Tensor, Tensor]:
    n = draw.recipe.size
    A = draw.matrix(n + 2, n)
    truth = draw.normal(*draw.batch(n)) * (draw.normal(n) > -0.3)
    return A, truth @ A.mT + 0.05 * draw.normal(*draw.batch(n + 2))


def lasso(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)
    weights = recipe.strength * (0.5 + draw.normal(recipe.size).sigmoid())

    def make(A: Tensor, b: Tensor, w: Tensor) -> Any:
        return lg.Composite(lg.LeastSquares(A, b), lg.L1(w)), _euclidean(recipe), None

    return Case(recipe, (A, b, weights), make)


def elastic_net(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)

    def make(A: Tensor, b: Tensor, w: Tensor, e: Tensor) -> Any:
        penalty = lg.L1(w) + lg.SquaredNorm(e)
        return lg.Composite(lg.LeastSquares(A, b), penalty), _euclidean(recipe), None

    return Case(recipe, (A, b, draw.number(recipe.strength), draw.number(0.3)), make)


def group_lasso(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)
    groups = torch.arange(recipe.size) % 2
    weights = recipe.strength * (0.5 + draw.normal(2).sigmoid())

    def make(b: Tensor, w: Tensor) -> Any:
        penalty = lg.GroupL1(w, groups=groups)
        return lg.Composite(lg.LeastSquares(A, b), penalty), _euclidean(recipe), None

    return Case(recipe, (b, weights), make)


def nnls(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)

    def make(A: Tensor, b: Tensor) -> Any:
        return lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), _euclidean(recipe), None

    return Case(recipe, (A, b), make)


def box(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)
    hi = recipe.strength + draw.normal(recipe.size).sigmoid()

    def make(b: Tensor, hi: Tensor) -> Any:
        term = lg.Box(-hi, hi)
        if recipe.variant == "interval":
            algorithm = lg.ForwardBackward(0.3, lg.Interval(-hi, hi))
        else:
            algorithm = _euclidean(recipe)
        return lg.Composite(lg.LeastSquares(A, b), term), algorithm, None

    return Case(recipe, (b, hi), make)


def polytope(recipe: Recipe) -> Case:
    """A box and a few more walls, some of them twice, as the domain of the geometry."""
    draw = Numbers(recipe)
    A, b = _regression(draw)
    n, eye = recipe.size, torch.eye(recipe.size, dtype=draw.dtype)
    walls = torch.cat([eye, -eye, torch.nn.functional.normalize(draw.normal(2, n)), eye[:1]])
    ends = recipe.strength + 0.1 + draw.normal(len(walls)).sigmoid()
    ends = torch.cat([ends[:-1], ends[:1]])

    def make(b: Tensor, ends: Tensor) -> Any:
        size = lg.Backtracking() if recipe.variant == "backtracking" else None
        algorithm = lg.ForwardBackward(size, lg.Polyhedral(walls, ends))
        return lg.Composite(lg.LeastSquares(A, b)), algorithm, None

    return Case(recipe, (b, ends), make)


def logistic(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, _ = _regression(draw)
    labels = draw.normal(recipe.size + 2).sign()

    def make(w: Tensor, ridge: Tensor) -> Any:
        penalty = lg.L1(w) + lg.SquaredNorm(ridge)
        return lg.Composite(lg.Logistic(A, labels), penalty), _euclidean(recipe), None

    return Case(recipe, (draw.number(0.05 * recipe.strength), draw.number(0.1)), make)


def simplex(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    A, b = _regression(draw)

    def make(A: Tensor, b: Tensor) -> Any:
        if recipe.variant == "entropy":
            algorithm = lg.ForwardBackward(0.8, lg.Entropy())
        else:
            algorithm = _euclidean(recipe)
        return lg.Composite(lg.LeastSquares(A, b), lg.Simplex()), algorithm, None

    return Case(recipe, (A, b), make)


def nnls_entropic(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    n = recipe.size
    A = draw.matrix(n + 2, n)
    b = draw.normal(*draw.batch(n)).abs() @ A.mT

    def make(A: Tensor, b: Tensor) -> Any:
        algorithm = lg.ForwardBackward(lg.Backtracking(), lg.Entropy())
        start = torch.full((*b.shape[:-1], n), 0.5, dtype=b.dtype)
        return lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), algorithm, start

    return Case(recipe, (A, b), make)


# --- primal–dual ----------------------------------------------------------------------------------


def _primal_dual(recipe: Recipe, **options: Any) -> lg.PrimalDual:
    extra: dict[str, Any] = {
        "plain": {},
        "balance": {"balance": 2.5},
        "precondition": {"precondition": True},
        "average": {"average": True},
    }[recipe.variant]
    return lg.PrimalDual(**extra, **options)


SADDLE = ("plain", "balance", "precondition", "average")


def tv(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    steps = draw.normal(*draw.batch(recipe.size)).sign().cumsum(-1)
    b = steps + 0.1 * draw.normal(*draw.batch(recipe.size))

    def make(b: Tensor, w: Tensor) -> Any:
        data = lg.SquaredDistance(b)
        problem = lg.Saddle(lg.Differences(dims=(-1,)), penalty=lg.L1(w), nonsmooth=data)
        return problem, _primal_dual(recipe), torch.zeros_like(b)

    return Case(recipe, (b, draw.number(recipe.strength)), make)


def analysis(recipe: Recipe) -> Case:
    """½‖Ax − b‖² + ½μ‖x‖² + λ‖Kx‖₁ with A in the smooth part."""
    draw = Numbers(recipe)
    A, b = _regression(draw)
    K = draw.normal(recipe.size - 1, recipe.size)

    def make(b: Tensor, K: Tensor, w: Tensor) -> Any:
        problem = lg.Saddle(
            K, penalty=lg.L1(w), nonsmooth=lg.SquaredNorm(0.2), smooth=lg.LeastSquares(A, b)
        )
        return problem, _primal_dual(recipe), None

    return Case(recipe, (b, K, draw.number(0.1 * recipe.strength)), make)


def potts(recipe: Recipe) -> Case:
    """On a small grid, with entropies that make the saddle point unique, or none."""
    draw = Numbers(recipe)
    rows = max(2, recipe.size // 3)
    cost = draw.normal(3, rows, 3)
    weights = 0.1 + recipe.strength * draw.normal(2, rows, 3).sigmoid()
    smooth = recipe.variant == "smooth"

    def make(c: Tensor, w: Tensor, e: Tensor) -> Any:
        norm = 2 * 2**0.5 * float(w.detach().max())
        interval = lg.Interval(-1.0, 1.0)
        dual = lg.Box() + lg.BregmanTerm(interval, e) if smooth else lg.Box()
        term = lg.Simplex(dim=0) + lg.Linear(c)
        term = term + lg.NegativeEntropy(e) if smooth else term
        problem = lg.Saddle(lg.Differences(weights=w), penalty=dual.conjugate(), nonsmooth=term)
        algorithm = lg.PrimalDual(1 / norm, 1 / norm, lg.Entropy(), interval)
        return problem, algorithm, torch.full_like(c, 1 / 3)

    return Case(recipe, (cost, weights, draw.number(0.3)), make)


def game(recipe: Recipe) -> Case:
    draw = Numbers(recipe)
    M = draw.normal(recipe.size, recipe.size - 1)
    smooth = recipe.variant == "smooth"

    def make(M: Tensor, e: Tensor) -> Any:
        term = lg.Simplex() + lg.NegativeEntropy(e) if smooth else lg.Simplex()
        size = float(M.detach().abs().max())
        algorithm = lg.PrimalDual(1 / size, 1 / size, lg.Entropy(), lg.Entropy(), norm=size)
        start = torch.full((M.shape[1],), 1 / M.shape[1], dtype=M.dtype)
        return lg.Saddle(M, penalty=term.conjugate(), nonsmooth=term), algorithm, start

    return Case(recipe, (M, draw.number(0.1 + recipe.strength)), make)


# --- all of them ----------------------------------------------------------------------------------

FAMILIES: dict[str, tuple[Callable[[Recipe], Case], tuple[str, ...]]] = {
    "lasso": (lasso, EUCLIDEAN),
    "elastic net": (elastic_net, EUCLIDEAN),
    "group lasso": (group_lasso, EUCLIDEAN),
    "nnls": (nnls, EUCLIDEAN),
    "box": (box, (*EUCLIDEAN, "interval")),
    "polytope": (polytope, ("plain", "backtracking")),
    "logistic": (logistic, EUCLIDEAN),
    "simplex": (simplex, (*EUCLIDEAN, "entropy")),
    "nnls entropic": (nnls_entropic, ("backtracking",)),
    "tv": (tv, SADDLE),
    "analysis": (analysis, SADDLE),
    "potts": (potts, ("smooth", "sharp")),
    "game": (game, ("smooth", "sharp")),
}
CONDITIONS = (1.0, 2.0, 5.0, 20.0, 100.0, 1e3, 1e5)


def build(recipe: Recipe) -> Case:
    return FAMILIES[recipe.family][0](recipe)


Kind = tuple[str, str, str]


def kinds(families: tuple[str, ...]) -> list[Kind]:
    """All (family, variant, dtype) of these families."""
    return [(f, v, d) for f in families for v in FAMILIES[f][1] for d in sorted(DTYPES)]


def draw(kind: Kind, numbers: random.Random) -> Recipe:
    family, variant, dtype = kind
    batched = family not in ("logistic", "potts", "game", "group lasso")
    return Recipe(
        family=family,
        variant=variant,
        dtype=dtype,
        size=numbers.randint(3, 7),
        condition=numbers.choice(CONDITIONS),
        strength=numbers.choice((0.0, 0.01, 0.1, 0.3, 1.0, 10.0)),
        batch=numbers.randint(1, 3) if batched else 1,
        seed=numbers.randint(0, 10**6),
    )
