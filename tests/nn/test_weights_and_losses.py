"""Weights from images and features, the scaling layer, and the two losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from legato.nn import (
    ContrastWeights,
    LearnedWeights,
    Potts,
    Scale,
    log_loss,
    softmax_loss,
)
from legato.nn.neighbourhood import offsets
from makers import randn

# --- losses ---------------------------------------------------------------------------------------

TARGET = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(3))


def output(size: float = 1.0, **options: Any) -> Tensor:
    return Potts(20, **options)(size * randn(2, 3, 4, 5), 0.3)


def test_range_of_the_papers_loss() -> None:
    """Least where u is certain and right, greatest where it is certain and wrong."""
    certain = output(1e4)
    label = certain.argmax(1)
    assert float(softmax_loss(certain, label)) == pytest.approx(0.551445, abs=1e-6)
    assert float(softmax_loss(certain, (label + 1) % 3)) == pytest.approx(1.551445, abs=1e-6)
    assert math.log(math.e + 2) == pytest.approx(1.551445, abs=1e-6)
    middle = float(softmax_loss(output(), TARGET))
    assert 0.551445 < middle < 1.551445


def by_hand(values: Tensor, target: Tensor, weights: Tensor, ignored: int) -> Tensor:
    """Σ ω_g v_g / Σ ω_g over labelled pixels, v (B, L, *spatial) being what a label costs."""
    total, mass = values.new_zeros(()), values.new_zeros(())
    for index in torch.cartesian_prod(*map(torch.arange, target.shape)):
        image, *pixel = index.tolist()
        g = int(target[(image, *pixel)])
        if g != ignored:
            total = total + weights[g] * values[(image, g, *pixel)]
            mass = mass + weights[g]
    return total / mass


@pytest.mark.parametrize("loss", [softmax_loss, log_loss])
@pytest.mark.parametrize("ignored", [-100, 1, 255])
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 3.0]], ids=["equal", "weighted"])
@pytest.mark.parametrize("average", [False, True], ids=["last", "mean"])
def test_losses_by_hand(
    loss: Any, ignored: int, weights: list[float] | None, average: bool
) -> None:
    target = TARGET.clone()
    target[0, :2] = ignored
    found = output(average=average)
    costs = -found
    if loss is softmax_loss:
        u = found.exp()
        costs = u.exp().sum(1, keepdim=True).log() - u
    class_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    expected = by_hand(costs, target, ones if class_weights is None else class_weights, ignored)
    got = loss(found, target, class_weights=class_weights, ignore_index=ignored)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("loss", [softmax_loss, log_loss])
def test_losses_of_volumes_and_small_integers(loss: Any) -> None:
    found = Potts(5)(randn(1, 3, 2, 3, 4), 0.3)
    target = torch.randint(0, 3, (1, 2, 3, 4), generator=torch.Generator().manual_seed(0))
    target[0, 0, 0, 0] = 255
    right = loss(found, target, ignore_index=255)
    torch.testing.assert_close(loss(found, target.to(torch.uint8), ignore_index=255), right)


def test_only_the_log_loss_teaches_a_certain_mistake() -> None:
    cost = (50 * randn(1, 3, 4, 5).float()).requires_grad_()
    found = Potts(100)(cost, 0.1)
    wrong = (found.argmax(1) + 1) % 3
    (paper,) = torch.autograd.grad(softmax_loss(found, wrong), cost, retain_graph=True)
    (log,) = torch.autograd.grad(log_loss(found, wrong), cost)
    assert float(paper.abs().max()) < 1e-3 * float(log.abs().max())
    assert float(log.abs().max()) > 0.1


@pytest.mark.parametrize("loss", [softmax_loss, log_loss])
def test_losses_under_compile(loss: Any) -> None:
    layer = Potts(3)
    cost = randn(2, 3, 4, 5)
    compiled = torch.compile(lambda c: loss(layer(c), TARGET), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(cost), loss(layer(cost), TARGET))


# --- weights from the contrast of an image --------------------------------------------------------


@pytest.mark.parametrize(("shape", "neighbours"), [((4, 5), 4), ((4, 5), 8), ((3, 4, 5), 4)])
def test_contrast_weights_by_hand(shape: tuple[int, ...], neighbours: int) -> None:
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
    u = Potts(10, neighbours=neighbours)(cost, source(image)).exp()
    for gradient in torch.autograd.grad(u[:, 0].square().sum(), tuple(source.parameters())):
        assert float(gradient) != 0


# --- weights from features ------------------------------------------------------------------------


@pytest.mark.parametrize(("labels", "neighbours", "directions"), [(1, 4, 2), (3, 4, 2), (1, 8, 4)])
def test_learned_weights(labels: int, neighbours: int, directions: int) -> None:
    torch.manual_seed(0)
    head = LearnedWeights(6, hidden=5, labels=labels, neighbours=neighbours, initial=0.4)
    features = randn(2, 6, 4, 5).float()
    w = head(features)
    assert w.shape == (2, labels, directions, 4, 5)
    torch.testing.assert_close(w, torch.full_like(w, 0.4))
    cost = randn(2, 3, 4, 5).float()
    u = Potts(10, neighbours=neighbours)(cost, w).exp()
    u[:, 0].square().sum().backward()
    assert head.second.weight.grad is not None
    assert bool((head.second.weight.grad != 0).any())
    with torch.no_grad():
        head.second.weight.normal_(0, 5.0)
    assert bool((head(features) > 0).all())
    assert not torch.allclose(head(features), w)


def test_learned_weights_leave_autocast_in_full_precision() -> None:
    head = LearnedWeights(2)
    cost = randn(1, 3, 4, 5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = head(randn(1, 2, 4, 5).float())
        Potts(3)(cost, w)
    assert w.dtype == torch.float32
    assert head.double()(randn(1, 2, 4, 5)).dtype == torch.float64


def test_state_dicts() -> None:
    for trained, fresh in (
        (ContrastWeights(beta=3.0, kappa=2.0), ContrastWeights()),
        (LearnedWeights(3, initial=2.0), LearnedWeights(3)),
    ):
        image = randn(1, 3, 4, 5).float()
        assert not torch.equal(fresh(image), trained(image))
        fresh.load_state_dict(trained.state_dict())
        assert torch.equal(fresh(image), trained(image))


# --- the scaling layer ----------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 7, 100])
def test_scale_starts_at_the_networks_own_softmax(iterations: int) -> None:
    logits = 3 * randn(1, 4, 3, 5).float()
    u = Potts(iterations)(Scale(iterations)(logits), 0.0).exp()
    torch.testing.assert_close(u, torch.softmax(logits, 1))


def test_scale_for_other_steps() -> None:
    logits = 3 * randn(1, 4, 3, 5)
    scale = Scale(9, tau=0.05).double()
    assert float(scale.scale.detach()) == pytest.approx(1 / (9 * 0.05))
    u = Potts(9, tau=0.05, sigma=1.0)(scale(logits), 0.0).exp()
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
