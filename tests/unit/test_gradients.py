"""What is particular to each gradient strategy; their numbers are tested against truth."""

import gc
import warnings

import pytest
import torch

import legato as lg
from legato import errors
from legato.gradients import Linearisation, random_vector, spectral_radius
from legato.gradients.linear.spectrum import decay_rate
from makers import randn

A, b = randn(12, 6, seed=1), randn(12, seed=2)


def leaf(value=0.7):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def gradient_of(strategy, stop, algorithm=None):
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    s = lg.solve(problem, algorithm or lg.ForwardBackward(), gradient=strategy, stop=stop)
    (grad,) = torch.autograd.grad(s.x.square().sum(), w)
    return float(grad), s


FIXED, UNTIL = lg.Stop(40), lg.Stop(5000, tol=1e-13)
PLAIN = lg.ForwardBackward(inertia=0.0)


@pytest.mark.parametrize("stop", [FIXED, UNTIL], ids=["fixed", "until"])
@pytest.mark.parametrize("interval", ["sqrt", 1, 7, 1000])
def test_checkpoints_change_nothing_but_memory(stop, interval):
    plain, reference = gradient_of(lg.Unroll(), stop)
    saved, s = gradient_of(lg.Unroll(checkpoint=interval), stop)
    assert saved == pytest.approx(plain, rel=1e-13)
    assert s.iterations == reference.iterations
    assert float(s.residual) == float(reference.residual)
    torch.testing.assert_close(s.x, reference.x, rtol=0, atol=0)


@pytest.mark.parametrize("stop", [FIXED, UNTIL], ids=["fixed", "until"])
def test_truncation_keeps_the_value_and_drops_early_iterations(stop):
    plain, reference = gradient_of(lg.Unroll(), stop)
    errors_ = []
    for last in (1, 5, 20, 10_000):
        cut, s = gradient_of(lg.Unroll(last=last), stop)
        torch.testing.assert_close(s.x, reference.x, rtol=0, atol=0)
        assert s.iterations == reference.iterations
        errors_.append(abs(cut - plain))
    assert errors_ == sorted(errors_, reverse=True)
    assert errors_[-1] == 0.0


def test_truncation_is_the_derivative_of_the_last_steps():
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    with torch.no_grad():
        before = lg.solve(problem, PLAIN, stop=lg.Stop(37)).state
    rest = lg.solve(problem, PLAIN, before, stop=lg.Stop(3)).x
    (expected,) = torch.autograd.grad(rest.square().sum(), w)
    found, _ = gradient_of(lg.Unroll(last=3), FIXED, PLAIN)
    assert found == pytest.approx(float(expected), rel=1e-14)


def test_the_sweep_ends_by_itself_and_says_when():
    plain, _ = gradient_of(lg.Unroll(), UNTIL, PLAIN)
    counts = []
    for tol in (1e-2, 1e-5, 1e-9):
        cut, s = gradient_of(lg.Unroll(tol=tol), UNTIL, PLAIN)
        assert s.backward.converged
        assert s.backward.residual <= tol
        assert abs(cut - plain) <= 10 * tol * abs(plain)
        counts.append(s.backward.iterations)
    assert counts[0] < counts[1] < counts[2] < s.iterations
    rate = spectral_radius_at_solution(s)
    expected = torch.log(torch.tensor(1e-9)) / torch.log(torch.tensor(rate))
    assert counts[2] == pytest.approx(float(expected), rel=0.4)


def spectral_radius_at_solution(solution):
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.7))
    algorithm, state = lg.ForwardBackward().fixed_point_map(solution.state)
    linear = Linearisation(problem, algorithm, state)
    return spectral_radius(linear.transposed, random_vector(linear.state.mirror), 200)


def test_spectral_radius_is_the_largest_eigenvalue_on_the_support():
    _, s = gradient_of(lg.Unroll(), UNTIL)
    x = s.x.detach()
    support = x != 0
    H = A[:, support].T @ A[:, support]
    eigenvalues = torch.linalg.eigvalsh(
        torch.eye(int(support.sum())).double() - s.steps["step"] * H
    )
    assert spectral_radius_at_solution(s) == pytest.approx(float(eigenvalues.abs().max()), rel=1e-3)


@pytest.mark.parametrize(
    "solver",
    [
        lg.GMRES(1e-12),
        lg.GMRES(1e-12, restart=2),
        lg.BiCGStab(1e-12),
        lg.Neumann(1e-12),
        lg.Direct(),
    ],
    ids=repr,
)
def test_every_linear_solver_finds_the_same_gradient(solver):
    plain, _ = gradient_of(lg.Unroll(), UNTIL)
    implicit, s = gradient_of(lg.Implicit(solver), UNTIL)
    # The unrolled derivative lags behind its iterate by a factor N: it is the less exact one here.
    assert implicit == pytest.approx(plain, rel=1e-6)
    report = s.backward
    assert report.converged
    assert report.residual < 1e-10
    assert 0 < report.spectral_radius < 1
    assert report.bound == pytest.approx(report.residual / (1 - report.spectral_radius))


def test_conjugate_gradients_solve_with_the_hessian():
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b) + lg.SquaredNorm(w))
    s = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.CG(1e-12)), stop=UNTIL)
    (grad,) = torch.autograd.grad(s.x.sum(), w)
    H = A.T @ A + 0.7 * torch.eye(6).double()
    x = torch.linalg.solve(H, A.T @ b)
    expected = -(torch.linalg.solve(H, torch.ones(6).double()) @ x)
    assert float(grad) == pytest.approx(float(expected), rel=1e-9)


def test_gmres_needs_fewer_products_than_the_series():
    _, series = gradient_of(lg.Implicit(lg.Neumann(1e-8)), UNTIL)
    _, krylov = gradient_of(lg.Implicit(lg.GMRES(1e-8)), UNTIL)
    assert krylov.backward.iterations * 3 < series.backward.iterations


def test_momentum_and_line_searches_vanish_at_the_solution():
    plain, _ = gradient_of(lg.Unroll(), UNTIL)
    for algorithm in (
        lg.ForwardBackward(inertia=lg.Nesterov()),
        lg.ForwardBackward(inertia=0.3),
        lg.ForwardBackward(lg.Backtracking()),
    ):
        implicit, _ = gradient_of(lg.Implicit(lg.GMRES(1e-12)), UNTIL, algorithm)
        assert implicit == pytest.approx(plain, rel=1e-5)


def test_a_fixed_number_of_terms_without_comment():
    _, s = gradient_of(lg.FixedPoint(3, tol=None), UNTIL)
    assert s.backward.iterations == 3
    assert s.backward.residual > 1e-3


def test_forward_mode_through_the_start_and_through_derived_tensors():
    w, x0 = leaf(), randn(6, seed=5).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w.exp()))

    def loss(strategy):
        s = lg.solve(problem, lg.ForwardBackward(0.01), x0, gradient=strategy, stop=lg.Stop(9))
        return s.x.square().sum()

    forward = torch.autograd.grad(loss(lg.Forward(w, x0)), (w, x0), retain_graph=True)
    reverse = torch.autograd.grad(loss(lg.Unroll()), (w, x0))
    for f, r in zip(forward, reverse, strict=True):
        torch.testing.assert_close(f, r, rtol=1e-12, atol=1e-14)


def test_forward_mode_stops_by_residual_and_traces():
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    s = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Forward(w), stop=UNTIL, trace=True)
    assert s.converged
    assert len(s.trace.objective) == s.iterations
    (grad,) = torch.autograd.grad(s.x.square().sum(), w)
    assert float(grad) == pytest.approx(gradient_of(lg.Unroll(), UNTIL)[0], rel=1e-10)


def test_a_gradient_of_zero_is_reported_as_such():
    for strategy in (lg.Implicit(), lg.FixedPoint(), lg.OneStep()):
        w = leaf()
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
        s = lg.solve(problem, lg.ForwardBackward(), gradient=strategy, stop=UNTIL)
        (0 * s.x.sum()).backward()
        assert float(w.grad) == 0.0
        assert s.backward.converged


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-24, 1e20, 1e30])
@pytest.mark.parametrize(
    "strategy",
    [
        lg.Unroll(tol=1e-6),
        lg.FixedPoint(),
        lg.Implicit(),
        lg.Implicit(lg.BiCGStab()),
        lg.Implicit(lg.CG()),
        lg.Implicit(lg.Direct()),
        lg.OneStep(tol=None),
        lg.Piggyback(),
    ],
    ids=str,
)
def test_a_loss_of_any_size_has_its_gradient(strategy, scale):
    """In float32 squares of such cotangents are 0 or infinite, but the cotangents are not."""

    def gradient(scale):
        w = torch.tensor(0.3, requires_grad=True)
        if isinstance(strategy, lg.Piggyback):
            data = lg.SquaredDistance(b.float())
            problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(w), nonsmooth=data)
            algorithm = lg.PrimalDual()
        else:  # symmetric, as CG needs it, and quick, as OneStep does
            Q = torch.diag(torch.tensor([1.0, 0.8, 0.7]))
            problem = lg.Composite(lg.Quadratic(Q, -torch.ones(3)), lg.L1(w))
            algorithm = lg.ForwardBackward()
        x = lg.solve(problem, algorithm, gradient=strategy, stop=lg.Stop(300)).x
        return float(torch.autograd.grad(scale * x.square().sum(), w)[0])

    assert gradient(scale) == pytest.approx(scale * gradient(1.0), rel=1e-5)


def test_a_users_algorithm_needs_three_methods_only():
    from typing import NamedTuple

    class State(NamedTuple):
        x: torch.Tensor

    class Richardson(lg.Algorithm):
        def init(self, problem, x0):
            return State(x0)

        def step(self, problem, state):
            return State(state.x - 0.02 * problem.smooth.grad(state.x))

        def solution(self, state):
            return state.x

    w = leaf()
    exact = torch.linalg.lstsq(A, b.unsqueeze(-1)).solution.squeeze()
    for strategy in (lg.Unroll(), lg.Implicit(lg.GMRES(1e-12)), lg.FixedPoint(9000), lg.Forward(w)):
        problem = lg.Composite(lg.LeastSquares(A, w * b))
        s = lg.solve(
            problem,
            Richardson(),
            torch.zeros(6).double(),
            gradient=strategy,
            stop=lg.Stop(9000, 1e-14),
        )
        (grad,) = torch.autograd.grad(s.x.sum(), w)
        assert float(grad) == pytest.approx(float(exact.sum()), rel=1e-5)
    with pytest.raises(errors.GradientError, match="Piggyback"):
        lg.solve(problem, Richardson(), torch.zeros(6).double(), gradient=lg.Piggyback())


def test_a_checkpoint_evaluates_a_callable_twice_and_no_more():
    calls = 0

    def energy(x):
        nonlocal calls
        calls += 1
        return 0.5 * (w * x - 1) ** 2 + 0.5 * x**2

    for strategy, expected in ((lg.Unroll(), 50), (lg.Unroll(checkpoint="sqrt"), 100)):
        w, calls = leaf(), 0
        problem, start = lg.Composite(lg.Smooth(energy)), torch.ones(3).double()
        algorithm = lg.ForwardBackward(0.3)
        s = lg.solve(problem, algorithm, start, gradient=strategy, stop=lg.Stop(50))
        s.x.sum().backward()
        assert calls == expected


@pytest.mark.filterwarnings("ignore::legato.errors.LegatoWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, for looking at its modules
@pytest.mark.parametrize(
    "strategy",
    [lg.Implicit(), lg.FixedPoint(), lg.OneStep(tol=None), lg.Piggyback(), lg.Unroll(), None],
    ids=lambda s: "Forward" if s is None else type(s).__name__,
)
def test_nothing_of_a_solve_stays_behind(strategy):
    """A closure that reaches the solution it belongs to would never be freed."""
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def solve():
        data = lg.SquaredDistance(b)
        problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(w), nonsmooth=data)
        gradient = lg.Forward(w) if strategy is None else strategy
        x = lg.solve(problem, lg.PrimalDual(), gradient=gradient, stop=lg.Stop(30)).x
        torch.autograd.grad(x.square().sum(), w)

    def tensors():
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    solve()
    before = tensors()
    for _ in range(4):
        solve()
    assert tensors() == before


def graph_with_two_losses(strategy):
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    s = lg.solve(problem, lg.ForwardBackward(), gradient=strategy, stop=UNTIL)
    return w, s


@pytest.mark.parametrize("scale", [1e-3, 1e-7, 1e-20, 1e6])
def test_every_backward_pass_is_cut_relative_to_itself(scale):
    w, s = graph_with_two_losses(lg.Unroll(tol=1e-6))
    (first,) = torch.autograd.grad(s.x.square().sum(), w, retain_graph=True)
    swept = s.backward.iterations
    (second,) = torch.autograd.grad(scale * s.x.square().sum(), w)
    assert float(second) == pytest.approx(scale * float(first), rel=1e-12)
    assert s.backward.iterations == swept
    assert s.backward.converged


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_a_cut_sweep_still_has_a_gradient(factor):
    w, s = graph_with_two_losses(lg.Unroll(tol=1e-6))
    (grad,) = torch.autograd.grad(factor * s.x.sum(), w)
    torch.testing.assert_close(grad, torch.tensor(factor).double(), equal_nan=True)


@pytest.mark.filterwarnings("ignore:The solve ended after 40 iterations")
@pytest.mark.parametrize("stop", [FIXED, lg.Stop(40, tol=1e-12)], ids=["fixed", "until"])
def test_truncation_keeps_learned_steps(stop):
    """They lie in the state, but are no iterate."""
    data = lg.SquaredDistance(b)
    problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(0.3), nonsmooth=data)

    def gradient(strategy):
        balance = leaf()
        algorithm = lg.PrimalDual(balance=balance)
        s = lg.solve(problem, algorithm, gradient=strategy, stop=stop)
        return float(torch.autograd.grad(s.x.square().sum(), balance)[0])

    def gradient_by_hand(last):
        balance = leaf()
        algorithm = lg.PrimalDual(balance=balance)
        state = start = algorithm.init(problem, None)
        with torch.no_grad():
            for _ in range(40 - last):
                state = algorithm.step(problem, state)
        state = state._replace(steps=start.steps)
        for _ in range(last):
            state = algorithm.step(problem, state)
        return float(torch.autograd.grad(state.x.square().sum(), balance)[0])

    for last in (1, 10, 39):
        assert gradient(lg.Unroll(last=last)) == pytest.approx(gradient_by_hand(last), rel=1e-12)
    assert gradient(lg.Unroll(last=40)) == gradient(lg.Unroll())


def test_a_start_that_is_cut_off_gets_no_gradient():
    w, x0 = leaf(), randn(6, seed=5).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    algorithm = lg.ForwardBackward(0.01, inertia=0.5)
    s = lg.solve(problem, algorithm, x0, gradient=lg.Unroll(last=8), stop=lg.Stop(9))
    grads = torch.autograd.grad(s.x.sum(), (w, x0), allow_unused=True)
    assert grads[0] != 0
    assert grads[1] is None


def test_checkpoints_draw_the_same_random_numbers_again():
    """Dropout in a learned term: the sweep differentiates the iterations that were run."""

    def gradient(strategy):
        w = leaf()
        torch.manual_seed(3)

        def energy(x):
            kept = torch.nn.functional.dropout(A.mT @ A * w, 0.5)
            return 0.5 * (x * (kept @ kept.mT @ x)).sum() - (x * (A.mT @ b)).sum()

        start, algorithm = torch.zeros(6).double(), lg.ForwardBackward(1e-4)
        problem = lg.Composite(lg.Smooth(energy))
        s = lg.solve(problem, algorithm, start, gradient=strategy, stop=lg.Stop(12))
        torch.rand(5)  # what else a program draws before its backward pass
        return float(torch.autograd.grad(s.x.sum(), w)[0])

    plain = gradient(lg.Unroll())
    for interval in ("sqrt", 1, 12):
        assert gradient(lg.Unroll(checkpoint=interval)) == pytest.approx(plain, rel=1e-12)


def test_forward_mode_names_a_start_that_is_not_listed():
    w, x0 = leaf(), randn(6, seed=5).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    for start in (x0, 2 * x0):
        with pytest.warns(errors.InexactGradientWarning, match=r"start depends .*\(6,\)"):
            lg.solve(problem, lg.ForwardBackward(), start, gradient=lg.Forward(w))


def test_a_start_does_not_hide_parameters_without_influence():
    other, x0 = leaf(), randn(6, seed=5).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(0.7))
    with (
        pytest.warns(errors.InexactGradientWarning),
        pytest.raises(errors.GradientError, match="None of the parameters"),
    ):
        lg.solve(problem, lg.ForwardBackward(), x0, gradient=lg.Forward(other))


FIXED_POINTS = [lg.Implicit(), lg.Implicit(lg.CG()), lg.FixedPoint(500), lg.OneStep(tol=None)]


CHECKPOINTED = [lg.Unroll(checkpoint="sqrt"), lg.Unroll(checkpoint=1), lg.Unroll(checkpoint=7)]


@pytest.mark.parametrize("strategy", FIXED_POINTS + CHECKPOINTED, ids=repr)
def test_data_changed_before_the_backward_pass_are_noticed(strategy):
    """As the next batch in the same buffer would; the derivative would be that of neither."""
    w, buffer = leaf(), b.clone()
    problem = lg.Composite(lg.LeastSquares(A, buffer), lg.L1(w))
    s = lg.solve(problem, lg.ForwardBackward(), gradient=strategy, stop=UNTIL)
    torch.autograd.grad(s.x.sum(), w, retain_graph=True)
    buffer.mul_(1.001)
    with pytest.raises(errors.GradientError, match="changed in place"):
        torch.autograd.grad(s.x.sum(), w)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e3), (torch.float64, 1e9)])
def test_a_change_is_noticed_beside_entries_that_are_much_larger(dtype, size):
    """x₂ = (2 − 0.4/½)/½ beside x₁ ≈ size, with another curvature before the backward pass."""
    w = torch.tensor(0.4, dtype=dtype, requires_grad=True)
    matrix, data = torch.diag(torch.tensor([1.0, 0.5], dtype=dtype)), torch.tensor([size, 2.0])
    energy = lg.LeastSquares(matrix, data.to(dtype)) + lg.L1(w)
    s = lg.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(300))
    (grad,) = torch.autograd.grad(s.x.sum(), w, retain_graph=True)
    torch.testing.assert_close(grad, torch.tensor(-5.0, dtype=dtype))
    matrix[1, 1] = 0.25
    with pytest.raises(errors.GradientError, match="changed in place"):
        torch.autograd.grad(s.x.sum(), w)


@pytest.mark.parametrize("strategy", FIXED_POINTS, ids=repr)
def test_a_step_that_was_not_stationary_is_not_taken_for_a_changed_one(strategy):
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    with pytest.warns(errors.NotConvergedWarning):
        s = lg.solve(problem, lg.ForwardBackward(0.001), gradient=strategy, stop=lg.Stop(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (grad,) = torch.autograd.grad(s.x.sum(), w)
    assert grad.isfinite()


def test_random_numbers_do_not_follow_the_default_device():
    """A generator of the CPU draws on the CPU, also for somebody whose tensors begin elsewhere."""
    expected = random_vector(torch.zeros(3))
    with torch.device("meta"):
        found = random_vector(torch.zeros(3, device="cpu"))
    assert torch.equal(found, expected)


def test_a_sequence_that_reaches_zero_has_the_rate_of_what_came_before():
    assert decay_rate([8.0, 4.0, 2.0, 1.0, 0.0]) == pytest.approx(0.5)
    assert decay_rate([8.0, 4.0, 2.0, float("inf")]) == float("inf")


def _coupled(x):
    return 0.25 * x.square().sum().square()  # of all axes: a batch of it is no batch


STEPS = {
    "vector": (lg.Composite(lg.LeastSquares(A, b), lg.L1(0.3)), randn(6)),
    "batch": (lg.Composite(lg.LeastSquares(A, randn(6, 12)), lg.L1(0.3)), randn(6, 6)),
    "matrices": (
        lg.Composite(lg.LeastSquares(lg.Dense(randn(6, 12, 6)), randn(6, 12)), lg.Simplex()),
        randn(6, 6),
    ),
    "callable": (lg.Composite(lg.Smooth(_coupled) + lg.LeastSquares(A, b), lg.L1(0.3)), randn(6)),
    "image": (
        lg.Composite(lg.SquaredDistance(randn(2, 4, 6)) @ lg.Differences(), lg.L1(0.3)),
        randn(4, 6),
    ),
    "saddle": (
        lg.Saddle(lg.Differences((-1,)), lg.L1(0.3), smooth=lg.SquaredDistance(randn(6))),
        randn(6),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_derivative_is_written_out_as_its_products_are(name):
    problem, x = STEPS[name]
    saddle = isinstance(problem, lg.Saddle)
    algorithm = lg.PrimalDual(0.3, 0.4) if saddle else lg.ForwardBackward(0.01, inertia=0.0)
    plain, state = algorithm.fixed_point_map(algorithm.init(problem, x))
    J = Linearisation(problem, plain, state, batch=problem.batch(x))
    many = randn(5, *J.rows.flatten(state).shape, seed=4)
    for product in filter(None, (J.factored(), J.transposed, J.scaled[0])):
        found = product.together(many)
        for v, got in zip(many, found, strict=True):
            torch.testing.assert_close(got, product(v))


def test_a_solve_that_is_far_from_its_end_is_told_of_once():
    w = leaf()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    with pytest.warns(errors.NotConvergedWarning, match="not a fixed point"):
        s = lg.solve(problem, PLAIN, gradient=lg.Implicit(lg.Direct()), stop=lg.Stop(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.autograd.grad(s.x.sum(), w)
    assert any("not a fixed point" in words for words in s.backward.warnings)
