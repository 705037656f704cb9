"""Where x is not a differentiable function of its data, every instance is told."""

import pytest
import torch

from legato.errors import InexactGradientWarning
from legato.nn import QuadraticProgram
from quadratic_programs import random_programs

F64 = torch.float64


def tied_programs(seed):
    """Projections onto a half-space whose boundary passes through the point: multiplier zero."""
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(40, 6, generator=g, dtype=F64)
    L = torch.randn(40, 6, 6, generator=g, dtype=F64)
    Q = L @ L.mT / 6 + 0.1 * torch.eye(6, dtype=F64)
    free = torch.linalg.solve(Q, -c.unsqueeze(-1))
    G = torch.randn(40, 3, 6, generator=g, dtype=F64)
    h = (G @ free).squeeze(-1) + torch.tensor([0.0, 1.0, 2.0], dtype=F64)
    return Q, c, G, h


@pytest.mark.parametrize("seed", range(5))
def test_every_tie_is_told(seed):
    Q, c, G, h = tied_programs(seed)
    h[::2, 0] += 0.5  # every other one has room
    with pytest.warns(InexactGradientWarning, match=r"20 of 40 programs \(instances 1, 3, 5, 7, 9"):
        record = QuadraticProgram().solve(Q, c.requires_grad_(), G=G, h=h)
    assert record.tied.tolist() == [False, True] * 20
    assert bool((record.margin[1::2] < 1e-8).all())
    assert bool((record.margin[::2] > 1e-3).all())
    # x is right all the same
    free = torch.linalg.solve(Q, -c.detach().unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(record.x.detach(), free, rtol=1e-7, atol=1e-7)


def test_flags_are_in_the_record_without_a_gradient_and_without_a_word():
    record = QuadraticProgram().solve(
        *tied_programs(0)[:2], G=tied_programs(0)[2], h=tied_programs(0)[3]
    )
    assert bool(record.tied.all())
    assert bool(record.degenerate.all())


def test_solutions_that_are_not_unique():
    """Only x₁ + x₂ matters."""
    Q = torch.ones(2, 2, dtype=F64).expand(3, 2, 2).clone()
    Q[1] += torch.eye(2, dtype=F64)
    c = torch.tensor([-1.0, -1.0], dtype=F64, requires_grad=True)
    with pytest.warns(InexactGradientWarning, match=r"instances 0, 2\): x is not unique"):
        record = QuadraticProgram().solve(Q, c, lo=-5.0, hi=5.0)
    assert record.loose.tolist() == [True, False, True]
    torch.testing.assert_close(record.x.detach().sum(-1)[[0, 2]], torch.ones(2, dtype=F64))


def test_a_derivative_that_does_not_exist_is_told_in_the_backward_pass():
    Q = torch.ones(2, 2, dtype=F64)
    c = torch.tensor([-1.0, -1.0], dtype=F64, requires_grad=True)
    with pytest.warns(InexactGradientWarning, match="not unique"):
        x = QuadraticProgram()(Q, c)
    with pytest.warns(InexactGradientWarning, match="KKT systems are singular"):
        (x[0] - x[1]).backward()


def test_dependent_equations():
    """The same equation twice: x and its derivative in c exist, those in b do not."""
    data = random_programs((2,), 5, 1, 0, bounds=False, seed=1)
    once = {n: v.clone() for n, v in data.items()}
    data["A"], data["b"] = data["A"].repeat(1, 2, 1), data["b"].repeat(1, 2)
    c, c_once = data["c"].requires_grad_(), once["c"].requires_grad_()
    x = QuadraticProgram()(**data)  # warnings are errors: none here
    expected = QuadraticProgram()(**once)
    torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-10)
    w = torch.arange(5.0, dtype=F64)
    (found,) = torch.autograd.grad((x * w).sum(), c)
    (truth,) = torch.autograd.grad((expected * w).sum(), c_once)
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-8)
    data["b"].requires_grad_()
    with pytest.warns(InexactGradientWarning, match="depend on one another"):
        record = QuadraticProgram().solve(**data)
    assert bool(record.dependent.all())


def test_a_vertex_with_more_constraints_than_dimensions():
    """Three lines through one corner: solved, and said where the lines are differentiated."""
    G = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=F64)
    h = torch.tensor([1.0, 1.0, 2.0], dtype=F64, requires_grad=True)
    c = torch.tensor([-3.0, -3.0], dtype=F64)
    with pytest.warns(InexactGradientWarning):
        record = QuadraticProgram().solve(torch.eye(2, dtype=F64), c, G=G, h=h)
    assert bool(record.solved)
    torch.testing.assert_close(record.x.detach(), torch.ones(2, dtype=F64), rtol=0, atol=1e-9)
    assert bool(record.degenerate)


def test_equal_ends_share_where_neither_holds_up_to_rounding():
    """At the minimum without constraints the multiplier is zero, but for the rounding of c."""
    for k in range(8):
        g = torch.Generator().manual_seed(k)
        M, x, G = (torch.randn(*s, generator=g, dtype=F64) for s in ((3, 3), (3,), (1, 3)))
        Q = M @ M.T + torch.eye(3, dtype=F64)
        lower, upper, lo, hi = (v.clone().requires_grad_() for v in (G @ x, G @ x, x, x))
        QuadraticProgram()(Q, -Q @ x, G=G, lower=lower, upper=upper).sum().backward()
        torch.testing.assert_close(lower.grad, upper.grad)
        QuadraticProgram()(Q, -Q @ x, lo=lo, hi=hi).sum().backward()
        assert lo.grad.tolist() == hi.grad.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_equal_ends_that_hold_get_all(size):
    """Small forces are forces, where all of them are small."""
    lower, upper = (torch.ones(1, dtype=F64, requires_grad=True) for _ in range(2))
    Q, c, G = size * torch.eye(2, dtype=F64), torch.zeros(2, dtype=F64), torch.ones(1, 2).double()
    QuadraticProgram()(Q, c, G=G, lower=lower, upper=upper).sum().backward()
    assert [lower.grad.item(), upper.grad.item()] == pytest.approx([1.0, 0.0])
