"""Tensors, numbers and code that changed since the first call are seen or refused.

Each test changes one thing between two calls and compares with a run step by step.
"""

import numpy as np
import pytest
import torch
from torch import nn

import legato as lg
import legato.engine
from engines import REPLAYED, assert_alike, outcome
from legato.engine import stepping
from makers import randn

B = randn(3, seed=1)
PLAIN = lg.ForwardBackward(0.1)
FEW = lg.Stop(12)


def smooth(callable_):
    return lg.Composite(lg.Smooth(callable_), lg.Zero())


def assert_right(problem, *learned, algorithm=PLAIN, x0=None, recorded=True, **settings):
    """As step by step; ``recorded`` says whether an engine may run it."""
    start = torch.zeros(3, dtype=torch.float64) if x0 is None else x0
    settings = {"learned": learned, "stop": FEW} | settings
    found = outcome(problem, algorithm, start, **settings)
    assert_alike(outcome(problem, algorithm, start, engine=lg.Eager(), **settings), found)
    assert found.fell_back != recorded, found.reasons
    return found


@pytest.fixture(autouse=True)
def _fresh():
    legato.engine.forget()


def leaf(value=0.4):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


# --- tensors --------------------------------------------------------------------------------------


def test_a_tensor_replaced_in_a_closure():
    data = {"b": B}
    problem = smooth(lambda x: 0.5 * ((x - data["b"]) ** 2).sum())
    first = assert_right(problem)
    data["b"] = 2 * B
    assert not torch.equal(assert_right(problem).x[0], first.x[0])
    assert len(stepping._kept) == 1  # the same program with another tensor


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.data.mul_(2),
        lambda w: setattr(w, "data", 2 * w.data),
        lambda w: torch.utils.swap_tensors(w, (2 * w.detach()).requires_grad_()),
    ],
    ids=["in place", "data replaced", "swapped"],
)
def test_a_weight_changed_between_calls(change):
    weight = leaf()
    energy = lg.SquaredDistance(B) + lg.L1(weight)
    first = assert_right(energy, weight, algorithm=None)
    change(weight)
    assert not torch.equal(assert_right(energy, weight, algorithm=None).x[0], first.x[0])


def test_a_network_trained_by_an_optimiser():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1)).double()
    problem = smooth(lambda x: network(x).square().sum() + 0.5 * (x - B).square().sum())
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        found = assert_right(problem, *network.parameters())
        for p, g in zip(network.parameters(), found.gradients, strict=True):
            p.grad = g
        optimiser.step()
    assert len(stepping._kept) == 1
    network[1] = nn.Tanh()
    assert_right(problem, *network.parameters())
    network[0].weight = nn.Parameter(torch.ones_like(network[0].weight))
    assert_right(problem, *network.parameters())


def test_what_requires_a_gradient_may_change():
    weight, data = leaf(), B.clone().requires_grad_()
    energy = lg.SquaredDistance(data) + lg.L1(weight)
    assert_right(energy, weight, data, algorithm=None)
    data.requires_grad_(False)
    assert_right(energy, weight, algorithm=None)
    weight.requires_grad_(False)
    assert_right(energy, algorithm=None)
    data.requires_grad_(True)
    assert_right(energy, data, algorithm=None)


def test_another_problem_of_the_same_kind_shape_dtype_step_and_number_of_iterations():
    for size in (3, 5):
        for dtype in (torch.float64, torch.float32):
            for seed in (0, 1):
                y, weight = randn(2, size, seed=seed).to(dtype), leaf().detach().to(dtype)
                weight.requires_grad_()
                for step in (0.1, 0.2):
                    for stop in (lg.Stop(4), lg.Stop(7)):
                        assert_right(
                            lg.Composite(lg.SquaredDistance(y), lg.L1(weight)), weight, stop=stop,
                            x0=torch.zeros_like(y), algorithm=lg.ForwardBackward(step),
                        )  # fmt: skip


def test_data_that_lie_elsewhere_in_the_same_memory():
    block, weight = randn(4, 6, seed=3), leaf()
    for column in range(6):
        assert_right(lg.SquaredDistance(block[:, column]) + lg.L1(weight), weight, algorithm=None,
                     x0=torch.zeros(4, dtype=torch.float64))  # fmt: skip
    for data in (block[0, :1].expand(4), block[:, 0].clone(), block.T[0], block[::2, 1].repeat(2)):
        assert_right(lg.SquaredDistance(data) + lg.L1(weight), weight, algorithm=None,
                     x0=torch.zeros(4, dtype=torch.float64))  # fmt: skip


def test_the_data_are_the_start():
    data = B.clone().requires_grad_()
    problem = lg.Composite(lg.SquaredDistance(data), lg.L1(0.3))
    assert_right(problem, data, x0=data)
    assert_right(problem, data, x0=data.detach())


def test_a_start_computed_from_what_is_learned():
    found = []
    for engine in (REPLAYED, lg.Eager()):
        weight = leaf()
        problem = lg.Composite(lg.SquaredDistance(B), lg.L1(weight))
        found.append(outcome(problem, PLAIN, weight * B, learned=[weight], engine=engine, stop=FEW))
    assert_alike(*found)
    assert not found[0].fell_back


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [True, False])
def test_numbers_of_python(learned):
    held = {"k": 1.0}
    weight = leaf()
    problem = smooth(lambda x: held["k"] * 0.5 * ((x - B * weight) ** 2).sum())
    # 1, 1.0 and True are equal, as are 0.0 and -0.0, but do not compute alike in general.
    for value in (1.0, 2.0, 1, True, 0.0, -0.0, np.float64(0.3), np.float32(0.3), np.int64(2)):
        held["k"] = value
        assert_right(problem, *([weight] if learned else []))


def test_a_sign_of_zero_is_a_number_of_its_own():
    held = {"k": 0.0}
    problem = smooth(lambda x: 0.5 * ((x - B - torch.atan2(x * 0, x * 0 + held["k"])) ** 2).sum())
    first = assert_right(problem)
    held["k"] = -0.0
    assert_right(problem)
    assert first.x


def test_infinity_and_what_is_no_number():
    held = {"k": float("inf")}
    problem = smooth(lambda x: 0.5 * ((x - B).clamp(max=held["k"]) ** 2).sum())
    for value in (float("inf"), 1e300, 0.1, 10):
        held["k"] = value
        assert_right(problem)
    held = {"k": float("nan")}
    problem = smooth(lambda x: 0.5 * (torch.nan_to_num(x - B, nan=held["k"]) ** 2).sum())
    assert_right(problem)
    held["k"] = 1.0
    assert_right(problem)


def test_the_default_dtype():
    problem = smooth(lambda x: (0.5 * (x - B) ** 2 + torch.full((3,), 0.1) * x).sum())
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert_right(problem)
    finally:
        torch.set_default_dtype(before)


def test_tensors_made_of_numbers_in_the_callable():
    held = {"k": [1.0, 2.0, 3.0]}
    problem = smooth(lambda x: 0.5 * ((x - torch.tensor(held["k"], dtype=x.dtype)) ** 2).sum())
    assert_right(problem)
    held["k"] = [3.0, 2.0, 1.0]
    assert_right(problem)
    constant = np.array([1.0, 2.0, 3.0])
    problem = smooth(lambda x: 0.5 * ((x - torch.from_numpy(constant)) ** 2).sum())
    assert_right(problem)
    constant += 1
    assert_right(problem)


# --- derivatives ----------------------------------------------------------------------------------


class Gradient(lg.Function):
    """A term of a user's, written by its gradient x − b·scale(w)."""

    def __init__(self, scale, weight):
        self.scale, self.weight = scale, weight

    def __call__(self, x):
        return 0.5 * (x**2).sum()

    def grad(self, x):
        return x - B * self.scale(self.weight)

    def lipschitz(self, *_):
        return 1.0


class Scaled(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * Scaled.factor


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return ctx.function(grad), None


def test_a_custom_function_whose_backward_pass_has_changed():
    weight = leaf()
    problem = lg.Composite(Gradient(Scaled.apply, weight))
    gradients = []
    for Scaled.factor in (2.0, 3.0, 2.0):
        gradients.append(assert_right(problem, weight).gradients[0])
    assert not torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_a_custom_function_that_holds_another_function():
    weight = leaf()
    for factor in (2.0, 3.0):
        scale = lambda w, k=factor: Called.apply(w, lambda g: k * g)  # noqa: E731
        assert_right(lg.Composite(Gradient(scale, weight)), weight)


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Unroll(last=4), lg.Implicit()], ids=repr)
def test_which_of_two_equal_operations_is_attached(gradient):
    """The operations are the same: only the graph knows which of them has a derivative."""
    weight = leaf()
    for first, second in ((True, False), (False, True), (True, True)):

        def scale(w, first=first, second=second):
            with torch.set_grad_enabled(first and torch.is_grad_enabled()):
                u = w * w
            with torch.set_grad_enabled(second and torch.is_grad_enabled()):
                v = w * w
            return 2.0 * u + 3.0 * v

        assert_right(lg.Composite(Gradient(scale, weight)), weight, gradient=gradient,
                     stop=lg.Stop(200))  # fmt: skip


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_layer_of_which_one_part_is_learned(name):
    """Its backward pass leaves out the results that nobody needs."""
    torch.manual_seed(0)
    start = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)
    for layer in (nn.LayerNorm(3).double(), nn.Conv1d(1, 1, 3, padding=1).double()):
        for n, p in layer.named_parameters():
            p.requires_grad_(n == name)
        learned = getattr(layer, name)

        class Layered(Gradient):
            def grad(self, x, layer=layer):
                return x - B + 0.1 * layer(x.reshape(1, 1, 3)).reshape(3)

        assert_right(lg.Composite(Layered(None, None)), learned, x0=start)


def test_data_changed_before_the_backward_pass():
    data, weight = B.clone(), leaf()
    x = lg.solve(lg.SquaredDistance(data) + lg.L1(weight), engine=REPLAYED).x
    data.add_(1)
    with pytest.raises(lg.errors.GradientError, match="changed in place"):
        x.sum().backward()


def test_second_derivatives_are_refused_in_words():
    weight = leaf()
    x = lg.solve(lg.SquaredDistance(B) + lg.L1(weight), engine=REPLAYED).x
    with pytest.raises(lg.errors.GradientError, match="engine=Eager"):
        torch.autograd.grad((x**3).sum(), weight, create_graph=True)


def test_several_graphs_alive_and_swept_in_any_order():
    weights = [leaf(v) for v in (0.1, 0.2, 0.3)]
    solutions = [
        lg.solve(lg.SquaredDistance(B) + lg.L1(w), engine=REPLAYED, stop=FEW).x for w in weights
    ]
    expected = [
        outcome(lg.SquaredDistance(B) + lg.L1(w), learned=[w], engine=lg.Eager(), stop=FEW)
        for w in weights
    ]
    slope = torch.cos(torch.arange(3, dtype=torch.float64))
    for i in (2, 0, 1, 2, 0):
        loss = (slope * solutions[i] + 0.5 * solutions[i] ** 2).sum()
        (found,) = torch.autograd.grad(loss, weights[i], retain_graph=True)
        torch.testing.assert_close(found, expected[i].gradients[0], rtol=1e-12, atol=0)
