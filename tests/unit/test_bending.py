"""The derivative of a step that still changes on the way to the solution is told, with its size."""

import re
import warnings

import pytest
import torch

import legato as lg
from legato import errors
from makers import randn

Q = torch.tensor([1.0, 2.0, 3.0]).double()
SOLUTION = torch.tensor([0.7, 0.296, 0.004]).double()
"""Its last entry is small, and the entropy moves it slowly, x⁺ = x·exp(…)."""


def differentiated(iterations, strategy):
    q = Q.clone().requires_grad_()
    c = 1.0 - Q * SOLUTION  # q_i x_i + c_i is the same for all i: optimal on the simplex
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), c), lg.Simplex())
    algorithm = lg.ForwardBackward(0.3, lg.Entropy())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        solution = lg.solve(problem, algorithm, gradient=strategy, stop=lg.Stop(iterations))
        (slope,) = torch.autograd.grad(solution.x[0], q)
    words = [str(w.message) for w in said if issubclass(w.category, errors.LegatoWarning)]
    return slope, words


def exact():
    """q_i x_i + c_i = λ and Σx_i = 1, differentiated by hand: dx_i = (dλ − x_i dq_i)/q_i."""
    level = SOLUTION / Q / (1 / Q).sum()  # dλ/dq
    slope = level / Q[0]
    slope[0] = slope[0] - SOLUTION[0] / Q[0]
    return slope


STRATEGIES = {
    "GMRES": lg.Implicit(),
    "Direct": lg.Implicit(lg.Direct()),
    "series": lg.FixedPoint(20000, tol=1e-8),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slow_entropy(strategy):
    slope, said = differentiated(300, STRATEGIES[strategy])
    off = float((slope - exact()).norm() / exact().norm())
    assert 0.05 < off < 0.06
    assert len(said) == 1
    told = float(re.search(r"gradient is about (\d+)%", said[0])[1]) / 100
    assert off / 2 < told < 2 * off


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_has_settled(strategy):
    slope, said = differentiated(2000, STRATEGIES[strategy])
    torch.testing.assert_close(slope, exact(), rtol=1e-3, atol=1e-4)
    assert said == []


def test_a_map_that_is_linear_in_pieces():
    """At the same rate and distance, but on the right piece: the gradient is right at once."""
    A = torch.diag(torch.tensor([1.0, 0.1, 0.05])).double()
    w = torch.tensor(1e-4).double().requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, A @ torch.ones(3).double()), lg.L1(w))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = lg.ForwardBackward(inertia=0.0)
        solution = lg.solve(problem, plain, gradient=lg.Implicit(), stop=lg.Stop(3000))
        (slope,) = torch.autograd.grad(solution.x.sum(), w)
    assert float(solution.residual) > 1e-7
    torch.testing.assert_close(slope, -(1 / A.diag() ** 2).sum(), rtol=1e-5, atol=0)


def test_the_elements_of_a_batch():
    """One that the loss does not see says nothing; one that it sees is told."""
    q = torch.stack([Q, Q]).requires_grad_()
    sizes = torch.stack([SOLUTION, torch.tensor([0.5, 0.3, 0.2]).double()])
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), 1.0 - q.detach() * sizes), lg.Simplex())
    algorithm = lg.ForwardBackward(0.3, lg.Entropy())
    solution = lg.solve(problem, algorithm, gradient=lg.Implicit(), stop=lg.Stop(300))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.autograd.grad(solution.x[1, 0], q, retain_graph=True)
    with pytest.warns(errors.NotConvergedWarning):
        torch.autograd.grad(solution.x[0, 0], q)


def test_an_adjoint_that_ran_out_of_iterations():
    """Its tolerance is then the one that was asked for, not ten times that."""
    b, K = randn(5, seed=1).cumsum(0), lg.Differences(dims=(-1,))
    seen = 0
    for iterations in range(20, 200, 10):
        w = torch.tensor(0.15).double().requires_grad_()
        energy = lg.SquaredDistance(b) + lg.L1(w) @ K
        way = lg.Piggyback(iterations, tol=1e-6)
        stop = lg.Stop(3000, tol=1e-13)
        solution = lg.solve(energy, lg.PrimalDual(), gradient=way, stop=stop)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            solution.x[0].backward()
        report = solution.backward
        if report.iterations == iterations:
            missed = report.residual > 1e-6
            seen += missed and report.residual < 1e-5
            assert report.converged is not missed
            assert [w.category for w in said] == [errors.InexactGradientWarning] * missed
    assert seen > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_entry_that_takes_its_part_of_the_gradient_along(strategy, dtype):
    """x₂ → 0 like exp(−0.006k), and ∂x₂/∂c₂ = −x₂/(0.02 + x₂) with it: the step bends nowhere."""
    c = torch.tensor([-1.0, 0.02], dtype=dtype, requires_grad=True)
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(torch.ones(2, dtype=dtype)), c))
    algorithm = lg.ForwardBackward(0.3, lg.Entropy())
    start = torch.tensor([1.0, 0.5], dtype=dtype)
    for iterations, tells in ((500, True), (3000, False)):
        stop = lg.Stop(iterations)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = lg.solve(problem, algorithm, start, gradient=STRATEGIES[strategy], stop=stop)
            (slope,) = torch.autograd.grad(found.x.sum(), c)
        off = float((slope - torch.tensor([-1.0, 0.0])).norm())
        words = [str(w.message) for w in said if issubclass(w.category, errors.LegatoWarning)]
        assert len(words) == tells
        if not tells:
            assert off < 1e-3
            continue
        assert off > 0.02
        told = float(re.search(r"gradient is about (\d+)%", words[0])[1]) / 100
        assert off / 2 < told < 2 * off
