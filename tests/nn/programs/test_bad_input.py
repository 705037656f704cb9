"""What cannot be solved is refused in words."""

import pytest
import torch

from legato.errors import InputError
from legato.nn import QuadraticProgram

I, ONE = torch.eye(3), torch.ones(3)
ROWS, SIDES = torch.ones(2, 3), torch.ones(2)

CASES = {
    "nothing": ({}, "give Q, c or both"),
    "no objective": ({"G": ROWS, "h": SIDES}, "give Q, c or both"),
    "indefinite": ({"Q": torch.diag(torch.tensor([1.0, -1.0, 1.0]))}, "negative eigenvalue, -1"),
    "one indefinite": (
        {"Q": torch.stack([I, I, -I])},
        r"negative eigenvalue, -1 \(first in instance \(2,\)\)",
    ),
    "unsymmetric": ({"Q": torch.triu(torch.ones(3, 3))}, r"not symmetric.*reaches 1"),
    "crossed bounds": ({"c": ONE, "lo": ONE, "hi": -ONE}, r"lo > hi in 3 entries, by up to 2"),
    "NaN": ({"Q": I, "c": ONE * float("nan")}, "c holds 3 NaN or infinite values of 3"),
    "NaN in a bound": ({"Q": I, "lo": ONE * float("nan")}, "lo holds 3 NaN"),
    "infinite data": ({"Q": I, "c": ONE / 0}, "c holds 3 NaN or infinite"),
    "bound at the wrong end": ({"Q": I, "lo": ONE / 0}, r"lo holds \+∞"),
    "side at the wrong end": ({"Q": I, "G": ROWS, "h": -SIDES / 0}, "h holds −∞"),
    "A without b": ({"Q": I, "A": ROWS}, "A and b belong together"),
    "h without G": ({"Q": I, "h": SIDES}, "G and h belong together"),
    "rows and sides": ({"Q": I, "G": ROWS, "h": ONE}, r"G \(2, 3\) has 2 rows, but h \(3,\) has 3"),
    "variables": ({"Q": I, "c": torch.ones(4)}, r"Q says 3 variables, but c has shape \(4,\)"),
    "not square": ({"Q": torch.ones(2, 3)}, r"Q is \(…, n, n\)"),
    "a vector for a matrix": ({"Q": ONE}, "Q must be a matrix"),
    "batches": (
        {"Q": I, "A": torch.ones(32, 2, 3), "b": torch.ones(20, 2)},
        r"b of shape \(20, 2\) does not fit a batch of shape \(32,\)",
    ),
    "no variables": ({"c": torch.ones(0)}, "has no variables"),
    "no instances": ({"c": torch.ones(0, 3)}, "has no instances"),
    "dtypes": ({"Q": I, "c": ONE.double()}, "Q is torch.float32 and c is torch.float64"),
    "integers": ({"Q": torch.eye(3, dtype=torch.long)}, "float32 or float64"),
    "half": ({"Q": I.half()}, "float32 or float64"),
    "a list": ({"Q": [[1.0]]}, "Q must be a tensor, not list"),
    "sparse": ({"Q": I, "c": ONE.to_sparse()}, "to_dense"),
    "meta": ({"Q": I.to("meta")}, "meta device"),
    "devices": ({"Q": I, "c": ONE.to("meta")}, "meta device"),
}


@pytest.mark.parametrize(("given", "words"), CASES.values(), ids=CASES.keys())
def test_refused(given, words):
    with pytest.raises(InputError, match=words):
        QuadraticProgram()(**given)


@pytest.mark.parametrize("settings", [{"iterations": 0}, {"iterations": 2.5}, {"tol": 0.0}])
def test_settings(settings):
    with pytest.raises(InputError):
        QuadraticProgram(**settings)


def test_constraints_without_rows_are_none():
    x = QuadraticProgram()(
        I, ONE, A=torch.ones(0, 3), b=torch.ones(0), G=torch.ones(0, 3), h=torch.ones(0)
    )
    torch.testing.assert_close(x, -ONE)


def test_infinite_sides_do_not_count():
    G, h = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([-2.0, torch.inf])
    h.requires_grad_()
    x = QuadraticProgram()(I, ONE, G=G, h=h, lo=-torch.inf, hi=torch.inf)
    torch.testing.assert_close(x, torch.tensor([-2.0, -1.0, -1.0]))
    x.sum().backward()
    torch.testing.assert_close(h.grad, torch.tensor([1.0, 0.0]))


def test_rounding_in_a_product_is_neither_unsymmetric_nor_indefinite():
    L = torch.randn(20, 30, 12, generator=torch.Generator().manual_seed(0))
    Q = L @ L.mT  # of rank 12 of 30
    x = QuadraticProgram()(Q, torch.ones(30), lo=-1.0, hi=1.0)
    assert x.shape == (20, 30)
    assert bool(x.isfinite().all())


def test_transforms_of_functions_are_refused_in_words():
    with pytest.raises(InputError, match="leading axes are batches"):
        torch.func.vmap(lambda c: QuadraticProgram()(I, c))(torch.ones(4, 3))


def test_one_derivative_only():
    c = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(QuadraticProgram()(I, c).square().sum(), c, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_autocast_is_left_out():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = torch.nn.functional.linear(torch.ones(1, 3), torch.eye(3))
        assert half.dtype == torch.bfloat16
        x = QuadraticProgram()(I, half)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, -torch.ones(1, 3))
