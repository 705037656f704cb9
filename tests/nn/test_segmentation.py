"""Around the Potts layer: weights from images and features, the scale, the layer, its loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from legato.errors import InputError
from legato.nn import (
    ContrastWeights,
    FineFeatures,
    GlobalLayer,
    LearnedEdges,
    Potts,
    Scale,
    SimilarityWeights,
    SoftmaxLoss,
    UniformWeights,
)
from legato.nn.neighbourhood import Neighbours, offsets
from makers import rand, randn


def probabilities(layer: Potts, cost: Tensor, weights: Tensor | float) -> Tensor:
    return layer(cost, weights).exp()


FAR = ((1, 0), (0, 1), (0, 3), (2, -1))
"""Neighbours at a distance."""


# --- the loss -------------------------------------------------------------------------------------

TARGET = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(3))


def found(size: float = 1.0, **options: Any) -> Tensor:
    """Log-probabilities of the layer, more certain with the size of the logits."""
    layer = GlobalLayer(UniformWeights(0.3), iterations=20, kernel="reference", **options)
    return layer.double()(size * randn(2, 3, 4, 5), randn(2, 3, 4, 5, seed=1))


def test_range_of_the_papers_loss() -> None:
    """Least where u is certain and right, greatest where it is certain and wrong."""
    certain, loss = found(1e4).detach(), SoftmaxLoss()
    label = certain.argmax(1)
    assert float(loss(certain, label)) == pytest.approx(0.551445, abs=1e-6)
    assert float(loss(certain, (label + 1) % 3)) == pytest.approx(1.551445, abs=1e-6)
    assert math.log(math.e + 2) == pytest.approx(1.551445, abs=1e-6)
    assert 0.551445 < float(loss(found().detach(), TARGET)) < 1.551445


@pytest.mark.parametrize("ignored", [-100, 1, 255])
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 3.0]], ids=["equal", "weighted"])
@pytest.mark.parametrize("average", [False, True], ids=["last", "mean"])
def test_the_papers_loss_by_hand(ignored: int, weights: list[float] | None, average: bool) -> None:
    target = TARGET.clone()
    target[0, :2] = ignored
    values = found(average=average)
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    u = values.exp()
    costs = u.exp().sum(1, keepdim=True).log() - u
    total, mass = 0.0, 0.0
    for image, row, column in torch.cartesian_prod(*map(torch.arange, target.shape)).tolist():
        g = int(target[image, row, column])
        if g != ignored:
            weight = 1.0 if weights is None else weights[g]
            total = total + weight * costs[image, g, row, column]
            mass = mass + weight
    got = SoftmaxLoss(weight=given, ignore_index=ignored)(values, target)
    torch.testing.assert_close(got, torch.as_tensor(total / mass, dtype=torch.float64))


def test_only_the_log_loss_teaches_a_certain_mistake() -> None:
    logits = (2000 * randn(1, 3, 4, 5)).requires_grad_()
    layer = GlobalLayer(UniformWeights(0.1), iterations=100, kernel="reference")
    values = layer.double()(logits, logits.detach())
    wrong = (values.argmax(1) + 1) % 3
    (paper,) = torch.autograd.grad(SoftmaxLoss()(values, wrong), logits, retain_graph=True)
    (log,) = torch.autograd.grad(nn.NLLLoss()(values, wrong), logits)
    assert float(paper.abs().max()) < 1e-3 * float(log.abs().max())
    assert float(log.abs().max()) > 1e-3


@pytest.mark.parametrize("loss", [SoftmaxLoss(), nn.NLLLoss()], ids=["softmax", "log"])
def test_losses_under_compile(loss: nn.Module) -> None:
    layer = GlobalLayer(UniformWeights(), iterations=3)
    logits, image = randn(2, 3, 4, 5).float(), randn(2, 3, 4, 5, seed=1).float()
    compiled = torch.compile(
        lambda x: loss(layer(x, image), TARGET), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(logits), loss(layer(logits, image), TARGET))


@pytest.mark.parametrize("average", [False, True], ids=["last", "mean"])
def test_log_probabilities_are_finite_and_sum_to_one(average: bool) -> None:
    for size in (1.0, 1e6):
        values = found(size, average=average)
        assert torch.isfinite(values).all()
        torch.testing.assert_close(values.exp().sum(1), torch.ones(2, 4, 5, dtype=torch.float64))


# --- weights from the contrast of an image --------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "neighbours"), [((4, 5), 4), ((4, 5), 8), ((4, 5), FAR), ((3, 4, 5), 4)]
)
def test_contrast_weights_by_hand(shape: tuple[int, ...], neighbours: Neighbours) -> None:
    image = randn(2, 3, *shape)
    layer = ContrastWeights(beta=0.7, kappa=2.0, epsilon=0.2, neighbours=neighbours).double()
    w = layer(image).detach()
    directions = offsets(len(shape), neighbours)
    assert w.shape == (2, 1, len(directions), *shape)
    for e, offset in enumerate(directions):
        for index in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
            there = [i + o for i, o in zip(index, offset, strict=True)]
            if all(0 <= i < n for i, n in zip(there, shape, strict=True)):
                here = image[(1, slice(None), *index)]
                contrast = float((image[(1, slice(None), *there)] - here).norm())
                expected = 0.7 * (0.2 + 0.8 * math.exp(-2.0 * contrast))
                assert float(w[(1, 0, e, *index)]) == pytest.approx(expected, rel=1e-5)


def test_contrast_weights_stay_positive_whatever_is_learned() -> None:
    layer = ContrastWeights()
    assert float(layer.beta.detach()) == pytest.approx(1.0)
    assert float(layer.kappa.detach()) == pytest.approx(10.0)
    image = randn(1, 3, 4, 5).float()
    with torch.no_grad():
        layer.raw_beta.fill_(-20.0)
        layer.raw_kappa.fill_(-20.0)
    assert bool((layer(image) > 0).all())
    assert bool((layer(image) < 1e-8).all())


def test_contrast_weights_of_a_flat_image_have_derivatives() -> None:
    image = torch.ones(1, 3, 4, 5, requires_grad=True)
    layer = ContrastWeights(beta=2.0)
    w = layer(image)
    torch.testing.assert_close(w, torch.full_like(w, 2.0), rtol=1e-4, atol=0)
    for gradient in torch.autograd.grad(w.sum(), (image, *layer.parameters())):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("neighbours", [4, 8])
def test_contrast_weights_fit_the_layer(neighbours: int) -> None:
    image, cost = randn(2, 3, 4, 5).float(), randn(2, 4, 4, 5, seed=1).float()
    source = ContrastWeights(neighbours=neighbours)
    u = probabilities(Potts(10, neighbours=neighbours), cost, source(image))
    for gradient in torch.autograd.grad(u[:, 0].square().sum(), tuple(source.parameters())):
        assert float(gradient) != 0


@pytest.mark.parametrize(("shape", "neighbours"), [((4, 5), 4), ((4, 5), 8), ((5, 6), FAR)])
def test_similarity_weights_by_hand(shape: tuple[int, ...], neighbours: Neighbours) -> None:
    """Each direction has its strength and width, and C decides which colours are far apart."""
    image, mixing = randn(2, 3, *shape), randn(3, 3, seed=1)
    layer = SimilarityWeights(epsilon=0.2, neighbours=neighbours).double()
    directions = offsets(2, neighbours)
    with torch.no_grad():
        layer.metric.copy_(mixing)
        layer.log_beta.copy_(torch.arange(1.0, 1 + len(directions)).log())
        layer.log_width.copy_(torch.arange(2.0, 2 + len(directions)).log())
    w = layer(image).detach()
    assert w.shape == (2, 1, len(directions), *shape)
    for e, (down, right) in enumerate(directions):
        for i in range(shape[0] - down):
            for j in range(max(0, -right), shape[1] - max(0, right)):
                apart = mixing @ (image[1, :, i + down, j + right] - image[1, :, i, j])
                kernel = math.exp(-float((apart**2).sum()) / (2 * (2 + e) ** 2))
                expected = (1 + e) * (0.2 + 0.8 * kernel)
                assert float(w[1, 0, e, i, j]) == pytest.approx(expected, rel=1e-6)


def test_similarity_weights_have_the_right_derivatives() -> None:
    """Also of a flat image, and through the layer that follows, by finite differences."""
    image, cost = rand(1, 3, 4, 5), randn(1, 2, 4, 5, seed=1)
    image[..., :2] = 0.5
    image.requires_grad_()
    layer = SimilarityWeights(width=0.4, neighbours=8).double()
    potts = Potts(5, neighbours=8, max_weight=2.0, kernel="reference").double()

    def found(image: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(dict(layer.named_parameters()), values, strict=True))
        return potts(cost, torch.func.functional_call(layer, given, (image,)))

    assert torch.autograd.gradcheck(found, (image, *layer.parameters()))


def test_similarity_weights_leave_autocast_in_full_precision() -> None:
    layer, image = SimilarityWeights(), rand(1, 3, 4, 5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w, half = layer(image), layer(image.bfloat16())
    assert torch.equal(w, layer(image))
    assert torch.equal(half, layer(image.bfloat16().float()))


# --- weights from features ------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "neighbours"), [(1, 4), (3, 4), (1, 8), (3, FAR)])
def test_learned_edges(classes: int, neighbours: Neighbours) -> None:
    torch.manual_seed(0)
    edges = LearnedEdges((6,), classes, neighbours, hidden=5, initial=0.4)
    image, features = randn(2, 3, 4, 5).float(), [randn(2, 6, 4, 5).float()]
    w = edges(image, features)
    assert w.shape == (2, classes, len(offsets(2, neighbours)), 4, 5)
    torch.testing.assert_close(w, torch.full_like(w, 0.4))
    cost = randn(2, 3, 4, 5).float()
    probabilities(Potts(10, neighbours=neighbours), cost, w)[:, 0].square().sum().backward()
    assert edges.head.weight.grad is not None
    assert bool((edges.head.weight.grad != 0).any())
    with torch.no_grad():
        edges.head.weight.normal_(0, 0.3)
    again = edges(image, features)
    assert bool((again > 0).all() and (again < 1).all())
    assert not torch.allclose(again, w)


def test_learned_edges_leave_autocast_in_full_precision() -> None:
    edges = LearnedEdges((), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = edges(randn(1, 3, 4, 5).float(), ())
        Potts(3)(randn(1, 3, 4, 5).float(), w)
    assert w.dtype == torch.float32
    assert edges.double()(randn(1, 3, 4, 5), ()).dtype == torch.float64


def test_learned_edges_start_uniform() -> None:
    edges = LearnedEdges((8, 8), 3, initial=0.25)
    weights = edges(torch.rand(1, 3, 9, 11), [torch.rand(1, 8, 9, 11), torch.rand(1, 8, 5, 6)])
    torch.testing.assert_close(weights, torch.full_like(weights, 0.25))


def test_learned_edges_need_the_features_they_were_made_for() -> None:
    with pytest.raises(InputError, match="2 feature maps, but the network returned 0"):
        LearnedEdges((8, 8), 3)(torch.rand(1, 3, 8, 8), ())


def test_fine_features_of_strides_that_were_rounded_up() -> None:
    fine = FineFeatures((2, 2), hidden=4)
    image = torch.rand(1, 3, 9, 11)
    found = fine(image, [torch.rand(1, 2, 5, 6), torch.rand(1, 2, 3, 3)])
    assert found.shape == (1, 4, 9, 11)
    assert bool((found >= 0).all())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UniformWeights(0.0), "beta > 0"),
        (lambda: ContrastWeights(kappa=-1.0), "kappa > 0"),
        (lambda: ContrastWeights()(torch.rand(3, 4, 5)), "must have shape"),
        (lambda: LearnedEdges((), 3, initial=1.0), r"in \(0, 1\)"),
        (lambda: Scale(0), "positive number of iterations"),
    ],
)
def test_what_makes_no_sense(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_state_dicts() -> None:
    image = randn(1, 3, 4, 5).float()
    for trained, fresh in (
        (ContrastWeights(beta=3.0, kappa=2.0), ContrastWeights()),
        (SimilarityWeights(beta=3.0, width=0.3, epsilon=0.4), SimilarityWeights()),
        (LearnedEdges((), 3, initial=0.2), LearnedEdges((), 3)),
        (UniformWeights(2.0), UniformWeights()),
    ):
        assert not torch.equal(fresh(image, ()), trained(image, ()))
        fresh.load_state_dict(trained.state_dict())
        assert torch.equal(fresh(image, ()), trained(image, ()))


# --- the scaling layer ----------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 7, 100])
def test_scale_starts_at_the_networks_own_softmax(iterations: int) -> None:
    logits = 3 * randn(1, 4, 3, 5).float()
    u = probabilities(Potts(iterations), Scale(iterations)(logits), 0.0)
    torch.testing.assert_close(u, torch.softmax(logits, 1))


def test_scale_for_other_steps() -> None:
    logits = 3 * randn(1, 4, 3, 5)
    scale = Scale(9, tau=0.05).double()
    assert float(scale.scale.detach()) == pytest.approx(1 / (9 * 0.05))
    u = probabilities(Potts(9, tau=0.05, sigma=1.0), scale(logits), 0.0)
    torch.testing.assert_close(u, torch.softmax(logits, 1), rtol=1e-5, atol=1e-7)


def test_scale_is_learned_and_positive() -> None:
    scale = Scale(10)
    logits = torch.ones(1, 2, 1, 1)
    (gradient,) = torch.autograd.grad(scale(logits).sum(), scale.log_scale)
    torch.testing.assert_close(gradient, scale(logits).sum())  # d(−e^s x)/ds = −e^s x
    with torch.no_grad():
        scale.log_scale.fill_(-10.0)
    assert float(scale.scale.detach()) == pytest.approx(math.exp(-10))


def test_softplus_is_inverted_at_both_ends() -> None:
    for value in (1e-6, 0.5, 40.0):
        raw = ContrastWeights(beta=value).raw_beta.detach()
        assert float(softplus(raw.double())) == pytest.approx(value, rel=1e-4)


# --- the layer ------------------------------------------------------------------------------------

SIZES = ((9, 12), (7, 5), (12, 8))


class Fixed(nn.Module):
    """Weights that depend on each pixel's colour alone, so that padding cannot reach them."""

    def __init__(self, directions: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 3 * directions, 1)
        nn.init.normal_(self.mix.weight, std=3.0)

    def forward(self, image: Tensor, features: Any) -> Tensor:
        return torch.sigmoid(self.mix(image)).unflatten(1, (3, -1))


@pytest.fixture(scope="module")
def padded() -> tuple[Tensor, Tensor, Tensor]:
    """Images of several sizes in one batch, logits, and where the images are."""
    rng = torch.Generator().manual_seed(0)
    image, inside = torch.full((3, 3, 16, 16), 0.5), torch.zeros(3, 16, 16, dtype=torch.bool)
    for index, (h, w) in enumerate(SIZES):
        image[index, :, :h, :w] = torch.rand(3, h, w, generator=rng)
        inside[index, :h, :w] = True
    return image, torch.randn(3, 3, 16, 16, generator=rng), inside


@pytest.mark.parametrize("neighbours", [4, 8, FAR])
@pytest.mark.parametrize("kind", ["fixed", "uniform"])
def test_a_padded_image_is_segmented_as_if_alone(
    padded: Any, neighbours: Neighbours, kind: str
) -> None:
    image, logits, inside = padded
    torch.manual_seed(1)
    uniform = kind == "uniform"
    weights = UniformWeights(0.7) if uniform else Fixed(len(offsets(2, neighbours)))
    layer = GlobalLayer(
        weights, iterations=40, neighbours=neighbours, kernel="reference",
        max_weight=1.0 if kind == "fixed" else None,
    )  # fmt: skip
    with torch.no_grad():
        layer.scale.log_scale.add_(1.5)
        together = layer(logits, image, (), inside).exp()
        careless = layer(logits, image).exp()
        for index, (h, w) in enumerate(SIZES):
            one = slice(index, index + 1)
            alone = layer(logits[one, :, :h, :w], image[one, :, :h, :w]).exp()[0]
            inner = together[index, :, :h, :w]
            # Up to the last bit: vector units compute exp of other groups of pixels at a time.
            torch.testing.assert_close(inner, alone, rtol=0, atol=2e-5)
            assert torch.equal(inner.argmax(0), alone.argmax(0))
            # The mask is what does it.
            assert float((careless[index, :, :h, :w] - alone).abs().max()) > 1e-2


def test_padding_of_learned_weights_is_cut_off(padded: Any) -> None:
    image, logits, inside = padded
    torch.manual_seed(1)
    layer = GlobalLayer(LearnedEdges((), 3, 8), neighbours=8, max_weight=1.0, kernel="reference")
    seen = {}
    layer.potts.register_forward_hook(lambda module, given, output: seen.update(weights=given[1]))
    layer(logits, image, (), inside)
    for index, (h, w) in enumerate(SIZES):
        inner = seen["weights"][index].detach()
        assert float(inner[..., h:, :].abs().max()) == 0  # nothing outside
        assert float(inner[..., :, w:].abs().max()) == 0
        assert float(inner[:, 0, h - 1].abs().max()) == 0  # nothing across the lower border
        assert float(inner[:, 1, :, w - 1].abs().max()) == 0  # nor the right
        assert float(inner[:, 3, :h, 0].abs().max()) == 0  # a diagonal to the left
        assert float(inner[:, 0, : h - 1, :w].min()) > 0


@pytest.mark.parametrize("largest", [None, 1.0, 2.0])
def test_without_weights_the_layer_is_the_networks_log_softmax(largest: float | None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 6, 7)
    weights = LearnedEdges((), 3, initial=1e-7) if largest else UniformWeights(1e-7)
    layer = GlobalLayer(weights, max_weight=largest, kernel="reference")
    if largest is None:  # steps that follow the weights are those of the largest one
        layer.potts.tau, layer.potts.sigma = 5 / 8**0.5, 1 / (5 * 8**0.5)
    found = layer(logits, torch.rand(1, 3, 6, 7))
    torch.testing.assert_close(found, logits.log_softmax(1), rtol=1e-3, atol=1e-3)


def test_one_weight_for_all_and_the_scale_are_one_parameter() -> None:
    """argmin ⟨−s·logits, u⟩ + β‖∇u‖₁ depends on s/β alone, and so do its iterates."""
    layer = GlobalLayer(UniformWeights(0.7), iterations=30, kernel="reference").double()
    logits, image = 5 * randn(2, 3, 6, 7), randn(2, 3, 6, 7)
    layer(logits, image).exp().square().sum().backward()
    beta, scale = layer.weights.log_beta.grad, layer.scale.log_scale.grad
    assert abs(float(scale)) > 1e-3
    torch.testing.assert_close(beta, -scale)


@pytest.mark.parametrize("name", ["raw_beta", "raw_kappa"])
def test_contrast_weights_learn_by_the_derivative_of_what_is_computed(name: str) -> None:
    layer = GlobalLayer(ContrastWeights(), iterations=30, kernel="reference").double()
    logits, image = 3 * randn(2, 3, 6, 7), rand(2, 3, 6, 7)
    parameter = getattr(layer.weights, name)

    def value() -> Tensor:
        return layer(logits, image).exp().square().sum()

    (found,) = torch.autograd.grad(value(), parameter)
    values, h = [], 1e-6
    for shift in (h, -h):
        with torch.no_grad():
            parameter += shift
            values.append(value())
            parameter -= shift
    torch.testing.assert_close(found, (values[0] - values[1]) / (2 * h), rtol=1e-5, atol=1e-8)
