"""Solutions against the KKT conditions and Clarabel, gradients against the KKT equations."""

import numpy as np
import pytest
import torch

from legato.nn import QuadraticProgram
from quadratic_programs import (
    by_clarabel,
    instance,
    kkt_gradient,
    kkt_violation,
    multipliers,
    random_programs,
)

SIZES = {
    "rows": {"n": 6, "p": 0, "m": 8, "bounds": False},
    "equations": {"n": 6, "p": 3, "m": 0, "bounds": False},
    "box": {"n": 6, "p": 0, "m": 0, "bounds": True},
    "all": {"n": 7, "p": 2, "m": 5, "bounds": True},
}


def solved_with_gradient(data, w):
    given = {name: value.clone().requires_grad_() for name, value in data.items()}
    record = QuadraticProgram().solve(**given)
    (record.x * w).sum().backward()
    return record, {name: value.grad for name, value in given.items()}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_a_thousand_solutions_and_gradients(size):
    """Every single one, not on average."""
    data = random_programs((1000,), **size, seed=1)
    w = torch.randn(
        1000, size["n"], dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    record, gradient = solved_with_gradient(data, w)
    assert bool(record.solved.all())
    assert not bool(record.degenerate.any())
    x, y, z = record.x.detach().numpy(), record.y.numpy(), multipliers(record, data)
    for k in range(1000):
        one = instance(data, k)
        assert kkt_violation(one, x[k], y[k], z[k]) < 1e-11
        truth = kkt_gradient(one, x[k], y[k], z[k], w[k].numpy())
        for name, value in truth.items():
            error = np.abs(gradient[name][k].numpy() - value).max()
            assert error <= 1e-9 * max(1.0, np.abs(value).max()), (k, name)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_against_differences_of_clarabel(size):
    data = random_programs((3,), **size, seed=3)
    g = torch.Generator().manual_seed(4)
    w = torch.randn(3, size["n"], dtype=torch.float64, generator=g)
    record, gradient = solved_with_gradient(data, w)
    step = 1e-5
    for k in range(3):
        one = instance(data, k)
        assert np.abs(by_clarabel(one) - record.x[k].detach().numpy()).max() < 1e-8
        for name in data:
            direction = torch.randn(data[name][k].shape, generator=g, dtype=torch.float64).numpy()
            if name == "Q":
                direction = direction + direction.T
            ends = [
                w[k].numpy() @ by_clarabel(one | {name: one[name] + s * step * direction})
                for s in (1, -1)
            ]
            expected = (ends[0] - ends[1]) / (2 * step)
            found = (gradient[name][k].numpy() * direction).sum()
            assert abs(found - expected) < 1e-5 * max(1.0, abs(expected)), name


def test_a_batch_equals_its_instances():
    data = random_programs((12,), 8, 2, 6, seed=5)
    w = torch.ones(12, 8, dtype=torch.float64)
    record, gradient = solved_with_gradient(data, w)
    for k in range(12):
        alone, own = solved_with_gradient({n: v[k] for n, v in data.items()}, w[k])
        torch.testing.assert_close(alone.x, record.x[k], rtol=1e-11, atol=1e-11)
        for name in data:
            torch.testing.assert_close(own[name], gradient[name][k], rtol=1e-9, atol=1e-9)


def test_what_is_shared_gets_the_sum_of_gradients():
    data = random_programs((2, 3), 5, 1, 4, seed=6)
    shared = {n: v[0, 0] for n, v in data.items()}
    c = data["c"].clone()
    spread = {n: v.expand(2, 3, *v.shape) for n, v in shared.items()} | {"c": c}
    w = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, sums = solved_with_gradient(shared | {"c": c}, w)
    each, parts = solved_with_gradient(spread, w)
    torch.testing.assert_close(one.x, each.x)
    for name in data:
        tail = shared[name].ndim
        total = parts[name] if name == "c" else parts[name].flatten(0, -tail - 1).sum(0)
        torch.testing.assert_close(sums[name], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cost", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_units_do_not_matter(cost, length):
    """x in other units, the objective too: the same solution and gradient, in those units."""
    data = random_programs((20,), 6, 2, 5, seed=7)
    w = torch.ones(20, 6, dtype=torch.float64)
    record, gradient = solved_with_gradient(data, w)
    units = {"Q": cost / length**2, "c": cost / length, "A": 1.0, "G": 1.0}
    units |= dict.fromkeys(("b", "h", "lo", "hi"), length)
    moved, there = solved_with_gradient({n: units[n] * v for n, v in data.items()}, w)
    assert bool(moved.solved.all())
    torch.testing.assert_close(moved.x / length, record.x, rtol=1e-9, atol=1e-9)
    for name in data:
        torch.testing.assert_close(
            there[name] * units[name] / length, gradient[name], rtol=1e-8, atol=1e-8
        )


def test_single_precision():
    data = random_programs((200,), 8, 2, 6, seed=8, dtype=torch.float32)
    w = torch.ones(200, 8)
    record, gradient = solved_with_gradient(data, w)
    assert record.x.dtype == torch.float32
    assert bool(record.solved.all())
    double, exact = solved_with_gradient({n: v.double() for n, v in data.items()}, w.double())
    x, y, z = double.x.detach().numpy(), double.y.numpy(), multipliers(double, data)
    assert max(kkt_violation(instance(data, k), x[k], y[k], z[k]) for k in range(200)) < 1e-11
    torch.testing.assert_close(record.x.double(), double.x, rtol=1e-6, atol=1e-6)
    for name in data:
        scale = exact[name].flatten(1).norm(dim=1)
        error = (gradient[name].double() - exact[name]).flatten(1).norm(dim=1)
        assert bool((error <= 1e-4 * scale.clamp(min=1)).all()), name


def test_equal_ends_are_equations():
    """lo = hi, moved together, has the derivative of the equation x_i = b."""
    data = random_programs((10,), 6, 0, 5, seed=9)
    data["lo"][:, :2] = data["hi"][:, :2] = 0.5 * (data["lo"] + data["hi"])[:, :2]
    w = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    record, gradient = solved_with_gradient(data, w)
    free = {n: v.clone() for n, v in data.items()}
    free["lo"][:, :2], free["hi"][:, :2] = -torch.inf, torch.inf
    free["A"] = torch.eye(6, dtype=torch.float64)[:2].expand(10, -1, -1).clone()
    free["b"] = data["lo"][:, :2].clone()
    same, expected = solved_with_gradient(free, w)
    torch.testing.assert_close(record.x, same.x)
    torch.testing.assert_close(
        (gradient["lo"] + gradient["hi"])[:, :2], expected["b"], rtol=1e-9, atol=1e-9
    )
    step = 1e-6
    ends = []
    for s in (1, -1):
        moved = {n: v.clone() for n, v in data.items()}
        moved["lo"][:, 0] += s * step
        moved["hi"][:, 0] += s * step
        ends.append(np.array([w[k].numpy() @ by_clarabel(instance(moved, k)) for k in range(10)]))
    differences = (ends[0] - ends[1]) / (2 * step)
    found = (gradient["lo"] + gradient["hi"])[:, 0].numpy()
    assert np.abs(found - differences).max() < 1e-4


def test_data_that_change_after_the_solve_do_not_change_its_gradient():
    data = random_programs((4,), 5, 1, 4, seed=10)
    w = torch.ones(4, 5, dtype=torch.float64)
    _, expected = solved_with_gradient(data, w)
    given = {name: value.clone().requires_grad_() for name, value in data.items()}
    x = QuadraticProgram()(**given)
    with torch.no_grad():
        for value in given.values():
            value.mul_(3)
    x.sum().backward()
    for name in data:
        torch.testing.assert_close(given[name].grad, expected[name])


def test_a_semidefinite_objective_with_one_solution():
    """A linear program's vertex, and a variable that only a constraint determines."""
    f64 = torch.float64
    c = torch.tensor([-1.0, -2.0, 1.0], dtype=f64, requires_grad=True)
    Q = torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=f64))
    G = torch.tensor([[1.0, 1.0, 0.0], [1.0, 3.0, 0.0]], dtype=f64)
    h = torch.tensor([4.0, 6.0], dtype=f64, requires_grad=True)
    x = QuadraticProgram()(Q, c, G=G, h=h, lo=0.0)
    torch.testing.assert_close(x, torch.tensor([3.0, 1.0, 0.0], dtype=f64), rtol=0, atol=1e-12)
    # x₁ = (3h₁ − h₂)/2, and x₃ = max(0, −c₃) stays zero.
    (found,) = torch.autograd.grad(x[0], h)
    torch.testing.assert_close(found, torch.tensor([1.5, -0.5], dtype=f64))
