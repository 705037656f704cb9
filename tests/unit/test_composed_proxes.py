"""Proxes behind orthonormal and diagonal operators, of least squares, and steps that are none."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from draws import crandn, randn
from legato import errors

Y = randn(2, 4, 4, seed=1)
A, B = randn(3, 4, seed=2), randn(3, seed=3)
D = torch.tensor([1.0, 0.0, -2.0, 0.5]).double()
CASES = {
    "wavelet": lg.L1(0.3) @ lg.Wavelet(1),
    "multiple of a wavelet": lg.L1(0.3) @ (-1.5 * lg.Wavelet(2)),
    "its adjoint": lg.L1(0.3) @ lg.Wavelet(1).T,
    "diagonal": lg.L1(0.3) @ lg.Diagonal(D),
    "multiple": lg.GroupL1(0.4) @ (2.0 * lg.Identity()),
    "with a linear term": lg.L1(0.3) @ lg.Wavelet(1) + lg.Linear(D),
    "least squares": lg.LeastSquares(A, B),
    "least squares of a blur": lg.LeastSquares(lg.Blur(torch.rand(3, 3).double()), Y),
    "least squares by conjugate gradients": lg.LeastSquares(lg.Radon([0.0, 0.5], 4), randn(2, 6)),
    "quadratic": lg.Quadratic(A.mT @ A, D),
    "a distance behind a matrix": lg.SquaredDistance(B) @ A,
}


def matrix_of(K, n):
    return torch.stack([K(e.reshape(4, 4)).flatten() for e in torch.eye(n).double()], 1).numpy()


def test_against_cvxpy():
    K, D2 = matrix_of(lg.Wavelet(1), 16), np.tile(D.numpy(), 4)
    for g, penalty in (
        (CASES["wavelet"], lambda x: 0.3 * cp.norm1(K @ x)),
        (CASES["diagonal"], lambda x: 0.3 * cp.norm1(cp.multiply(D2, x))),
        (lg.LeastSquares(A, B), lambda x: sum(0.5 * cp.sum_squares(A.numpy() @ x[i : i + 4] - B)
                                              for i in (0, 4, 8, 12))),
    ):  # fmt: skip
        x = cp.Variable(16)
        objective = 0.7 * penalty(x) + 0.5 * cp.sum_squares(x - Y[0].flatten().numpy())
        cp.Problem(cp.Minimize(objective)).solve(solver="CLARABEL")
        np.testing.assert_allclose(g.prox(Y, 0.7)[0].flatten().numpy(), x.value, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_nothing_near_a_prox_is_lower_and_its_derivative_is_right(name):
    g = CASES[name]
    x = g.prox(Y, 0.7)

    def energy(z):
        return float(0.7 * g(z) + 0.5 * (z - Y).square().sum())

    for seed in range(8):
        for size in (1e-3, 1e-1):
            assert energy(x + size * randn(*Y.shape, seed=seed)) > energy(x)
    small = Y[:1].clone().requires_grad_() if "blur" not in name else Y.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: g.prox(t, 0.7), (small,), fast_mode=True)
    assert torch.equal(g.prox(Y, 0.0), Y) or torch.allclose(g.prox(Y, 0.0), Y)


def test_frequencies_are_thresholded():
    y = crandn(4, 4, seed=5)
    g = lg.L1(0.3) @ lg.Fourier()
    found = torch.fft.fft2(g.prox(y, 0.7), norm="ortho")
    torch.testing.assert_close(found, lg.L1(0.3).prox(torch.fft.fft2(y, norm="ortho"), 0.7))
    with pytest.raises(errors.InputError, match="complex variables"):
        g.prox(Y)


def test_learned_factors_have_derivatives_also_at_zero():
    for value in (0.0, 0.8):
        c = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        found = (lg.L1(0.3) @ (c * lg.Identity())).prox(Y)
        expected = lg.L1(0.3 * abs(value)).prox(Y)
        torch.testing.assert_close(found.detach(), expected)
        (slope,) = torch.autograd.grad(found.sum(), c)
        assert torch.isfinite(slope)


def test_what_has_no_closed_form_is_refused():
    with pytest.raises(errors.InputError, match="orthonormal operators"):
        (lg.L1() @ lg.Differences()).prox(Y)
    with pytest.raises(errors.InputError, match="orthonormal operators"):
        (lg.GroupL1() @ lg.Diagonal(D)).prox(Y)


@pytest.mark.parametrize("step", [-1.0, -1, float("nan"), torch.tensor(-2.0)])
def test_negative_steps_are_refused(step):
    with pytest.raises(errors.InputError, match="must be at least 0"):
        lg.L1().prox(Y, step)
    with pytest.raises(errors.InputError, match="must be at least 0"):
        lg.prox(lg.L1(), lg.Euclidean(), Y, step)
    with pytest.raises(errors.InputError, match="number or a tensor"):
        lg.L1().prox(Y, "1")
