"""Momentum with restarts: fewer iterations, the same solutions, exact derivatives."""

import pytest
import torch

import legato as lg
from makers import randn

RESTARTED = lg.ForwardBackward(inertia=lg.Nesterov(restart=True))
SCALES = torch.logspace(0, -1, 8, dtype=torch.float64)
A, b = randn(20, 8, seed=1) * SCALES, randn(20, seed=2)
UNTIL = lg.Stop(20000, tol=1e-13)


def lasso(weight, matrix=A, data=b):
    return lg.Composite(lg.LeastSquares(matrix, data), lg.L1(weight))


def leaf(value=1e-3):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def loss(x):
    return (x * torch.arange(1.0, 9.0).to(x)).sum()


def differences(value, at, h=1e-6):
    with torch.no_grad():
        up, down = value(at.detach() + h), value(at.detach() - h)
    return float(up - down) / (2 * h)


def test_it_needs_fewer_iterations_for_the_same_solution():
    stop = lg.Stop(20000, tol=1e-10)
    plain = lg.solve(lasso(1e-3), lg.ForwardBackward(inertia=lg.Nesterov()), stop=stop)
    fast = lg.solve(lasso(1e-3), RESTARTED, stop=stop)
    assert plain.converged
    assert fast.converged
    assert 2 * fast.iterations < plain.iterations
    reference = lg.solve(lasso(1e-3), lg.ForwardBackward(), stop=UNTIL).x
    torch.testing.assert_close(fast.x, reference, rtol=0, atol=1e-7)
    torch.testing.assert_close(plain.x, reference, rtol=0, atol=1e-6)


def test_it_follows_its_formula():
    x = previous = torch.zeros(8).double()
    alpha, t, restarts = 0.03, 1.0, 0
    for _ in range(200):
        later = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead = x + (t - 1) / later * (x - previous)
        half = ahead - alpha * A.T @ (A @ ahead - b)
        new = half.sign() * (half.abs() - alpha * 1e-3).clamp(min=0)
        turned = float((ahead - new) @ (new - x)) > 0
        restarts += turned
        previous, x, t = x, new, 1.0 if turned else later
    algorithm = lg.ForwardBackward(alpha, inertia=lg.Nesterov(restart=True))
    found = lg.solve(lasso(1e-3), algorithm, stop=lg.Stop(200)).x
    assert restarts > 1
    torch.testing.assert_close(found, x, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("iterations", [37, 150])
def test_unrolled_derivatives_are_those_of_the_iterates(iterations):
    stop = lg.Stop(iterations)

    def value(weight, gradient=None):
        gradient = lg.Unroll() if gradient is None else gradient
        return loss(lg.solve(lasso(weight), RESTARTED, gradient=gradient, stop=stop).x)

    w = leaf()
    (reverse,) = torch.autograd.grad(value(w), w)
    assert float(reverse) == pytest.approx(differences(value, w), rel=1e-6)
    for other in (lg.Forward(w), lg.Unroll(checkpoint="sqrt"), lg.Unroll(checkpoint=5)):
        (grad,) = torch.autograd.grad(value(w, other), w)
        assert float(grad) == pytest.approx(float(reverse), rel=1e-11)


@pytest.mark.parametrize(
    "gradient", [lg.Unroll(), lg.Implicit(lg.GMRES(1e-12)), lg.FixedPoint(20000, 1e-10)], ids=repr
)
def test_derivatives_at_the_solution(gradient):
    def value(weight):
        return loss(lg.solve(lasso(weight), RESTARTED, gradient=gradient, stop=UNTIL).x)

    w = leaf()
    (grad,) = torch.autograd.grad(value(w), w)
    assert float(grad) == pytest.approx(differences(value, w), rel=1e-5)


def test_checkpoints_replay_the_same_decisions():
    stop = lg.Stop(150)
    plain = lg.solve(lasso(leaf()), RESTARTED, stop=stop)
    saved = lg.solve(lasso(leaf()), RESTARTED, gradient=lg.Unroll(checkpoint=7), stop=stop)
    torch.testing.assert_close(saved.x, plain.x, rtol=0, atol=0)
    torch.testing.assert_close(saved.state.t, plain.state.t, rtol=0, atol=0)


def test_a_run_goes_on_from_its_solution():
    problem = lasso(1e-3)
    whole = lg.solve(problem, RESTARTED, stop=lg.Stop(150)).x
    half = lg.solve(problem, RESTARTED, stop=lg.Stop(70))
    rest = lg.solve(problem, RESTARTED, half, stop=lg.Stop(80)).x
    torch.testing.assert_close(rest, whole, rtol=0, atol=0)


def test_elements_with_their_own_steps_restart_one_by_one():
    matrices, data = randn(3, 20, 8, seed=3) * SCALES, randn(3, 20, seed=4)
    stop = lg.Stop(120)
    together = lg.solve(lasso(1e-3, matrices, data), RESTARTED, stop=stop)
    assert together.state.t.numel() == 3
    for k in range(3):
        alone = lg.solve(lasso(1e-3, matrices[k], data[k]), RESTARTED, stop=stop)
        torch.testing.assert_close(together.x[k], alone.x, rtol=1e-9, atol=1e-11)


def test_under_vmap_and_jacfwd():
    def solution(weight):
        return lg.solve(lasso(weight), RESTARTED, stop=lg.Stop(60)).x

    weights = torch.tensor([1e-3, 1e-2], dtype=torch.float64)
    batched = torch.func.vmap(solution)(weights)
    for row, weight in zip(batched, weights, strict=True):
        torch.testing.assert_close(row, solution(weight), rtol=1e-9, atol=1e-11)
    reverse = torch.func.jacrev(solution)(weights[0])
    w = weights[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(solution(w)), w)
    assert float(loss(reverse)) == pytest.approx(float(expected), rel=1e-10)


def test_in_another_geometry():
    problem = lg.Composite(lg.LeastSquares(A, b), lg.Simplex())
    reference = lg.solve(problem, lg.ForwardBackward(), stop=UNTIL).x
    entropic = lg.ForwardBackward(0.02, lg.Entropy(), lg.Nesterov(restart=True))
    found = lg.solve(problem, entropic, stop=lg.Stop(20000, tol=1e-12)).x
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-5)


def test_tuples_of_variables_restart_as_a_whole():
    smooth = lg.Smooth(
        lambda x: 0.5 * (A @ x[0] - b).square().sum() + 0.005 * (x[1] - 1).square().sum(), 20.0
    )
    both = lg.Product(lg.Euclidean(), lg.Euclidean())
    algorithm = lg.ForwardBackward(geometry=both, inertia=lg.Nesterov(restart=True))
    start = (torch.zeros(8).double(), torch.zeros(2).double())
    done = lg.solve(lg.Composite(smooth), algorithm, start, stop=UNTIL)
    assert done.state.t.numel() == 1
    expected = torch.linalg.lstsq(A, b[:, None]).solution[:, 0]
    torch.testing.assert_close(done.x[0], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(done.x[1], torch.ones(2).double(), rtol=1e-6, atol=1e-6)
