"""Sides that are huge, or of the size of rounding, are no measure of x."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from legato.nn import LinearProgram, QuadraticProgram

F64 = torch.float64


def tensor(*values):
    return torch.tensor(values, dtype=F64)


@pytest.mark.parametrize("far", [1e7, 1e10, 1e13, 1e16, 1e20])
def test_a_side_that_cannot_bind_changes_nothing(far):
    """½·1.2 x² + 2x on x ≥ 0 is smallest at 0, and −1.1 x ≤ far holds there."""
    c = tensor(2.0).requires_grad_()
    record = QuadraticProgram().solve(tensor([1.2]), c, G=tensor([-1.1]), h=tensor(far), lo=0.0)
    assert bool(record.solved)
    assert record.x.tolist() == [0.0]
    record.x.sum().backward()
    assert c.grad.tolist() == [0.0]
    assert record.z_lo.tolist() == [2.0]


@pytest.mark.parametrize("far", [1e8, 1e13, 1e20])
@pytest.mark.parametrize("sparse", [False, True])
def test_linear_programs_with_numbers_for_infinity(far, sparse):
    rng = np.random.default_rng(0)
    for _ in range(4):
        G, c = rng.uniform(0.1, 1, (3, 4)), -rng.uniform(0.1, 1, 4)
        h = np.array([far, *rng.uniform(0.5, 1, 2)])
        truth = linprog(c, G[1:], h[1:], bounds=(0, None)).fun
        given = torch.tensor(G).to_sparse_csr() if sparse else torch.tensor(G)
        record = LinearProgram().solve(torch.tensor(c), G=given, h=torch.tensor(h), lo=0.0, hi=far)
        assert bool(record.solved)
        assert float(torch.tensor(c) @ record.x) == pytest.approx(truth, rel=1e-9)


def test_a_far_side_that_binds_is_not_forgotten():
    """Beside a program of ordinary size in one batch."""
    c, hi = tensor([-1.0, -1.0], [-1.0, 1.0]), tensor([1e9, 1.0], [1e9, 1.0])
    Q = torch.zeros(2, 2, dtype=F64)
    record = QuadraticProgram().solve(Q, c, G=tensor([1.0, 0.0]), h=tensor(5e8), lo=0.0, hi=hi)
    assert record.solved.tolist() == [True, True]
    torch.testing.assert_close(record.x, tensor([5e8, 1.0], [5e8, 0.0]))


def test_what_violates_a_constraint_by_its_own_size_is_not_solved():
    """One that binds at 10¹³ lets float64 see nothing of x₂ ≥ 0, but never a silent −1."""
    rng = np.random.default_rng(1)
    for far in 10.0 ** rng.uniform(10, 16, 6):
        record = LinearProgram().solve(
            tensor(-1.0, 1.0), G=tensor([1.0, 0.5]), h=tensor(far), lo=0.0, hi=tensor(np.inf, 3.0)
        )
        assert record.x[0].item() == pytest.approx(far, rel=1e-9)
        assert not bool(record.solved) or abs(float(record.x[1])) <= 1e-9


@pytest.mark.parametrize("b", [0.1 + 0.2 - 0.3, 1e-12, -1e-15])
def test_a_right_hand_side_of_rounding(b):
    """The point of x₁ = x₂ that is nearest to (1, 0)."""
    A, c = tensor([1.0, -1.0]), tensor([-1.0, 0.0], [-1.0, 0.0])
    record = QuadraticProgram().solve(torch.eye(2, dtype=F64), c, A, tensor([0.0], [b]))
    assert record.solved.all()
    torch.testing.assert_close(record.x, torch.full((2, 2), 0.5, dtype=F64))


def test_small_sides_of_a_linear_program_are_meant():
    record = LinearProgram().solve(
        tensor(1.0, 2.0), torch.ones(1, 2, dtype=F64), tensor(1e-16), lo=0.0
    )
    assert bool(record.solved)
    assert record.x.tolist() == pytest.approx([1e-16, 0.0], rel=1e-9)


def test_pinned_variables_whose_sum_is_right_up_to_rounding():
    """0.1 + 0.1 + 0.1 is not 0.3 in floating point."""
    one = torch.ones(1, 3, dtype=F64)
    Q, c, b = torch.eye(3, dtype=F64), one[0], tensor(0.3)
    record = QuadraticProgram().solve(Q, c, one, b, lo=0.1, hi=0.1)
    assert bool(record.solved)
    assert record.x.tolist() == [0.1, 0.1, 0.1]
    with pytest.warns(UserWarning, match="no x satisfies"):
        assert not QuadraticProgram().solve(Q, c, one, b + 1e-9, lo=0.1, hi=0.1).solved


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("cost", [1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("curved", [False, True])
def test_units_beside_a_pinned_variable_do_not_matter(cost, length, curved):
    """What holds it at its value has no units, and must not outweigh the objective."""
    Q = torch.diag(tensor(2.0, 1.0, 3.0, 4.0)) if curved else torch.zeros(4, 4, dtype=F64)
    truth = [8 / 13, 9 / 13, -1.0, -4 / 13] if curved else [4.0, -1.0, -1.0, -2.0]
    inf = torch.inf
    G = tensor([-1e4, -1e4, -1e4, -1e4], [1.0, 0.0, 2.0, 2.0]) / length
    record = QuadraticProgram().solve(
        Q * cost / length**2,
        tensor(0.0, 1.0, -2.0, 2.0) * cost / length,
        G=G,
        h=tensor(0.0, -2.0),
        lo=tensor(-inf, -inf, -1.0, -2.0) * length,
        hi=tensor(inf, inf, -1.0, inf) * length,
    )
    assert bool(record.solved)
    assert (record.x / length).tolist() == pytest.approx(truth, rel=1e-9)
