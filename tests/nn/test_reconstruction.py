"""The reconstruction layer against cvxpy, dense algebra, finite differences, and bad input."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import legato as lg
from draws import crandn, rand, randn
from legato.errors import InputError
from legato.nn import TV, ConvexRidges, ConvexSpline, Filters, Reconstruction, Weight, WeightMap
from legato.nn.reconstruction.layer import least_squares
from legato.nn.reconstruction.spectral import SpectralLeastSquares, filtered
from legato.testing import check_prox

KERNEL = torch.tensor([[0.0, 0.2, 0.0], [0.1, 0.4, 0.1], [0.0, 0.1, 0.1]], dtype=torch.float64)
BLUR = lg.Blur(KERNEL)


def pictures(count: int = 1, size: int = 6) -> Tensor:
    return rand(count, 1, size, size, seed=3)


def matrix_of(operator: lg.Operator, like: Tensor) -> Tensor:
    basis = torch.eye(like.numel(), dtype=like.dtype).reshape(-1, *like.shape)
    return torch.stack([operator(e).flatten() for e in basis], 1)


def test_total_variation_behind_a_blur_is_that_of_a_conic_solver() -> None:
    y = BLUR(pictures()) + 0.05 * randn(1, 1, 6, 6)
    A = matrix_of(BLUR, y[0, 0]).numpy()
    x = cp.Variable((6, 6))
    square = 0.5 * cp.sum_squares(A @ cp.vec(x, order="C") - y.flatten().numpy())
    down = cp.vstack([x[1:] - x[:-1], 0 * x[:1]])
    right = cp.hstack([x[:, 1:] - x[:, :-1], 0 * x[:, :1]])
    both = cp.vstack([cp.vec(down, order="C"), cp.vec(right, order="C")])
    problem = cp.Problem(cp.Minimize(square + 0.05 * cp.sum(cp.norm(both, 2, axis=0))))
    problem.solve(solver=cp.CLARABEL)
    layer = Reconstruction(BLUR, TV(0.05), iterations=1500, balance=3.0).double()
    torch.testing.assert_close(
        layer(y).detach()[0, 0], torch.from_numpy(x.value), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kernel", [KERNEL, rand(2, 4, seed=7), rand(3, seed=8)])
def test_the_prox_of_a_circular_blur_is_that_of_its_matrix(kernel: Tensor) -> None:
    """For kernels of even size, too, and odd and even pictures."""
    for shape in ((5, 6), (6, 5)):
        A, y, v = lg.Blur(kernel), randn(*shape, seed=1), randn(*shape, seed=2)
        g = SpectralLeastSquares(A, y)
        M = (
            matrix_of(A, y)
            if kernel.ndim == 2
            else torch.block_diag(*[matrix_of(A, y[0])] * len(y))
        )
        found = g.prox(v, 0.7).flatten()
        right = v.flatten() + 0.7 * M.mT @ y.flatten()
        true = torch.linalg.solve(torch.eye(len(M)).double() + 0.7 * M.mT @ M, right)
        torch.testing.assert_close(found, true)
        slope = (M.mT @ (M @ v.flatten() - y.flatten())).reshape(shape)
        value = (slope * v).sum() - g(v)
        torch.testing.assert_close(g.conjugate()(slope), value)


def test_laws_of_the_data_term_and_the_spline() -> None:
    g = SpectralLeastSquares(BLUR, randn(5, 6))
    check_prox(g, lg.Euclidean(), randn(5, 6, seed=1), step=0.5)
    spline = ConvexSpline(rand(3, 1, 4, seed=5), 0.3)
    points = randn(3, 7, seed=6)
    torch.testing.assert_close(
        spline.conjugate()(spline.grad(points)) + spline(points),
        (points * spline.grad(points)).sum(),
    )
    leaf = rand(3, 1, 4, seed=5).requires_grad_()
    x = randn(3, 7, seed=6)
    assert torch.autograd.gradcheck(
        lambda c, x: ConvexSpline(c, 0.3).grad(x), (leaf, x.requires_grad_())
    )
    far = ConvexSpline(torch.tensor([2.0, 1.0]))
    assert torch.equal(far.grad(torch.tensor([-9.0, 0.0, 1e30])), torch.tensor([-3.0, 0.0, 3.0]))
    assert bool(far(torch.tensor(torch.nan)).isnan())


def slopes(layer: Reconstruction, y: Tensor, parameter: Tensor, place: int) -> tuple[float, float]:
    """A derivative of ⟨w, x⟩ by the layer and by differences."""
    w = randn(*layer(y).shape, seed=9)

    def value() -> Tensor:
        return (w * layer(y)).sum()

    (found,) = torch.autograd.grad(value(), parameter)
    with torch.no_grad():
        flat = parameter.view(-1)
        start = float(flat[place])
        flat[place] = start + 1e-6
        up = value()
        flat[place] = start - 1e-6
        down = value()
        flat[place] = start
    return float(found.flatten()[place]), float((up - down) / 2e-6)


@pytest.mark.parametrize(
    ("prior", "gradient"),
    [
        (TV(0.02), lg.Unroll()),
        (TV(WeightMap(weight=0.02, width=4)), lg.Unroll()),
        (Filters(8, 3, weight=0.01, potential=lambda w: lg.Huber(0.1, w)), lg.Implicit()),
        (ConvexRidges(8, 3, intervals=20), lg.Implicit(lg.CG())),
        (Filters(8, 3, weight=0.01), lg.Unroll(checkpoint="sqrt")),
    ],
    ids=["TV", "λ(y)", "Huber", "ridges", "filters"],
)
def test_derivatives_are_those_of_differences(prior: Any, gradient: Any) -> None:
    implicit = isinstance(gradient, lg.Implicit)
    layer = Reconstruction(
        BLUR, prior, ridge=0.05, gradient=gradient,
        iterations=5000 if implicit else 30, tol=1e-12 if implicit else None,
        algorithm=None if implicit else lg.PrimalDual(balance=100.0, norm=4.0),  # steps are fixed
    ).double()  # fmt: skip
    y = BLUR(pictures(size=8))
    for parameter in list(prior.parameters())[:2]:
        found, true = slopes(layer, y, parameter, parameter.numel() // 2)
        assert math.isclose(found, true, rel_tol=2e-4, abs_tol=1e-7), (found, true)


def test_gap_and_error_bound_what_is_missing() -> None:
    y = BLUR(pictures(3, 8)) + 0.05 * randn(3, 1, 8, 8)
    cases: list[Any] = [
        (TV(0.05), {"ridge": 0.1}),
        (TV(0.05), {"box": (0.0, 1.0)}),
        (ConvexRidges(4, 3, intervals=5), {"box": (0.0, 1.0), "ridge": 0.1}),
    ]
    for prior, options in cases:
        truth = Reconstruction(BLUR, prior, iterations=700, balance=3.0, **options).double()(y)
        record = (
            Reconstruction(BLUR, prior, iterations=15, balance=3.0, **options).double().solve(y)
        )
        x = record.x.detach()
        missing = record.problem.objective(x) - record.problem.objective(truth.detach())
        assert missing.shape == record.gap.shape
        assert bool((missing <= record.gap + 1e-10).all())
        assert bool((record.gap < 10).all())
        distance = (x - truth.detach()).flatten(1).norm(dim=1)
        assert bool((distance <= record.error.reshape(len(y)) + 1e-6).all())
    loose = Reconstruction(lg.Mask(torch.eye(8).double()), TV(0.05)).double().solve(y)
    assert bool(torch.isinf(loose.error).all())


def test_a_batch_is_its_singles_and_an_engine_changes_nothing() -> None:
    y = BLUR(pictures(3, 8))
    for prior in (TV(WeightMap(weight=0.02, width=4)), Filters(4, 3)):
        layer = Reconstruction(BLUR, prior, iterations=25).double()
        together = layer(y)
        alone = torch.cat([layer(one[None]) for one in y])
        torch.testing.assert_close(together, alone)
        together.square().sum().backward()
        first = [p.grad.clone() for p in prior.parameters() if p.grad is not None]
        prior.zero_grad()
        with lg.Replayed():
            layer(y).square().sum().backward()
        again = [p.grad for p in prior.parameters() if p.grad is not None]
        torch.testing.assert_close(first, again)


def test_counts_of_a_projection() -> None:
    K = lg.Radon(torch.linspace(0, math.pi, 7)[:-1], 8)
    truth = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    truth[..., 2:6, 3:6] = 1
    counts = torch.poisson(200 * K(truth), generator=torch.Generator().manual_seed(0)) / 200
    layer = Reconstruction(
        K, TV(0.01), data=lg.KullbackLeibler, box=(0, 5), iterations=300, balance=3.0
    ).double()
    assert (layer(counts) - truth).norm() < 0.2 * truth.norm()
    with pytest.raises(InputError, match="counts y ≥ 0"):
        layer(-counts - 1)


def test_fit_lends_its_inner_solver() -> None:
    prior = ConvexRidges(8, 3, intervals=10).double()
    truth = pictures(2, 8)
    y = truth + 0.1 * randn(2, 1, 8, 8)
    layer = Reconstruction(
        lg.Identity(), prior, iterations=2000, tol=1e-9, gradient=lg.Implicit(lg.CG())
    )

    def loss(inner: Any) -> Tensor:
        return (layer.solve(y, inner=inner).x - truth).square().mean()

    done = lg.fit(
        loss, list(prior.parameters()), lg.optim.IPiano, steps=4, inexact=lg.bilevel.MAID()
    )
    assert done.history.records[-1].loss < done.history.records[0].loss
    assert float(prior.weight(y).detach()) != 1.0


@pytest.mark.parametrize("grows", [False, True])
def test_the_prox_behind_a_blur_is_differentiated_in_all_that_it_takes(grows: bool) -> None:
    """The picture, the symbol, real or complex, and the spectrum, for even and odd sizes."""
    size = (6, 5) if grows else (5, 8)
    x = randn(2, *size)
    half = (size[0], size[1] // 2 + 1)
    spectrum = crandn(2, *half).requires_grad_()
    for symbol in (randn(*half), crandn(*half)):
        inputs = (x.clone().requires_grad_(), symbol.requires_grad_(), spectrum)
        take = partial(filtered, axes=(-2, -1))
        assert torch.autograd.gradcheck(take, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(take, inputs)


@pytest.mark.parametrize("size", [1.0, 255.0, 1e-3])
def test_the_balance_follows_the_unit_of_the_picture(size: float) -> None:
    """In any unit and for each element of a batch the iterations are the same."""
    y = BLUR(pictures(2, 12)) + 0.05 * randn(2, 1, 12, 12)
    unit = torch.tensor([1.0, size]).double()[:, None, None, None]
    weight = torch.full((2, 1, 12, 12), 0.02).double()
    once, prior = Reconstruction(BLUR, TV(weight), iterations=40).double()(y), TV(unit * weight)
    scaled = Reconstruction(BLUR, prior, iterations=40).double()(unit * y)
    torch.testing.assert_close(scaled / unit, once, atol=1e-9, rtol=1e-9)


def test_a_balance_has_the_shape_of_the_batch() -> None:
    energy = lg.SquaredDistance(pictures(2, 6)[:, 0]) + lg.IsotropicTV(0.1)
    for balance in (torch.ones(3).double(), torch.ones(2, 1, 1).double()):
        with pytest.raises(InputError, match="one for each element of the batch"):
            lg.solve(energy, lg.PrimalDual(balance=balance))
    each = torch.tensor([1.0, 5.0]).double()
    stop = lg.Stop(20)
    together = lg.solve(energy, lg.PrimalDual(balance=each), stop=stop).x
    for one, balance, y in zip(together, each, pictures(2, 6)[:, 0], strict=True):
        alone = lg.SquaredDistance(y) + lg.IsotropicTV(0.1)
        found = lg.solve(alone, lg.PrimalDual(balance=float(balance)), stop=stop).x
        torch.testing.assert_close(one, found, atol=1e-12, rtol=1e-12)
    with pytest.raises(InputError, match="Diagonal steps need one number"):
        lg.solve(energy, lg.PrimalDual(balance=each, precondition=True))


def test_the_derivative_counts_the_balance() -> None:
    prior = TV(0.02)
    layer = Reconstruction(BLUR, prior, iterations=7).double()
    y = BLUR(pictures(2, 8)) + 0.05 * randn(2, 1, 8, 8)
    found, true = slopes(layer, y, prior.weight.log, 0)
    assert math.isclose(found, true, rel_tol=1e-5), (found, true)
    flat = torch.full((1, 1, 8, 8), 0.5).double().requires_grad_()
    layer(flat).sum().backward()
    assert flat.grad is not None
    assert bool(torch.isfinite(flat.grad).all())


def test_first_images_solve_the_normal_equations() -> None:
    A = randn(5, 3, seed=1)
    y = randn(4, 5, seed=2)
    true = torch.linalg.lstsq(A, y.mT).solution.mT
    torch.testing.assert_close(least_squares(lg.Dense(A), y, 3), true)
    assert torch.equal(least_squares(lg.Dense(A), 0 * y, 9), torch.zeros(4, 3).double())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Reconstruction(BLUR, 0.1), "must be a module"),  # type: ignore[arg-type]
        (lambda: Reconstruction(BLUR, TV(0.1), ridge=-1.0), "ridge must be"),
        (lambda: Reconstruction(BLUR, TV(0.1), box=(1.0, 0.0)), "at most"),
        (lambda: Reconstruction(BLUR, TV(0.1))(3), "must be a tensor"),  # type: ignore[arg-type]
        (lambda: Reconstruction(BLUR, TV(0.1))(torch.zeros(2, 0, 6, 6)), "empty"),
        (lambda: Reconstruction(BLUR, TV(0.1))(torch.ones(1, 1, 4, 4).long()), "float"),
        (lambda: Reconstruction(BLUR, TV(0.1))(torch.full((1, 1, 4, 4), torch.nan)), "NaN"),
        (lambda: Reconstruction(BLUR, torch.nn.Identity())(pictures()), "returns a term"),
        (lambda: Reconstruction(BLUR, TV(0.1)).double()(torch.ones(1, 1, 2, 2).double()), "kernel"),
        (lambda: TV(-1.0), "positive"),
        (lambda: Weight(torch.tensor([1.0, 0.0])), "positive"),
        (lambda: WeightMap(3, torch.ones(2)), "2 entries"),
        (lambda: WeightMap()(torch.ones(1, 3, 8, 8)), "channels into a batch"),
        (lambda: Filters(4, 3).set_filters(torch.ones(4, 1, 3, 3)), "mean zero"),
        (lambda: ConvexSpline(torch.ones(2), -1.0), "spacing"),
        (lambda: ConvexSpline(torch.tensor(1.0)), "last axis"),
    ],
)
def test_bad_input_is_refused_in_words(wrong: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        wrong()


def test_a_complex_image_behind_a_real_blur_is_two_real_ones():
    """With a quadratic regulariser real and imaginary parts do not meet."""

    class Ridge(torch.nn.Module):
        def forward(self, image):
            return lg.SquaredNorm(0.1)

    blur = lg.Blur(torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64))
    y = crandn(1, 1, 6, 8, seed=3)
    layer = Reconstruction(blur, Ridge(), iterations=300)
    whole, real, imaginary = (layer(t) for t in (y, y.real, y.imag))
    torch.testing.assert_close(whole, torch.complex(real, imaginary), atol=1e-6, rtol=0)
