"""Sparse matrices and operators in a program: against Clarabel, differences and dense data."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import linprog

import legato as lg
from legato.errors import InexactGradientWarning, InputError, LegatoWarning, NotConvergedWarning
from legato.nn import LPGD, LinearProgram, QuadraticProgram, Ridge
from legato.nn.programs import sparse_data
from legato.nn.programs.sparse_matrix import Factors
from quadratic_programs import by_clarabel, random_programs

F64 = torch.float64


def thinned(n=12, p=3, m=10, seed=0, bounds=True):
    """A program most of whose entries are zero, dense."""
    data = random_programs((), n, p, m, seed=seed, bounds=bounds)
    keep = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.2
    keep = keep | keep.T | torch.eye(n, dtype=torch.bool)
    data["Q"] = torch.where(keep, data["Q"], 0.0) + 2 * torch.eye(n, dtype=F64)
    inside = (data["lo"] + data["hi"]) / 2 if bounds else torch.zeros(n, dtype=F64)
    for name, side in (("A", "b"), ("G", "h")):
        thin = torch.arange(data[name].numel()).reshape(data[name].shape) % 4 != 0
        slack = data[side] - data[name] @ inside
        data[name] = data[name].masked_fill(thin, 0.0)
        data[side] = data[name] @ inside + (0.0 if side == "b" else slack.abs())
    return data


def as_sparse(data, learned=()):
    out = dict(data)
    for name in ("Q", "A", "G"):
        matrix = lg.Sparse(data[name].to_sparse_csr())
        if name in learned:
            matrix.values.requires_grad_()
        out[name] = matrix
    return out


@pytest.mark.parametrize("bounds", [True, False])
def test_against_clarabel_and_dense_data(bounds):
    data = thinned(bounds=bounds)
    names = ("Q", "A", "G")
    given = as_sparse(data, names)
    dense = {k: v.clone().requires_grad_() for k, v in data.items()}
    for name in ("c", "b", "h", "lo", "hi"):
        if name in given:
            given[name] = data[name].clone().requires_grad_()
    record, other = QuadraticProgram().solve(**given), QuadraticProgram().solve(**dense)
    truth = by_clarabel({k: v.numpy() for k, v in data.items()})
    assert np.abs(record.x.detach().numpy() - truth).max() < 1e-7
    torch.testing.assert_close(record.z, other.z)
    w = torch.linspace(-1, 1, 12, dtype=F64)
    (record.x * w).sum().backward()
    (other.x * w).sum().backward()
    for name, value in given.items():
        if name in names:
            rows, columns = value.pattern.ends(False)
            torch.testing.assert_close(value.values.grad, dense[name].grad[rows, columns])
        else:
            torch.testing.assert_close(value.grad, dense[name].grad)


def test_the_gradient_in_stored_values_by_differences():
    """Each stored value of A and G moved alone, and both of a pair in Q."""
    given = as_sparse(thinned(seed=1), ("Q", "A", "G"))
    w, step = torch.linspace(-1, 1, 12, dtype=F64), 1e-6
    matrices = {k: given[k] for k in ("Q", "A", "G")}
    (QuadraticProgram()(**given) * w).sum().backward()
    for name, matrix in matrices.items():
        rows, columns = matrix.pattern.ends(False)
        for k in (0, 3, len(rows) - 1):
            pair = ((rows == columns[k]) & (columns == rows[k])) if name == "Q" else rows < 0
            pair[k] = True
            ends = []
            for sign in (1, -1):
                values = matrix.values.detach() + sign * step * pair
                moved = QuadraticProgram()(**given | {name: matrix.of(values)})
                ends.append(float((moved.detach() * w).sum()))
            slope = float(matrix.values.grad[pair].sum())
            assert abs((ends[0] - ends[1]) / (2 * step) - slope) < 1e-6


def test_other_forms_of_the_same_matrix():
    """torch's CSR with a gradient and COO, SciPy's, dense beside sparse, an operator."""
    data = thinned(bounds=False)
    layer, plain = QuadraticProgram(), data["Q"]
    x = layer(**data)
    csr = data["G"].to_sparse_csr().requires_grad_()
    found = layer(**data | {"G": csr, "A": data["A"].to_sparse()})
    torch.testing.assert_close(found.detach(), x)
    found.sum().backward()
    dense = data["G"].clone().requires_grad_()
    layer(**data | {"G": dense}).sum().backward()
    stored = csr.grad.to_dense() if csr.grad.layout is not torch.strided else csr.grad
    torch.testing.assert_close(stored, torch.where(data["G"] != 0, dense.grad, 0.0))
    torch.testing.assert_close(layer(**data | {"Q": sparse.csr_array(plain.numpy())}), x)
    learned = data["G"].clone().requires_grad_()  # its zeros are data, too
    layer(**data | {"Q": lg.Sparse(plain.to_sparse_csr()), "G": learned}).sum().backward()
    torch.testing.assert_close(learned.grad, dense.grad)
    D, one = lg.Differences((-1,)), torch.full((11,), 0.1, dtype=F64)
    steps = (torch.eye(12, dtype=F64).roll(-1, 0) - torch.eye(12, dtype=F64))[:11]
    rows = D(data["c"]).numel()  # a difference of zero at the end
    moved = layer(plain, data["c"], G=D, h=one[:1].expand(rows))
    torch.testing.assert_close(moved, layer(plain, data["c"], G=steps, h=one))
    assert float((moved - layer(plain, data["c"])).abs().max()) > 0.1


@pytest.mark.parametrize(
    "layer", [QuadraticProgram(), LinearProgram(Ridge(0.5)), LinearProgram()], ids=str
)
def test_rows_between_two_ends_and_linear_programs(layer):
    data = thinned(bounds=True)
    G, inside = data["G"], (data["lo"] + data["hi"]) / 2
    upper = torch.where(torch.arange(10) < 2, G @ inside, data["h"])
    lower = torch.where(torch.arange(10) < 2, upper, upper - 1)
    given = {k: data[k] for k in ("Q", "c", "lo", "hi")}
    if isinstance(layer, LinearProgram):
        del given["Q"]
    ends = {"lower": lower, "upper": upper}
    truth = layer.solve(**given, G=G, **ends)
    record = layer.solve(**given, G=lg.Sparse(G.to_sparse_csr()), **ends)
    torch.testing.assert_close(record.x, truth.x)
    torch.testing.assert_close(record.z, truth.z, atol=1e-9, rtol=1e-6)


def test_lpgd_with_sparse_rows():
    data = thinned(bounds=True)
    found = []
    for G in (data["G"], lg.Sparse(data["G"].to_sparse_csr())):
        c = data["c"].clone().requires_grad_()
        LinearProgram(LPGD(3.0))(c, G=G, h=data["h"], lo=-1.0, hi=1.0).square().sum().backward()
        found.append(c.grad)
    torch.testing.assert_close(*found)
    G = lg.Sparse(data["G"].to_sparse_csr())
    G.values.requires_grad_()
    with pytest.raises(InputError, match="LPGD has no gradient in the values"):
        LinearProgram(LPGD(3.0))(c, G=G, h=data["h"], lo=-1.0, hi=1.0)


def test_pinned_float32_and_data_changed_in_place():
    data = thinned(seed=3)
    data["lo"][2] = data["hi"][2]
    given = as_sparse(data, ("G",))
    record = QuadraticProgram().solve(**given)
    torch.testing.assert_close(record.x.detach(), QuadraticProgram()(**data))
    before = torch.autograd.grad(record.x.sum(), given["G"].values, retain_graph=True)[0]
    with torch.no_grad():
        given["G"].values.mul_(3.0)
    torch.testing.assert_close(torch.autograd.grad(record.x.sum(), given["G"].values)[0], before)
    single = as_sparse({k: v.float() for k, v in data.items()})
    torch.testing.assert_close(QuadraticProgram()(**single), record.x.detach().float())


def test_no_solution_is_recognised():
    row = lg.Sparse(torch.ones(1, 3, dtype=F64).to_sparse_csr())
    side, c = torch.tensor([-1.0], dtype=F64), -torch.ones(3, dtype=F64)
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        assert QuadraticProgram()(c=c, G=row, h=side, lo=0.0).isnan().all()
    with pytest.warns(NotConvergedWarning, match="falls without end"):
        LinearProgram()(torch.tensor([1.0, -1.0, 0.0], dtype=F64), G=row, h=side)


def test_without_scipy_matrices_are_written_out(monkeypatch):
    data = thinned()
    truth, given = QuadraticProgram()(**data), as_sparse(data, ("G",))
    monkeypatch.setattr(sparse_data, "available", lambda package: False)
    with pytest.warns(LegatoWarning, match="sparse matrices out densely: SciPy"):
        x = QuadraticProgram()(**given)
    torch.testing.assert_close(x.detach(), truth)
    x.sum().backward()
    assert given["G"].values.grad.shape == given["G"].values.shape


I3 = torch.eye(3).to_sparse_csr()
SKEW = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).to_sparse_csr()
ONE = torch.ones(3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Q": I3, "c": torch.ones(4, 3)}, "one at a time: loop over the batch"),
        ({"Q": I3, "A": torch.ones(2, 1, 3), "b": torch.ones(2, 1)}, "one at a time"),
        ({"Q": lg.Sparse(-I3), "c": ONE}, "negative eigenvalue, -1"),
        ({"Q": SKEW}, "not symmetric"),
        ({"Q": I3, "c": torch.ones(4)}, r"3 variables, but c has shape|but Q has shape"),
        ({"Q": I3, "c": ONE.double()}, "convert one"),
        ({"Q": lg.Sparse(I3, ONE * float("nan"))}, "Q holds 3 NaN"),
        ({"c": ONE, "G": lg.Sparse(I3, ONE / 0), "h": ONE}, "G holds 3 NaN or infinite"),
        ({"c": ONE, "G": I3}, "G and h belong together"),
        ({"Q": torch.eye(3).to_sparse().requires_grad_()}, "cannot be read as a sparse matrix"),
        ({"A": lg.Differences((-1,)), "b": ONE}, "needs the number of variables"),
        ({"c": ONE, "G": lg.Differences(), "h": ONE}, "couples other axes than the last"),
        ({"c": ONE, "Q": I3.to(torch.complex64)}, "float32 or float64"),
    ],
)
def test_refused(given, words):
    with pytest.raises(InputError, match=words):
        QuadraticProgram()(**given)


def test_an_assignment_against_highs():
    """Dependent equations and many ties: pivots on the diagonal are zero at its vertices."""
    k, g = 5, torch.Generator().manual_seed(0)
    cost = torch.randint(1, 4, (k * k,), generator=g).double()
    eye, one = np.eye(k), np.ones((1, k))
    A = np.vstack([np.kron(eye, one), np.kron(one, eye)])
    layer, b = LinearProgram(), torch.ones(2 * k, dtype=F64)
    record = layer.solve(cost, sparse.csr_array(A), b, lo=0.0)
    assert bool(record.solved)
    assert bool(record.dependent)
    best = linprog(cost.numpy(), A_eq=A, b_eq=np.ones(2 * k)).fun
    assert abs(float(cost @ record.x) - best) < 1e-9


def test_a_singular_system_is_told(monkeypatch):
    """NaN from factors that do not exist is no small error."""
    given = as_sparse(thinned(), ("G",))
    record = QuadraticProgram().solve(**given)
    monkeypatch.setattr(Factors, "solve", lambda self, right: right * torch.nan)
    with pytest.warns(InexactGradientWarning, match="residual of nan"):
        record.x.sum().backward()
