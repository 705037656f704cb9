"""Layers whose solutions scale with their data do so at every size that float32 has."""

from __future__ import annotations

import pytest
import torch

from legato.nn import Potts, TotalVariation

SIZES = [1e-30, 1e-20, 1e20, 1e30]


@pytest.fixture(scope="module")
def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "image": torch.randn(1, 2, 6, 7, generator=generator),
        "cost": torch.randn(1, 3, 6, 7, generator=generator),
        "weights": 0.3 + torch.rand(1, 1, 1, 6, 7, generator=generator),
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_total_variation(data, kernel, isotropic, joint, size):
    if kernel == "numba":
        pytest.importorskip("numba")
    layer = TotalVariation(40, isotropic=isotropic, joint_channels=joint, kernel=kernel)

    def both(unit: float) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.tensor(0.2 * unit, requires_grad=True)
        u = layer(unit * data["image"], weight).x
        (grad,) = torch.autograd.grad((u * data["image"]).sum(), weight)
        return u.detach() / unit, grad  # of degree 1 and 0

    for found, expected in zip(both(size), both(1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_potts(data, kernel, size):
    if kernel == "numba":
        pytest.importorskip("numba")
    layer = Potts(40, kernel=kernel)
    expected = layer(data["cost"], data["weights"]).probabilities
    found = layer(size * data["cost"], size * data["weights"]).probabilities
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
