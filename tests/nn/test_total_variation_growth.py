"""Derivatives of very many accelerated iterations: right, or warned about."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import legato as lg
from legato.errors import InexactGradientWarning
from legato.nn import TotalVariation
from legato.nn.total_variation.growth import TRUSTED_ITERATIONS, watch, watched
from legato.nn.total_variation.model import RESTART_AFTER, momentum


def noisy(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.zeros(48, 48, dtype=torch.float64)
    clean[10:30, 12:34] = 1.0
    noise = 0.2 * torch.randn(48, 48, generator=generator, dtype=torch.float64)
    return (clean + noise)[None, None].to(dtype)


def gradient(layer: TotalVariation, dtype: torch.dtype) -> float:
    weight = torch.tensor(0.2, dtype=dtype, requires_grad=True)
    layer(noisy(dtype), weight).pow(3).sum().backward()
    return float(weight.grad)


def test_momentum_starts_anew():
    whole = momentum(3 * RESTART_AFTER)
    assert (
        whole[:RESTART_AFTER]
        == whole[RESTART_AFTER : 2 * RESTART_AFTER]
        == whole[2 * RESTART_AFTER :]
    )
    assert whole[RESTART_AFTER] == 0.0
    assert momentum(7, first=RESTART_AFTER - 3) == whole[RESTART_AFTER - 3 : RESTART_AFTER + 4]


@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_long_unrolling_agrees_with_the_solution(kernel):
    """Without restarts the λ-gradient of accelerated iterates swings by per cents here."""
    if kernel == "numba":
        pytest.importorskip("numba")
    unrolled = TotalVariation(
        1600, isotropic=False, kernel=kernel, gradient=lg.Unroll(checkpoint="sqrt")
    )
    implicit = TotalVariation(3000, isotropic=False, gradient=lg.Implicit(lg.CG(1e-10)))
    expected = gradient(implicit, torch.float64)
    assert gradient(unrolled, torch.float64) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_rounding_that_is_amplified_is_reported(kernel):
    """For which λ and images, rounding decides: here for 7 or 8 of 8 where it was counted."""
    if kernel == "numba":
        pytest.importorskip("numba")
    images = torch.cat([noisy(torch.float32, seed) for seed in range(8)])
    weight = torch.tensor(0.2, requires_grad=True)
    layer = TotalVariation(4000, kernel=kernel, gradient=lg.Unroll(checkpoint="sqrt"))
    with pytest.warns(InexactGradientWarning, match=r"4000 iterations.*Implicit\(CG\(\)\)"):
        layer(images, weight).pow(3).sum().backward()


@pytest.mark.parametrize(
    ("factor", "reported"), [(1.0, False), (1.05, False), (1.2, True), (math.nan, True)]
)
@pytest.mark.parametrize("iterations", [TRUSTED_ITERATIONS, TRUSTED_ITERATIONS + 1])
def test_what_one_image_grows_by_is_reported(factor, reported, iterations):
    factors = torch.tensor([1.0, factor, 0.5])[:, None, None, None]
    image, bars = watched(torch.ones(3, 1, 4, 5), iterations)
    u = factors * image
    watch((u, u.detach(), u.detach()), bars)
    reported = reported and iterations > TRUSTED_ITERATIONS
    expected = pytest.warns(InexactGradientWarning, match="is not that of its solution")
    with expected if reported else warnings.catch_warnings():
        if not reported:
            warnings.simplefilter("error")
        if u.requires_grad:
            u.sum().backward()


def test_few_iterations_are_silent():
    for iterations in (50, 150, 300):
        layer = TotalVariation(iterations)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gradient(layer, torch.float64)
