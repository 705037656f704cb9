"""Fused layers in several streams and threads at once compute what each would alone."""

import threading

import pytest
import torch

from legato.nn import Potts, TotalVariation

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def potts_inputs():
    cost = torch.randn(2, 3, 120, 160, device=DEVICE)
    return cost, torch.rand(2, 1, 2, 120, 160, device=DEVICE)


def tv_inputs():
    return torch.rand(2, 3, 120, 160, device=DEVICE), torch.rand(2, 1, 120, 160, device=DEVICE)


def results(layer, inputs):
    tensors = [t.detach().clone().requires_grad_() for t in inputs]
    output = layer(*tensors)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), tensors)]


@pytest.mark.parametrize(
    ("layer", "make"),
    [(Potts(50), potts_inputs), (TotalVariation(50), tv_inputs)],
    ids=["Potts", "TotalVariation"],
)
def test_streams_and_threads(layer, make):
    layer = layer.to(DEVICE)
    inputs = [make() for _ in range(4)]
    alone = [results(layer, given) for given in inputs]
    together = {}

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(6):  # launched, captured, replayed
                together[i] = results(layer, inputs[i])

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert sorted(together) == [0, 1, 2, 3]
    for i, expected in enumerate(alone):
        for found, right in zip(together[i], expected, strict=True):
            assert (found - right).norm() <= 1e-5 * right.norm()
