"""What cannot be done again from a recording runs step by step, with the reason in words."""

import warnings

import numpy as np
import pytest
import torch

import legato as lg
import legato.engine
from engines import REPLAYED, assert_alike, outcome
from legato._support.compiling import UnrecordableError
from legato.engine.expecting import Call
from makers import randn

B = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
START = torch.zeros(3, dtype=torch.float64)
PLAIN = lg.ForwardBackward(0.1)


@pytest.fixture(autouse=True)
def _fresh():
    legato.engine.forget()


def assert_refused(problem, reason, *learned, algorithm=PLAIN, stop=None):
    settings = {"learned": learned, "stop": stop or lg.Stop(40)}
    found = outcome(problem, algorithm, START, **settings)
    assert_alike(outcome(problem, algorithm, START, engine=lg.Eager(), **settings), found)
    assert found.reasons
    assert all(reason in words for words in found.reasons), found.reasons


def smooth(callable_):
    return lg.Composite(lg.Smooth(callable_), lg.Zero())


def by_numpy(x):
    """Equal in the first steps from zero, and another mask later."""
    mask = torch.from_numpy((x.detach().numpy() > 0.9).astype(float))
    return (0.5 * (x - B) ** 2 + 3 * mask * x).sum()


def by_list(x):
    mask = torch.tensor([float(v > 0.9) for v in x.detach().tolist()], dtype=x.dtype)
    return (0.5 * (x - B) ** 2 + 3 * mask * x).sum()


def by_number(x):
    return (0.5 * (x - B) ** 2).sum() * (1.0 if np.asarray(x.detach()).max() < 0.9 else 0.5)


@pytest.mark.parametrize("callable_", [by_numpy, by_list, by_number])
def test_values_that_leave_torch_are_not_frozen(callable_):
    assert_refused(smooth(callable_), "it reads values")


class ByNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.maximum(x.detach().numpy() - 0.5, 0.0))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0.5, grad, 0 * grad)


class Term(lg.Function):
    def __call__(self, x):
        return 0.5 * (x**2).sum()

    def lipschitz(self, *_):
        return 2.0


def test_a_custom_function_in_numpy():
    class InNumPy(Term):
        def grad(self, x):
            return x - B + ByNumPy.apply(x)

    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert_refused(lg.Composite(InNumPy(), lg.L1(weight)), "it reads values", weight)


def test_memory_that_is_filled_unseen():
    class Filled(Term):
        def grad(self, x):
            out = torch.empty_like(x)
            np.copyto(out.numpy(), x.numpy() - B.numpy())
            return out

    with torch.no_grad():
        assert_refused(lg.Composite(Filled()), "not seen")


def test_a_mask_that_was_found_and_is_then_computed_unseen():
    """The operations are those of the first call, whose program must not be taken."""

    class Masked(Term):
        fixed = True
        mask = torch.zeros(3, dtype=torch.float64)

        def grad(self, x):
            mask = self.mask if self.fixed else torch.from_numpy((x.numpy() > 0.9).astype(float))
            return x - B + 3 * mask

    term = Masked()
    with torch.no_grad():
        assert not outcome(lg.Composite(term), PLAIN, START, stop=lg.Stop(40)).fell_back
        term.fixed = False
        assert_refused(lg.Composite(term), "it reads values")


def test_control_flow_by_values():
    def branching(x):
        return (0.5 * (x - B) ** 2).sum() * (1.0 if float(x.detach().sum()) < 2 else 0.5)

    assert_refused(smooth(branching), "it reads values")


def test_random_numbers():
    noisy = smooth(lambda x: 0.5 * ((x - B + 0.1 * torch.randn(3, dtype=x.dtype)) ** 2).sum())
    found = []
    for engine in (lg.Eager(), REPLAYED):
        torch.manual_seed(0)
        found.append(outcome(noisy, PLAIN, START, engine=engine, stop=lg.Stop(5)))
    # The attempt to record drew numbers as well: the runs agree in law only.
    assert "random numbers" in found[1].reasons[0]


def test_changes_in_place():
    def in_place(x):
        y = (x - B).clone()
        y.mul_(2.0)
        return (y**2).sum() / 8

    assert_refused(smooth(in_place), "in place")


def test_a_tensor_outside_is_not_changed_by_the_attempt():
    seen = torch.zeros(3, dtype=torch.bool)

    def marking(x):
        seen.logical_and_(x.detach() > 5)
        return (0.5 * (x - B) ** 2).sum()

    seen.fill_(True)
    state = PLAIN.init(smooth(lambda x: (x**2).sum()), START)
    with pytest.raises(UnrecordableError, match="in place"):
        legato.engine.stepping.stepping(Call(smooth(marking), PLAIN, state))
    assert bool(seen.all())


def test_steps_that_count():
    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return (0.5 + 0.01 * self.calls) * ((x - B) ** 2).sum()

    found = outcome(smooth(Counting()), PLAIN, START, stop=lg.Stop(5))
    assert "different things" in found.reasons[0]


def test_a_learned_tensor_beside_one_computed_from_it():
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        other = weight.exp()
        problem = smooth(lambda x, other=other: (0.5 * other * (x - B * weight) ** 2).sum())
        found = outcome(problem, PLAIN, START, learned=[weight])
        expected = outcome(
            smooth(lambda x: (0.5 * weight.exp() * (x - B * weight) ** 2).sum()), PLAIN, START,
            learned=[weight], engine=lg.Eager(),
        )  # fmt: skip
        assert "computed from it" in found.reasons[0]
        assert_alike(found, expected)


def test_hooks_are_called_once():
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    calls = []
    handle = weight.register_hook(lambda g: calls.append(1) or 2 * g)
    assert_refused(lg.Composite(lg.SquaredDistance(B), lg.L1(weight)), "hooks", weight)
    assert len(calls) == 2  # one for each of the two engines
    handle.remove()
    assert not outcome(
        lg.Composite(lg.SquaredDistance(B), lg.L1(weight)), PLAIN, START, learned=[weight]
    ).fell_back


def test_a_retained_gradient_is_not_touched_by_the_solve():
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    scaled = 2 * weight
    scaled.retain_grad()
    with pytest.warns(lg.errors.EagerWarning, match="hooks"):
        x = lg.solve(lg.SquaredDistance(B) + lg.L1(scaled), engine=REPLAYED).x
    assert scaled.grad is None
    x.sum().backward()
    torch.testing.assert_close(scaled.grad, torch.tensor(-3.0).double())


def test_hooks_inside_of_a_callable():
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    class Hooked(Term):
        factor = 2.0

        def grad(self, x):
            w = weight * 1.0
            if w.requires_grad:
                w.register_hook(lambda g: g * self.factor)
            return x - B * w

    term = Hooked()
    for term.factor in (2.0, 5.0):
        assert_refused(lg.Composite(term), "hooks", weight)


def test_states_that_change_their_shape():
    class Growing(lg.ForwardBackward):
        def step(self, problem, state):
            state = super().step(problem, state)
            return state._replace(
                step=torch.cat([state.step.reshape(-1), state.step.reshape(-1)[:1]])
            )

    with torch.no_grad():
        problem = lg.Composite(lg.SquaredDistance(B))
        algorithm = Growing(0.1)
        with pytest.raises(UnrecordableError, match="shape"):
            legato.engine.stepping.stepping(
                Call(problem, algorithm, algorithm.init(problem, START))
            )


def test_algorithms_that_look_at_values():
    A = randn(6, 3, seed=1)
    searching = lg.ForwardBackward(lg.Backtracking())
    assert_refused(lg.Composite(lg.LeastSquares(A, randn(6)), lg.L1(0.1)), "it reads values",
                   algorithm=searching)  # fmt: skip
    ridge = lg.Composite(lg.LeastSquares(A, randn(6)), lg.SquaredNorm(0.1))
    assert_refused(ridge, "it reads values", algorithm=lg.Newton(), stop=lg.Stop(3))


def test_a_check_by_values_is_not_left_out():
    """A geometry that couples entries refuses derivatives that have lost their digits."""
    geometry, y = lg.Quartic(), randn(3, seed=4)
    recorder = legato.engine.recording.Recorder([y])
    with (
        pytest.raises(UnrecordableError, match="checked by their values"),
        legato.engine.recording.recording(recorder),
    ):
        lg.Geometry.inverse_metric(geometry, y, torch.ones_like(y))


def test_a_subclass_of_tensor():
    class Odd(torch.Tensor):
        pass

    odd = B.clone().as_subclass(Odd)
    found = outcome(smooth(lambda x: 0.5 * ((x - odd) ** 2).sum().as_subclass(torch.Tensor)), PLAIN,
                    START)  # fmt: skip
    assert found.reasons


def test_the_words_speak_of_the_solve():
    found = outcome(smooth(by_numpy), PLAIN, START, stop=lg.Stop(40, tol=1e-3))
    expected = (
        "Replayed() runs this solve step by step: it reads values while it runs (Tensor.numpy)."
    )
    assert set(found.reasons) == {expected}


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit()], ids=repr)
def test_a_graph_that_cannot_be_captured(gradient, monkeypatch):
    """Out of memory, say: the recorded operations run one by one, with a word."""

    def fails(self, *args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(legato.engine.machine.Graph, "_capture", fails)
    monkeypatch.setattr(legato.engine.switch, "captures", lambda tensors: True)
    found = []
    for engine in (lg.Eager(), lg.Replayed()):
        weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        energy = lg.SquaredDistance(torch.tensor([1.0, 0.2], dtype=torch.float64)) + lg.L1(weight)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x = lg.solve(energy, gradient=gradient, stop=lg.Stop(40), engine=engine).x
            x.sum().backward()
        found.append((x.detach(), weight.grad, {str(w.message) for w in said}))
    assert any("without a CUDA graph" in text and "3 GiB" in text for text in found[1][2])
    torch.testing.assert_close(found[0][:2], found[1][:2])
