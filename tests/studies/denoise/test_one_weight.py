"""One λ, by hypergradient and by grid; both have to find the same."""

import math

import pytest

from legato.errors import DivergenceError
from legato.gradients import Unroll
from legato.nn import TotalVariation
from legato.studies.denoise.images import draw_picture, middles
from legato.studies.denoise.one_weight import (
    TotalVariationLoss,
    _root,
    learn_weight,
    search_weight,
)

SIGMA = 25 / 255


@pytest.fixture(scope="module", params=[True, False], ids=["isotropic", "anisotropic"])
def loss(request):
    images = middles([draw_picture(seed) for seed in range(4)], 40)
    solver = TotalVariation(
        80, isotropic=request.param, gradient=Unroll(checkpoint="sqrt"), kernel="reference"
    )
    return TotalVariationLoss(images, SIGMA, solver)


def test_the_hypergradient_is_the_slope(loss):
    at, h = math.log(0.6 * SIGMA), 1e-2
    _, slope = loss.slope(at)
    right = (loss.value(at + h) - loss.value(at - h)) / (2 * h)
    assert slope == pytest.approx(right, rel=1e-2)


def test_bilevel_and_grid_agree(loss):
    """Within 2 %: on four small pictures the slope of 80 iterations crosses zero a few times."""
    bilevel, grid = learn_weight(loss, 0.3 * SIGMA), search_weight(loss, 0.3 * SIGMA)
    assert abs(bilevel.weight / grid.weight - 1) <= 0.02
    assert len(bilevel.weights) <= 1.5 * len(grid.weights)
    assert loss.value(math.log(bilevel.weight)) <= min(grid.losses) + 2e-3


@pytest.mark.parametrize("start", [-3.0, 0.0, 5.0])
def test_roots(start):
    assert _root(lambda x: math.tanh(x - 1.3), start, 1e-6) == pytest.approx(1.3, abs=1e-5)


def test_no_root_is_said():
    with pytest.raises(DivergenceError, match="sign"):
        _root(lambda x: 1.0, 0.0, 1e-6)
