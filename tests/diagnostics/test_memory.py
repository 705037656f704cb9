"""Peak memory is counted to the byte."""

import torch

from legato.diagnostics import PeakMemory, peak_bytes

KB = 1024


def tensor():
    return torch.empty(KB // 4)


def test_what_lives_at_the_same_time_adds_up():
    with PeakMemory() as memory:
        a = tensor()
        b = tensor()
        del a
        c = tensor()
        assert memory.live == 2 * KB
    assert memory.peak == 2 * KB
    del b, c
    assert memory.live == 0


def test_views_and_updates_in_place_cost_nothing():
    with PeakMemory() as memory:
        a = tensor()
        a.add_(1)
        view = a[3:].reshape(-1).detach()
        assert memory.live == KB
        del a
        assert memory.live == KB  # the view keeps the storage
        del view
        assert memory.live == 0
    assert memory.peak == KB


def test_what_was_there_before_does_not_count():
    a = tensor()
    with PeakMemory() as memory:
        a.mul_(2)
        b = a.view(2, -1)
        assert b.shape[0] == 2
    assert memory.peak == 0


def test_saved_tensors_and_gradients_count():
    x = tensor().requires_grad_()

    def compute(depth):
        y = x
        for _ in range(depth):
            y = y.sin()  # keeps its input
        return torch.autograd.grad(y.sum(), x)

    grows = peak_bytes(lambda: compute(20), x.device) - peak_bytes(lambda: compute(10), x.device)
    assert grows == 10 * KB
