"""Total variation on a GPU: replayed, captured and never waiting, it computes the same."""

import pytest
import torch

from legato.gradients import Unroll
from legato.nn import TotalVariation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = (2, 3, 33, 45)
each_norm = pytest.mark.parametrize(
    "options", [{"isotropic": False}, {}, {"joint_channels": True}], ids=str
)


def fresh():
    image = torch.randn(SHAPE, device="cuda").requires_grad_()
    weight = (0.3 * torch.rand(2, 1, 33, 45, device="cuda")).requires_grad_()
    return image, weight


def gradients(layer, image, weight):
    output = layer.solve(image, weight)
    loss = output.x.pow(3).sum() + output.y.square().sum()
    return [output.x.detach(), *torch.autograd.grad(loss, [image, weight])]


@each_norm
@pytest.mark.parametrize("strategy", [None, Unroll(checkpoint="sqrt"), Unroll(last=10)], ids=str)
def test_every_call_agrees_with_the_reference(options, strategy):
    """The first call launches, the second captures, the others replay."""
    layer = TotalVariation(40, gradient=strategy, **options)
    right = TotalVariation(40, gradient=strategy, kernel="reference", **options)
    for _ in range(4):
        image, weight = fresh()
        assert layer.solve(image, weight).kernel == "triton"
        found = gradients(layer, image, weight)
        expected = gradients(
            right, *(t.detach().double().requires_grad_() for t in (image, weight))
        )
        for x, y in zip(found, expected, strict=True):
            assert (x.double() - y).abs().max() <= 2e-5 * y.abs().max().clamp(min=1)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@each_norm
def test_a_solve_never_waits(options):
    layer = TotalVariation(10, **options)
    for _ in range(2):
        gradients(layer, *fresh())
    image, weight = fresh()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(layer, image, weight)
        layer(image, 0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_in_the_graph_of_a_user():
    layer = TotalVariation(20)
    static = fresh()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        gradients(layer, *static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured = gradients(layer, *static)
    other = fresh()
    with torch.no_grad():
        for target, source in zip(static, other, strict=True):
            target.copy_(source)
    graph.replay()
    for x, y in zip(captured, gradients(layer, *other), strict=True):
        torch.testing.assert_close(x, y)


def test_more_coupled_channels_than_the_kernels_hold():
    image = torch.randn(1, 9, 8, 8, device="cuda")
    with pytest.warns(UserWarning, match="up to 8 channels"):
        assert TotalVariation(2, joint_channels=True).solve(image, 0.1).kernel == "reference"
    assert TotalVariation(2).solve(image, 0.1).kernel == "triton"
