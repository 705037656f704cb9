"""Rows between two ends, lower ≤ Gx ≤ upper: against Clarabel, differences and other forms."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from legato.errors import InputError, NotConvergedWarning
from legato.nn import LPGD, LinearProgram, QuadraticProgram

F64 = torch.float64
TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)


def data(batch, n=5, m=6, seed=0):
    """Some ends infinite, row 1 an equation everywhere, row 2 in every second instance."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=F64)

    L, G, inside = normal(batch, n, n), normal(m, n), 0.3 * normal(batch, n)
    Q, c = L @ L.mT / n + 0.2 * torch.eye(n, dtype=F64), 2 * normal(batch, n)
    middle = inside @ G.mT
    width = torch.rand(batch, m, generator=g, dtype=F64) + 0.05
    lower, upper = middle - width, middle + width
    upper[:, 0], lower[:, 3] = torch.inf, -torch.inf
    for row, which in ((1, slice(None)), (2, slice(None, None, 2))):
        lower[which, row] = upper[which, row] = middle[which, row]
    return Q, c, G, lower, upper


def by_clarabel(Q, c, G, lower, upper, lo=-np.inf):
    x = cp.Variable(len(c))
    on, below = np.isfinite(upper), np.isfinite(lower)
    constraints = [G[on] @ x <= upper[on], G[below] @ x >= lower[below]]
    if np.isfinite(lo):
        constraints.append(x >= lo)
    energy = 0.5 * cp.quad_form(x, cp.psd_wrap(Q)) + c @ x
    cp.Problem(cp.Minimize(energy), constraints).solve(cp.CLARABEL, **TIGHT, tol_ktratio=1e-10)
    return x.value


@pytest.mark.parametrize("lo", [None, -1.0])
def test_against_clarabel_and_multipliers(lo):
    Q, c, G, lower, upper = data(8)
    record = QuadraticProgram().solve(Q, c, G=G, lo=lo, lower=lower, upper=upper)
    assert record.y.shape == (8, 0)
    assert record.z.shape == (8, 6)
    force = (Q @ record.x[..., None])[..., 0] + c + record.z @ G - record.z_lo + record.z_hi
    assert float(force.abs().max()) < 1e-11
    row = record.x @ G.mT
    assert bool(((record.z <= 1e-11) | (row > upper - 1e-9)).all())
    assert bool(((record.z >= -1e-11) | (row < lower + 1e-9)).all())
    for k in range(8):
        one = [t[k].numpy() for t in (Q, c)] + [G.numpy(), lower[k].numpy(), upper[k].numpy()]
        truth = by_clarabel(*one, lo=-np.inf if lo is None else lo)
        assert np.abs(record.x[k].numpy() - truth).max() < 1e-6


def test_gradients_by_differences():
    """Ends apart are moved alone; equal ones together, and their gradients add up to that."""
    Q, c, G, lower, upper = data(3, seed=1)
    w = torch.randn(3, 5, generator=torch.Generator().manual_seed(5), dtype=F64)
    given = [t.clone().requires_grad_() for t in (c, G, lower, upper)]

    def loss(c, G, lower, upper):
        return (QuadraticProgram()(Q, c, G=G, lower=lower, upper=upper) * w).sum()

    found = torch.autograd.grad(loss(*given), given)
    step, plain = 1e-6, (c, G, lower, upper)

    def difference(moves):
        ends = []
        for sign in (1, -1):
            moved = [t.clone() for t in plain]
            for which, at in moves:
                moved[which][at] += sign * step
            ends.append(float(loss(*moved)))
        return (ends[0] - ends[1]) / (2 * step)

    for at in [(0, 0), (1, 3), (4, 2)]:
        assert abs(difference([(1, at)]) - float(found[1][at])) < 1e-6
    assert abs(difference([(0, (1, 2))]) - float(found[0][1, 2])) < 1e-6
    for at in np.ndindex(3, 6):
        if lower[at] == upper[at]:
            both = float(found[2][at] + found[3][at])
            assert abs(both) > 1e-4
            assert float(found[2][at]) * float(found[3][at]) == 0
            assert abs(difference([(2, at), (3, at)]) - both) < 1e-6
        else:
            for which in (2, 3):
                assert abs(difference([(which, at)]) - float(found[which][at])) < 1e-6


def test_equal_ends_that_nothing_pulls_at_share_the_gradient():
    """x₁ + x₂ = 2 where that is the minimum anyway; and shared ends serve pulls of both signs."""
    G, end = torch.ones(1, 2, dtype=F64), torch.tensor([2.0], dtype=F64)
    lower, upper = end.clone().requires_grad_(), end.clone().requires_grad_()
    one = torch.ones(2, dtype=F64)
    QuadraticProgram()(torch.eye(2).double(), -one, G=G, lower=lower, upper=upper).sum().backward()
    torch.testing.assert_close((float(lower.grad), float(upper.grad)), (0.5, 0.5))
    lower.grad = upper.grad = None
    pulls = torch.tensor([[-3.0, -3.0], [1.0, 1.0], [1.0, 1.0]], dtype=F64)
    QuadraticProgram()(torch.eye(2).double(), pulls, G=G, lower=lower, upper=upper).sum().backward()
    torch.testing.assert_close((float(lower.grad), float(upper.grad)), (2.0, 1.0))


def test_a_batch_is_its_elements():
    """Row 2 is an equation in every second instance only."""
    Q, c, G, lower, upper = data(5, seed=2)
    layer = QuadraticProgram()
    together = layer.solve(Q, c, G=G, lower=lower, upper=upper)
    assert not bool(together.degenerate.any())
    semi = Q.clone()
    semi[:, :, 0] = semi[:, 0, :] = 0  # for the interior point
    both = layer.solve(semi, c, G=G, lower=lower, upper=upper, lo=-1.0, hi=1.0)
    for k in range(5):
        alone = layer.solve(Q[k], c[k], G=G, lower=lower[k], upper=upper[k])
        torch.testing.assert_close(together.x[k], alone.x)
        torch.testing.assert_close(together.z[k], alone.z)
        alone = layer.solve(semi[k], c[k], G=G, lower=lower[k], upper=upper[k], lo=-1.0, hi=1.0)
        torch.testing.assert_close(both.x[k], alone.x)
        assert both.dependent[k] == alone.dependent


def test_linear_programs_between_two_ends():
    c = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    G = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0]], dtype=F64)
    lower, upper = torch.tensor([1.0, -0.2], dtype=F64), torch.tensor([1.0, 0.2], dtype=F64)
    lower.requires_grad_(), upper.requires_grad_()
    x = LinearProgram()(c, G=G, lo=0.0, lower=lower, upper=upper)
    torch.testing.assert_close(x.detach(), torch.tensor([0.6, 0.4, 0.0], dtype=F64))
    in_lower, in_upper = torch.autograd.grad(x[0], (lower, upper))
    torch.testing.assert_close(in_lower, torch.tensor([0.5, 0.0], dtype=F64))
    torch.testing.assert_close(in_upper, torch.tensor([0.0, 0.5], dtype=F64))
    cost = c.clone().requires_grad_()
    moved = LinearProgram(LPGD(5.0))(cost, G=G, lo=0.0, lower=lower, upper=upper)
    moved[0].backward()  # a dearer x₁, so none of it: 0.2 and 0.8 of the others
    torch.testing.assert_close(
        cost.grad, torch.tensor([-0.12, -0.04, 0.16], dtype=F64), atol=1e-6, rtol=0
    )


def test_one_end_and_numbers():
    Q, c, G, _, upper = data(2, seed=3)
    layer = QuadraticProgram()
    upper[:, 0] = 0.5
    torch.testing.assert_close(layer(Q, c, G=G, upper=upper), layer(Q, c, G=G, h=upper))
    torch.testing.assert_close(
        layer(Q, c, G=G, lower=-0.1), layer(Q, c, G=-G, h=torch.full((6,), 0.1).double())
    )
    torch.testing.assert_close(layer(Q, c, G=G, lower=-torch.inf, upper=torch.inf), layer(Q, c))


def test_contradicting_rows_are_infeasible():
    G = torch.ones(2, 2, dtype=F64)
    lower = torch.tensor([0.0, 3.0], dtype=F64)
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        record = QuadraticProgram().solve(
            torch.eye(2).double(), G=G, lower=lower, upper=torch.tensor([1.0, 3.0]).double()
        )
    z, upper = record.z, torch.tensor([1.0, 3.0]).double()
    assert float((G.mT @ z).abs().max()) < 1e-9
    assert float(upper @ z.clamp(min=0) - lower @ (-z).clamp(min=0)) < -1e-3


I3, ROWS, TWO = torch.eye(3), torch.ones(2, 3), torch.ones(2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"G": ROWS, "h": TWO, "upper": TWO}, "two forms of one constraint"),
        ({"upper": TWO}, "G, which is missing"),
        ({"G": ROWS, "lower": 2 * TWO, "upper": TWO}, r"lower > upper in 2 entries, by up to 1"),
        ({"G": ROWS, "lower": TWO * float("nan")}, "lower holds 2 NaN"),
        ({"G": ROWS, "lower": TWO / 0}, r"lower holds \+∞"),
        ({"G": ROWS, "upper": -TWO / 0}, "upper holds −∞"),
        ({"G": ROWS, "upper": torch.ones(3)}, r"G has 2 rows, but upper is of shape"),
        ({"G": ROWS, "upper": TWO.double()}, "convert one"),
        ({"G": ROWS, "upper": [1.0, 1.0]}, "upper must be a tensor, not list"),
        ({"G": TWO, "upper": TWO}, "G must be a matrix"),
        ({"G": ROWS, "lower": torch.ones(3, 2), "upper": torch.ones(2, 2)}, "do not fit one"),
    ],
)
def test_refused(given, words):
    with pytest.raises(InputError, match=words):
        QuadraticProgram()(I3, **given)
