"""Newton's method: solutions of others, exact derivatives, refusals in words."""

import warnings

import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import legato as lg
from legato.errors import DomainError, InputError, StepError
from makers import rand, randn

A, b = randn(20, 6, seed=1), randn(20, seed=2)
LABELS = torch.sign(randn(20, seed=3))
WEIGHTS = 0.1 + rand(6, seed=4)
UNTIL = lg.Stop(100, tol=1e-12)
MANY = lg.Stop(400, tol=1e-12)
SLOPE = randn(6, seed=5)


def ridge(weights, matrix=A, data=b):
    return lg.Composite(lg.LeastSquares(matrix, data), lg.SquaredNorm(weights))


def logistic(weights, matrix=A, labels=LABELS):
    return lg.Composite(lg.Logistic(matrix, labels), lg.SquaredNorm(weights))


def loss(x):
    return (SLOPE.to(x) * x + x.square()).sum()


def gradient(make, theta, strategy, stop=UNTIL, algorithm=lg.Newton()):
    theta = theta.clone().requires_grad_()
    solution = lg.solve(make(theta), algorithm, gradient=strategy, stop=stop)
    loss(solution.x).backward()
    return theta.grad, solution


@torch.no_grad()
def differences(make, theta, stop=UNTIL, algorithm=lg.Newton(), h=1e-6):
    def value(at):
        return loss(lg.solve(make(at), algorithm, stop=stop).x)

    units = h * torch.eye(len(theta)).to(theta)
    return torch.stack([(value(theta + u) - value(theta - u)) / (2 * h) for u in units])


# --- solutions ------------------------------------------------------------------------------------


def test_ridge_in_closed_form():
    solution = lg.solve(ridge(WEIGHTS), lg.Newton(), stop=UNTIL)
    expected = torch.linalg.solve(A.T @ A + torch.diag(WEIGHTS), A.T @ b)
    torch.testing.assert_close(solution.x, expected, rtol=1e-12, atol=1e-13)
    assert solution.converged
    assert solution.iterations == 2  # one step, and one to see that it was the last


def test_logistic_regression_of_others():
    x = lg.solve(logistic(0.7), lg.Newton(), stop=UNTIL).x
    theirs = LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-12, max_iter=1000)
    theirs.fit(A.numpy(), LABELS.numpy())
    torch.testing.assert_close(x, torch.from_numpy(theirs.coef_[0]), rtol=1e-6, atol=1e-7)
    problem = logistic(WEIGHTS)
    found = minimize(
        lambda z: float(problem.objective(torch.from_numpy(z))),
        torch.zeros(6).double().numpy(),
        jac=lambda z: (
            problem.smooth.grad(torch.from_numpy(z)) + WEIGHTS * torch.from_numpy(z)
        ).numpy(),
        tol=1e-10,
    )
    x = lg.solve(problem, lg.Newton(), stop=UNTIL).x
    torch.testing.assert_close(x, torch.from_numpy(found.x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("reuse", [0.0, 0.1, 0.3, 0.9])
def test_any_reuse_finds_the_same_solution(reuse):
    expected = lg.solve(logistic(WEIGHTS), lg.ForwardBackward(), stop=lg.Stop(20000, tol=1e-15))
    found = lg.solve(logistic(WEIGHTS), lg.Newton(reuse), stop=UNTIL)
    assert found.converged
    torch.testing.assert_close(found.x, expected.x, rtol=1e-10, atol=1e-11)


def test_without_reuse_it_converges_quadratically():
    stop = lg.Stop(8)
    changes = [
        float(r)
        for r in lg.solve(logistic(0.1), lg.Newton(0.0), stop=stop, trace=True).trace.residual
    ]
    settled = [i for i, c in enumerate(changes) if c < 1e-2]
    assert changes[settled[0] + 1] < 10 * changes[settled[0]] ** 2 + 1e-14
    assert changes[settled[0] + 2] < 1e-11


def test_a_factor_is_kept_as_long_as_it_serves(monkeypatch):
    made = []
    original = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda H: (made.append(H), original(H))[1])
    lg.solve(ridge(WEIGHTS), lg.Newton(), stop=lg.Stop(20))
    assert len(made) == 1  # for a quadratic, also where steps are rounding
    made.clear()
    lg.solve(logistic(WEIGHTS), lg.Newton(), stop=lg.Stop(100))
    assert 1 <= len(made) <= 4
    made.clear()
    lg.solve(logistic(WEIGHTS), lg.Newton(reuse=0.0), stop=lg.Stop(7))
    assert len(made) == 7


@pytest.mark.parametrize("start", [9.0, 300.0, -40.0])
def test_the_line_search_where_full_steps_would_fail(start):
    """√(1 + x²): full steps x ↦ −x³ diverge from |x| > 1."""
    problem = lg.Composite(lg.Smooth(lambda x: torch.sqrt(1 + (x - 2) ** 2)))
    x0 = torch.full((3,), start).double()
    found = lg.solve(problem, lg.Newton(), x0, stop=MANY)
    assert found.converged
    torch.testing.assert_close(found.x, torch.full((3,), 2.0).double())
    steep = lg.Composite(lg.Smooth(lambda x: torch.cosh(x - 1)))
    x = lg.solve(steep, lg.Newton(), torch.full((2,), start / 2).double(), stop=MANY).x
    torch.testing.assert_close(x, torch.ones(2).double())


@pytest.mark.parametrize("seed", [4, 5, 7, 9, 11])
def test_it_does_not_leap_to_and_fro(seed):
    """Nearly |x|: full steps overshoot by far, and energies at mirrored points are the same."""
    energy = lg.Smooth(lambda x: 100 * torch.sqrt(1 + (x / 0.1) ** 2))
    problem = lg.Composite(energy, lg.SquaredNorm(0.005))
    found = lg.solve(problem, lg.Newton(), 10 * randn(6, seed=seed), stop=lg.Stop(40, tol=1e-10))
    assert found.converged
    assert bool((found.x.abs() < 1e-8).all())


def test_a_large_constant_does_not_hide_descent():
    """Energies of 1e12 differ by rounding only; their slopes still tell."""
    problem = lg.Composite(lg.Smooth(lambda x: torch.sqrt(1 + x * x) + 1e12))
    found = lg.solve(problem, lg.Newton(), torch.full((3,), 30.0).double(), stop=UNTIL)
    assert float(found.x.abs().max()) < 1e-8


def test_starts_and_restarts():
    expected = lg.solve(logistic(WEIGHTS), lg.Newton(), stop=UNTIL)
    given = lg.solve(logistic(WEIGHTS), lg.Newton(), 3 * randn(6, seed=7), stop=UNTIL)
    torch.testing.assert_close(given.x, expected.x, rtol=1e-10, atol=1e-11)
    # A state of another problem brings its point, not its gradient, energy and Hessian.
    other = ridge(0.1 * WEIGHTS)
    warm = lg.solve(other, lg.Newton(), expected.state, stop=UNTIL)
    cold = lg.solve(other, lg.Newton(), stop=UNTIL)
    assert warm.iterations <= 2
    torch.testing.assert_close(warm.x, cold.x, rtol=1e-11, atol=1e-12)
    again = lg.solve(logistic(WEIGHTS), lg.Newton(), expected.state, stop=UNTIL)
    assert again.iterations == 1


def test_smoothed_problems():
    problem = lg.smoothed(lg.Composite(lg.LeastSquares(A, b), lg.L1(0.8)), mu=1e-3)
    newton = lg.solve(problem, lg.Newton(), stop=lg.Stop(200, tol=1e-12))
    assert newton.converged
    assert float(problem.smooth.grad(newton.x).norm()) < 1e-8
    barrier = lg.smoothed(lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), mu=1e-3)
    inside = lg.solve(barrier, lg.Newton(), torch.ones(6).double(), stop=lg.Stop(200, tol=1e-12))
    assert inside.converged
    assert bool((inside.x > 0).all())
    assert float(barrier.smooth.grad(inside.x).norm()) < 1e-8


def test_float32():
    weights = WEIGHTS.float()
    found, solution = gradient(
        lambda w: logistic(w, A.float(), LABELS.float()),
        weights,
        lg.OneStep(),
        lg.Stop(50, tol=1e-6),
    )
    expected, exact = gradient(logistic, WEIGHTS, lg.OneStep())
    assert solution.converged
    assert solution.x.dtype == found.dtype == torch.float32
    torch.testing.assert_close(solution.x.double(), exact.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ridge, logistic])
def test_a_batch_is_a_loop(make):
    weights, data = 0.1 + rand(4, 6, seed=8), torch.sign(randn(4, 20, seed=9))
    matrices = randn(4, 20, 6, seed=10)
    cases = {
        "weights": (weights, A, data[0]),
        "data": (WEIGHTS, A, data),
        "matrices": (WEIGHTS, matrices, data[0]),
        "all": (weights, matrices, data),
    }
    for w, matrix, labels in cases.values():
        w = w.clone().requires_grad_()
        batch = lg.solve(make(w, matrix, labels), lg.Newton(), gradient=lg.OneStep(), stop=UNTIL)
        loss(batch.x).backward()
        assert batch.x.shape == (4, 6)
        rows = []
        single = w.detach().clone().requires_grad_()
        for i in range(4):
            one = make(
                single[i] if single.ndim > 1 else single,
                matrix[i] if matrix.ndim > 2 else matrix,
                labels[i] if labels.ndim > 1 else labels,
            )
            rows.append(lg.solve(one, lg.Newton(), gradient=lg.OneStep(), stop=UNTIL).x)
        loss(torch.stack(rows)).backward()
        torch.testing.assert_close(batch.x, torch.stack(rows), rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(w.grad, single.grad, rtol=1e-9, atol=1e-10)


def test_a_batch_of_callables():
    targets = randn(4, 3, seed=11)
    problem = lg.Composite(lg.Smooth(lambda x: torch.cosh(x - targets)))
    found = lg.solve(problem, lg.Newton(), torch.zeros(4, 3).double(), stop=UNTIL)
    torch.testing.assert_close(found.x, targets)


# --- derivatives ----------------------------------------------------------------------------------

MAKERS = {
    "ridge": ridge,
    "logistic": logistic,
    "linear term": lambda w: lg.Composite(
        lg.Logistic(A, LABELS), lg.SquaredNorm(0.5) + lg.Linear(w)
    ),
    "matrix": lambda w: logistic(0.5, A * w),
    "weights of least squares": lambda w: lg.Composite(
        lg.LeastSquares(A[:6], b[:6], w), lg.SquaredNorm(0.5)
    ),
    "callable": lambda w: lg.Composite(
        lg.Smooth(lambda x: torch.cosh(x - w).sum() + 0.5 * (A @ x - b).square().sum())
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_one_step_is_exact_at_a_solution(name):
    make = MAKERS[name]
    if name == "callable":

        def make(w):
            return lg.Composite(MAKERS["callable"](w).smooth, lg.Linear(torch.zeros(6).double()))

    expected = differences(make, WEIGHTS)
    found, solution = gradient(make, WEIGHTS, lg.OneStep())
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
    assert solution.backward.residual < 1e-12
    for strategy in (
        lg.Implicit(),
        lg.Implicit(lg.CG()),
        lg.FixedPoint(),
        lg.Implicit(lg.Neumann(1e-10)),
    ):
        other, solution = gradient(make, WEIGHTS, strategy)
        assert solution.backward.iterations == 1
        assert solution.backward.converged
        torch.testing.assert_close(other, found, rtol=1e-10, atol=1e-11)
    unrolled, _ = gradient(make, WEIGHTS, lg.Unroll(), lg.Stop(30))
    torch.testing.assert_close(unrolled, found, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("name", ["ridge", "logistic", "matrix"])
def test_unroll_differentiates_the_iterations_made(name, iterations):
    """The Hessian too: far from a solution its derivative matters."""
    stop, every = lg.Stop(iterations), lg.Newton(reuse=0.0)
    make, weights = MAKERS[name], 0.2 * WEIGHTS
    expected = differences(make, weights, stop, every)
    found, _ = gradient(make, weights, lg.Unroll(), stop, every)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    checkpointed, _ = gradient(make, weights, lg.Unroll(checkpoint=1), stop, every)
    torch.testing.assert_close(checkpointed, found)
    theta = weights.clone().requires_grad_()
    carried = lg.solve(make(theta), every, gradient=lg.Forward(theta), stop=stop)
    loss(carried.x).backward()
    torch.testing.assert_close(theta.grad, found, rtol=1e-9, atol=1e-10)


def test_unroll_differentiates_a_factor_that_is_kept():
    """The second iteration has the factor of the first and the secant's step, a constant."""
    found, solution = gradient(logistic, WEIGHTS, lg.Unroll(), lg.Stop(2), lg.Newton(reuse=0.9))

    def by_hand(weights):
        def slope(x):
            return logistic(weights).smooth.grad(x) + weights * x

        x = torch.zeros(6).double()
        H = logistic(weights).smooth.hessian(x) + torch.diag(weights)
        first = torch.linalg.solve(H, slope(x))
        x = x - first
        begin, end = slope(torch.zeros(6).double()) @ first, slope(x) @ first
        secant = (begin / (begin - end)).detach()
        return x - secant * torch.linalg.solve(H, slope(x)), float(secant)

    with torch.no_grad():
        expected, secant = by_hand(WEIGHTS)
    torch.testing.assert_close(solution.x.detach(), expected)
    assert 0.5 < secant < 2
    assert secant != pytest.approx(1.0, abs=1e-3)
    theta = WEIGHTS.clone().requires_grad_()
    loss(by_hand(theta)[0]).backward()
    torch.testing.assert_close(found, theta.grad, rtol=1e-9, atol=1e-10)


def test_the_gradient_of_a_solve_that_stops_early_warns():
    with pytest.warns(lg.errors.NotConvergedWarning):
        gradient(logistic, 0.01 * WEIGHTS, lg.OneStep(), lg.Stop(1, tol=1e-8))


def test_data_changed_in_place_is_seen():
    matrix = A.clone()
    fit = lg.LeastSquares(lg.Dense(matrix), b)
    problem = lg.Composite(fit, lg.SquaredNorm(WEIGHTS))
    lg.solve(problem, lg.Newton(), stop=UNTIL)
    matrix.mul_(2)
    x = lg.solve(problem, lg.Newton(), stop=UNTIL).x
    expected = torch.linalg.solve(4 * A.T @ A + torch.diag(WEIGHTS), 2 * A.T @ b)
    torch.testing.assert_close(x, expected, rtol=1e-11, atol=1e-12)


def test_gram_matrices_of_more_columns_than_one_block():
    wide, weights = randn(90, 71, seed=12), rand(90, seed=13)
    torch.testing.assert_close(lg.Dense(wide).gram(), wide.T @ wide)
    expected = wide.T @ torch.diag(weights) @ wide
    torch.testing.assert_close(lg.Dense(wide).gram(weights), expected)
    batch = randn(3, 90, 70, seed=14)
    torch.testing.assert_close(lg.Dense(batch).gram(), batch.mT @ batch)
    alike = torch.full((90,), 0.25).double().requires_grad_()
    (found,) = torch.autograd.grad(lg.Dense(wide).gram(alike).sum(), alike)
    torch.testing.assert_close(found, wide.sum(1) ** 2)


def test_inside_functional_transforms():
    def objective(weights):
        return loss(lg.solve(logistic(weights), lg.Newton(), stop=lg.Stop(12)).x)

    expected, _ = gradient(logistic, WEIGHTS, lg.OneStep())
    torch.testing.assert_close(torch.func.grad(objective)(WEIGHTS), expected, rtol=1e-7, atol=1e-8)
    with pytest.raises(InputError, match="leading axes of the data are batches"):
        torch.func.vmap(objective)(0.1 + rand(3, 6, seed=15))


class Spike(lg.Function):
    """Infinite everywhere but at 1, with a gradient that knows nothing of it."""

    def value(self, x):
        return torch.where(x == 1, x, torch.inf).sum()

    def grad(self, x):
        return 0.1 * x


# --- refusals -------------------------------------------------------------------------------------


def refuses(problem, words, x0=None, error=InputError, algorithm=lg.Newton()):
    with pytest.raises(error, match=words):
        lg.solve(problem, algorithm, x0, stop=UNTIL)


def test_singular_and_indefinite_hessians_are_refused_with_numbers():
    thin = lg.Composite(lg.LeastSquares(A[:4], b[:4]))
    refuses(thin, r"eigenvalues from -?\d\.\d\de-1\d to .* Add SquaredNorm")
    double = lg.Composite(lg.LeastSquares(torch.cat([A, A[:, :1]], 1), b))
    refuses(double, "positive definite Hessian")
    hill = lg.Composite(lg.Smooth(torch.cos))
    refuses(hill, r"eigenvalues from -1.00e\+00 to -1.00e\+00", torch.zeros(2).double())
    weights = torch.tensor([[1.0], [1.0], [0.0]]).double()
    refuses(lg.Composite(lg.LeastSquares(A[:4], b[:4]), lg.SquaredNorm(weights)), "batch element 2")
    for dtype in (torch.float32, torch.float64):
        for seed in range(20):  # what rounding leaves of a zero pivot must not pass for curvature
            matrix = randn(5, 12, seed=seed, dtype=dtype)
            refuses(lg.Composite(lg.LeastSquares(matrix, matrix[:, 0])), "positive definite")


def test_ill_conditioned_but_definite_hessians_are_not_refused():
    scales = torch.logspace(0, -6, 6, dtype=torch.float64)
    x = lg.solve(lg.Composite(lg.LeastSquares(A * scales, b)), lg.Newton(), stop=lg.Stop(10)).x
    expected = torch.linalg.lstsq(A, b).solution / scales
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=0)


def test_bad_starts_and_callables():
    refuses(lg.Composite(lg.Smooth(torch.cosh)), "Pass x0")
    refuses(lg.Composite(lg.Smooth(torch.cosh)), "not on a number", torch.tensor(1.0))
    both = (torch.zeros(2), torch.zeros(2))
    refuses(
        lg.Composite(lg.Smooth(lambda x: x[0].cosh().sum() + x[1].cosh().sum())), "a tuple", both
    )
    entropy = lg.Composite(lg.Linear(b), lg.NegativeEntropy())
    refuses(entropy, "interior point", error=DomainError)
    start = torch.ones(3, 2).double()
    coupled = lg.Composite(lg.Smooth(lambda x: torch.logsumexp(x.flatten(), 0) + x.square().sum()))
    refuses(coupled, "couples the leading axes", start)
    refuses(lg.Composite(Spike()), "found no step that descends", torch.ones(2).double(), StepError)
    with pytest.raises(InputError, match="0 ≤ reuse < 1"):
        lg.Newton(reuse=1.0)
    with pytest.raises(InputError, match="has no Hessian"):
        lg.L1().hessian(torch.zeros(2))


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(logistic, WEIGHTS, lg.OneStep())


def test_an_entropy_from_the_interior():
    """min ⟨c, x⟩ + Σ x log x is at x = exp(−1 − c)."""
    c = randn(4, seed=16)
    problem = lg.Composite(lg.Linear(c), lg.NegativeEntropy())
    x = lg.solve(problem, lg.Newton(), torch.ones(4).double(), stop=UNTIL).x
    torch.testing.assert_close(x, torch.exp(-1 - c))


# --- what a review found --------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "start"), [(1.001, 0.99), (-0.001, 0.01)])
def test_a_barrier_is_not_jumped_over_where_differences_are_rounding(data, start):
    inside = lg.Composite(lg.LeastSquares(torch.eye(1), torch.tensor([data])), lg.Box(0.0, 1.0))
    problem = lg.smoothed(inside, 1e-7)
    stop = lg.Stop(60, tol=1e-6)
    x = lg.solve(problem, lg.Newton(), torch.tensor([start]), stop=stop).x
    assert 0 < float(x) < 1
    assert bool(torch.isfinite(problem.smooth.value(x)))


def test_a_coupling_that_does_not_see_constants_is_refused():
    def energy(x):
        change = (x[0] - x[1]).diff()
        return 0.5 * change.square().sum() + 0.5 * x.square().sum()

    with pytest.raises(InputError, match="couples the leading axes"):
        lg.Smooth(energy).hessian(torch.zeros(2, 4))


def test_an_indefinite_hessian_is_refused_inside_transforms_too():
    def value(w):
        Q = torch.diag(torch.tensor([1.0, -1.0]))
        problem = lg.Composite(lg.Quadratic(Q, torch.ones(2) * w))
        return lg.solve(problem, lg.Newton(), stop=lg.Stop(3)).x.sum()

    with pytest.raises(InputError, match="positive definite"):
        torch.func.grad(value)(torch.tensor(1.0))


def test_logistic_curvature_does_not_cancel():
    A, b = torch.eye(1), torch.ones(1)
    for margin in (14.0, 18.0, 40.0):
        found = lg.Logistic(A, b).hessian(torch.tensor([margin]))
        exact = lg.Logistic(A.double(), b.double()).hessian(torch.tensor([margin]).double())
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_a_hessian_belongs_to_its_caller():
    f = lg.LeastSquares(torch.eye(2), torch.ones(2))
    q = lg.Quadratic(torch.eye(2), torch.ones(2))
    for function in (f, q):
        function.hessian(torch.zeros(2)).add_(100.0)
        torch.testing.assert_close(function.hessian(torch.zeros(2)), torch.eye(2))


@pytest.mark.parametrize("last", [4, 6])
def test_the_last_iterations_alone(last):
    """The state keeps a gradient, and a factor only after the first step. A few steps are enough,
    whatever the line search makes of each."""
    A, b = randn(8, 3, seed=1), randn(8, seed=2)
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.SquaredNorm(weight))
    x = lg.solve(problem, lg.Newton(), gradient=lg.Unroll(last=last), stop=lg.Stop(10)).x
    x.sum().backward()
    H = A.mT @ A + 0.7 * torch.eye(3, dtype=torch.float64)
    expected = -torch.linalg.solve(H, torch.linalg.solve(H, A.mT @ b)).sum()  # x' = −H⁻¹x
    torch.testing.assert_close(weight.grad, expected)


def test_steps_that_are_rounding_are_full_steps():
    """The secant of two slopes that are rounding may be 2: a step whose derivative does not shrink.

    The last iterations of a solved problem have its derivative, whatever rounding made of them.
    """
    for seed in range(46, 52):
        A, b = 0.9 * randn(5, 4, seed=seed), randn(5, seed=seed + 100)
        weight = torch.tensor(0.15).double().requires_grad_()
        problem = lg.smoothed(lg.Composite(lg.LeastSquares(A, b), lg.L1(weight)), 0.1)
        found = [
            torch.autograd.grad(
                lg.solve(problem, lg.Newton(), gradient=g, stop=s).x.square().sum(), weight
            )
            for g, s in [(lg.Unroll(last=10), lg.Stop(40)), (lg.Implicit(), UNTIL)]
        ]
        assert torch.allclose(found[0][0], found[1][0], rtol=1e-7)
