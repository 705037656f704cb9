"""A program in other units, x = Du, the cost times s, rows times r, has the same solution."""

import warnings

import pytest
import torch

from legato.nn import ProgramStatus, QuadraticProgram

F64 = torch.float64
NAMES = ("Q", "c", "A", "b", "G", "h", "lo", "hi")
UNITS = ("cost", "rows", "length", "lengths", "all")
SIZE = 6.0


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=F64)


def smooth(seed, definite):
    """With equations, rows and a box; what is active is clear."""
    g = torch.Generator().manual_seed(seed)
    n = 8
    L = normal(g, n, n if definite else n // 2)
    Q = L @ L.mT / n + 0.1 * definite * torch.eye(n, dtype=F64)
    A, G, inside = normal(g, 2, n), normal(g, 10, n), normal(g, n)
    slack, below, above = (torch.rand(k, generator=g, dtype=F64) for k in (10, n, n))
    ends = inside - 0.5 - below, inside + 0.5 + above
    return dict(
        zip(NAMES, (Q, normal(g, n), A, A @ inside, G, G @ inside + slack, *ends), strict=True)
    )


def degenerate(seed, rows_twice):
    """Small whole numbers: ties, flat directions, rows given twice, pinned or free variables."""
    g = torch.Generator().manual_seed(seed)

    def whole(*shape):
        return torch.randint(-2, 3, shape, generator=g).to(F64)

    n, m = (int(torch.randint(2, 9, (), generator=g)) for _ in range(2))
    L = whole(n, int(torch.randint(0, n, (), generator=g)))
    A, G, inside = whole(1, n), whole(m, n), whole(n)
    u = torch.rand(n, generator=g)
    lo = inside - torch.randint(1, 4, (n,), generator=g)
    hi = torch.where(u < 0.3, inside, inside + torch.randint(1, 4, (n,), generator=g))
    lo = torch.where(u < 0.2, inside, lo)
    if rows_twice:
        G = torch.cat([G, 2 * G[:1]])
        lo, hi = torch.where(u > 0.6, -torch.inf, lo), torch.where(u > 0.7, torch.inf, hi)
    h = G @ inside + torch.randint(0, 2, (len(G),), generator=g)
    return dict(zip(NAMES, (L @ L.mT, whole(n), A, A @ inside, G, h, lo, hi), strict=True))


def in_units(data, unit, seed):
    """The program, and what its data are multiplied by."""
    g = torch.Generator().manual_seed(100 + seed)

    def powers(count, wanted):
        exponents = SIZE * (2 * torch.rand(count, generator=g, dtype=F64) - 1)
        return 10.0**exponents if wanted else torch.ones(count, dtype=F64)

    D = powers(len(data["c"]), unit in ("lengths", "all"))
    if unit == "length":
        D = D * 10.0 ** (SIZE if seed % 2 else -SIZE)
    s = 10.0 ** (SIZE if seed // 2 % 2 else -SIZE) if unit in ("cost", "all") else 1.0
    a, r = (powers(len(data[k]), unit in ("rows", "all")) for k in ("b", "h"))
    by = (s * D.outer(D), s * D, a.outer(D), a, r.outer(D), r, 1 / D, 1 / D)
    factors = dict(zip(NAMES, by, strict=True))
    return {k: v * factors[k] for k, v in data.items()}, factors, D, s


def solved(data):
    given = {k: v.clone().requires_grad_() for k, v in data.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ties, and where there is no solution
        return given, QuadraticProgram().solve(**given)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("definite", [True, False])
def test_solution_and_gradient_are_converted(unit, definite):
    for seed in range(3):
        data = smooth(seed, definite)
        other, factors, D, _ = in_units(data, unit, seed)
        given, truth = solved(data)
        changed, record = solved(other)
        assert bool(record.solved)
        torch.testing.assert_close(record.x * D, truth.x, rtol=1e-9, atol=1e-9)
        w = normal(torch.Generator().manual_seed(seed), len(D))
        theirs = torch.autograd.grad((truth.x * w).sum(), list(given.values()))
        ours = torch.autograd.grad((record.x * D * w).sum(), list(changed.values()))
        for k, one, right in zip(NAMES, ours, theirs, strict=True):
            torch.testing.assert_close(one * factors[k], right, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rows_twice", [False, True])
def test_status_and_value_of_degenerate_programs(unit, rows_twice):
    for seed in range(12):
        data = degenerate(seed, rows_twice)
        other, _, D, _ = in_units(data, unit, seed)
        _, truth = solved(data)
        _, record = solved(other)
        assert int(truth.status) != int(ProgramStatus.LIMIT)
        assert int(record.status) == int(truth.status), seed
        if bool(truth.solved):
            value, right = (
                float(0.5 * x @ data["Q"] @ x + data["c"] @ x)
                for x in (record.x.detach() * D, truth.x.detach())
            )
            assert value == pytest.approx(right, rel=1e-8, abs=1e-8), seed


def test_a_value_of_zero_has_a_unit():
    """All terms of the gap cancel in cᵀx = 0: what is left is rounding, in any unit of the cost."""
    for cost in (1e-8, 1.0, 1e8):
        c = cost * torch.tensor([1.0, 2.0, -2.0], dtype=F64)
        A = torch.tensor([[1.0, 1.0, 0.0], [0.3, -0.1, 0.7]], dtype=F64)
        x = torch.tensor([-2 / 3, 1 / 3, 0.0], dtype=F64)
        data = {"c": c, "A": A, "b": A @ x, "lo": x - torch.tensor([0.0, 1.0, 0.0]), "hi": x + 1}
        assert bool(solved(data)[1].solved)
