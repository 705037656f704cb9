"""Solutions and derivatives against scikit-learn, SciPy and CVXPY."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy
import numpy as np
import pytest
import torch
from scipy.optimize import linprog, nnls
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from sklearn.linear_model import ElasticNet, Lasso
from torch import Tensor

import legato as lg
from problems import (
    MIXTURE,
    PAYOFF,
    POSITIVE_TARGET,
    SIGNAL,
    TARGET,
    A,
    by_name,
    random,
    relative_error,
)

STRATEGIES = [
    lg.Unroll(),
    lg.Implicit(lg.GMRES(tol=1e-10)),
    lg.FixedPoint(terms=1000, tol=1e-10),
]
PIGGYBACK = lg.Piggyback(iterations=2000, tol=1e-10)


def using(*strategies: lg.GradientStrategy) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("gradient", strategies, ids=lambda s: type(s).__name__)


each_strategy = using(*STRATEGIES)


def tensor(array: np.ndarray) -> Tensor:
    return torch.as_tensor(np.asarray(array), dtype=torch.float64)


def jacobian(name: str, theta: tuple[Tensor, ...], gradient: lg.GradientStrategy) -> list[Tensor]:
    """dx/dθ_k of a named problem at convergence, one row for each entry of x."""
    problem = by_name(name)
    leaves = [t.clone().requires_grad_() for t in theta]
    x = problem.solve(*leaves, iterations=problem.iterations, gradient=gradient).x
    rows = [torch.autograd.grad(entry, leaves, retain_graph=True) for entry in x.flatten()]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


# --- scikit-learn: the regularisation path --------------------------------------------------------


def sklearn_lasso(weight: float) -> Tensor:
    """Its objective divides the data term by the number of rows."""
    model = Lasso(weight / len(A), fit_intercept=False, tol=1e-14, max_iter=100_000)
    return tensor(model.fit(A.numpy(), TARGET.numpy()).coef_)


def sklearn_elastic_net(weight: float, ridge: float) -> Tensor:
    total = weight + ridge
    model = ElasticNet(
        total / len(A), l1_ratio=weight / total, fit_intercept=False, tol=1e-14, max_iter=100_000
    )
    return tensor(model.fit(A.numpy(), TARGET.numpy()).coef_)


def difference(path: Callable[[float], Tensor], at: float, h: float) -> Tensor:
    return (path(at + h) - path(at - h)) / (2 * h)


def test_lasso_solution() -> None:
    found = by_name("lasso").solve(A, TARGET, tensor(0.3), iterations=200).x
    expected = sklearn_lasso(0.3)
    assert (expected == 0).any()  # else it would be no more than least squares
    assert relative_error(found, expected) < 1e-10


@each_strategy
def test_lasso_path(gradient: lg.GradientStrategy) -> None:
    """The path is piecewise linear, so differences over a whole segment are exact."""
    *_, found = jacobian("lasso", (A, TARGET, tensor(0.3)), gradient)
    x = sklearn_lasso(0.3)
    S = x != 0
    closed = torch.zeros(5, dtype=torch.float64)
    closed[S] = -torch.linalg.solve(A[:, S].T @ A[:, S], x[S].sign())
    assert relative_error(found, closed) < 1e-6
    assert relative_error(found, difference(sklearn_lasso, 0.3, 1e-3)) < 1e-6


@each_strategy
def test_elastic_net_path(gradient: lg.GradientStrategy) -> None:
    *_, by_weight, by_ridge = jacobian(
        "elastic net", (A, TARGET, tensor(0.2), tensor(0.5)), gradient
    )
    x = sklearn_elastic_net(0.2, 0.5)
    S = x != 0
    hessian = A[:, S].T @ A[:, S] + 0.5 * torch.eye(int(S.sum()), dtype=torch.float64)
    closed = torch.zeros(5, 2, dtype=torch.float64)
    closed[S] = -torch.linalg.solve(hessian, torch.stack([x[S].sign(), x[S]], dim=1))
    assert relative_error(by_weight, closed[:, 0]) < 1e-6
    assert relative_error(by_ridge, closed[:, 1]) < 1e-6
    along_weight = difference(lambda w: sklearn_elastic_net(w, 0.5), 0.2, 1e-3)  # linear
    along_ridge = difference(lambda r: sklearn_elastic_net(0.2, r), 0.5, 1e-4)  # error O(h²)
    assert relative_error(by_weight, along_weight) < 1e-6
    assert relative_error(by_ridge, along_ridge) < 1e-6


# --- SciPy: non-negative least squares ------------------------------------------------------------


@each_strategy
@pytest.mark.parametrize("name", ["nnls", "nnls entropic"])
def test_nnls(name: str, gradient: lg.GradientStrategy) -> None:
    expected = tensor(nnls(A.numpy(), POSITIVE_TARGET.numpy())[0])
    S = expected > 0
    assert 0 < S.sum() < 5
    problem = by_name(name)
    x = problem.solve(*problem.parameters, iterations=problem.iterations).x
    assert relative_error(x, expected) < 1e-10
    _, by_target = jacobian(name, (A, POSITIVE_TARGET), gradient)
    closed = torch.zeros(5, 7, dtype=torch.float64)
    closed[S] = torch.linalg.pinv(A[:, S])
    assert relative_error(by_target, closed) < 1e-6


# --- SciPy: a matrix game as a linear programme ---------------------------------------------------


def equilibrium(M: np.ndarray) -> tuple[float, Tensor, Tensor]:
    """The value of min_x max_y ⟨Mx, y⟩, x from the programme and y from its multipliers."""
    rows, columns = M.shape
    result = linprog(
        c=np.r_[np.zeros(columns), 1],
        A_ub=np.c_[M, -np.ones(rows)],
        b_ub=np.zeros(rows),
        A_eq=np.r_[np.ones(columns), 0][None],
        b_eq=[1],
        bounds=[(0, None)] * columns + [(None, None)],
    )
    return result.fun, tensor(result.x[:-1]), tensor(-result.ineqlin.marginals)


@using(*STRATEGIES, PIGGYBACK)
def test_game(gradient: lg.GradientStrategy) -> None:
    """dv/dM = y xᵀ, through the saddle value and through single rows.

    ⟨Mx, y⟩ is stationary in (x, y), so its gradient says little about dx/dM. But each row in the
    support of y pays v = (Mx)_i too, and there dx/dM makes all the difference.
    """
    value, x, y = equilibrium(PAYOFF.numpy())
    problem = by_name("game")
    M = PAYOFF.clone().requires_grad_()
    solution = problem.solve(M, iterations=problem.iterations, gradient=gradient)
    payoffs = M @ solution.x
    v = payoffs @ solution.y
    assert relative_error(v, tensor(value)) < 1e-10
    assert relative_error(solution.x, x) < 1e-8
    assert relative_error(solution.y, y) < 1e-8
    expected = torch.outer(y, x)
    support = (y > 1e-6).nonzero().flatten()
    assert len(support) >= 2
    for worth in (v, *payoffs[support]):
        (found,) = torch.autograd.grad(worth, M, retain_graph=True)
        assert relative_error(found, expected) < 1e-6


# --- Potts: a minimal cut for two labels, a linear programme for three ----------------------------

HEIGHT, WIDTH = 4, 5


def edges() -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """(direction, pixel, neighbour) in the order of Gradient's axes."""
    down = [(0, (i, j), (i + 1, j)) for i in range(HEIGHT - 1) for j in range(WIDTH)]
    right = [(1, (i, j), (i, j + 1)) for i in range(HEIGHT) for j in range(WIDTH - 1)]
    return down + right


def pixel(at: tuple[int, int]) -> int:
    return at[0] * WIDTH + at[1]


def potts_problem(c: Tensor, w: Tensor) -> lg.Saddle:
    return lg.Saddle(
        lg.Differences(weights=w.unsqueeze(-4)),  # (…, label, direction, row, column)
        penalty=lg.L1(),
        nonsmooth=lg.Simplex(dim=-3) + lg.Linear(c),
    )


# The Euclidean geometries, which converge fast on vertices, and those of the paper.
BREGMAN = lg.PrimalDual(geometry=lg.Entropy(), dual_geometry=lg.Interval())
SOLVERS = [(lg.PrimalDual(), 2000), (BREGMAN, 4000)]
each_solver = pytest.mark.parametrize(
    ("algorithm", "iterations"), SOLVERS, ids=["Euclidean", "Bregman"]
)


@torch.no_grad()
def solve_potts(c: Tensor, w: Tensor, algorithm: lg.PrimalDual, iterations: int) -> Tensor:
    return lg.solve(potts_problem(c, w), algorithm, stop=lg.Stop(iterations)).x


def labelling_energy(labels: np.ndarray, c: np.ndarray, w: np.ndarray) -> int:
    """Data terms plus 2w for every interface: the two labels that meet both have a step there."""
    energy = sum(c[labels[i, j], i, j] for i in range(HEIGHT) for j in range(WIDTH))
    cut = sum(w[k][p] for k, p, q in edges() if labels[p] != labels[q])
    return int(energy + 2 * cut)


def smallest_energy(c: np.ndarray, w: np.ndarray) -> int:
    """A maximal flow: the source stands for label 0, the sink for label 1."""
    source, sink = HEIGHT * WIDTH, HEIGHT * WIDTH + 1
    capacity = np.zeros((sink + 1, sink + 1), dtype=np.int32)
    capacity[source, :source] = c[1].reshape(-1)  # cut if the pixel takes label 1
    capacity[:source, sink] = c[0].reshape(-1)
    for k, p, q in edges():
        capacity[pixel(p), pixel(q)] = capacity[pixel(q), pixel(p)] = 2 * w[k][p]
    return int(maximum_flow(csr_array(capacity), source, sink).flow_value)


@each_solver
def test_two_labels_are_a_minimal_cut(algorithm: lg.PrimalDual, iterations: int) -> None:
    """On integers, so that the energies agree exactly or not at all."""
    generator = torch.Generator().manual_seed(0)
    instances = 6
    c = torch.randint(0, 1000, (instances, 2, HEIGHT, WIDTH), generator=generator)
    w = torch.randint(0, 200, (instances, 2, HEIGHT, WIDTH), generator=generator)
    u = solve_potts(c.double() / 1000, w.double() / 1000, algorithm, iterations)
    labels = u.argmax(-3).numpy()
    interfaces = 0
    for n in range(instances):
        energy = labelling_energy(labels[n], c[n].numpy(), w[n].numpy())
        assert energy == smallest_energy(c[n].numpy(), w[n].numpy())
        data_only = c[n].numpy().argmin(0)
        interfaces += labelling_energy(data_only, c[n].numpy(), w[n].numpy()) != energy
    assert interfaces >= instances // 2  # the regulariser matters in most of them


def potts_programme(c: np.ndarray, w: np.ndarray) -> float:
    """min ⟨c, u⟩ + Σ w t over simplices, with t ≥ |differences|, by HiGHS."""
    labels, pixels, links = len(c), HEIGHT * WIDTH, edges()
    rows, costs = [], list(c.reshape(-1))
    for label in range(labels):
        for k, p, q in links:
            t = len(costs)
            costs.append(w[k][p])
            for sign in (1, -1):
                rows.append({label * pixels + pixel(p): -sign, label * pixels + pixel(q): sign})
                rows[-1][t] = -1
    A_ub = np.zeros((len(rows), len(costs)))
    for r, row in enumerate(rows):
        A_ub[r, list(row)] = list(row.values())
    A_eq = np.zeros((pixels, len(costs)))
    for label in range(labels):
        A_eq[np.arange(pixels), label * pixels + np.arange(pixels)] = 1
    return linprog(costs, A_ub, np.zeros(len(rows)), A_eq, np.ones(pixels), method="highs").fun


@each_solver
def test_three_labels_are_a_linear_programme(algorithm: lg.PrimalDual, iterations: int) -> None:
    seeds = (1, 4, 7, 9)  # on some others the entropies creep along a face for 10⁴ iterations
    c = torch.stack([random(100 + n, 3, HEIGHT, WIDTH) for n in seeds])
    w = torch.stack([0.6 * random(200 + n, 2, HEIGHT, WIDTH).sigmoid() for n in seeds])
    u = solve_potts(c, w, algorithm, iterations)
    for n in range(len(seeds)):
        found = potts_problem(c[n], w[n]).objective(u[n])
        expected = potts_programme(c[n].numpy(), w[n].numpy())
        assert relative_error(found, tensor(expected)) < 1e-6


# --- CVXPY ----------------------------------------------------------------------------------------


def by_cvxpy(x: cvxpy.Variable, objective: cvxpy.Expression, *constraints: object) -> Tensor:
    programme = cvxpy.Problem(cvxpy.Minimize(objective), list(constraints))
    accuracy = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
    programme.solve(solver=cvxpy.CLARABEL, **accuracy)
    return tensor(x.value)


def test_tv_1d() -> None:
    x = cvxpy.Variable(8)
    energy = 0.5 * cvxpy.sum_squares(x - SIGNAL.numpy()) + 0.25 * cvxpy.norm1(cvxpy.diff(x))
    problem = by_name("tv 1d")
    found = problem.solve(*problem.parameters, iterations=problem.iterations).x
    assert relative_error(found, by_cvxpy(x, energy)) < 1e-6


@pytest.mark.parametrize("name", ["simplex least squares", "simplex projected"])
def test_simplex_least_squares(name: str) -> None:
    x = cvxpy.Variable(5)
    energy = 0.5 * cvxpy.sum_squares(A.numpy() @ x - MIXTURE.numpy())
    expected = by_cvxpy(x, energy, x >= 0, cvxpy.sum(x) == 1)
    problem = by_name(name)
    found = problem.solve(*problem.parameters, iterations=problem.iterations).x
    assert relative_error(found, expected) < 1e-6
