"""Networks on images of every size, and where VGG-16's weights come from."""

import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from legato.errors import InputError
from legato.nn import LearnedEdges
from legato.studies.segment import networks
from legato.studies.segment.model import build, require_logits
from legato.studies.segment.networks import MEAN, VGG32, Scores, SmallNet, upsampled
from legato.studies.segment.settings import ModelSettings

SIZES = [(1, 1), (1, 7), (5, 7), (31, 32), (33, 65), (48, 64)]


@pytest.fixture(scope="module")
def vgg():
    torch.manual_seed(0)
    return VGG32(3, hidden=8).eval()


@pytest.mark.parametrize("size", SIZES)
def test_every_pixel_has_scores(vgg, size):
    image = torch.rand(1, 3, *size)
    for network in (SmallNet(4, width=8), vgg):
        found = network(image)
        classes = 3 if network is vgg else 4
        assert found.logits.shape == (1, classes, *size)
        assert found.logits.dtype == torch.float32
        assert [f.shape[1] for f in found.features] == list(network.channels)
        assert found.features[0].shape[-2:] == size


@pytest.mark.parametrize("size", SIZES)
def test_learned_weights_fit_features_of_odd_sizes(vgg, size):
    image = torch.rand(2, 3, *size)
    for network in (SmallNet(3, width=8), vgg):
        edges = LearnedEdges(network.channels, 3, neighbours=8, hidden=4)
        nn.init.normal_(edges.head.weight, std=0.3)  # as after a training
        weights = edges(image, network(image).features)
        assert weights.shape == (2, 3, 4, *size)
        assert bool((weights > 0).all())
        assert bool((weights < 1).all())
        assert size == (1, 1) or float(weights.detach().std()) > 0


def test_features_lie_where_the_image_is(vgg):
    """A feature of stride s, brought back to the image, is where it was, to half a stride."""
    edges = LearnedEdges((1, 1, 1), 1, hidden=1)
    with torch.no_grad():
        for part in (*edges.fine.project, edges.fine.mix, edges.head):
            part.weight.zero_()
            part.bias.zero_()
            part.weight[0, 0, 1, 1] = 1.0
        edges.fine.project[0].weight.zero_()
    for stride in (2, 4):
        feature = torch.zeros(1, 1, 8, 8)
        feature[0, 0, 3, 5] = 9.0
        features = [torch.zeros(1, 1, 8 * stride, 8 * stride) for _ in range(2)] + [feature]
        weights = edges(torch.zeros(1, 3, 8 * stride, 8 * stride), features)[0, 0, 0]
        y, x = divmod(int(weights.argmax()), 8 * stride)
        assert abs(y + 0.5 - 3.5 * stride) <= stride / 2
        assert abs(x + 0.5 - 5.5 * stride) <= stride / 2


def test_finer_scores_start_at_the_network_s_own_and_learn():
    classes = ("a", "b", "c")
    torch.manual_seed(0)
    model = build(ModelSettings(classes, "small", refine=True))
    image = torch.rand(1, 3, 9, 11)
    torch.testing.assert_close(model.scores(image).logits, model.network(image).logits)
    model.scores(image).logits.square().sum().backward()
    assert float(model.refine.head.weight.grad.norm()) > 0
    nn.init.normal_(model.refine.head.weight)
    assert not torch.allclose(model.scores(image).logits, model.network(image).logits)


def test_the_small_network_starts_as_interpolation():
    """The up-convolution keeps constants, away from the border."""
    network = SmallNet(2, width=4)
    up = network.up(torch.ones(1, 2, 6, 6))
    torch.testing.assert_close(up[..., 4:-4, 4:-4], torch.ones(1, 2, 16, 16))


def test_upsampling_is_bilinear_and_in_float32():
    coarse = torch.tensor([[[[0.0, 32.0]]]], dtype=torch.bfloat16)
    found = upsampled(coarse, (5, 50))
    assert found.dtype == torch.float32
    assert found.shape == (1, 1, 5, 50)
    torch.testing.assert_close(found[0, 0, 0, 17] - found[0, 0, 0, 16], torch.tensor(1.0))


def test_padding_with_the_mean_colour_is_zero_padding():
    """The first convolution sees beyond an image's border what it would see without padding."""
    network = SmallNet(2, width=4)
    image = torch.rand(1, 3, 6, 6)
    padded = torch.tensor(MEAN)[None, :, None, None].repeat(1, 1, 9, 9)
    padded[..., :6, :6] = image
    features = network(padded).features[0][..., :6, :6]
    torch.testing.assert_close(features, network(image).features[0], rtol=1e-4, atol=1e-5)


def vgg_like(**changes):
    with torch.device("meta"):  # shapes without numbers
        shapes = VGG32(2, hidden=1).features.state_dict()
    stored = {f"features.{k}": torch.full(v.shape, 0.01) for k, v in shapes.items()}
    return stored | changes


@pytest.fixture(scope="module")
def vgg_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vgg") / "vgg16.safetensors"
    save_file(vgg_like(**{"classifier.0.weight": torch.zeros(2)}), path)
    return path


def test_weights_from_a_file(vgg, vgg_file):
    network = VGG32(3, hidden=1)
    network.load_features(vgg_file)
    assert float(network.features[0].weight.detach().min()) == pytest.approx(0.01)
    assert float(network.features[28].bias.detach().max()) == pytest.approx(0.01)


def test_a_truncated_file_of_weights(vgg, vgg_file, tmp_path):
    path = tmp_path / "half.safetensors"
    path.write_bytes(vgg_file.read_bytes()[:100_000])
    with pytest.raises(InputError, match=r"half\.safetensors cannot be read"):
        vgg.load_features(path)


def test_no_file_of_weights(vgg, tmp_path):
    with pytest.raises(InputError, match=r"absent\.safetensors cannot be read"):
        vgg.load_features(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"other": torch.zeros(2)}, "26 tensors do not fit .* 0.weight is missing"),
        ({"features.0.weight": torch.zeros(64, 3, 3, 3)}, "0.bias is missing"),
        (vgg_like() | {"features.0.bias": torch.zeros(1)}, r"0.bias has shape \(1,\)"),
    ],
)
def test_weights_of_another_network(vgg, tmp_path, stored, words):
    path = tmp_path / "other.safetensors"
    save_file(stored, path)
    before = vgg.features[0].weight.detach().clone()
    with pytest.raises(InputError, match=f"other.safetensors are not VGG-16's.*{words}"):
        vgg.load_features(path)
    assert torch.equal(vgg.features[0].weight, before)


def test_without_torchvision_it_says_what_to_do(vgg, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(InputError, match=r"--weights FILE.*--weights random"):
        vgg.load_features(None)


def test_a_network_of_ones_own():
    require_logits(nn.Conv2d(3, 4, 1), 4)
    require_logits(SmallNet(4, width=2), 4)
    for network, words in (
        (nn.Conv2d(3, 5, 1), r"\(1, 5, 45, 61\).*\(1, 4, 45, 61\) are needed"),
        (nn.Conv2d(3, 4, 1, stride=2), r"\(1, 4, 23, 31\)"),
        (nn.Conv2d(1, 4, 1), "raised RuntimeError"),
        (nn.LSTM(61, 4), "LSTM"),
    ):
        with pytest.raises(InputError, match=words):
            require_logits(network, 4)


def test_trying_a_network_does_not_change_it():
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    require_logits(network, 2)
    assert network.training
    assert float(network[1].running_mean.abs().max()) == 0


def test_settings_cannot_build_a_network_of_ones_own():
    with pytest.raises(InputError, match="is your own"):
        build(ModelSettings(("a", "b"), "custom"))
    assert isinstance(Scores(torch.zeros(1)).features, tuple)


def test_the_papers_small_network():
    """Four convolutions of kernel 3, max-poolings 3×3 of stride 2 after the first two, up by 4."""
    network, seen = SmallNet(3, width=8), []
    for name, part in network.named_children():
        part.register_forward_hook(
            lambda m, given, out, name=name: seen.append((name, tuple(given[0].shape[1:])))
        )
    image = torch.rand(1, 3, 24, 32)
    assert network(image).logits.shape == (1, 3, 24, 32)
    assert seen == [
        ("first", (3, 24, 32)), ("second", (8, 12, 16)), ("third", (8, 6, 8)),
        ("fourth", (8, 6, 8)), ("classify", (8, 6, 8)), ("up", (3, 6, 8)),
    ]  # fmt: skip
    for part in (network.first, network.second, network.third, network.fourth):
        assert (part.kernel_size, part.out_channels) == ((3, 3), 8)
    spot = torch.zeros(1, 1, 9, 9)
    spot[0, 0, 4, 4] = 1.0
    pooled = networks._pooled(spot)[0, 0]
    # 3×3 windows of stride 2: 4 lies at the centre of one, where a mean would leave a ninth.
    assert pooled.shape == (5, 5)
    assert torch.equal(pooled.nonzero(), torch.tensor([[2, 2]]))
    assert float(pooled[2, 2]) == 1.0
    spot = spot.roll(1, -1)  # an odd column lies in two windows
    assert torch.equal(networks._pooled(spot)[0, 0].nonzero(), torch.tensor([[2, 2], [2, 3]]))
