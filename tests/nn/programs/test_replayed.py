"""The parts of a solve that a GPU replays: functions of their arguments that read no values."""

import importlib
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legato.nn import QuadraticProgram
from legato.nn.programs import inverses, replayed, strict

at_once = importlib.import_module("legato.engine.at_once")
F64 = torch.float64


class NothingIsRead(TorchDispatchMode):
    """Refuses what makes the host wait for a number, or a shape depend on one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.masked_select.default,
        )
        return func(*args, **(kwargs or {}))


class Fake:
    """In place of a CUDA graph: it serves tensors of one kind, and hands out copies."""

    made: ClassVar[list["Fake"]] = []

    def __init__(self, function, examples):
        for cell in function.__closure__:
            require_no_tensors(cell.cell_contents)
        self.function, self.runs = function, 0
        self.kinds = [(t.shape, t.dtype) for t in examples]
        with NothingIsRead():
            self.shapes = [t.shape for t in function(*examples)]
        Fake.made.append(self)

    def copied(self, *tensors):
        assert [(t.shape, t.dtype) for t in tensors] == self.kinds
        found = self.function(*[t.clone() for t in tensors])
        assert [t.shape for t in found] == self.shapes
        self.runs += 1
        return tuple(t.clone() for t in found)


def require_no_tensors(part):
    assert not isinstance(part, torch.Tensor)
    if isinstance(part, tuple):
        for inner in part:
            require_no_tensors(inner)


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=F64)


def programs(seed, bounded, scale):
    g = torch.Generator().manual_seed(seed)
    L, inside = normal(g, 5, 4, 4), normal(g, 5, 4)
    A, G = normal(g, 5, 1, 4), scale * normal(g, 5, 6, 4)
    b, h = ((M @ inside.unsqueeze(-1)).squeeze(-1) for M in (A, G))
    data = [L @ L.mT + 0.1 * torch.eye(4, dtype=F64), 2 * normal(g, 5, 4), A, b, G, h + scale]
    return data + ([inside - 0.5, inside + 0.5] if bounded else [])


def solved(data):
    given = [v.clone().requires_grad_() for v in data]
    record = QuadraticProgram().solve(*given)
    return record, torch.autograd.grad(record.x.square().sum(), given)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_replayed_parts_give_the_same(monkeypatch, bounded, scale):
    truth = [solved(programs(seed, bounded, scale)) for seed in range(4)]
    for home in (inverses, strict):
        monkeypatch.setattr(home, "compiled_for", lambda some: False)
    monkeypatch.setattr(replayed, "_on_a_gpu", lambda some: True)
    monkeypatch.setattr(at_once, "captures", lambda tensors: True)
    monkeypatch.setattr(at_once, "Graph", Fake)
    at_once.replays.clear()
    Fake.made.clear()
    for seed, (right, slopes) in enumerate(truth):
        record, gradients = solved(programs(seed, bounded, scale))
        if seed == 0:  # what is seen once may never be seen again: norms are, twice in a solve
            assert len(Fake.made) <= 2
        torch.testing.assert_close(record.x, right.x, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(record.z, right.z, rtol=1e-9, atol=1e-10)
        assert bool(record.solved.all())
        for one, other in zip(gradients, slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
    assert len(Fake.made) >= 6
    assert max(fake.runs for fake in Fake.made) >= 3
    at_once.replays.clear()
