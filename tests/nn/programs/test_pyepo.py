"""Solvers in the form of PyEPO as layers; the models here do not need the package."""

import itertools
import math

import numpy as np
import pytest
import torch

from legato.errors import InputError
from legato.nn import LPGD, LinearProgram, Perturbed, Ridge, from_pyepo

F64 = torch.float64


class Knapsack:
    """Whole numbers: the most valuable choice of five things of weights 2 … 6 up to 9."""

    num_cost = 5
    modelSense = -1  # noqa: N815, PyEPO's name
    choices = np.array(
        [v for v in itertools.product((0.0, 1.0), repeat=5) if np.dot(v, [2, 3, 4, 5, 6]) <= 9]
    )
    calls = 0

    def setObj(self, c):
        self.c = c

    def solve(self):
        self.calls += 1
        best = self.choices[(self.choices @ self.c).argmax()]
        return list(best), float(best @ self.c)


class Simplex:
    """The cheapest of n things, as a tensor."""

    def __init__(self, n):
        self.num_cost = n

    def setObj(self, c):
        self.c = torch.as_tensor(c)

    def solve(self):
        return torch.nn.functional.one_hot(self.c.argmin(), self.num_cost), float(self.c.min())


def best(c):
    """The knapsack of every row, without a layer."""
    scores = np.asarray(c) @ Knapsack.choices.T
    return Knapsack.choices[scores.argmax(-1)]


def test_a_maximum_over_whole_numbers():
    g = torch.Generator().manual_seed(0)
    c = torch.rand(4, 3, 5, generator=g, dtype=F64).requires_grad_()
    xi = torch.randn(4, 3, 5, generator=g, dtype=F64)
    xi[0, 0] = 0  # is not asked for
    model = Knapsack()
    x = from_pyepo(model, LPGD(0.3))(c)
    np.testing.assert_array_equal(x.detach(), best(c.detach()))
    x.backward(xi)
    # The loss falls where c moves against its gradient: towards solutions of c − τξ.
    expected = -(best(c.detach() - 0.3 * xi) - best(c.detach())) / 0.3
    np.testing.assert_allclose(c.grad, expected)
    assert not c.grad[0, 0].any()
    assert model.calls == 12 + 11


def test_a_linear_program_by_its_model():
    c = torch.tensor([[1.0, 1.2, 3.0], [0.5, 0.4, 0.45]], dtype=F64)
    target = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], dtype=F64)
    found = []
    program = LinearProgram(LPGD(1.5))
    one = torch.ones(1, dtype=F64)
    for solve in (
        from_pyepo(Simplex(3), LPGD(1.5)),
        lambda c: program(c, torch.ones(1, 3, dtype=F64), one, lo=0.0),
    ):
        cost = c.clone().requires_grad_()
        (solve(cost) - target).square().sum().backward()
        found.append(cost.grad)
    torch.testing.assert_close(*found)
    assert bool(found[0][0].any())
    assert not bool(found[0][1].any())  # already right


def test_perturbed_against_the_closed_form():
    """Of two things the first is chosen with probability Φ((c₂ − c₁)/(σ√2))."""
    c = torch.tensor([1.0, 1.3], dtype=F64, requires_grad=True)
    noise = Perturbed(0.5, samples=20_000, generator=torch.Generator().manual_seed(0))
    x = from_pyepo(Simplex(2), noise)(c)
    z = 0.3 / (0.5 * math.sqrt(2))
    assert x[0].item() == pytest.approx(0.5 * (1 + math.erf(z / math.sqrt(2))), abs=0.01)
    x[0].backward()
    slope = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (0.5 * math.sqrt(2))
    torch.testing.assert_close(c.grad, torch.tensor([-slope, slope], dtype=F64), rtol=0, atol=0.03)


def test_dtype_and_what_no_gradient_reaches():
    c = torch.tensor([[1.0, 2.0]], requires_grad=True)
    x = from_pyepo(Simplex(2))(c)
    assert x.dtype == torch.float32
    x.backward(torch.tensor([[torch.nan, 0.0]]))
    assert bool(c.grad.isnan().all())
    with torch.no_grad():
        assert from_pyepo(Simplex(2))(c).tolist() == [[1.0, 0.0]]
    assert from_pyepo(Simplex(2))(torch.zeros(0, 2)).shape == (0, 2)
    assert "Simplex, LPGD" in repr(from_pyepo(Simplex(2)))


def test_data_changed_after_the_solve_are_noticed():
    c = torch.tensor([[1.0, 1.2]], requires_grad=True)
    moved = c * 1.0
    x = from_pyepo(Simplex(2))(moved)
    with torch.no_grad():
        moved.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


def test_bad_input():
    with pytest.raises(InputError, match="object has no num_cost, setObj, solve"):
        from_pyepo(object())
    with pytest.raises(InputError, match=r"LPGD\(…\) or Perturbed"):
        from_pyepo(Simplex(2), Ridge(0.1))
    layer = from_pyepo(Simplex(2))
    with pytest.raises(InputError, match=r"costs \(…, 2\)"):
        layer(torch.zeros(3))
    with pytest.raises(InputError, match="floating-point"):
        layer(torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="1 NaN"):
        layer(torch.tensor([1.0, torch.nan]))
    with pytest.raises(InputError, match="hides"):
        torch.vmap(layer)(torch.ones(3, 2))
    broken = Simplex(2)
    broken.solve = lambda: (None, 0.0)
    with pytest.raises(InputError, match="instance 0 is not 2 finite"):
        from_pyepo(broken)(torch.ones(2))
    odd = Simplex(2)
    odd.modelSense = 0
    with pytest.raises(InputError, match="modelSense must be"):
        from_pyepo(odd)
