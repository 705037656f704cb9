"""The layer after a network: padding, precision, what it is without coupling."""

import pytest
import torch
from torch import nn

from legato.errors import InputError
from legato.studies.segment.data import Sample, collate
from legato.studies.segment.global_layer import (
    GlobalLayer,
    ImageContrast,
    LearnedEdges,
    Segmenter,
    UniformWeights,
)
from legato.studies.segment.model import attach
from legato.studies.segment.networks import Scores, SmallNet
from legato.studies.segment.settings import LayerSettings
from legato.studies.segment.weight_pictures import weight_pictures

SIZES = ((9, 12), (7, 5), (12, 8))


class Fixed(nn.Module):
    """Weights that depend on each pixel's colour alone, so that padding cannot reach them."""

    def __init__(self, directions):
        super().__init__()
        self.mix = nn.Conv2d(3, 3 * directions, 1)
        nn.init.normal_(self.mix.weight, std=3.0)

    def forward(self, image, features):
        return torch.sigmoid(self.mix(image)).unflatten(1, (3, -1))


@pytest.fixture(scope="module")
def padded():
    rng = torch.Generator().manual_seed(0)
    samples = [
        Sample(
            torch.randint(256, (3, *size), generator=rng, dtype=torch.uint8),
            torch.zeros(size, dtype=torch.uint8),
            str(size),
        )
        for size in SIZES
    ]
    return collate(samples, multiple=16), torch.randn(3, 3, 16, 16, generator=rng)


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("kind", ["fixed", "uniform"])
def test_a_padded_image_is_segmented_as_if_alone(padded, neighbours, kind):
    batch, logits = padded
    torch.manual_seed(1)
    weights = UniformWeights(0.7) if kind == "uniform" else Fixed(neighbours // 2)
    layer = GlobalLayer(
        weights, iterations=40, neighbours=neighbours, bounded=kind == "fixed", kernel="reference"
    )
    with torch.no_grad():
        layer.scale.log_scale.add_(1.5)
        together = layer(batch.image, Scores(logits), batch.inside).probabilities
        careless = layer(batch.image, Scores(logits), None).probabilities
        for index, (h, w) in enumerate(SIZES):
            own = batch.image[index : index + 1, :, :h, :w]
            alone = layer(own, Scores(logits[index : index + 1, :, :h, :w])).probabilities[0]
            inner = together[index, :, :h, :w]
            # Up to the last bit: vector units compute exp of other groups of pixels at a time.
            torch.testing.assert_close(inner, alone, rtol=0, atol=2e-5)
            assert torch.equal(inner.argmax(0), alone.argmax(0))
            # The mask is what does it.
            assert float((careless[index, :, :h, :w] - alone).abs().max()) > 1e-2


def test_padding_of_learned_weights_is_cut_off(padded):
    batch, logits = padded
    torch.manual_seed(1)
    layer = GlobalLayer(LearnedEdges((), 3, 8), neighbours=8, bounded=True, kernel="reference")
    output = layer(batch.image, Scores(logits), batch.inside)
    for index, (h, w) in enumerate(SIZES):
        inner = output.weights[index].detach()
        assert float(inner[..., h:, :].abs().max()) == 0  # nothing outside
        assert float(inner[..., :, w:].abs().max()) == 0
        assert float(inner[:, 0, h - 1].abs().max()) == 0  # nothing across the lower border
        assert float(inner[:, 1, :, w - 1].abs().max()) == 0  # nor the right
        assert float(inner[:, 3, :h, 0].abs().max()) == 0  # a diagonal to the left
        assert float(inner[:, 0, : h - 1, :w].min()) > 0


def test_where_the_layer_starts_is_near_the_networks_softmax():
    """With weights towards 0 the layer is the network's softmax."""
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 6, 7)
    layer = GlobalLayer(LearnedEdges((), 3, initial=1e-6), bounded=True, kernel="reference")
    found = layer(torch.rand(1, 3, 6, 7), Scores(logits)).probabilities
    torch.testing.assert_close(found, logits.softmax(1), rtol=1e-3, atol=1e-4)


def test_contrast_weights_follow_edges():
    image = torch.zeros(1, 3, 4, 6)
    image[..., 3:] = 1.0
    weights = ImageContrast()(image, ()).detach()
    assert float(weights[0, 0, 1, :, 2].max()) < 0.5 * float(weights[0, 0, 1, :, 0].min())


@pytest.mark.parametrize("weights", ["uniform", "contrast", "learned"])
def test_the_solver_computes_in_float32_under_autocast(weights):
    torch.manual_seed(0)
    model = attach(SmallNet(3, width=4), LayerSettings(weights, iterations=4), 3)
    model.layer.potts.kernel = "reference"
    seen = {}
    model.layer.potts.register_forward_hook(
        lambda module, inputs, output: seen.update(inputs=inputs, output=output)
    )
    model.network.fourth.register_forward_hook(
        lambda module, inputs, output: seen.update(network=output)
    )
    image = torch.rand(1, 3, 12, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(image)
    assert seen["network"].dtype == torch.bfloat16  # autocast was on
    assert [t.dtype for t in seen["inputs"]] == [torch.float32] * 2
    assert found.output.probabilities.dtype == torch.float32
    assert found.output.log_probabilities.dtype == torch.float32
    assert found.output.y.dtype == torch.float32
    with torch.no_grad():
        model.layer.potts.register_forward_hook(lambda *args: None)
        again = model.layer.potts(*(t.detach() for t in seen["inputs"])).probabilities
    assert torch.equal(found.probabilities, again)  # autocast changed nothing inside
    found.output.log_probabilities.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_any_module_that_returns_logits():
    model = attach(nn.Conv2d(3, 2, 1), LayerSettings("contrast", iterations=3), 2)
    model.layer.potts.kernel = "reference"
    found = model(torch.rand(2, 3, 5, 6))
    assert found.labels.shape == (2, 5, 6)
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(2, 5, 6))


def test_logits_of_another_size():
    with pytest.raises(InputError, match=r"size \(3, 3\) for images of size \(6, 6\)"):
        Segmenter(nn.Conv2d(3, 2, 1, stride=2))(torch.rand(1, 3, 6, 6))


def test_learned_weights_need_a_network_that_tells_its_channels():
    with pytest.raises(InputError, match="does not say how many channels"):
        attach(nn.Conv2d(3, 2, 1), LayerSettings("learned"), 2)


def test_pictures_of_weights(study):
    torch.manual_seed(0)
    model = study.model(study.settings)
    nn.init.normal_(model.layer.weights.head.weight, std=1.0)
    found = weight_pictures(model, study.data, "cpu")
    assert set(found) == set(study.data.names)
    sample = study.data[0]
    image = sample.image[None] / 255
    weights = model.layer.weights(image, model.network(image).features)[0].mean((0, 1)).detach()
    picture = found[sample.name]
    assert picture.dtype == torch.uint8
    assert picture.shape == sample.labels.shape
    assert float((picture.float() / 255 - weights).abs().max()) <= 0.5 / 255 + 1e-6


def test_pictures_of_weights_that_are_one_number(study):
    model = attach(SmallNet(3, width=2), LayerSettings("uniform"), 3)
    found = weight_pictures(model, [study.data[0]], "cpu")[study.data[0].name]
    assert found.shape == study.data[0].labels.shape
    assert bool((found == 255).all())
    with pytest.raises(InputError, match="no global layer"):
        weight_pictures(Segmenter(SmallNet(3, width=2)), [study.data[0]], "cpu")
