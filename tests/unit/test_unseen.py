"""A solution that is not unique is told of where the gradient depends on it, and only there."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import legato as lg
from legato.errors import LegatoWarning, NonContractiveWarning
from legato.gradients import Linearisation
from legato.gradients.unseen import leaves_gradient_open

COLUMN = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
TWICE = torch.stack([COLUMN, COLUMN], 1)
B = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)


def solved(weight: Tensor, A: Tensor = TWICE, b: Tensor = B) -> lg.Solution:
    energy = lg.LeastSquares(A, b) + lg.L1(weight)
    return lg.solve(energy, gradient=lg.Implicit(lg.Direct()), stop=lg.Stop(5000, tol=1e-13))


def leaf(value: float | Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).clone().requires_grad_()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_sum_over_two_equal_columns_has_a_derivative(batch: tuple[int, ...]) -> None:
    """x₁ + x₂ = (⟨a, b⟩ − λ)/‖a‖², whichever way it is shared out."""
    weight, b = leaf(0.3), leaf(B.expand(*batch, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LegatoWarning)
        solved(weight, b=b).x.sum().backward()
    size = COLUMN.square().sum()
    copies = 2 if batch else 1
    torch.testing.assert_close(weight.grad, -copies / size)
    torch.testing.assert_close(b.grad, (COLUMN / size).expand(*batch, 3))


def test_one_of_two_equal_columns_has_none() -> None:
    weight = leaf(0.3)
    with pytest.warns(LegatoWarning) as said:
        solved(weight).x[0].backward()
    assert any(w.category is NonContractiveWarning for w in said)


def leaves_open(weight: Tensor, A: Tensor = TWICE) -> bool:
    """Asked of the system itself, for ξ = (1, 1), which excites no n."""
    problem = lg.Composite(lg.LeastSquares(A, B), lg.L1(weight))
    with torch.no_grad():
        found = lg.solve(problem, lg.ForwardBackward(), stop=lg.Stop(5000, tol=1e-13))
    plain, state = lg.ForwardBackward().fixed_point_map(found.state)
    linear = Linearisation(problem, plain, state)
    return leaves_gradient_open(
        linear, lg.Direct().solve(linear.transposed, torch.ones_like(B[:2]))
    )


def test_the_columns_themselves_see_how_it_is_shared_out() -> None:
    weight = leaf(0.3)
    assert not leaves_open(weight)
    assert leaves_open(weight, leaf(TWICE))


def test_what_lies_in_front_may_not_let_itself_be_asked() -> None:
    """A reentrant checkpoint takes .backward() only."""
    shown = checkpoint(torch.exp, leaf(-1.0), use_reentrant=True)
    assert leaves_open(shown)


@pytest.mark.parametrize("beside", [None, 1e-3, 1.0])
def test_an_element_is_told_of_whatever_is_beside_it(beside: float | None) -> None:
    """x = (1, 0) with many duals, all seen by K; beside it an x with a gradient of any size."""
    A = torch.tensor([[0.3, -0.1], [0.3, -0.04], [0.2, -0.3], [0.3, 0.01]], dtype=torch.float64)
    b = torch.tensor([-0.2, 1.0, 1.0, 2.0], dtype=torch.float64)
    sizes = [1.0] if beside is None else [beside, 1.0]
    K = leaf(torch.stack([size * torch.eye(2, dtype=torch.float64) for size in sizes]))
    data = torch.stack([b, b]) if len(sizes) == 2 else b[None]
    data = (
        data * torch.tensor([1.0 if s == 1 else 0.0 for s in sizes], dtype=torch.float64)[:, None]
    )
    problem = lg.Saddle(K, lg.Simplex(), lg.LeastSquares(A, data), lg.L1(1.0))
    start = 0.5 * torch.linalg.inv(K.detach()).sum(-1)
    strategy, stop = lg.Implicit(lg.Direct()), lg.Stop(20000, tol=1e-10)
    found = lg.solve(problem, lg.PrimalDual(), start, gradient=strategy, stop=stop)
    with pytest.warns(NonContractiveWarning):
        (found.x[:, 0] - found.x[:, 1]).sum().backward()


STRATEGIES = {
    "GMRES": lg.Implicit(),
    "CG": lg.Implicit(lg.CG()),
    "BiCGStab": lg.Implicit(lg.BiCGStab()),
    "Direct": lg.Implicit(lg.Direct()),
    "series": lg.FixedPoint(500),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_learned_columns_of_one_direction_are_told_of(strategy: str, factor: float) -> None:
    """Σx of two equal columns a has a slope in a₁ of one side only; all solvers see one system."""
    A = leaf(torch.stack([COLUMN, COLUMN], 1))
    other = leaf(torch.stack([COLUMN, factor * COLUMN.flip(0)], 1))
    for matrix, tied in ((A, True), (other, False)):
        energy = lg.LeastSquares(matrix, B) + lg.L1(0.3)
        gradient, stop = STRATEGIES[strategy], lg.Stop(5000, tol=1e-13)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lg.solve(energy, gradient=gradient, stop=stop).x.sum().backward()
        kinds = [w.category for w in said]
        assert (NonContractiveWarning in kinds) is tied, [str(w.message) for w in said]


@pytest.mark.parametrize("learned", [True, False])
def test_an_edge_of_weight_zero_has_any_dual(learned: bool) -> None:
    """Its own weight sees which; the other parameters do not."""
    weights = torch.tensor([[0.1, 0.0, 0.2, 0.1]], dtype=torch.float64).requires_grad_(learned)
    y = leaf(torch.tensor([0.0, 0.3, 1.2, 0.7], dtype=torch.float64))
    edges = lg.Differences(dims=(-1,), weights=weights)
    energy = lg.SquaredDistance(y) + lg.L1(1.0) @ edges
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stop = lg.Stop(5000, tol=1e-12)
        found = lg.solve(energy, lg.PrimalDual(), gradient=lg.Implicit(), stop=stop)
        (found.x @ torch.tensor([1.0, -2.0, 0.5, 0.8], dtype=torch.float64)).backward()
    assert (NonContractiveWarning in [w.category for w in said]) is learned
