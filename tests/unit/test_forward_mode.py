"""Dual numbers of forward mode through terms that differentiate a callable, against differences."""

import pytest
import torch
from torch.autograd import forward_ad

import legato as lg
from makers import randn

A, START = randn(6, 4, seed=1), randn(4, seed=2)
DATA, DIRECTION = randn(6, seed=3), randn(6, seed=4)
START_DIRECTION = randn(4, seed=5)
STEPS = 0.5 / float(torch.linalg.matrix_norm(A, 2)) ** 2

ALGORITHMS = {
    "forward-backward": (lg.ForwardBackward(STEPS), lg.L1(0.1)),
    "inertial": (lg.ForwardBackward(STEPS, inertia=lg.Nesterov()), lg.L1(0.1)),
    "Newton": (lg.Newton(), None),
    "primal-dual": (lg.PrimalDual(0.5 * STEPS, 0.5), lg.L1(0.1) @ lg.Differences(dims=(-1,))),
}
STRATEGIES = {
    "Unroll": lg.Unroll(),
    "Unroll(last)": lg.Unroll(last=2),
    "Unroll(checkpoint)": lg.Unroll(checkpoint="sqrt"),
    "Unroll(tol)": lg.Unroll(tol=1e-6),
    "FixedPoint": lg.FixedPoint(),
    "Implicit": lg.Implicit(),
    "OneStep": lg.OneStep(),
}


def solved(name, strategy, data, start, iterations):
    algorithm, term = ALGORITHMS[name]
    smooth = lg.Smooth(lambda x: 0.5 * ((A @ x - data) ** 2).sum() + 0.1 * torch.cosh(x).sum())
    energy = smooth if term is None else smooth + term
    problem = lg.split(energy, lg.Euclidean())
    stop = lg.Stop(iterations)
    return lg.solve(problem, algorithm, start, gradient=strategy, stop=stop).x


@pytest.mark.parametrize("iterations", [2, 30])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_tangents_are_those_of_differences(name, strategy, iterations):
    if name == "Newton" and iterations < 30:
        pytest.skip("on the way its line search counts as a constant, but moves with the data")

    def run(data, start):
        return solved(name, STRATEGIES[strategy], data, start, iterations)

    h = 1e-6
    ahead = run(DATA + h * DIRECTION, START)
    behind = run(DATA - h * DIRECTION, START)
    expected = (ahead - behind) / (2 * h)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(run(forward_ad.make_dual(DATA, DIRECTION), START)).tangent
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    if strategy == "Unroll":
        jvp = torch.func.jvp(lambda data: run(data, START), (DATA,), (DIRECTION,))[1]
        torch.testing.assert_close(jvp, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["forward-backward", "inertial", "primal-dual"])
def test_the_tangent_of_a_start(name):
    def run(start):
        return solved(name, lg.Unroll(), DATA, start, 2)

    h = 1e-6
    expected = (run(START + h * START_DIRECTION) - run(START - h * START_DIRECTION)) / (2 * h)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(run(forward_ad.make_dual(START, START_DIRECTION))).tangent
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_a_hessian_has_its_tangent():
    x, v = START, START_DIRECTION
    f = lg.Smooth(lambda x: torch.cosh(x).sum() + (x[0] * x[1]) ** 2)
    h = 1e-6
    expected = (f.hessian(x + h * v) - f.hessian(x - h * v)) / (2 * h)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(f.hessian(forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
