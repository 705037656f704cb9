"""Strictly convex programs by their multipliers: two implementations, and where they step aside."""

import pytest
import torch

from legato.errors import InexactGradientWarning, NotConvergedWarning
from legato.nn import QuadraticProgram
from legato.nn.programs import dual, inverses, solver, strict

HOMES = (dual, inverses, strict)


def programs(size, seed=0):
    """Equations, rows and boxes; about half of the inequalities are active."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(size, *shape, generator=g, dtype=torch.float64)

    L, inside, A, G = normal(12, 12), normal(12), normal(2, 12), normal(9, 12)
    b, h = ((M @ inside.unsqueeze(-1)).squeeze(-1) for M in (A, G))
    Q = L @ L.mT / 12 + 0.1 * torch.eye(12, dtype=torch.float64)
    return [Q, 2 * normal(12), A, b, G, h + 0.2, inside - 0.4, inside + 0.4]


def solved(given):
    given = [value.clone().requires_grad_() for value in given]
    record = QuadraticProgram().solve(*given)
    (record.x * torch.arange(12.0)).sum().backward()
    return record, [value.grad for value in given]


@pytest.mark.parametrize(
    ("compiled", "few"), [(True, 0), (False, 0), (False, 99)], ids=["numba", "torch", "last few"]
)
def test_the_interior_point_agrees(compiled, few, monkeypatch):
    given = programs(40)
    monkeypatch.setattr(dual, "_FEW", few)
    for home in HOMES:
        monkeypatch.setattr(home, "compiled_for", lambda some: compiled, raising=False)
    # Beyond doubt: nothing is left to the interior point, so that it can be the truth.
    with monkeypatch.context() as patch:
        patch.setattr("legato.nn.programs.quadratic.solve", None)
        record, ours = solved(given)
    monkeypatch.setattr("legato.nn.programs.quadratic.solve_strictly", lambda *_: None)
    truth, theirs = solved(given)
    assert bool((record.solved & truth.solved).all())
    for name in ("x", "y", "z", "z_lo", "z_hi"):
        torch.testing.assert_close(getattr(record, name), getattr(truth, name), rtol=0, atol=1e-10)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_what_is_not_plain_is_left_to_the_interior_point(monkeypatch):
    """A tie, an infeasible one and a singular Q in one batch; the others are as when alone."""
    given = programs(6)
    given[0][1, :, 3] = given[0][1, 3, :] = 0  # x₃ has no curvature there
    given[3][2] += 100  # out of reach of the box
    x = QuadraticProgram()(*[value[4:5] for value in given])
    row = given[4][4]
    given[5][4] = torch.where((row @ x[0] - given[5][4]).abs() < 1e-9, given[5][4], row @ x[0])
    left = []
    interior = solver.solve

    def spied(program, limit, *rest):
        left.append(program.size)
        return interior(program, limit, *rest)

    monkeypatch.setattr("legato.nn.programs.quadratic.solve", spied)
    needing = [value.clone().requires_grad_() for value in given]
    with (
        pytest.warns(NotConvergedWarning, match=r"instances 2\)"),
        pytest.warns(InexactGradientWarning, match=r"instances 4\): an inequality is active"),
    ):
        record = QuadraticProgram().solve(*needing)
    assert left == [3]
    assert record.solved.tolist() == [True, True, False, True, True, True]
    kept = [0, 3, 5]
    record.x[kept].sum().backward()
    alone = [value[kept].clone().requires_grad_() for value in given]
    QuadraticProgram()(*alone).sum().backward()
    for one, other in zip(needing, alone, strict=True):
        torch.testing.assert_close(one.grad[kept], other.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bounded", [True, False])
def test_data_changed_before_the_backward_pass(bounded):
    given = programs(5)[: 8 if bounded else 6]
    needing = [value.clone().requires_grad_() for value in given]
    twin = [value.clone().requires_grad_() for value in given]
    QuadraticProgram()(*twin).square().sum().backward()
    x = QuadraticProgram()(*needing)
    with torch.no_grad():
        for value in needing:
            value.fill_(torch.nan)
    x.square().sum().backward()
    for one, other in zip(needing, twin, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
