"""Layers under torch's own contexts: inference mode, tracers, transforms, other default dtypes."""

from contextlib import suppress

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.utils.parametrize import register_parametrization

import legato as lg
import legato.nn as layers
from makers import rand

IMAGE = rand(2, 1, 8, 7, seed=1, dtype=torch.float32)
COST = rand(2, 3, 6, 5, seed=2, dtype=torch.float32)
SIGNALS = rand(3, 4, seed=3, dtype=torch.float32)


def denoiser(**settings):
    return layers.AnalysisDenoiser(size=3, iterations=8, **settings)


class Given(torch.nn.Module):
    """A layer with its second argument."""

    def __init__(self, layer, second):
        super().__init__()
        self.layer, self.second = layer, second

    def forward(self, x):
        return self.layer(x, self.second)


LAYERS = {
    "AnalysisDenoiser": (denoiser, IMAGE),
    "AnalysisDenoiser, interval": (lambda: denoiser(interval=True), IMAGE),
    "TotalVariation": (lambda: Given(layers.TotalVariation(8), 0.1), IMAGE),
    "TotalVariation, reference": (
        lambda: Given(layers.TotalVariation(8, kernel="reference"), 0.1),
        IMAGE,
    ),
    "Potts": (lambda: Given(layers.Potts(8), 0.3), COST),
    "Potts, reference": (lambda: Given(layers.Potts(8, kernel="reference"), 0.3), COST),
    "SparseCoding": (lambda: layers.SparseCoding(5, 4, iterations=8), SIGNALS),
}


def made(name):
    torch.manual_seed(0)
    make, x = LAYERS[name]
    return make(), x


def trained(layer, x):
    x = x.clone().requires_grad_()
    layer(x).square().sum().backward()
    return x.grad


@pytest.mark.parametrize("name", LAYERS)
def test_a_first_call_under_inference_mode_leaves_training_alone(name):
    layer, x = made(name)
    right = trained(made(name)[0], x)
    with torch.inference_mode():
        seen = layer(x)
    torch.testing.assert_close(seen.clone(), layer(x).detach())
    torch.testing.assert_close(trained(layer, x), right)


def test_a_denoiser_made_or_parametrised_under_inference_mode():
    right = denoiser()(IMAGE).detach()
    with torch.inference_mode():
        made_there = denoiser()
        torch.testing.assert_close(made_there(IMAGE), right)
    torch.testing.assert_close(made_there(IMAGE), right)
    layer = denoiser()
    with torch.inference_mode():
        register_parametrization(layer, "coefficients", torch.nn.Identity())
        torch.testing.assert_close(layer(IMAGE), right)
    torch.testing.assert_close(layer(IMAGE), right)


def test_fake_tensors_leave_nothing_behind():
    layer, right = denoiser(), trained(denoiser(), IMAGE)
    # It reads values, and so may be refused; what matters is what comes afterwards.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, suppress(Exception):
        layer(mode.from_tensor(IMAGE))
    assert torch.equal(trained(layer, IMAGE), right)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_a_trace_is_the_layer(name):
    layer, x = made(name)
    traced = torch.jit.trace(layer, x, check_trace=False)  # other data ask for more than the same
    other = 0.5 * x.flip(-1) + 0.1
    torch.testing.assert_close(traced(other), layer(other))


def test_transforms_of_a_denoiser():
    layer = denoiser()
    right = trained(layer, IMAGE)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}

    def loss(p, image):
        return functional_call(layer, p, (image,)).square().sum()

    torch.testing.assert_close(torch.func.grad(loss, 1)(parameters, IMAGE), right)
    slopes = torch.func.grad(loss)(parameters, IMAGE)
    for key, p in layer.named_parameters():
        torch.testing.assert_close(slopes[key], p.grad, rtol=1e-4, atol=1e-5)
    each = torch.func.vmap(lambda image: layer(image[None])[0])(IMAGE)
    torch.testing.assert_close(each, layer(IMAGE))


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_another_default_dtype(name, float64):
    layer, x = made(name)
    assert {p.dtype for p in layer.parameters()} <= {torch.float64}
    assert layer(x.double()).dtype == torch.float64
    if not list(layer.parameters()):
        assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("size", [1e200, 1e-200])
@pytest.mark.parametrize("kernel", ["numba", "reference"])
def test_data_beyond_the_range_are_refused(size, kernel):
    image = size * IMAGE.double()
    with pytest.raises(lg.errors.InputError, match="1e-75 and 1e\\+75"):
        layers.TotalVariation(8, kernel=kernel)(image, 0.1 * size)
    with pytest.raises(lg.errors.InputError, match="1e-75 and 1e\\+75"):
        denoiser().double()(image)


@pytest.mark.parametrize("name", LAYERS)
def test_views_with_a_negative_bit(name):
    """What torch negates only where it is read: the imaginary part of a conjugate."""
    layer, x = made(name)
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    torch.testing.assert_close(layer(view), layer(x), rtol=0, atol=0)
    torch.testing.assert_close(trained(layer, view), trained(layer, x), rtol=0, atol=0)
