"""Forward–backward and primal–dual: variants agree, steps obey their conditions."""

import pytest
import torch

import legato as lg
from makers import rand, randn

A, b = randn(12, 6, seed=1), randn(12, seed=2)
LASSO = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.9))
PRECISE = lg.Stop(20000, tol=1e-14)


def solve(problem, algorithm, x0=None, stop=PRECISE):
    return lg.solve(problem, algorithm, x0, stop=stop).x


def test_all_variants_of_forward_backward_find_the_same_solution():
    reference = solve(LASSO, lg.ForwardBackward())
    for algorithm in (
        lg.ForwardBackward(0.01),
        lg.ForwardBackward(inertia=0.4),
        lg.ForwardBackward(inertia=lg.Nesterov()),
        lg.ForwardBackward(lg.Backtracking(initial=10.0)),
        lg.ForwardBackward(lg.Backtracking(initial=1e-3, grow=1.5)),
    ):
        torch.testing.assert_close(solve(LASSO, algorithm), reference, rtol=1e-6, atol=1e-7)


def test_nesterov_follows_its_formula():
    x = previous = torch.zeros(6).double()
    alpha, t = 0.02, 1.0
    for _ in range(12):
        new_t = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead = x + (t - 1) / new_t * (x - previous)
        y = ahead - alpha * A.T @ (A @ ahead - b)
        previous, x, t = x, y.sign() * (y.abs() - alpha * 0.9).clamp(min=0), new_t
    s = solve(LASSO, lg.ForwardBackward(alpha, inertia=lg.Nesterov()), stop=lg.Stop(12))
    torch.testing.assert_close(s, x, rtol=1e-13, atol=1e-14)


def test_entropic_step_is_multiplicative():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.NonNegative())
    x0 = 0.1 + rand(6, seed=3)
    one = solve(problem, lg.ForwardBackward(0.05, lg.Entropy()), x0, lg.Stop(1))
    torch.testing.assert_close(one, x0 * torch.exp(-0.05 * A.T @ (A @ x0 - b)))


def test_every_geometry_reaches_the_same_constrained_solution():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.Simplex())
    euclidean = solve(problem, lg.ForwardBackward())
    entropic = solve(problem, lg.ForwardBackward(0.1, lg.Entropy()))
    torch.testing.assert_close(entropic, euclidean, rtol=1e-6, atol=1e-8)
    box = lg.Composite(lg.LeastSquares(A, b), lg.Box(-0.1, 0.2))
    euclidean = solve(box, lg.ForwardBackward())
    interval = solve(box, lg.ForwardBackward(0.05, lg.Interval(-0.1, 0.2)))
    torch.testing.assert_close(interval, euclidean, rtol=1e-5, atol=1e-7)
    inside = lg.Composite(lg.LeastSquares(A, b))
    constraints = torch.cat([torch.eye(6), -torch.eye(6)]).double()
    polyhedral = lg.Polyhedral(constraints, torch.full((12,), 0.15).double())
    x = solve(inside, lg.ForwardBackward(0.3, polyhedral), torch.zeros(6).double(), lg.Stop(200))
    expected = solve(lg.Composite(lg.LeastSquares(A, b), lg.Box(-0.15, 0.15)), lg.ForwardBackward())
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-4)  # slow near the boundary
    quartic = lg.Composite(lg.Smooth(lambda x: 0.25 * ((x * x).sum() - 2) ** 2 + 0.1 * x.sum()))
    x = solve(quartic, lg.ForwardBackward(0.3, lg.Quartic()), torch.ones(3).double())
    assert float(quartic.smooth.grad(x).norm()) < 1e-10
    poisson = lg.Composite(lg.Smooth(lambda x: x - 3 * torch.log(x)), lg.L1(0.5))
    x = solve(poisson, lg.ForwardBackward(0.3, lg.Burg()), torch.ones(2).double())
    torch.testing.assert_close(x, torch.full((2,), 2.0).double())


def test_tuples_of_variables():
    c = randn(4, seed=4)

    def energy(x):
        u, v = x
        return 0.5 * (u - c).square().sum() + 0.5 * (v - u).square().sum()

    problem = lg.Composite(lg.Smooth(energy), lg.Separable(lg.L1(0.2), lg.Simplex()))
    algorithm = lg.ForwardBackward(0.3, lg.Product(lg.Euclidean(), lg.Entropy()))
    start = (torch.zeros(4).double(), torch.full((4,), 0.25).double())
    u, v = solve(problem, algorithm, start)
    u, v = u.detach(), v.detach()
    step = u - 0.3 * (2 * u - c - v)
    torch.testing.assert_close(u, lg.prox(lg.L1(0.2), lg.Euclidean(), step, 0.3))
    assert float(v.sum()) == pytest.approx(1.0)


def tv(weight=0.3):
    term = lg.SquaredDistance(randn(7, 6, seed=5))
    return lg.Saddle(lg.Differences(), lg.L1(weight), nonsmooth=term)


@pytest.mark.parametrize(
    "algorithm",
    [
        lg.PrimalDual(balance=3.0),
        lg.PrimalDual(tau=0.1),
        lg.PrimalDual(sigma=0.2),
        lg.PrimalDual(0.2, 0.3),
        lg.PrimalDual(precondition=True),
        lg.PrimalDual(0.2, 0.3, dual_geometry=lg.Interval(-0.3, 0.3)),
    ],
    ids=["balance", "tau", "sigma", "both", "precondition", "interval"],
)
def test_all_variants_of_primal_dual_find_the_same_solution(algorithm):
    problem = tv()
    torch.testing.assert_close(
        solve(problem, algorithm), solve(problem, lg.PrimalDual()), rtol=1e-6, atol=1e-8
    )


def test_a_smooth_term_may_replace_a_prox():
    noisy = randn(7, 6, seed=5)
    smooth = lg.Saddle(lg.Differences(), lg.L1(0.3), smooth=lg.LeastSquares(lg.Identity(), noisy))
    torch.testing.assert_close(
        solve(smooth, lg.PrimalDual()), solve(tv(), lg.PrimalDual()), rtol=1e-8, atol=1e-10
    )


def test_stacked_operators_have_tuple_duals():
    noisy = randn(7, 6, seed=5)
    problem = lg.Saddle(
        lg.Stack(lg.Differences(), lg.Identity()),
        lg.Separable(lg.L1(0.3), lg.SquaredDistance(noisy)),
        nonsmooth=lg.Zero(),
    )
    algorithm = lg.PrimalDual(dual_geometry=lg.Product(lg.Euclidean(), lg.Euclidean()))
    x = solve(problem, algorithm, torch.zeros(7, 6).double())
    torch.testing.assert_close(x, solve(tv(), lg.PrimalDual()), rtol=1e-8, atol=1e-9)
    diagonal = lg.PrimalDual(dual_geometry=algorithm.dual_geometry, precondition=True)
    y = solve(problem, diagonal, torch.zeros(7, 6).double())
    torch.testing.assert_close(y, x, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("first", [0, 1])
def test_averages(first):
    problem = tv()
    states = [lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(n)).x for n in range(1, 6)]
    if first == 0:
        states.insert(0, torch.zeros(7, 6).double())
    s = lg.solve(problem, lg.PrimalDual(average=lg.Average(first)), stop=lg.Stop(5))
    torch.testing.assert_close(s.x, torch.stack(states).mean(0))
    if first == 1:
        plain = lg.solve(problem, lg.PrimalDual(average=True), stop=lg.Stop(5))
        torch.testing.assert_close(s.x, plain.x, rtol=0, atol=0)


def test_diagonal_steps_satisfy_their_condition():
    K = randn(9, 6, seed=7)
    problem = lg.Saddle(K, lg.L1(1.0), nonsmooth=lg.SquaredNorm())
    s = lg.solve(problem, lg.PrimalDual(precondition=True), torch.zeros(6).double())
    tau, sigma = s.steps["tau"], s.steps["sigma"]
    scaled = sigma.sqrt().unsqueeze(1) * K * tau.sqrt()
    assert float(torch.linalg.matrix_norm(scaled, ord=2)) <= 1 + 1e-12
    simplex = lg.Saddle(K, lg.L1(1.0), nonsmooth=lg.Simplex() + lg.Linear(randn(6)))
    s = lg.solve(simplex, lg.PrimalDual(precondition=True), stop=lg.Stop(1))
    assert s.steps["tau"].numel() == 1  # a prox that couples entries needs one step for them
    blocks = lg.Separable(lg.GroupL1(1.0, dim=-3), lg.L1())
    weights = rand(2, 4, 5, seed=3)
    operator = lg.Stack(lg.Differences(weights=weights), lg.Identity())
    isotropic = lg.Saddle(operator, blocks, nonsmooth=lg.SquaredNorm())
    product = lg.Product(lg.Euclidean(), lg.Euclidean())
    algorithm = lg.PrimalDual(dual_geometry=product, precondition=True)
    s = lg.solve(isotropic, algorithm, torch.zeros(4, 5).double())
    assert [tuple(t.shape) for t in s.steps["sigma"]] == [(1, 4, 5), (4, 5)]


def test_diagonal_steps_make_room_for_a_smooth_term():
    """The metric of the iteration, with the Hessian of f taken off, must stay positive."""
    K = randn(9, 6, seed=7)
    problem = lg.Saddle(K, lg.L1(1.0), smooth=lg.LeastSquares(A, b))
    s = lg.solve(problem, lg.PrimalDual(precondition=True), stop=lg.Stop(1))
    primal = torch.diag(1 / s.steps["tau"]) - A.T @ A
    dual = torch.diag(1 / s.steps["sigma"])
    metric = torch.cat((torch.cat((primal, -K.T), 1), torch.cat((-K, dual), 1)))
    assert float(torch.linalg.eigvalsh(metric)[0]) >= -1e-10


def test_given_steps_beside_a_smooth_term_of_unknown_curvature():
    """0.05x² − x + |x|/2 for every entry, so that x = 5: a step of 2 is fine, 1/τ = 0.5 > 0.1."""
    smooth = lg.Smooth(lambda x: 0.05 * x**2 - x)
    problem = lg.Saddle(lg.Identity(), lg.L1(0.5), smooth=smooth)
    x = solve(problem, lg.PrimalDual(2.0, 0.2), torch.zeros(3).double())
    torch.testing.assert_close(x, torch.full((3,), 5.0).double())


def test_the_balance_can_be_learned():
    r = torch.tensor(2.0).double().requires_grad_()
    s = lg.solve(tv(), lg.PrimalDual(balance=r), stop=lg.Stop(4))
    s.x.square().sum().backward()
    h, values = 1e-6, []
    for sign in (1, -1):
        algorithm = lg.PrimalDual(balance=2.0 + sign * h)
        values.append(float(solve(tv(), algorithm, stop=lg.Stop(4)).square().sum()))
    assert float(r.grad) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-6)


def test_games_take_longer_steps_in_the_right_norm():
    M = randn(5, 4, seed=8)
    problem = lg.Saddle(M, lg.Simplex().conjugate(), nonsmooth=lg.Simplex())
    h = lg.Entropy()
    start = torch.full((4,), 0.25).double()
    largest = float(M.abs().max())
    algorithm = lg.PrimalDual(geometry=h, dual_geometry=h, norm=largest)
    s = lg.solve(problem, algorithm, start, stop=lg.Stop(4000))
    assert float(s.steps["tau"]) == pytest.approx(1 / largest)
    assert float(lg.Dense(M).norm()) > 1.4 * largest  # the Euclidean norm would cost that factor
    assert float(problem.gap(s.x, s.y)) < 1e-4


def test_zero_weights_decouple_the_pixels():
    c = randn(3, 4, 5, seed=9)
    problem = lg.Saddle(
        lg.Differences(weights=torch.zeros(2, 4, 5).double()),
        lg.L1(),
        nonsmooth=lg.Simplex(dim=-3) + lg.Linear(c),
    )
    algorithm = lg.PrimalDual(0.2, 0.2, lg.Entropy(), lg.Interval(-1.0, 1.0))
    x = solve(problem, algorithm, stop=lg.Stop(10))
    torch.testing.assert_close(x, torch.softmax(-10 * 0.2 * c, dim=-3))


@pytest.mark.parametrize("size", [1e-25, 1e-15, 1e10, 1e18])
def test_backtracking_where_squares_over_and_underflow(size):
    """x(A, s·b) = s·x(A, b), with steps of the same size."""
    data = rand(12, seed=3).float()
    found = {}
    for s in (1.0, size):
        problem = lg.Composite(lg.LeastSquares(A.float(), s * data), lg.NonNegative())
        algorithm = lg.ForwardBackward(lg.Backtracking(initial=1e3))
        found[s] = lg.solve(problem, algorithm, stop=lg.Stop(300))
    torch.testing.assert_close(found[size].x / size, found[1.0].x, rtol=1e-3, atol=1e-4)
    ratio = float(found[size].steps["step"] / found[1.0].steps["step"])
    assert 0.24 < ratio < 4.1


def test_backtracking_refuses_a_step_whose_own_test_overflows():
    """inf ≤ inf is no descent: this step was accepted, and the value was off by all its digits."""
    small = torch.float32
    problem = lg.Composite(lg.LeastSquares(1e10 * A.to(small), 1e10 * b.to(small)))
    found = lg.solve(problem, lg.ForwardBackward(lg.Backtracking()), stop=lg.Stop(3000)).x
    right = torch.linalg.lstsq(A, b.unsqueeze(-1)).solution[:, 0]
    torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-4)


def test_an_entropic_solution_that_is_no_number_is_refused():
    """exp saturates in float32 at e⁸⁸, where its derivative is zero."""
    problem = lg.Composite(lg.Linear(-torch.ones(2)), lg.NonNegative())  # it has no solution at all
    with pytest.raises(lg.errors.DomainError, match="float64"):
        lg.solve(problem, lg.ForwardBackward(1.0, lg.Entropy()), stop=lg.Stop(100))


def test_growing_steps_keep_the_derivative_of_the_iteration_bounded():
    """At rest every longer step would pass, and multiply the derivative: 1e37 once."""
    weight = torch.tensor(0.6).double().requires_grad_()
    data = lg.SquaredDistance(torch.tensor([3.0]).double())
    problem = lg.Composite(data, lg.BregmanTerm(lg.Burg(), weight))
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0), lg.Burg())
    x = lg.solve(problem, algorithm, stop=lg.Stop(300)).x
    (found,) = torch.autograd.grad(x.sum(), weight)
    point = x.item()  # x − 3 − weight/x = 0
    assert abs(found.item() - point / (point**2 + 0.6)) < 1e-9


@pytest.mark.parametrize("rule", [lg.Backtracking(), lg.Backtracking(grow=2.0)], ids=repr)
@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy(), lg.Interval(0.0, 2.0)])
def test_a_start_at_the_solution_has_a_step_that_stays_there(rule, geometry):
    """x = θ for all entries, however much one is curved: so is the derivative of few iterations."""
    theta = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    curvature = torch.tensor([[1.0, 3.0, 2.0], [100.0, 100.0, 300.0]]).double()
    f = lg.Smooth(lambda x: 0.5 * (curvature * (x - theta) ** 2).sum(-1), coupled=1)
    algorithm = lg.ForwardBackward(rule, geometry)
    x = lg.solve(f, algorithm, torch.ones(2, 3).double(), stop=lg.Stop(60)).x
    (gradient,) = torch.autograd.grad(x.sum(), theta)
    torch.testing.assert_close(gradient, torch.ones(2, 3).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_growing_steps_find_their_scale_at_the_start(unit):
    f = lg.Smooth(lambda x: unit * (0.5 * x.square() - x).sum())
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    solution = lg.solve(lg.Composite(f), algorithm, torch.full((3,), 1.01).double())
    assert solution.x.sub(1).abs().max() < 1e-12


@pytest.mark.parametrize(
    "algorithm", [lg.ForwardBackward(0.1), lg.PrimalDual(0.1, 0.3), lg.PrimalDual(norm=1.1)]
)
def test_steps_given_as_numbers_are_those_numbers(algorithm):
    """0.1 rounded to the default dtype, float32, is 0.10000000149."""
    smooth = lg.LeastSquares(torch.eye(3).double(), rand(3, seed=1))
    problem = lg.Composite(smooth, lg.L1(0.1))
    if isinstance(algorithm, lg.PrimalDual):
        problem = lg.Saddle(lg.Identity(), lg.L1(0.1), smooth=smooth)
    expected = {"step": 0.1, "tau": 0.1, "sigma": 0.3}
    if getattr(algorithm, "norm", None):
        expected = {"tau": 1 / 2.1, "sigma": 1 / 1.1}
    found = lg.solve(problem, algorithm).steps
    for name, step in found.items():
        assert float(step) == pytest.approx(expected[name], rel=1e-15)
