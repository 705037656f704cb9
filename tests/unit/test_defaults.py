"""What a user gets who chooses nothing: a solution, or a word that it is none."""

import dataclasses
import re
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import legato as lg
from legato import errors
from legato.functions import L0
from legato.nn import Potts, TotalVariation
from makers import randn

PLAIN = lg.ForwardBackward(inertia=0.0)


# --- a logistic lasso of 24 features --------------------------------------------------------------


def logistic_data():
    g = np.random.default_rng(0)
    X = g.standard_normal((400, 24)) @ (np.eye(24) + 0.16 * g.standard_normal((24, 24)))
    X = X * np.logspace(0, -1, 24)
    score = X @ (g.standard_normal(24) * (g.random(24) < 0.5) * np.logspace(0, 1, 24))
    return X, np.sign(score + 0.5 * score.std() * g.standard_normal(400))


X, LABELS = logistic_data()
WEIGHT = 0.5


def truth():
    """x by L-BFGS-B on positive and negative parts, then Newton on the support; dx/dλ on it."""

    def objective(parts):
        x = parts[:24] - parts[24:]
        margin = LABELS * (X @ x)
        slope = -X.T @ (LABELS / (1 + np.exp(margin)))
        value = np.logaddexp(0, -margin).sum() + WEIGHT * parts.sum()
        return value, np.concatenate([slope, -slope]) + WEIGHT

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(objective, np.zeros(48), jac=True, bounds=[(0, None)] * 48, options=options)
    x = found.x[:24] - found.x[24:]
    support = np.abs(x) > 1e-4 * np.abs(x).max()
    part, signs, x = X[:, support], np.sign(x[support]), x[support]
    for _ in range(20):
        p = 1 / (1 + np.exp(LABELS * (part @ x)))
        slope = -part.T @ (LABELS * p) + WEIGHT * signs
        hessian = part.T @ ((p * (1 - p))[:, None] * part)
        x = x - np.linalg.solve(hessian, slope)
    rest = X[:, ~support].T @ (LABELS / (1 + np.exp(LABELS * (part @ x))))
    assert np.abs(slope).max() < 1e-9
    assert np.abs(rest).max(initial=0.0) < 0.999 * WEIGHT  # strictly: the support is right
    assert np.array_equal(np.sign(x), signs)
    whole, moved = np.zeros(24), np.zeros(24)
    whole[support], moved[support] = x, -np.linalg.solve(hessian, signs)
    return whole, moved


def logistic_lasso(dtype=torch.float64):
    weight = torch.tensor(WEIGHT, dtype=dtype, requires_grad=True)
    data = lg.Logistic(torch.tensor(X, dtype=dtype), torch.tensor(LABELS, dtype=dtype))
    return data + lg.L1(weight), weight


@pytest.mark.parametrize("strategy", [lg.Implicit(), lg.Implicit(lg.CG())], ids=repr)
@pytest.mark.parametrize("algorithm", [None, lg.ForwardBackward()], ids=["chosen", "given"])
def test_the_fixed_point_family_solves_the_problem(algorithm, strategy):
    energy, weight = logistic_lasso()
    solution = lg.solve(energy, algorithm, gradient=strategy)
    x, moved = truth()
    assert solution.converged
    assert np.linalg.norm(solution.x.detach().numpy() - x) <= 1e-6 * np.linalg.norm(x)
    solution.x.square().sum().backward()
    assert float(weight.grad) == pytest.approx(2 * x @ moved, rel=1e-5)
    assert solution.backward.warnings == []


def test_the_same_in_single_precision():
    energy, weight = logistic_lasso(torch.float32)
    solution = lg.solve(energy, gradient=lg.Implicit(lg.GMRES(tol=1e-3)))
    x, moved = truth()
    assert solution.converged
    assert np.linalg.norm(solution.x.detach().numpy() - x) <= 1e-3 * np.linalg.norm(x)
    solution.x.square().sum().backward()
    assert float(weight.grad) == pytest.approx(2 * x @ moved, rel=1e-2)


def test_momentum_that_restarts_is_ten_times_faster():
    energy, _ = logistic_lasso()
    stop = lg.Stop(20_000, tol=1e-8)
    with torch.no_grad():
        fast, plain = (lg.solve(energy, a, stop=stop) for a in (lg.ForwardBackward(), PLAIN))
    assert fast.converged
    assert plain.converged
    assert 10 * fast.iterations <= plain.iterations


@pytest.mark.parametrize("make", [lambda w: lg.Unroll(), lg.Forward], ids=["Unroll", "Forward"])
def test_a_hundred_iterations_that_are_too_few_are_told(make):
    energy, weight = logistic_lasso()
    with pytest.warns(errors.NotConvergedWarning, match="100 iterations, the default") as said:
        solution = lg.solve(energy, PLAIN, gradient=make(weight))
    assert len(said) == 1
    assert said[0].filename == __file__
    assert "Nesterov(restart=True)" in str(said[0].message)
    assert solution.iterations == 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = lg.solve(energy, PLAIN, gradient=make(weight), stop=lg.Stop(100))
    torch.testing.assert_close(asked.x, solution.x, rtol=0, atol=0)


def test_nothing_is_told_where_values_cannot_be_read():
    A = torch.tensor(X)

    def solved(weight):
        data = lg.Logistic(A, torch.tensor(LABELS))
        return lg.solve(data + lg.L1(weight), lg.ForwardBackward(0.01)).x.sum()

    weights = torch.tensor([0.5, 1.0]).double()
    torch.func.vmap(solved)(weights)
    torch.func.grad(solved)(weights[0])
    lg.solve(lg.LeastSquares(torch.eye(3), torch.ones(3)) + lg.L1(0.1))  # which is solved


# --- inertia=None ---------------------------------------------------------------------------------

A, b = randn(12, 6, seed=1), randn(12, seed=2)


def after(problem, algorithm, iterations=7):
    return lg.solve(problem, algorithm, torch.zeros(6).double(), stop=lg.Stop(iterations)).x


def squares(x):
    return 0.5 * (A @ x - b).square().sum()


L = float(torch.linalg.matrix_norm(A, 2) ** 2)


@pytest.mark.parametrize(
    ("terms", "sound"),
    [
        ((lg.LeastSquares(A, b), lg.L1(0.3)), True),
        ((lg.Smooth(squares, constant=L, convex=True), lg.L1(0.3)), True),
        ((lg.Smooth(squares, constant=L), lg.L1(0.3)), False),
        ((lg.SquaredNorm(0.1) + lg.Smooth(squares, constant=L),), False),
        ((lg.LeastSquares(A, b), 0.5 * L0(0.1)), False),
    ],
    ids=["convex", "said to be", "unknown", "unknown in a sum", "not convex"],
)
def test_momentum_is_taken_where_all_terms_are_known_to_be_convex(terms, sound):
    problem = lg.Composite(*terms)
    same = {
        inertia: torch.equal(
            after(problem, lg.ForwardBackward()), after(problem, lg.ForwardBackward(None, None, i))
        )
        for inertia, i in (("plain", 0.0), ("restarted", lg.Nesterov(restart=True)))
    }
    assert same == {"plain": not sound, "restarted": sound}


@pytest.mark.parametrize("step", [0.5 / L, torch.tensor(0.5 / L).double(), lg.Backtracking()])
def test_a_given_step_runs_plain(step):
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.3))
    plain = after(problem, lg.ForwardBackward(step, inertia=0.0))
    torch.testing.assert_close(after(problem, lg.ForwardBackward(step)), plain, rtol=0, atol=0)


def test_a_curved_geometry_runs_plain():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.Simplex())
    start = torch.full((6,), 1 / 6).double()
    one, other = (
        lg.solve(problem, lg.ForwardBackward(None, lg.Entropy(), i), start, stop=lg.Stop(7)).x
        for i in (None, 0.0)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_momentum_refuses_steps_with_which_it_diverges():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.3))
    for inertia in (lg.Nesterov(), lg.Nesterov(restart=True)):
        with pytest.raises(errors.StepError, match=re.escape("α < 4/(3L)")):
            after(problem, lg.ForwardBackward(1.4 / L, inertia=inertia))
        after(problem, lg.ForwardBackward(1.3 / L, inertia=inertia))
    after(problem, lg.ForwardBackward(1.9 / L))


@pytest.mark.parametrize("strategy", [lg.Unroll(), lg.Unroll(checkpoint="sqrt"), "Forward"])
def test_the_derivative_through_restarts(strategy):
    """Against central differences of the same 40 iterations, in which momentum restarts."""

    def loss(weight, gradient=None):
        energy = lg.LeastSquares(A, b) + lg.L1(weight)
        solution = lg.solve(energy, gradient=gradient, stop=lg.Stop(40))
        assert float(solution.state.t.detach()) < 20  # without restarts it would be 21
        return solution.x.square().sum()

    weight = torch.tensor(0.5).double().requires_grad_()
    gradient = lg.Forward(weight) if strategy == "Forward" else strategy
    (found,) = torch.autograd.grad(loss(weight, gradient), weight)
    h = 1e-6
    with torch.no_grad():
        expected = (loss(weight + h) - loss(weight - h)) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)


def test_elements_of_a_batch_restart_by_themselves():
    matrices = torch.stack([A, A * torch.logspace(0, -1, 6).double()])
    together = lg.solve(lg.LeastSquares(matrices, b.expand(2, -1)) + lg.L1(0.3), stop=lg.Stop(60))
    for k in range(2):
        alone = lg.solve(lg.LeastSquares(matrices[k], b) + lg.L1(0.3), stop=lg.Stop(60))
        torch.testing.assert_close(together.x[k], alone.x, rtol=1e-10, atol=1e-12)
    assert float(together.state.t[0]) != float(together.state.t[1])


# --- a portfolio at its natural scale -------------------------------------------------------------


def portfolio():
    g = np.random.default_rng(3)
    M = 0.01 * g.standard_normal((60, 12))
    return M.T @ M / 60, 0.001 * g.random(12), np.full(12, 1 / 12)


def best_portfolio():
    """By SLSQP on what is bought and sold, at a scale that suits it."""
    covariance, returns, held = portfolio()

    def risk(parts):
        x = held + parts[:12] - parts[12:]
        slope = covariance @ x - returns
        value = 0.5 * x @ covariance @ x - returns @ x + 1e-4 * parts.sum()
        return 1e4 * value, 1e4 * (np.concatenate([slope, -slope]) + 1e-4)

    whole = {"type": "eq", "fun": lambda p: (p[:12] - p[12:]).sum()}
    bounds = [(0, None)] * 12 + [(0, 1 / 12)] * 12
    options = {"maxiter": 2000, "ftol": 1e-15}
    found = minimize(
        risk, np.zeros(24), jac=True, bounds=bounds, constraints=whole, method="SLSQP",
        options=options,
    )  # fmt: skip
    return held + found.x[:12] - found.x[12:]


@pytest.mark.parametrize(
    ("strategy", "stop"),
    [(None, None), (None, lg.Stop(3000, tol=1e-8)), (lg.Implicit(), lg.Stop(3000, tol=1e-8))],
    ids=["nothing chosen", "a tolerance", "Implicit"],
)
def test_a_balance_that_is_off_is_told_with_one_that_works(strategy, stop):
    covariance, returns, held = map(torch.tensor, portfolio())
    price = torch.tensor(1e-4).double().requires_grad_()
    energy = lg.Quadratic(covariance, -returns) + lg.L1(price).shifted(held) + lg.Simplex()
    fixed = None if stop is None else lg.PrimalDual()
    with pytest.warns(errors.NotConvergedWarning, match="balance=") as said:
        lg.solve(energy, fixed, gradient=strategy, stop=stop)
    assert len(said) == 1
    balance = float(re.search(r"balance=([\d.e+]+)\)", str(said[0].message))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = lg.solve(energy, lg.PrimalDual(balance=balance), stop=lg.Stop(400, tol=1e-8))
    assert solution.converged
    np.testing.assert_allclose(solution.x.detach(), best_portfolio(), atol=1e-5)


class SoonOver(lg.Implicit):
    """As Implicit, whose default limit takes a second of a test to reach."""

    def default_stop(self, dtype):
        return dataclasses.replace(super().default_stop(dtype), iterations=300)


@pytest.mark.parametrize("learned", [False, True], ids=["nothing learned", "learned"])
def test_the_default_limit_is_told_whether_anything_is_differentiated_or_not(learned):
    covariance, returns, held = map(torch.tensor, portfolio())
    price = torch.tensor(1e-4).double().requires_grad_(learned)
    energy = lg.Quadratic(covariance, -returns) + lg.L1(price).shifted(held) + lg.Simplex()
    with pytest.warns(errors.NotConvergedWarning, match="300 iterations.*balance=") as said:
        solution = lg.solve(energy, lg.PrimalDual(), gradient=SoonOver())
    assert len(said) == 1
    assert said[0].filename == __file__
    assert not solution.converged


@pytest.mark.parametrize("strategy", [None, lg.Implicit()], ids=repr)
def test_a_tolerance_is_reached_with_a_balance_that_adapts(strategy):
    covariance, returns, held = map(torch.tensor, portfolio())
    price = torch.tensor(1e-4).double().requires_grad_()
    returns.requires_grad_()
    energy = lg.Quadratic(covariance, -returns) + lg.L1(price).shifted(held) + lg.Simplex()
    found = lg.solve(energy, gradient=strategy, stop=lg.Stop(400, tol=1e-9))
    assert found.converged
    assert float(found.steps["balance"]) > 1e3
    x = best_portfolio()
    np.testing.assert_allclose(found.x.detach(), x, atol=1e-5)
    # On the shares that are neither 0 nor held, what is won and lost moves between them.
    free = torch.tensor((x > 1e-6) & (np.abs(x - held.numpy()) > 1e-6))
    inverse = torch.linalg.pinv(covariance[free][:, free])
    ones = torch.ones(int(free.sum())).double()
    inverse = inverse - torch.outer(inverse @ ones, inverse @ ones) / (ones @ inverse @ ones)
    slope = torch.linspace(1.0, 2.0, 12).double()
    expected = torch.zeros(12).double()
    expected[free] = inverse @ slope[free]
    (by_returns,) = torch.autograd.grad(found.x, returns, slope)
    size = float(expected.norm())
    torch.testing.assert_close(by_returns, expected, rtol=1e-4, atol=1e-5 * size)


# --- arrays and sparse tensors --------------------------------------------------------------------

ARRAY, MATRIX = np.ones(3), np.eye(3)
VECTOR, SQUARE = torch.ones(3).double(), torch.eye(3).double()
TAKES = {
    "SquaredDistance": lambda v, M: lg.SquaredDistance(v),
    "L1": lambda v, M: lg.L1(v),
    "AsymmetricL1": lambda v, M: lg.AsymmetricL1(-1.0, v),
    "GroupL1": lambda v, M: lg.GroupL1(v),
    "Linear": lambda v, M: lg.Linear(v),
    "Equality": lambda v, M: lg.Equality(v),
    "Box": lambda v, M: lg.Box(0.0, v),
    "LInfBall": lambda v, M: lg.LInfBall(v),
    "SquaredNorm": lambda v, M: lg.SquaredNorm(v),
    "LeastSquares b": lambda v, M: lg.LeastSquares(SQUARE, v),
    "Quadratic c": lambda v, M: lg.Quadratic(SQUARE, v),
    "Logistic b": lambda v, M: lg.Logistic(SQUARE, v),
    "shifted": lambda v, M: lg.L1().shifted(v),
    "Dense": lambda v, M: lg.Dense(M),
    "Diagonal": lambda v, M: lg.Diagonal(v),
    "Differences": lambda v, M: lg.Differences((-1,), v),
    "Interval": lambda v, M: lg.Interval(0.0, v),
    "Polyhedral": lambda v, M: lg.Polyhedral(M, VECTOR),
    "step_size": lambda v, M: lg.ForwardBackward(v),
    "tau": lambda v, M: lg.PrimalDual(tau=v),
    "x0": lambda v, M: lg.solve(lg.SquaredDistance(VECTOR), x0=v),
    "prox": lambda v, M: lg.L1().prox(v),
}


@pytest.mark.parametrize("name", TAKES)
def test_arrays_and_sparse_tensors_get_a_sentence(name):
    with pytest.raises(errors.InputError, match=r"torch\.as_tensor"):
        TAKES[name](ARRAY, MATRIX)
    with pytest.raises(errors.InputError, match=r"to_dense\(\)"):
        TAKES[name](VECTOR.to_sparse(), SQUARE.to_sparse())


@pytest.mark.parametrize("take", [lambda M: lg.LeastSquares(M, VECTOR), lambda M: lg.L1() @ M])
def test_where_an_operator_is_expected_a_sparse_tensor_is_one(take):
    with pytest.raises(errors.InputError, match=r"torch\.as_tensor"):
        take(ARRAY.reshape(-1, 1))
    dense, sparse = take(2 * SQUARE), take((2 * SQUARE).to_sparse())
    torch.testing.assert_close(sparse(VECTOR), dense(VECTOR))


PICTURE, PIXELS = torch.zeros(1, 2, 4, 4).double(), np.zeros((1, 2, 4, 4))


@pytest.mark.parametrize(
    "use",
    [
        lambda: lg.L1()(ARRAY),
        lambda: TotalVariation()(PIXELS, 0.1),
        lambda: TotalVariation()(PICTURE, np.ones(1)),
        lambda: Potts()(PIXELS, 0.1),
        lambda: Potts()(PICTURE, PIXELS),
    ],
)
def test_arrays_where_values_and_layers_take_tensors_get_a_sentence(use):
    with pytest.raises(errors.InputError, match=r"torch\.as_tensor"):
        use()


def test_an_operator_of_ones_own_may_hold_a_sparse_matrix():
    class Sparse(lg.Operator):
        def __init__(self, matrix):
            self.matrix = matrix

        def __call__(self, x):
            return self.matrix @ x

        def adjoint(self, y):
            return self.matrix.mT @ y

    energy = lg.LeastSquares(Sparse((2 * SQUARE).to_sparse()), VECTOR) + lg.L1(0.1)
    found = lg.solve(energy, stop=lg.Stop(500, tol=1e-10)).x
    torch.testing.assert_close(found, torch.full((3,), (2 - 0.1) / 4).double())


# --- isotropic total variation --------------------------------------------------------------------


def test_isotropic_total_variation_has_a_name():
    x = randn(2, 5, 4, seed=3)
    right, down = np.zeros((2, 2, 5, 4))
    right[..., :-1], down[:, :-1] = np.diff(x, axis=2), np.diff(x, axis=1)
    expected = np.sqrt(right**2 + down**2).sum((1, 2))
    np.testing.assert_allclose(lg.IsotropicTV().values(x, 1), expected)
    along = lg.IsotropicTV(2.0, dims=(-1,))
    np.testing.assert_allclose(along(x), 2 * np.abs(np.diff(x, axis=2)).sum())


def test_groups_behind_differences_need_an_axis():
    for term in (lg.GroupL1(0.1), 2.0 * lg.GroupL1(0.1)):
        with pytest.raises(errors.InputError, match=r"dim=-3.*IsotropicTV"):
            term @ lg.Differences()
    lg.GroupL1(0.1, dim=-1) @ lg.Differences()
    lg.GroupL1(0.1) @ torch.eye(3)
