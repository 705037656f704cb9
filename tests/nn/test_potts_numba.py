"""What the Numba kernel has to get right beyond the suite that all kernels share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from legato.errors import LegatoError
from legato.nn import Potts
from legato.nn.potts.model import PottsIterates
from legato.nn.potts.reference import potts as reference

fused = pytest.importorskip("legato.nn.potts.numba").potts

Solver = Callable[..., PottsIterates]


def problem(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """A cost, weights, and a cotangent."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((1, 3, 12, 17), (1, 1, 2, 12, 17), (1, 3, 12, 17))
    cost, weights, bar = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return scale * cost, weights.abs() * 0.5 + 0.1, bar


def gradients(
    potts: Solver, dtype: torch.dtype, scale: float, of_logarithm: bool, checkpoint: int | None
) -> tuple[Tensor, Tensor]:
    """The gradients of cost and τ of 500 iterations with entropy."""
    cost, weights, bar = (t.to(dtype) for t in problem(scale))
    tau = torch.tensor(0.3, dtype=dtype).requires_grad_()
    sigma = torch.tensor(0.36, dtype=dtype)
    cost.requires_grad_()
    done = potts(cost, weights, tau, sigma, iterations=500, epsilon=0.1, checkpoint=checkpoint)
    value = torch.log_softmax(done.mirror, 1) if of_logarithm else done.probabilities
    of_cost, of_tau = torch.autograd.grad((value * bar).sum(), (cost, tau))
    return of_cost.double(), of_tau.double()


@pytest.mark.parametrize("checkpoint", [None, 23], ids=["tape", "checkpoints"])
@pytest.mark.parametrize(
    ("scale", "of_logarithm", "tolerance"),
    [(1.0, False, 3e-5), (1.0, True, 3e-4), (8.0, True, 5e-4)],
    ids=["probabilities", "logarithms", "saturated"],
)
def test_step_gradient_with_entropy_after_many_iterations(
    scale: float, of_logarithm: bool, tolerance: float, checkpoint: int | None
) -> None:
    """Near the solution the terms of ∂τ cancel; to weigh them by k, as one may, made it worse."""
    _, right = gradients(reference, torch.float64, scale, of_logarithm, None)
    _, got = gradients(fused, torch.float32, scale, of_logarithm, checkpoint)
    assert abs(float(got - right)) <= tolerance * max(1.0, abs(float(right)))


def test_cotangents_of_saturated_pixels_do_not_drift() -> None:
    """A constant added to all labels changes nothing, so their gradients sum to zero."""
    of_cost, _ = gradients(fused, torch.float32, 8.0, True, None)
    assert float(of_cost.sum(1).abs().max()) <= 1e-5 * float(of_cost.abs().max())


def solve(cost: Tensor, kernel: str) -> Tensor:
    return Potts(4, kernel=kernel)(cost).exp().square().sum()


def require_right_or_refused(derivative: Callable[[str], Tensor]) -> None:
    """Equal to the reference, or an error of ours that says to take it."""
    right = derivative("reference")
    try:
        got = derivative("numba")
    except LegatoError as error:
        if "reference" not in str(error):
            raise
    else:
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


def small_cost() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(1, 3, 5, 6, generator=generator, dtype=torch.float64)


def test_second_derivatives() -> None:
    def derivative(kernel: str) -> Tensor:
        cost = small_cost().requires_grad_()
        (first,) = torch.autograd.grad(solve(cost, kernel), cost, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), cost)
        return second

    require_right_or_refused(derivative)


def test_functional_gradient() -> None:
    def derivative(kernel: str) -> Tensor:
        gradient: Tensor = torch.func.grad(lambda cost: solve(cost, kernel))(small_cost())
        return gradient

    require_right_or_refused(derivative)


def test_functional_directional_derivative() -> None:
    def derivative(kernel: str) -> Tensor:
        cost = small_cost()
        tangent: Tensor = torch.func.jvp(lambda c: solve(c, kernel), (cost,), (cost.cos(),))[1]
        return tangent

    require_right_or_refused(derivative)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("output", ["mirror", "dual", "probabilities", "mean"])
def test_bad_cotangents_stay_bad(output: str, bad: float) -> None:
    """A flush of small numbers must not turn NaN into zero: a broken loss would go unseen."""
    cost, step = small_cost().requires_grad_(), torch.tensor(0.3, dtype=torch.float64)
    value = getattr(fused(cost, None, step, step, iterations=4, average=True), output)
    bar = torch.ones_like(value)
    bar.view(-1)[7] = bad
    (gradient,) = torch.autograd.grad(value, cost, bar)
    assert not torch.isfinite(gradient).all()


def test_bad_costs_stay_bad() -> None:
    """The layer refuses them where it may look at values; compiled, it may not."""
    cost, step = small_cost(), torch.tensor(0.3, dtype=torch.float64)
    cost[0, 1, 2, 3] = torch.nan
    for value in fused(cost, None, step, step, iterations=4)[:3]:
        assert value.isnan().any()
