"""Functions of tensors alone as graphs: one for each kind of arguments, none where that fails."""

import importlib
from typing import ClassVar

import pytest
import torch

import legato as lg
from legato.engine.machine import CaptureError

module = importlib.import_module("legato.engine.at_once")


def doubled(x, y):
    return 2 * x, x + y


class Fake:
    """In place of a CUDA graph: what it was made for, and how often it ran."""

    made: ClassVar[list["Fake"]] = []

    def __init__(self, function, examples):
        self.function, self.kinds, self.runs = function, [t.shape for t in examples], 0
        Fake.made.append(self)

    def copied(self, *tensors):
        assert [t.shape for t in tensors] == self.kinds
        self.runs += 1
        return self.function(*tensors)


class Failing:
    tries = 0

    def __init__(self, function, examples):
        Failing.tries += 1
        raise CaptureError("a library waits for the device")


@pytest.fixture
def on_a_gpu(monkeypatch):
    module.replays.clear()
    Fake.made.clear()
    monkeypatch.setattr(module, "captures", lambda tensors: True)
    yield lambda graph: monkeypatch.setattr(module, "Graph", graph)
    module.replays.clear()


def test_one_graph_serves_all_arguments_of_a_kind(on_a_gpu):
    on_a_gpu(Fake)
    for size, value in ((3, 1.0), (3, 5.0), (4, 2.0), (3, -1.0)):
        x, y = torch.full((size,), value), torch.ones(size)
        for found, true in zip(
            module.at_once(lg.Replayed(), doubled, x, y), doubled(x, y), strict=True
        ):
            torch.testing.assert_close(found, true)
    assert [one.runs for one in Fake.made] == [3, 1]
    lg.engine.forget()
    module.at_once(lg.Replayed(), doubled, torch.ones(3), torch.ones(3))
    assert len(Fake.made) == 3


def test_what_cannot_be_captured_runs_as_it_is_and_is_not_tried_again(on_a_gpu):
    on_a_gpu(Failing)
    Failing.tries = 0
    for value in (1.0, 2.0):
        found, _ = module.at_once(lg.Replayed(), doubled, torch.tensor([value]), torch.zeros(1))
        assert float(found) == 2 * value
    assert Failing.tries == 1


def test_no_graph_without_an_engine_or_for_much_memory(on_a_gpu, monkeypatch):
    on_a_gpu(Fake)
    module.at_once(None, doubled, torch.ones(3), torch.ones(3))
    monkeypatch.setattr(module, "LARGEST", 5)
    module.at_once(lg.Replayed(), doubled, torch.ones(3), torch.ones(3))
    assert not Fake.made


@pytest.mark.parametrize("solver", [lg.Direct(), lg.MINRES(tol=1e-12)], ids=repr)
def test_adjoints_go_through_it(on_a_gpu, solver):
    """With graphs that fail they are those of a solve step by step."""
    on_a_gpu(Failing)

    def slope(engine):
        w = torch.tensor([0.4, 0.7], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([0.3, 1.4, -0.2, 2.0], dtype=torch.float64)
        energy = lg.SquaredDistance(w[1] * y) + lg.L1(w[0]) @ lg.Differences(dims=(-1,))
        stop = lg.Stop(5000, tol=1e-12)
        found = lg.solve(
            energy, lg.PrimalDual(), gradient=lg.Implicit(solver), stop=stop, engine=engine
        )
        found.x.square().sum().backward()
        return w.grad

    torch.testing.assert_close(slope(lg.Replayed()), slope(None), rtol=1e-10, atol=1e-12)
    assert Failing.tries
