"""What engines remember is bounded, can be dropped, and holds nobody's tensors."""

import gc
import weakref

import pytest
import torch

import legato as lg
import legato.engine
from engines import REPLAYED
from legato.engine import expecting, stepping
from makers import randn

STRATEGIES = [lg.Unroll(), lg.Unroll(last=3), lg.Implicit()]


def step(gradient, size=3, seed=0, tol=None):
    """One solve with its gradient; weak references to what it was about."""
    data = randn(size, seed=seed)
    weight = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    energy = lg.SquaredDistance(data) + lg.L1(weight)
    solution = lg.solve(
        energy, lg.ForwardBackward(0.3), gradient=gradient, stop=lg.Stop(60, tol=tol),
        engine=REPLAYED,
    )  # fmt: skip
    solution.x.sum().backward()
    return [weakref.ref(t) for t in (data, weight, energy, solution, solution.x)]


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("gradient", STRATEGIES, ids=repr)
def test_nothing_is_kept_alive_and_no_cycle_is_made(gradient, tol):
    step(gradient, tol=tol)
    gc.collect()
    gc.disable()
    try:
        assert [ref() is None for ref in step(gradient, seed=1, tol=tol)] == [True] * 5
    finally:
        gc.enable()


@pytest.mark.parametrize("gradient", STRATEGIES, ids=repr)
def test_two_hundred_solves_leave_nothing_behind(gradient):
    def count():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    for seed in range(3):
        step(gradient, seed=seed)
    before = count()
    for seed in range(200):
        step(gradient, seed=seed)
    assert count() <= before


def test_programs_are_bounded_in_number(monkeypatch):
    legato.engine.forget()
    monkeypatch.setattr(stepping, "KEPT", 5)
    monkeypatch.setattr(expecting, "KEPT", 5)
    for size in range(1, 12):
        step(lg.Unroll(), size=size)
        assert len(stepping._kept) <= 5
        assert len(stepping.expectations) <= 5
    legato.engine.forget()
    assert not stepping._kept
    assert not len(stepping.expectations)
    step(lg.Unroll())


def test_the_oldest_program_goes_first(monkeypatch):
    legato.engine.forget()
    monkeypatch.setattr(stepping, "KEPT", 2)
    step(lg.Unroll(), size=1)
    first = next(iter(stepping._kept.values()))
    step(lg.Unroll(), size=2)
    step(lg.Unroll(), size=1)
    step(lg.Unroll(), size=3)
    assert any(kept is first for kept in stepping._kept.values())


def test_programs_may_be_dropped_while_a_graph_is_alive():
    weight = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    x = lg.solve(lg.SquaredDistance(randn(3)) + lg.L1(weight), engine=REPLAYED).x
    legato.engine.forget()
    x.sum().backward()
    assert weight.grad is not None
