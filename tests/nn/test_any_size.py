"""Laws of fused layers hold in the stated range of magnitudes, and outside it an error says so."""

from __future__ import annotations

import pytest
import torch

from error_words import raises
from legato import errors
from legato._support.checks import RANGE
from legato.nn import Potts, TotalVariation

SIZES = [(torch.float32, 1e-8), (torch.float32, 1e8), (torch.float64, 1e-73)]
SIZES += [(torch.float64, 1e73)]
each_size = pytest.mark.parametrize(("dtype", "size"), SIZES, ids=str)
each_kernel = pytest.mark.parametrize("kernel", ["numba", "reference"])
generator = torch.Generator().manual_seed(0)
IMAGE = torch.randn(1, 2, 6, 7, generator=generator, dtype=torch.float64)
COST = torch.randn(1, 3, 6, 7, generator=generator, dtype=torch.float64)
WEIGHTS = 0.3 + torch.rand(1, 1, 1, 6, 7, generator=generator, dtype=torch.float64)


@each_size
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("isotropic", [False, True])
@each_kernel
def test_total_variation(kernel, isotropic, joint, dtype, size):
    if kernel == "numba":
        pytest.importorskip("numba")
    layer = TotalVariation(40, isotropic=isotropic, joint_channels=joint, kernel=kernel)
    image = IMAGE.to(dtype)

    def both(unit: float) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.tensor(0.2 * unit, dtype=dtype, requires_grad=True)
        u = layer(unit * image, weight)
        (grad,) = torch.autograd.grad((u * image).sum(), weight)
        return u.detach() / unit, grad  # of degree 1 and 0

    for found, expected in zip(both(size), both(1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@each_size
@each_kernel
def test_potts(kernel, dtype, size):
    if kernel == "numba":
        pytest.importorskip("numba")
    layer, cost, weights = Potts(40, kernel=kernel), COST.to(dtype), WEIGHTS.to(dtype)
    expected = layer(cost, weights)
    found = layer(size * cost, size * weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", RANGE)
@pytest.mark.parametrize("sign", [1, -1])
def test_outside_the_range_an_error_says_so(dtype, sign):
    image, cost = IMAGE.to(dtype), COST.to(dtype)
    size = (100 * RANGE[dtype]) ** sign
    words = ["largest entry", str(dtype), "between", "size of 1"]
    if dtype == torch.float32:
        words.append("use float64")
    with raises(errors.InputError, *words):
        TotalVariation(3)(size * image, 0.1)
    with raises(errors.InputError, *words):
        Potts(3)(size * cost)
    if sign > 0:
        with raises(errors.InputError, *words):
            TotalVariation(3)(image, size)
        with raises(errors.InputError, *words):
            Potts(3)(cost, size)
    else:  # what is small against the data is as good as zero
        torch.testing.assert_close(TotalVariation(3)(image, size), image)
        torch.testing.assert_close(Potts(3)(cost, size), Potts(3)(cost, 0.0))


def test_zero_is_in_the_range():
    assert not TotalVariation(3)(torch.zeros(1, 1, 3, 4), 0.1).any()
    torch.testing.assert_close(
        Potts(3)(torch.zeros(1, 2, 3, 4)).exp(), torch.full((1, 2, 3, 4), 0.5)
    )
