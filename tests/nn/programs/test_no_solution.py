"""Infeasible and unbounded programs: a word, a proof, and the rest of the batch is right."""

import cvxpy as cp
import pytest
import torch

from legato.errors import InexactGradientWarning, NotConvergedWarning
from legato.nn import ProgramStatus, QuadraticProgram
from quadratic_programs import instance, random_programs

F64 = torch.float64


def proof_holds(data, record, k):
    """Aᵀy + Gᵀz − z_lo + z_hi = 0, z ≥ 0, and the same sum of right-hand sides is negative."""
    n = record.x.shape[-1]
    total, value = torch.zeros(n, dtype=F64), torch.zeros((), dtype=F64)
    parts = [("A", "b", record.y[k])] if "A" in data else []
    parts += [("G", "h", record.z[k])] if "G" in data else []
    for matrix, side, multiplier in parts:
        total = total + data[matrix][k].T @ multiplier
        value = value + data[side][k] @ multiplier
    for side, sign, multiplier in (("lo", -1, record.z_lo[k]), ("hi", 1, record.z_hi[k])):
        if side in data:
            used = multiplier != 0
            total = total + sign * multiplier
            value = value + sign * (data[side][k][used] * multiplier[used]).sum()
    size = torch.cat([record.y[k], record.z[k], record.z_lo[k], record.z_hi[k]]).abs().max()
    lowest = torch.cat([record.z[k], record.z_lo[k], record.z_hi[k]]).min()
    assert float(value) < 0
    assert float(total.abs().max()) <= 1e-6 * -float(value)
    assert float(lowest) >= -1e-6 * float(size)


def spoiled(which):
    """Six programs, of which number 4 has no feasible point."""
    data = random_programs((6,), 5, 1, 4, seed=11)
    if which == "rows":  # x₀ + … ≤ −1000 below its bounds
        data["G"][4, 0], data["h"][4, 0] = 1.0, -1000.0
    elif which == "pair":  # gx ≤ −1 and −gx ≤ −1
        data["G"][4, 1] = -data["G"][4, 0]
        data["h"][4, :2] = -1.0
    else:  # an equation that the bounds do not allow
        data["A"][4], data["b"][4] = 1.0, 1000.0
    return data


@pytest.mark.parametrize("which", ["rows", "pair", "equation"])
def test_infeasible(which):
    data = spoiled(which)
    given = {n: v.clone().requires_grad_() for n, v in data.items()}
    with pytest.warns(
        NotConvergedWarning, match=r"1 of 6 programs \(instances 4\): no x satisfies"
    ):
        record = QuadraticProgram().solve(**given)
    assert record.status.tolist() == [0, 0, 0, 0, int(ProgramStatus.INFEASIBLE), 0]
    assert bool(record.x[4].isnan().all())
    proof_holds(data, record, 4)
    good = [0, 1, 2, 3, 5]
    (record.x[good] ** 2).sum().backward()
    alone = {n: v[good].clone().requires_grad_() for n, v in data.items()}
    x = QuadraticProgram()(**alone)
    (x**2).sum().backward()
    torch.testing.assert_close(record.x[good], x, rtol=1e-10, atol=1e-10)
    for name, value in given.items():
        torch.testing.assert_close(value.grad[good], alone[name].grad, rtol=1e-9, atol=1e-9)
        assert not bool(value.grad[4].any())


def test_a_loss_on_what_does_not_exist_has_no_gradient():
    data = spoiled("rows")
    c = data.pop("c").requires_grad_()
    with pytest.warns(NotConvergedWarning):
        x = QuadraticProgram()(c=c, **data)
    torch.nan_to_num(x).sum().backward()  # nan_to_num has derivative zero at NaN
    assert bool(c.grad.isfinite().all())
    c.grad = None
    with pytest.warns(NotConvergedWarning):
        x = QuadraticProgram()(c=c, **data)
    x.sum().backward()
    assert c.grad.isnan().any(-1).tolist() == [False] * 4 + [True, False]


def test_inconsistent_equations():
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=F64)
    b = torch.tensor([1.0, 2.0], dtype=F64)
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        record = QuadraticProgram().solve(torch.eye(2, dtype=F64), A=A, b=b)
    assert int(record.status) == int(ProgramStatus.INFEASIBLE)
    assert float((A.T @ record.y).abs().max()) <= 1e-6 * -float(b @ record.y)


def test_unbounded():
    """Down a valley of Q that no constraint closes; the others have bounds there."""
    Q = torch.diag(torch.tensor([1.0, 0.0], dtype=F64)).expand(3, 2, 2)
    c = torch.tensor([1.0, -1.0], dtype=F64).expand(3, 2)
    hi = torch.full((3, 2), 5.0, dtype=F64)
    hi[1] = torch.inf
    with pytest.warns(NotConvergedWarning, match=r"instances 1\).*falls without end"):
        record = QuadraticProgram().solve(Q, c, lo=-10.0, hi=hi)
    assert record.status.tolist() == [0, int(ProgramStatus.UNBOUNDED), 0]
    torch.testing.assert_close(record.x[0], torch.tensor([-1.0, 5.0], dtype=F64))
    ray = record.ray[1]
    assert float(c[1] @ ray) < 0
    assert float((Q[1] @ ray).abs().max()) <= 1e-6 * -float(c[1] @ ray)
    assert float(ray.min()) >= -1e-6 * float(ray.abs().max())
    assert bool(record.ray[0].isnan().all())


def test_unbounded_without_any_constraint():
    with pytest.warns(NotConvergedWarning, match="falls without end"):
        record = QuadraticProgram().solve(c=torch.tensor([1.0, 2.0]))
    assert int(record.status) == int(ProgramStatus.UNBOUNDED)


def test_too_few_iterations_are_said():
    data = random_programs((5,), 6, 1, 4, seed=12)
    with pytest.warns(NotConvergedWarning, match="did not arrive within 1 iterations"):
        record = QuadraticProgram(1).solve(**data)
    assert not bool(record.solved.all())
    assert float(torch.maximum(record.primal, torch.maximum(record.dual, record.gap)).max()) > 1e-8


def status_of_clarabel(one):
    """'optimal', 'infeasible' or 'unbounded', as another solver has it."""
    x = cp.Variable(len(one["c"]))
    energy = 0.5 * cp.quad_form(x, cp.psd_wrap(one["Q"])) + one["c"] @ x
    problem = cp.Problem(cp.Minimize(energy), [one["G"] @ x <= one["h"]])
    problem.solve(solver=cp.CLARABEL)
    return problem.status


@pytest.mark.parametrize("kind", ["infeasible", "unbounded"])
def test_a_mixed_batch_is_sorted_as_by_clarabel(kind):
    """Never contradicting it; what is not proven says that it has not arrived."""
    g = torch.Generator().manual_seed(13)
    L = torch.randn(60, 8, 3, generator=g, dtype=F64)
    Q = L @ L.mT + (torch.eye(8, dtype=F64) if kind == "infeasible" else 0)
    c, G = (torch.randn(60, *s, generator=g, dtype=F64) for s in ((8,), (18, 8)))
    h = torch.randn(60, 18, generator=g, dtype=F64)
    if kind == "unbounded":
        G, h = G[:, :10].contiguous(), h[:, :10].abs()
    with pytest.warns(NotConvergedWarning):
        record = QuadraticProgram().solve(Q, c, G=G, h=h)
    names = {"optimal": ProgramStatus.SOLVED, kind: ProgramStatus[kind.upper()]}
    theirs = [
        names[status_of_clarabel(instance({"Q": Q, "c": c, "G": G, "h": h}, k))] for k in range(60)
    ]
    assert len({*theirs}) == 2
    ours = [ProgramStatus(s) for s in record.status.tolist()]
    unproven = [k for k, s in enumerate(ours) if s is ProgramStatus.LIMIT]
    assert len(unproven) <= 2
    assert [s for k, s in enumerate(ours) if k not in unproven] == [
        s for k, s in enumerate(theirs) if k not in unproven
    ]


def test_rows_of_zeros_are_no_constraint():
    """Padding of a batch: neither a tie nor infeasible; 0 ≤ −1 is."""
    data = random_programs((3,), 5, 0, 4, seed=14)
    data["G"][1, 2:], data["h"][1, 2:] = 0.0, 0.0
    given = {n: v.clone().requires_grad_() for n, v in data.items()}
    record = QuadraticProgram().solve(**given | {"G": data["G"]})  # warnings are errors
    record.x.sum().backward()
    assert not bool(record.degenerate.any())
    assert not bool(given["h"].grad[1, 2:].any())
    # x has no derivative in a row of zeros that may move, unless nothing is asked of it.
    with pytest.warns(InexactGradientWarning, match=r"instances 1\): a row of G is zero"):
        QuadraticProgram()(**given)
    data["h"][1, 2:] = torch.inf
    QuadraticProgram()(**given | {"h": data["h"]})
    data["h"][1, 2] = -1.0
    with pytest.warns(NotConvergedWarning, match=r"instances 1\): no x satisfies"):
        QuadraticProgram()(**data)
