"""When a solve has arrived: by the present size near a boundary, with its momentum under Unroll."""

import warnings

import pytest
import torch

import legato as lg
from legato.errors import InexactGradientWarning, NotConvergedWarning


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_solution_far_smaller_than_the_start(dtype):
    """Entries of 1e-8 beside a start of 1e-3: the step that is found must not go past them."""
    y = torch.tensor([-1.3e-6, 4.5e-8, -2e-7, 1.7e-7], dtype=dtype)
    problem = lg.Composite(lg.SquaredDistance(y), lg.NonNegative())
    search = lg.ForwardBackward(lg.Backtracking(grow=2.0), lg.Burg())
    start = torch.full((4,), 1e-3, dtype=dtype)
    solution = lg.solve(problem, search, start, stop=lg.Stop(1500, tol=1e-8))
    assert solution.converged
    torch.testing.assert_close(solution.x, y.clamp(min=0), rtol=1e-2, atol=1e-8)


def test_points_that_still_vanish_are_told():
    """x shrinks by a tenth of itself in each step: soon by little beside 1, and has not arrived."""
    weight = torch.ones(1).double().requires_grad_()
    problem = lg.Composite(lg.SquaredDistance(-weight), lg.NonNegative())
    entropic, stop = lg.ForwardBackward(0.1, lg.Entropy()), lg.Stop(100, tol=1e-4)
    for gradient in lg.Unroll(), lg.Implicit():
        with pytest.warns(NotConvergedWarning, match="against their own size"):
            solution = lg.solve(
                problem, entropic, torch.ones(1).double(), gradient=gradient, stop=stop
            )
        assert not solution.converged
        assert float(solution.residual) <= 1e-4


@pytest.mark.parametrize(
    "gradient", [lg.Unroll(), lg.Unroll(checkpoint="sqrt"), lg.Unroll(last=3), lg.Unroll(tol=1e-6)]
)
@pytest.mark.parametrize("inertia", [None, 0.5, lg.Nesterov()])
def test_a_step_that_solves_at_once(gradient, inertia):
    """min ½e‖x‖² + ⟨c, x⟩: a step of 1/e is there, from anywhere, and dx/de = c/e²."""
    e = torch.tensor(0.5).double().requires_grad_()
    c = torch.tensor([1.0, -2.0]).double()
    energy = lg.SquaredNorm(e) + lg.Linear(c)
    algorithm = lg.ForwardBackward(inertia=inertia)
    stop = lg.Stop(400, tol=1e-8)
    x = lg.solve(energy, algorithm, gradient=gradient, stop=stop).x
    (slope,) = torch.autograd.grad(x[0], e)
    torch.testing.assert_close(slope, c[0] / e.detach() ** 2, rtol=1e-3, atol=0)


def _alternating(weight):
    """min 0.15‖x − b‖² + ⟨w, |x|⟩ where 1.04|x₁| + 0.93|x₂| ≤ 0.1, so that x₁ = 0."""
    K, b = lg.Diagonal(torch.tensor([1.04, 0.93]).double()), torch.tensor([1.0, 2.0]).double()
    energy = 0.3 * lg.SquaredDistance(b) + lg.L1(weight) + lg.L1Ball(0.1) @ K
    start = torch.tensor([0.3, -9.0]).double()
    stop = lg.Stop(400, tol=1e-10)
    return lg.solve(energy, lg.PrimalDual(precondition=True), start, stop=stop)


def test_sides_that_alternate_at_a_weight_of_zero():
    weight = torch.tensor([0.0, 0.1]).double().requires_grad_()
    with pytest.warns(InexactGradientWarning, match="from both sides in turn"):
        _alternating(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _alternating(torch.tensor([0.1, 0.1]).double().requires_grad_())
        _alternating(torch.tensor([0.0, 0.1]).double())
        weight = torch.tensor([0.1, 0.0]).double().requires_grad_()  # of an entry that is not 0
        _alternating(weight)


def test_points_that_creep_to_a_boundary():
    """x₂ → 0 like k^{−1/2} in Burg's geometry: 1/x₂ grows by its gradient, which is x₂ itself."""
    y = torch.tensor([[0.05, 0.0], [0.5, 0.3]])
    search, start = lg.ForwardBackward(lg.Backtracking(grow=2.0), lg.Burg()), torch.ones_like(y)
    found = lg.solve(lg.Composite(lg.SquaredDistance(y)), search, start, stop=lg.Stop(10000, 1e-6))
    assert found.converged.all()
    error = torch.linalg.vector_norm(found.x - y, dim=-1) / torch.linalg.vector_norm(y, dim=-1)
    assert float(error.max()) < 0.015  # 2 % and more, where the residual alone decides
    alone = lg.solve(
        lg.Composite(lg.SquaredDistance(y[1])), search, start[1], stop=lg.Stop(10000, 1e-6)
    )
    assert int(found.iterations[1]) == alone.iterations < 30
    # Too few iterations, with and without a tolerance: neither says that x stands still.
    with pytest.warns(NotConvergedWarning, match="against their own size"):
        short = lg.solve(
            lg.Composite(lg.SquaredDistance(y[0])),
            search, start[0], stop=lg.Stop(400, 1e-6),
        )  # fmt: skip
    assert not short.converged
    for gradient in lg.Unroll(), lg.Unroll(checkpoint=10):
        data = y[0].clone().requires_grad_()
        problem = lg.Composite(lg.SquaredDistance(data))
        fixed = lg.solve(problem, search, start[0], gradient=gradient, stop=lg.Stop(300))
        assert float(fixed.residual) > 1e-5
