"""Operators behind shifts and other operators."""

import torch

import legato as lg
from makers import randn

KERNELS = [0.2, 1.0, -0.5], [-0.3, 1.0, 0.4]


def test_a_number_that_shifts_what_an_operator_makes():
    """‖K(Mx − c)‖₁ written out, with the matrices of K and M: c is as large as Mx."""
    y, c, eye = randn(1, 7), torch.tensor(0.3).double(), torch.eye(7).double()
    K, M = (lg.Convolution(torch.tensor([[k]]).double()) for k in KERNELS)
    energy = lg.SquaredDistance(y) + (lg.L1(0.2) @ K).shifted(c) @ M
    stop = lg.Stop(20000, tol=1e-11)
    found = lg.solve(energy, x0=torch.zeros(1, 7).double(), stop=stop).x
    matrix = lg.Dense(K(M(eye.unsqueeze(1))).squeeze(1).T)
    plain = lg.SquaredDistance(y) + lg.L1(0.2).shifted(K(c.expand(1, 7))) @ matrix
    torch.testing.assert_close(found, lg.solve(plain, stop=stop).x, atol=1e-7, rtol=0)
    assert float((found - y).abs().max()) > 0.05


def test_a_shift_behind_one_operator():
    y, c = randn(7), randn(7, seed=2)
    data = lg.Smooth(lambda x: 0.5 * (x - y) ** 2, 1.0)
    D, stop = lg.Differences((-1,)), lg.Stop(20000, tol=1e-11)
    zero = torch.zeros(7).double()
    found = lg.solve(data + (lg.L1(0.3) @ D).shifted(c), x0=zero, stop=stop).x
    moved = lg.solve(lg.SquaredDistance(y - c) + lg.L1(0.3) @ D, stop=stop).x + c
    torch.testing.assert_close(found, moved, atol=1e-7, rtol=0)


def test_a_number_that_shifts_where_no_term_says_how_large_x_is():
    """‖2(Mx − c)‖₁ = 2‖Mx − c‖₁."""
    y, c, zero = randn(1, 7), torch.tensor(0.3).double(), torch.zeros(1, 7).double()
    data = lg.Smooth(lambda x: 0.5 * (x - y) ** 2, 1.0)
    M, stop = lg.Convolution(torch.tensor([[KERNELS[1]]]).double()), lg.Stop(20000, tol=1e-11)
    energy = data + (lg.L1(0.2) @ (lg.Identity() * 2.0)).shifted(c) @ M
    assert energy.start() is None
    found = lg.solve(energy, x0=zero, stop=stop).x
    plain = lg.solve(data + lg.L1(0.4).shifted(c) @ M, x0=zero, stop=stop).x
    torch.testing.assert_close(found, plain, atol=1e-8, rtol=0)
    assert float((found - y).abs().max()) > 0.05
