"""A state_dict holds everything: a run that is saved and taken up gives the same numbers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import legato as lg
from legato import optim
from optim.data import Counted, normal, rosenbrock

MAKERS = {
    "constant": lambda x: optim.IPiano([x], optim.ConstantStep(1e-4, 0.8)),
    "backtracking": lambda x: optim.IPiano([x], prox=lg.L1(0.1)),
    "variable inertia": lambda x: optim.IPiano([x], optim.VariableMomentum()),
    "non-convex": lambda x: optim.IPiano([x], optim.NonConvexStep(), prox=lg.functions.L0(0.1)),
    "proximal gradient": lambda x: optim.ProximalGradient([x], prox=lg.Box(-2.0, 2.0)),
    "heavy ball": lambda x: optim.HeavyBall([x], 1e-4, 0.8),
    "Polak–Ribière": lambda x: optim.NonlinearCG([x]),
    "Fletcher–Reeves": lambda x: optim.NonlinearCG([x], optim.FletcherReeves(), restart=7),
    "Hager–Zhang": lambda x: optim.NonlinearCG([x], optim.HagerZhang()),
}


def start() -> Counted:
    return Counted(rosenbrock, 0.5 * normal(8, seed=4))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_round_trip_continues_identically(make):
    closure = start()
    optimizer = make(closure.x)
    for _ in range(9):
        optimizer.step(closure)
    buffer = io.BytesIO()
    torch.save({"x": closure.point, "state": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    other = Counted(rosenbrock, saved["x"])
    resumed = make(other.x)
    resumed.load_state_dict(saved["state"])
    calls = closure.calls
    for _ in range(9):
        assert optimizer.step(closure) == resumed.step(other)
        assert torch.equal(closure.point, other.point)
    assert other.calls == closure.calls - calls
    assert not torch.equal(closure.point, saved["x"])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_fresh_state_would_not(make):
    """The test above can fail: without the state, the numbers differ."""
    closure = start()
    optimizer = make(closure.x)
    for _ in range(9):
        optimizer.step(closure)
    other = Counted(rosenbrock, closure.point)
    fresh = make(other.x)
    for _ in range(9):
        optimizer.step(closure)
        fresh.step(other)
    assert not torch.equal(closure.point, other.point)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_state_dict_is_not_touched_by_later_steps(make):
    closure = start()
    optimizer = make(closure.x)
    for _ in range(3):
        optimizer.step(closure)
    state = optimizer.state_dict()
    before = copy.deepcopy(state)
    for _ in range(3):
        optimizer.step(closure)
    for name, value in before["state"][0].items():
        kept = state["state"][0][name]
        same = torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value
        assert same, name


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"]
)
def test_copies_go_on_by_themselves(make, clone):
    closure = start()
    optimizer = make(closure.x)
    for _ in range(5):
        optimizer.step(closure)
    twin = clone(optimizer)
    other = Counted(rosenbrock, closure.point)
    other.x = twin.param_groups[0]["params"][0]
    for _ in range(5):
        optimizer.step(closure)
        twin.step(other)
    assert torch.equal(closure.point, other.point)


def test_several_groups_and_names():
    tensors = {name: normal(3, seed=i).requires_grad_() for i, name in enumerate("ab")}
    groups = [
        {"params": [("a", tensors["a"])], "prox": lg.NonNegative()},
        {"params": [("b", tensors["b"])]},
    ]
    optimizer = optim.IPiano(groups)

    def closure():
        loss = ((tensors["a"] + 1) ** 2).sum() + ((tensors["b"] - tensors["a"]) ** 4).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    state = optimizer.state_dict()
    assert all("prox" not in group for group in state["param_groups"])
    optimizer.load_state_dict(state)
    assert isinstance(optimizer.param_groups[0]["prox"], lg.NonNegative)
    optimizer.step(closure)
    assert float(tensors["a"].detach().min()) >= 0
