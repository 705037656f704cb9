"""The compiled loops of strictly convex programs; Triton's on a GPU or by its interpreter."""

import importlib

import pytest
import torch

from kernel_harness import (
    GPU,
    conversions_allowed,
    interpreter_needed,
    passed_by_the_interpreter,
    triton_only,
)
from legato.nn import QuadraticProgram
from legato.nn.programs import dual, inverses, strict

# The interpreter computes with NumPy, which speaks where a GPU keeps an infinity to itself.
pytestmark = [conversions_allowed, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
DEVICE = "cuda" if GPU else "cpu"
HOMES = (dual, inverses, strict)
RULES = (dual._WRONG, dual._DEPENDENT, dual._PATIENCE)
ONE_BY_ONE = (*RULES[:2], -1)


def normal(*shape, seed=0):
    g = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def definite(B, n):
    L = normal(B, n, n)
    return L @ L.mT / n + 0.1 * torch.eye(n, dtype=torch.float64)


def rows(B, n, two_sided):
    """D, t and ends of programs in their multipliers: lower ≤ t − Dζ ≤ upper."""
    upper = 0.3 + normal(B, n, seed=1).abs()
    lower = -upper if two_sided else torch.full_like(upper, -torch.inf)
    lower[0, -1] = upper[0, -1]  # an equation
    return [v.to(DEVICE) for v in (definite(B, n), 2 * normal(B, n, seed=2), lower, upper)]


def solves(D, t, lower, upper, ends):
    """Whether these ends satisfy the optimality conditions, by systems written out here."""
    for k in range(len(t)):
        A = ends[k].nonzero().squeeze(-1)
        end = torch.where(ends[k] > 0, upper[k], lower[k])
        zeta = torch.zeros_like(t[k])
        zeta[A] = torch.linalg.solve(D[k][A][:, A], (t[k] - end)[A])
        value = t[k] - D[k] @ zeta
        assert bool((zeta * ends[k] >= 0).all())
        assert bool((value <= upper[k] + 1e-9).all())
        assert bool((value >= lower[k] - 1e-9).all())


@triton_only
@pytest.mark.parametrize("n", [1, 5, 16, 17, 33])
def test_triton_inverses(n):
    from legato.nn.programs import triton

    M = definite(4, n)
    M[1] = -M[1]
    M[2] *= 1e-9
    M[3, 0] = torch.nan
    found, sound = triton.inverses(M.to(DEVICE))
    assert sound.tolist() == [True, False, True, False]
    assert not bool(found[[1, 3]].any())
    for k in (0, 2):
        torch.testing.assert_close(found[k].cpu(), torch.linalg.inv(M[k]), rtol=1e-11, atol=1e-11)


@triton_only
@pytest.mark.parametrize(
    ("n", "two_sided"), [(1, False), (7, False), (7, True), (20, False), (33, True)]
)
def test_triton_ends_are_the_right_ones(n, two_sided):
    from legato.nn.programs import triton

    data = rows(4, n, two_sided)
    ends, steps = triton.active_ends(data, None, 100, *RULES)
    assert bool((steps > 0).all())
    solves(*(v.cpu() for v in (*data, ends)))
    again, few = triton.active_ends(data, ends, 100, *RULES)  # the solution as a start
    torch.testing.assert_close(again, ends)
    assert bool((few == 1).all())
    other, _ = triton.active_ends(data, 1 - ends.abs(), 100, *RULES)  # a bad start
    torch.testing.assert_close(other, ends)


def more_rows_than_variables(B, n, m, two_sided):
    """Two of the rows are the same; of many that are guessed, most depend on the others."""
    C, inside = normal(B, m, n, seed=1), normal(B, n, seed=3)
    C[:, -1] = C[:, 0]
    D, t = C @ torch.linalg.solve(definite(B, n), C.mT), normal(B, n, seed=2)
    value = (C @ inside.unsqueeze(-1)).squeeze(-1)
    upper = value + 0.1 * normal(B, m, seed=4).abs()
    lower = value - 0.1 if two_sided else torch.full_like(upper, -torch.inf)
    t = (C @ torch.linalg.solve(definite(B, n), 3 * t.unsqueeze(-1))).squeeze(-1)
    return [v.to(DEVICE) for v in (D, t, lower, upper)]


@pytest.mark.parametrize("name", ["numba", pytest.param("triton", marks=triton_only)])
@pytest.mark.parametrize("rules", [RULES, ONE_BY_ONE])
@pytest.mark.parametrize(("n", "m", "two_sided"), [(3, 12, False), (5, 30, False), (4, 16, True)])
def test_ends_of_rows_that_depend_on_one_another(name, rules, n, m, two_sided):
    kernel = importlib.import_module(f"legato.nn.programs.{name}")
    data = more_rows_than_variables(6, n, m, two_sided)
    data = data if name == "triton" else [v.cpu() for v in data]
    ends, steps = kernel.active_ends(data, None, 100, *rules)
    assert bool((steps > 0).all())
    assert int(ends.count_nonzero(-1).amax()) <= n
    assert bool((ends.count_nonzero(-1) > 1).any())
    solves(*(v.cpu() for v in (*data, ends)))


@pytest.mark.parametrize("name", ["numba", pytest.param("triton", marks=triton_only)])
def test_a_pivot_of_rounding_is_none(name):
    """Rows that say the same of one variable: beside one of them nothing is left of the other."""
    kernel = importlib.import_module(f"legato.nn.programs.{name}")
    C = normal(32, 2, 1)
    upper = C.squeeze(-1)
    data = [C @ C.mT, 2 * upper, torch.full_like(upper, -torch.inf), upper]
    data = [v.to(DEVICE) if name == "triton" else v for v in data]
    ends, steps = kernel.active_ends(data, torch.ones_like(data[1]), 100, *RULES)
    assert bool((steps > 0).all())
    assert int(ends.count_nonzero(-1).amax()) == 1


@pytest.mark.parametrize("name", ["numba", pytest.param("triton", marks=triton_only)])
def test_no_ends_are_found_where_no_point_is_inside(name):
    kernel = importlib.import_module(f"legato.nn.programs.{name}")
    D, t, lower, upper = more_rows_than_variables(3, 3, 12, False)
    lower[1, -1], upper[1, 0] = 1.0, 0.0  # of one and the same row
    data = [v if name == "triton" else v.cpu() for v in (D, t, lower, upper)]
    _, steps = kernel.active_ends(data, None, 100, *RULES)
    assert [bool(s > 0) for s in steps] == [True, False, True]
    assert int(steps.abs().amax()) <= 100


@triton_only
def test_triton_says_what_it_did_not_find(monkeypatch):
    from legato.nn.programs import triton

    monkeypatch.setattr(triton, "_SWEEPS", 3)
    data = rows(3, 6, False)
    data[0][1] = -data[0][1]
    data[1][2, 0] = torch.nan
    _, steps = triton.active_ends(data, None, 100, *RULES)
    assert [bool(s > 0) for s in steps] == [True, False, True]
    _, steps = triton.active_ends(rows(3, 20, True), 1 - rows(3, 20, True)[1].abs(), 1, *RULES)
    assert steps.abs().tolist() == [1, 1, 1]


@triton_only
def test_triton_layer(monkeypatch):
    """Equations, rows and a box: the solution, its multipliers and its gradients."""
    B, n = 3, 6
    inside, A, G = normal(B, n), normal(B, 2, n, seed=3), normal(B, 5, n, seed=4)
    b, h = ((M @ inside.unsqueeze(-1)).squeeze(-1) for M in (A, G))
    data = [definite(B, n), 2 * normal(B, n, seed=5), A, b, G, h + 0.2, inside - 0.4, inside + 0.4]

    def solved(device):
        given = [v.to(device).requires_grad_() for v in data]
        record = QuadraticProgram().solve(*given)
        loss = (record.x * torch.arange(float(n), device=device)).sum()
        return record, torch.autograd.grad(loss, given)

    with monkeypatch.context() as patch:
        patch.setattr("legato.nn.programs.quadratic.solve_strictly", lambda *_: None)
        truth, theirs = solved("cpu")  # by the interior point
    for home in HOMES:
        monkeypatch.setattr(home, "compiled_for", lambda some: False, raising=False)
        monkeypatch.setattr(home, "fused_for", lambda some: True, raising=False)
    monkeypatch.setattr("legato.nn.programs.quadratic.solve", None)  # nothing is left to it
    record, ours = solved(DEVICE)
    for name in ("x", "y", "z", "z_lo", "z_hi"):
        found, right = getattr(record, name).detach().cpu(), getattr(truth, name).detach()
        torch.testing.assert_close(found, right, rtol=0, atol=1e-10)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-10, atol=1e-10)


@interpreter_needed
def test_by_the_interpreter_of_triton():
    assert passed_by_the_interpreter(__file__) >= 20
