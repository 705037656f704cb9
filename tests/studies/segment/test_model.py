"""A network with the layer after it: precision, losses, what it is without coupling."""

import pytest
import torch
from torch import nn

from legato.errors import InputError
from legato.nn import ContrastWeights, SoftmaxLoss
from legato.studies.segment.data import IGNORE
from legato.studies.segment.evaluation import weight_pictures
from legato.studies.segment.model import Segmenter, build
from legato.studies.segment.networks import SmallNet
from legato.studies.segment.settings import LayerSettings, ModelSettings

CLASSES = ("sky", "horizontal", "vertical")


def test_contrast_weights_follow_edges():
    image = torch.zeros(1, 3, 4, 6)
    image[..., 3:] = 1.0
    weights = ContrastWeights()(image).detach()
    assert float(weights[0, 0, 1, :, 2].max()) < 0.5 * float(weights[0, 0, 1, :, 0].min())


@pytest.mark.parametrize("weights", ["uniform", "contrast", "learned"])
def test_the_solver_computes_in_float32_under_autocast(weights):
    torch.manual_seed(0)
    model = build(ModelSettings(CLASSES, "small", LayerSettings(weights, iterations=4)))
    model.layer.potts.kernel = "reference"
    seen = {}
    model.layer.potts.register_forward_hook(
        lambda module, inputs, output: seen.update(inputs=inputs)
    )
    model.network.fourth.register_forward_hook(
        lambda module, inputs, output: seen.update(network=output)
    )
    image = torch.rand(1, 3, 12, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(image)
    assert seen["network"].dtype == torch.bfloat16  # autocast was on
    assert [t.dtype for t in seen["inputs"]] == [torch.float32] * 2
    assert found.dtype == torch.float32
    with torch.no_grad():
        cost, weights = (t.detach() for t in seen["inputs"])
        logits = -cost / model.layer.scale.scale
        model.layer.weights.forward = lambda *_: weights
        again = model.layer(logits, image)
    torch.testing.assert_close(found.detach(), again)  # autocast changed nothing inside
    found.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_any_module_that_returns_logits():
    settings = ModelSettings(("a", "b"), "custom", LayerSettings("contrast", iterations=3))
    model = build(settings, lambda classes: nn.Conv2d(3, classes, 1))
    model.layer.potts.kernel = "reference"
    found = model(torch.rand(2, 3, 5, 6))
    assert found.argmax(1).shape == (2, 5, 6)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(2, 5, 6))


@pytest.mark.parametrize("loss", ["paper", "log"])
def test_without_a_layer_both_losses_are_cross_entropy(study, loss):
    from legato.studies.segment.training import loss_of

    model = Segmenter(SmallNet(3, width=2))
    image = torch.rand(2, 3, 6, 7)
    model.requires_grad_(False)
    labels = torch.randint(3, (2, 6, 7), generator=torch.Generator().manual_seed(1))
    labels[0, :2] = IGNORE
    wanted = nn.functional.cross_entropy(model(image), labels, ignore_index=IGNORE, reduction="sum")
    found = loss_of(model, loss)
    torch.testing.assert_close(found(model(image), labels), wanted)
    assert float(found(model(image), torch.full_like(labels, IGNORE))) == 0
    layered = loss_of(study.model(study.settings), loss)
    assert isinstance(layered, SoftmaxLoss) == (loss == "paper")


def test_logits_of_another_size():
    with pytest.raises(InputError, match=r"size \(3, 3\) for images of size \(6, 6\)"):
        Segmenter(nn.Conv2d(3, 2, 1, stride=2))(torch.rand(1, 3, 6, 6))


def test_learned_weights_need_a_network_that_tells_its_channels():
    with pytest.raises(InputError, match="does not say how many channels"):
        build(
            ModelSettings(("a", "b"), "custom", LayerSettings("learned")),
            lambda classes: nn.Conv2d(3, classes, 1),
        )


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
    model = build(ModelSettings(CLASSES, "small", LayerSettings("uniform")))
    found = weight_pictures(model, [study.data[0]], "cpu")[study.data[0].name]
    assert found.shape == study.data[0].labels.shape
    assert bool((found == 255).all())
    with pytest.raises(InputError, match="no global layer"):
        weight_pictures(Segmenter(SmallNet(3, width=2)), [study.data[0]], "cpu")
