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
