"""The two losses, against the library's and against their bounds."""

import math

import pytest
import torch

from legato.nn import log_loss, softmax_loss
from legato.studies.segment.data import IGNORE
from legato.studies.segment.global_layer import GlobalLayer, Segmentation, UniformWeights
from legato.studies.segment.networks import Scores
from legato.studies.segment.pixel_loss import pixel_loss


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    scores = Scores(8 * torch.randn(2, 3, 6, 7))
    layer = GlobalLayer(UniformWeights(), iterations=30, kernel="reference")
    with torch.no_grad():
        layer.scale.log_scale.add_(3.0)  # probabilities near 0 and 1
        return Segmentation(scores, layer(torch.rand(2, 3, 6, 7), scores))


@pytest.fixture(scope="module")
def labels():
    labels = torch.randint(3, (2, 6, 7), generator=torch.Generator().manual_seed(1))
    labels[0, :2] = IGNORE
    return labels


@pytest.mark.parametrize(("kind", "library"), [("paper", softmax_loss), ("log", log_loss)])
def test_it_is_the_librarys_loss_as_a_sum(found, labels, kind, library):
    count = int((labels != IGNORE).sum())
    mean = library(found.output, labels, ignore_index=IGNORE)
    torch.testing.assert_close(pixel_loss(found, labels, kind) / count, mean)


def test_the_papers_loss_has_bounds(found):
    """log(e + 2) − 1 = 0.551445 where a pixel is right, one more where it is wrong."""
    low, high = math.log(math.e + 2) - 1, math.log(math.e + 2)
    assert (round(low, 6), round(high, 6)) == (0.551445, 1.551445)
    values = []
    for label in range(3):
        for row in range(6):
            labels = torch.full((2, 6, 7), IGNORE)
            labels[1, row, 3] = label
            values.append(float(pixel_loss(found, labels, "paper")))
    assert low - 1e-6 <= min(values) < low + 0.05
    assert high - 0.05 < max(values) <= high + 1e-6


def test_without_a_layer_both_are_cross_entropy(found, labels):
    bare = Segmentation(found.scores, None)
    wanted = torch.nn.functional.cross_entropy(
        found.scores.logits, labels, ignore_index=IGNORE, reduction="sum"
    )
    for kind in ("paper", "log"):
        torch.testing.assert_close(pixel_loss(bare, labels, kind), wanted)


def test_no_labelled_pixel_costs_nothing(found):
    nothing = torch.full((2, 6, 7), IGNORE)
    assert float(pixel_loss(found, nothing, "log")) == 0
