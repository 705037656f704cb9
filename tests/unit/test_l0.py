"""The ℓ0 penalty: its prox against brute force, and what it is good for."""

from __future__ import annotations

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import InputError
from optim.data import Counted, least_squares, normal


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_hard_threshold_minimises(alpha):
    g = lg.functions.L0(torch.tensor([0.5, 1.0, 0.0, 2.0], dtype=torch.float64))
    for seed in range(5):
        y = 2 * normal(4, seed=seed)
        x = lg.prox(g, lg.Euclidean(), y, alpha)

        def energy(z, y=y):
            return alpha * float(g.value(z)) + 0.5 * float(((z - y) ** 2).sum())

        masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
        assert energy(x) <= min(energy(y * mask) for mask in masks) + 1e-14


def test_it_finds_a_sparse_vector():
    A = normal(60, 20, seed=1)
    truth = torch.zeros(20, dtype=torch.float64)
    truth[[2, 7, 11]] = torch.tensor([3.0, -2.0, 4.0], dtype=torch.float64)
    closure = Counted(least_squares(A, A @ truth), torch.zeros(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.NonConvexStep(), prox=lg.functions.L0(5.0))
    for _ in range(300):
        optimizer.step(closure)
    assert torch.allclose(closure.point, truth, atol=1e-8)


def test_negative_weights_are_refused():
    with pytest.raises(InputError):
        lg.functions.L0(-1.0)


def test_nan_stays():
    x = torch.tensor([0.0, float("nan")]).double()
    assert bool(lg.functions.L0(1.0)(x).isnan())
    assert lg.functions.L0(1.0).prox(x).isnan().tolist() == [False, True]


def test_the_largest_entries_are_kept():
    y = torch.tensor([[1.0, -3.0, 2.0, -2.0], [0.5, 0.0, 0.2, 0.1]]).double()
    ball = lg.functions.L0Ball(2)
    kept = torch.tensor([[0.0, -3.0, 2.0, 0.0], [0.5, 0.0, 0.2, 0.0]]).double()
    torch.testing.assert_close(ball.prox(y), kept)  # of equals the first
    torch.testing.assert_close(ball.prox(y, 7.0), kept)
    torch.testing.assert_close(lg.functions.L0Ball(1, dim=0).prox(y)[1], torch.zeros(4).double())
    assert ball(kept) == 0
    assert ball(y) == torch.inf
    assert ball(torch.tensor([torch.nan, 0.0])).isnan()
    assert ball.prox(torch.tensor([1.0, torch.nan, 2.0, 3.0])).isnan().any()
    assert not lg.functions.L0Ball(0).prox(y).any()
    torch.testing.assert_close(lg.functions.L0Ball(9).prox(y), y)
    slope = torch.autograd.functional.jacobian(ball.prox, y[0])
    torch.testing.assert_close(slope, torch.diag((kept[0] != 0).double()))


def test_hard_thresholding_finds_a_sparse_vector():
    A = torch.linalg.qr(normal(30, 12, seed=1))[0]
    truth = torch.zeros(12).double()
    truth[[2, 5]] = torch.tensor([1.5, -2.0]).double()
    energy = lg.LeastSquares(A, A @ truth) + lg.functions.L0Ball(2)
    x = lg.solve(energy, lg.ForwardBackward(inertia=0.0), stop=lg.Stop(500, tol=1e-12)).x
    torch.testing.assert_close(x, truth, atol=1e-9, rtol=0)


def test_the_largest_groups_are_kept():
    """Against all pairs of columns, in a batch; along other axes; what is NaN is kept."""
    y = normal(5, 3, 4, seed=2)
    found = lg.functions.GroupL0Ball(2).prox(y)
    for row, x in zip(y, found, strict=True):
        pairs = torch.combinations(torch.arange(4))
        left = [float((row - row * torch.zeros(4).index_fill(0, p, 1.0)).norm()) for p in pairs]
        assert float((row - x).norm()) == pytest.approx(min(left))
        assert int((x.norm(dim=0) > 0).sum()) == 2
        torch.testing.assert_close(lg.functions.GroupL0Ball(2).prox(row), x)
    ball = lg.functions.GroupL0Ball(2, dim=-2, group_dim=-1)
    torch.testing.assert_close(ball.prox(y.mT), found.mT)
    assert ball(found.mT) == 0
    assert ball(y.mT) == torch.inf
    assert ball.values(torch.stack((y.mT, found.mT)), 1).tolist() == [torch.inf, 0.0]
    tied = torch.ones(2, 3).double()
    assert lg.functions.GroupL0Ball(1).prox(tied)[0].tolist() == [1.0, 0.0, 0.0]
    broken = torch.tensor([[1.0, torch.nan], [1.0, 0.0]]).double()
    assert lg.functions.GroupL0Ball(1).prox(broken).isnan().any()
    assert lg.functions.GroupL0Ball(1)(broken).isnan()
    assert not lg.functions.GroupL0Ball(0).prox(y).any()


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_a_count_is_a_whole_number(count):
    with pytest.raises(InputError, match="whole number"):
        lg.functions.L0Ball(count)
