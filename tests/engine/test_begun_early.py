"""A device begins with what the last call did, and is put right where this one does otherwise.

A CPU begins nothing early; here it is told to, so that the same path runs.
"""

import math

import pytest
import torch

import legato as lg
import legato.engine
from engines import REPLAYED, assert_alike, outcome
from legato import solving
from legato._support.checks import is_concrete
from legato.engine import stepping, switch
from makers import randn

A, B = randn(8, 5, seed=1), randn(8, seed=2)
PLAIN = lg.ForwardBackward(0.05, inertia=lg.Nesterov())


@pytest.fixture(autouse=True)
def begun_early(monkeypatch):
    legato.engine.forget()
    monkeypatch.setattr(switch, "may_begin", lambda *_: True)
    monkeypatch.setattr(solving, "_reading_waits", is_concrete)


@pytest.fixture
def runs(monkeypatch):
    """How many loops and sweeps were run: one for each solve that was expected."""
    counted = []
    for name in ("loop", "sweep"):
        run = getattr(switch, name)
        for module in (switch, legato.gradients.swept):
            monkeypatch.setattr(module, name, lambda *a, run=run: (counted.append(1), run(*a))[1])
    return counted


def lasso(weight, data=A):
    return lg.Composite(lg.LeastSquares(data, B), lg.L1(weight))


def number(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def both(build, *values, x0=None):
    """Solve by both engines with fresh leaves; they agree."""
    found = []
    for engine in (lg.Eager(), REPLAYED):
        theta = [number(v) for v in values]
        found.append(outcome(build(*theta), PLAIN, x0, learned=theta, engine=engine))
    assert_alike(*found)


def test_new_values_and_new_tensors_are_expected(runs):
    for k in range(4):
        both(lambda w, k=k: lasso(w, A + 0.01 * k), 0.1 + 0.1 * k)
    assert len(runs) == 4  # and none was run twice


def test_another_step_of_the_same_kind_is_not_taken_for_the_last_one(runs):
    mean, total = (lambda x: (x**2).mean()), (lambda x: (x**2).sum())
    for f in (mean, mean, total, mean, total, mean):
        both(lambda w, f=f: lg.Composite(lg.Smooth(f, constant=2.0), lg.L1(w)), 0.1, x0=B)
    # The first surprise was begun in vain; nothing is begun until what is expected is right again.
    assert len(runs) == 6 + 1


def test_a_tensor_in_a_closure_that_was_replaced():
    held = {"c": randn(5, seed=3)}
    term = lg.Smooth(lambda x: 0.5 * ((x - held["c"]) ** 2).sum(), constant=1.0)
    for seed in (3, 4, 5):
        held["c"] = randn(5, seed=seed)
        both(lambda w: lg.Composite(term, lg.L1(w)), 0.1, x0=held["c"])


def test_a_number_in_a_closure_that_was_replaced():
    held = {"c": 1.0}
    term = lg.Smooth(
        lambda x: 0.5 * ((x - torch.tensor(held["c"], dtype=x.dtype)) ** 2).sum(), constant=1.0
    )
    for held["c"] in (1.0, 2.0, 3.0):
        both(lambda w: lg.Composite(term, lg.L1(w)), 0.1, x0=B)


def test_what_is_expected_keeps_nothing_alive_and_is_dropped_with_its_program():
    both(lasso, 0.1)
    assert len(stepping.expectations)
    legato.engine.forget()
    assert not len(stepping.expectations)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda data, w: data[0].fill_(math.nan), lg.errors.InputError, "NaN"),
        (lambda data, w: w.data.fill_(-1.0), lg.errors.InputError, "non-negative"),
        (lambda data, w: data.mul_(100.0), lg.errors.StepError, "would diverge"),
    ],
    ids=["NaN", "negative", "too steep"],
)
def test_checks_that_are_put_off_say_the_same(change, error, words):
    data, w = A.clone(), number(0.1)
    problem = lasso(w, data)
    for _ in range(3):
        lg.solve(problem, PLAIN, engine=REPLAYED, stop=lg.Stop(5))
    change(data, w)
    with pytest.raises(error, match=words):
        lg.solve(problem, PLAIN, engine=REPLAYED, stop=lg.Stop(5))


def test_a_start_that_is_no_number():
    with pytest.raises(lg.errors.InputError, match="x0 holds NaN"):
        lg.solve(lasso(0.1), PLAIN, torch.full_like(A[0], math.nan), engine=REPLAYED)


def test_a_norm_that_is_remembered_is_of_the_matrix_as_it_is():
    data = A.clone()
    problem = lg.Composite(lg.LeastSquares(data, B))
    free = lg.ForwardBackward(inertia=0.0)
    lg.solve(problem, free, engine=REPLAYED, stop=lg.Stop(5))
    data.data.mul_(10.0)
    found = [
        lg.solve(problem, free, engine=engine, stop=lg.Stop(5)) for engine in (REPLAYED, lg.Eager())
    ]
    torch.testing.assert_close(*(s.steps["step"] for s in found))
    torch.testing.assert_close(*(s.x for s in found))
