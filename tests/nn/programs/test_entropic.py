"""Linear programs with an entropy of their slacks: closed forms, Clarabel, differences."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from legato.errors import InexactGradientWarning, InputError, NotConvergedWarning
from legato.nn import Entropic, LinearProgram, ProgramStatus

F64 = torch.float64
ONE = torch.ones(1, dtype=F64)


def bounded(B, seed=0, n=4, m=5):
    g = torch.Generator().manual_seed(seed)
    G = torch.randn(B, m, n, generator=g, dtype=F64)
    A, inside = torch.randn(1, n, generator=g, dtype=F64), torch.rand(B, n, generator=g, dtype=F64)
    inside = 0.2 + 0.6 * inside
    h = (G @ inside[..., None])[..., 0] + torch.rand(B, m, generator=g, dtype=F64)
    h[:, 0] = torch.inf
    data = {"c": torch.randn(B, n, generator=g, dtype=F64), "A": A, "b": inside @ A.T}
    ends = {"lo": torch.zeros(n, dtype=F64), "hi": torch.ones(n, dtype=F64)}
    return data | {"G": G, "h": h} | ends


@pytest.mark.parametrize("weight", [3.0, 0.1, 1e-3])
def test_the_softmax_on_a_simplex(weight):
    """x and its gradient; the objective is too large by at most w log n."""
    c = torch.rand(20, 6, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)
    b = ONE.clone().requires_grad_()
    record = LinearProgram(Entropic(weight)).solve(c, torch.ones(1, 6, dtype=F64), b, lo=0.0)
    truth = b * torch.softmax(-c / weight, -1)
    torch.testing.assert_close(record.x, truth, atol=1e-12, rtol=1e-7)
    w = torch.linspace(-1, 1, 6, dtype=F64)
    found = torch.autograd.grad((record.x @ w).sum(), (c, b))
    torch.testing.assert_close(found, torch.autograd.grad((truth @ w).sum(), (c, b)))
    excess = (c * record.x).sum(-1) - c.amin(-1)
    assert float(excess.detach().max()) <= weight * np.log(6)
    assert bool(record.solved.all())


def test_against_clarabel():
    data, weight = bounded(3), 0.3
    record = LinearProgram(Entropic(weight)).solve(**data)
    force = data["c"] + record.y @ data["A"] + (data["G"].mT @ record.z[..., None])[..., 0]
    assert float((force - record.z_lo + record.z_hi).abs().max()) < 1e-10
    for k in range(3):
        x = cp.Variable(4)
        slack = data["h"][k, 1:].numpy() - data["G"][k, 1:].numpy() @ x
        entropy = sum(cp.sum(cp.entr(s)) for s in (slack, x, 1 - x))
        rows = [data["A"].numpy() @ x == data["b"][k].numpy()]
        problem = cp.Problem(cp.Minimize(data["c"][k].numpy() @ x - weight * entropy), rows)
        problem.solve(cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
        assert np.abs(record.x[k].numpy() - x.value).max() < 1e-5


def test_gradients_by_differences():
    data = bounded(1, seed=1)
    names = list(data)
    given = [data[k].clone().requires_grad_() for k in names]
    layer = LinearProgram(Entropic(0.2))

    def solved(*values):
        with_data = dict(zip(names, values, strict=True))
        with_data["h"] = torch.where(torch.isinf(data["h"]), torch.inf, with_data["h"])
        return layer(**with_data)

    finite = [torch.where(torch.isinf(t), 0.0, t).detach().requires_grad_() for t in given]
    assert torch.autograd.gradcheck(solved, finite)


def test_small_weights_are_near_the_vertex_and_batches_are_singles():
    data = bounded(30, seed=2)
    vertex = LinearProgram()(**data)
    for weight, near in ((0.1, 0.5), (1e-4, 2e-3)):
        record = LinearProgram(Entropic(weight)).solve(**data)
        assert bool(record.solved.all())
        excess = (data["c"] * (record.x - vertex)).sum(-1)
        assert float(excess.min()) > -1e-9
        assert float(excess.max()) < near
    alone = LinearProgram(Entropic(1e-4))(
        **{k: v[7] if v.ndim > 1 and k != "A" else v for k, v in data.items()}
    )
    torch.testing.assert_close(alone, record.x[7], atol=1e-9, rtol=0)
    scaled = LinearProgram(Entropic(1e2))(**data | {"c": 1e6 * data["c"]})
    torch.testing.assert_close(scaled, record.x, atol=1e-9, rtol=0)
    single = LinearProgram(Entropic(0.1))(**{k: v.float() for k, v in data.items()})
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        single.double(), LinearProgram(Entropic(0.1))(**data), atol=1e-5, rtol=0
    )


def test_transport_with_a_row_too_many():
    """Marginals as equations, one of which the others imply: x_ij = u_i exp(−c_ij/w) v_j."""
    k, weight = 3, 0.5
    cost = torch.rand(k * k, generator=torch.Generator().manual_seed(0), dtype=F64).requires_grad_()
    eye, one = torch.eye(k, dtype=F64), torch.ones(1, k, dtype=F64)
    G = torch.cat([torch.kron(eye, one), torch.kron(one, eye)])
    x = LinearProgram(Entropic(weight))(cost, G=G, lower=1.0, upper=1.0, lo=0.0)
    plan = x.detach().reshape(k, k)
    torch.testing.assert_close(plan.sum(0), torch.ones(k, dtype=F64))
    rest = plan.log() + cost.detach().reshape(k, k) / weight
    rest = rest - rest[:1] - rest[:, :1] + rest[0, 0]
    assert float(rest.abs().max()) < 1e-9
    assert torch.autograd.gradcheck(
        lambda c: LinearProgram(Entropic(weight))(c, G=G, lower=1.0, upper=1.0, lo=0.0), cost
    )


def test_no_point_and_one_point():
    layer, c = LinearProgram(Entropic(0.5)), torch.tensor([1.0, 2.0], dtype=F64)
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        record = layer.solve(c, torch.ones(1, 2, dtype=F64), -ONE, lo=0.0)
    assert int(record.status) == ProgramStatus.INFEASIBLE
    assert bool(record.x.isnan().all())
    only = layer.solve(c, torch.ones(1, 2, dtype=F64), 0 * ONE, lo=0.0)  # one point, no interior
    assert float(only.x.abs().max()) < 1e-9
    with pytest.raises(InputError, match="leaves no interior"):
        layer(c, lo=0.0, hi=torch.tensor([0.0, 1.0], dtype=F64))
    with pytest.raises(InputError, match="dense matrices"):
        layer(c, G=torch.eye(2, dtype=F64).to_sparse_csr(), h=torch.ones(2, dtype=F64))
    with pytest.raises(InputError):
        Entropic(0.0)


def test_what_is_not_determined_is_told():
    """Beside one that is: a sum alone does not say which x, nor equal equations which of them."""
    G = torch.tensor([[[-1.0, -1.0], [1.0, 1.0]], [[-1.0, 0.0], [1.0, 1.0]]], dtype=F64)
    c, h = torch.ones(2, dtype=F64, requires_grad=True), torch.tensor([0.0, 1.0], dtype=F64)
    G = torch.cat([G, torch.tensor([[[0.0, 0.0]], [[0.0, -1.0]]], dtype=F64)], 1)
    h = torch.cat([h, torch.ones(1, dtype=F64)])
    with pytest.warns(InexactGradientWarning, match=r"instances 0\): x is not unique"):
        record = LinearProgram(Entropic(0.5)).solve(c, G=G, h=h)
    assert record.loose.tolist() == [True, False]
    A = torch.ones(2, 2, 2, dtype=F64)
    A[1, 1] = torch.tensor([1.0, -0.5], dtype=F64)
    b = torch.tensor([[1.0, 1.0], [1.0, 0.1]], dtype=F64, requires_grad=True)
    with pytest.warns(InexactGradientWarning, match=r"instances 0\): active constraints depend"):
        record = LinearProgram(Entropic(0.5)).solve(c, A, b, lo=0.0)
    assert record.degenerate.tolist() == [True, False]
