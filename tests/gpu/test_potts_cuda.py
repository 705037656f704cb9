"""The Potts layer on a GPU: replayed, captured and never waiting, it computes the same."""

import pytest
import torch

from legato.nn import Potts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = (2, 3, 33, 45)


def fresh():
    cost = torch.randn(SHAPE, device="cuda").requires_grad_()
    weights = torch.rand(2, 1, 2, 33, 45, device="cuda").requires_grad_()
    return cost, weights


def gradients(layer, cost, weights):
    output = layer.solve(cost, weights)
    loss = output.log_probabilities[:, 0].sum() + output.x.square().sum()
    wanted = [cost, weights, *layer.parameters()]
    return [output.x.detach(), *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("options", [{}, {"learn_balance": True}, {"epsilon": 0.1}], ids=str)
def test_every_call_agrees_with_the_reference(options):
    """The first call launches, the second captures, the others replay.

    An edge whose dual variable rests on its bound to within float32's rounding has the derivative
    of the other side: a few such entries are no difference between kernels.
    """
    torch.manual_seed(0)
    layer = Potts(40, kernel="triton", **options).cuda()
    right = Potts(40, kernel="reference", **options).cuda().double()
    for _ in range(4):
        cost, weights = fresh()
        found = gradients(layer, cost, weights)
        expected = gradients(
            right, *(t.detach().double().requires_grad_() for t in (cost, weights))
        )
        for x, y in zip(found, expected, strict=True):
            off = ((x.double() - y).abs() / y.abs().max().clamp(min=1)).flatten()
            at_kinks = off > 2e-5
            assert at_kinks.sum() <= 4
            assert off.max() <= 1e-2


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("options", [{}, {"tau": 0.1, "sigma": 0.1}], ids=str)
def test_a_solve_never_waits(options):
    layer = Potts(10, **options).cuda()
    for _ in range(2):
        gradients(layer, *fresh())
    cost, weights = fresh()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(layer, cost, weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_in_the_graph_of_a_user():
    layer = Potts(20).cuda()
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
