"""A previous solution as a start: the same solution, in fewer iterations."""

import pytest
import torch

import legato as lg
from legato.errors import InputError
from legato.nn import LinearProgram, ProgramStatus, QuadraticProgram
from legato.nn.programs import dual, inverses
from quadratic_programs import random_programs

F64 = torch.float64


def nearby(data, seed=1, size=1e-3):
    g = torch.Generator().manual_seed(seed)
    moved = dict(data)
    for name in ("c", "h"):
        noise = torch.randn(data[name].shape, generator=g, dtype=F64)
        moved[name] = data[name] + size * noise
    return moved


def semidefinite(data):
    """Left to the interior point: Q without its first variable."""
    Q = data["Q"].clone()
    Q[..., 0, :] = Q[..., :, 0] = 0
    return data | {"Q": Q}


@pytest.mark.parametrize("kind", ["strict", "without Numba", "semidefinite", "linear", "sparse"])
def test_fewer_iterations_and_the_same_solution(kind, monkeypatch):
    data = random_programs((6,), 12, 2, 15, seed=2)
    layer = QuadraticProgram()
    if kind == "without Numba":
        monkeypatch.setattr(dual, "compiled_for", lambda some: False)
        monkeypatch.setattr(dual, "available", lambda package: False)
        monkeypatch.setattr(inverses, "compiled_for", lambda some: False)
    if kind == "semidefinite":
        data = semidefinite(data)
    if kind == "linear":
        layer = LinearProgram()
        del data["Q"]
    if kind == "sparse":
        data = {k: v[0] for k, v in data.items()}
        data |= {k: lg.Sparse(data[k].to_sparse_csr()) for k in ("Q", "A", "G")}
    first = layer.solve(**data)
    moved = nearby(data)
    cold, warm = layer.solve(**moved), layer.solve(**moved, start=first)
    torch.testing.assert_close(warm.x, cold.x)
    torch.testing.assert_close(warm.z, cold.z, atol=1e-9, rtol=1e-7)
    assert bool(warm.solved.all())
    assert bool((warm.iterations <= cold.iterations).all())
    few = 1.4 if "strict" in kind or "Numba" in kind else 4
    assert float(warm.iterations.double().mean()) < few
    assert float(cold.iterations.double().mean()) > few


def test_the_gradient_does_not_know_the_start():
    data = random_programs((3,), 6, 1, 8, seed=4)
    first = QuadraticProgram().solve(**data)
    found = []
    for start in (None, first):
        given = {k: v.clone().requires_grad_() for k, v in nearby(data).items()}
        QuadraticProgram().solve(**given, start=start).x.square().sum().backward()
        found.append([t.grad for t in given.values()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [lambda data: data, semidefinite])
def test_a_bad_start_does_no_harm(make):
    """Multipliers of an unrelated program, and of one that has no solution."""
    data = make(random_programs((4,), 8, 1, 10, seed=5))
    other = QuadraticProgram().solve(**make(random_programs((4,), 8, 1, 10, seed=9)))
    truth = QuadraticProgram().solve(**data)
    torch.testing.assert_close(QuadraticProgram().solve(**data, start=other).x, truth.x)
    other.z[:] = 1.0
    other.z_lo[:] = torch.nan
    torch.testing.assert_close(QuadraticProgram().solve(**data, start=other).x, truth.x)


@pytest.mark.filterwarnings("ignore:QuadraticProgram")
def test_what_has_no_solution_has_none_with_a_start():
    one, free = torch.ones(1, 2, dtype=F64), torch.tensor([-1.0, -1.0], dtype=F64)
    start = QuadraticProgram().solve(c=free, G=one, h=one[0, :1], lo=0.0)
    away = QuadraticProgram().solve(c=-free, G=one, h=one[0, :1], lo=-torch.inf, start=start)
    assert int(away.status) == ProgramStatus.UNBOUNDED
    none = QuadraticProgram().solve(c=free, G=one, h=-one[0, :1], lo=0.0, start=start)
    assert int(none.status) == ProgramStatus.INFEASIBLE


def test_rows_between_two_ends_and_one_start_for_all():
    data = random_programs((), 6, 0, 7, seed=6, bounds=False)
    ends = {"lower": data["h"] - 0.3, "upper": data.pop("h")}
    ends["lower"][0] = ends["upper"][0]
    layer = QuadraticProgram()
    first = layer.solve(**data, **ends)
    assert bool((first.z[1:] < 0).any())
    many = data["c"] + 1e-3 * torch.randn(
        5, 6, generator=torch.Generator().manual_seed(0), dtype=F64
    )
    warm = layer.solve(**data | {"c": many}, **ends, start=first)
    torch.testing.assert_close(warm.x, layer(**data | {"c": many}, **ends))
    assert warm.iterations.tolist() == [1] * 5


def test_starts_of_another_form_are_refused():
    data = random_programs((2,), 4, 0, 3, bounds=False)
    start = QuadraticProgram().solve(**data)
    with pytest.raises(InputError, match="start must be the record"):
        QuadraticProgram().solve(**data, start=start.x)
    fewer = {"Q": data["Q"], "c": data["c"], "G": data["G"][:, :2], "h": data["h"][:, :2]}
    with pytest.raises(InputError, match="multipliers of 3 constraints"):
        QuadraticProgram().solve(**fewer, start=start)
    single = {k: v[0].expand(3, *v.shape[1:]) for k, v in data.items()}
    with pytest.raises(InputError, match="start has a batch"):
        QuadraticProgram().solve(**single, start=start)


def test_a_start_with_other_rows_between_two_ends():
    Q, c, G = torch.eye(2), torch.ones(2), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    start = QuadraticProgram().solve(Q, c, G=G[:1], h=torch.ones(1))
    with pytest.raises(InputError, match="1 rows of G, but this program has 2"):
        QuadraticProgram().solve(Q, c, G=G, lower=0.0, upper=1.0, start=start)
    with pytest.raises(InputError, match="record that solve returned"):
        QuadraticProgram().solve(Q, c, G=G, lower=0.0, upper=1.0, start=c)
