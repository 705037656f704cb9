"""Random quadratic programs, and what is true of them by means that are not legato's."""

import cvxpy as cp
import numpy as np
import torch

NAMES = ("Q", "c", "A", "b", "G", "h", "lo", "hi")


def random_programs(batch, n, p, m, *, bounds=True, seed=0, dtype=torch.float64):
    """Strictly convex and strictly feasible ones, about half of whose inequalities are active."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=g, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*batch, *shape, generator=g, dtype=torch.float64)

    L, inside = normal(n, n), normal(n)
    data = {"Q": L @ L.mT / n + 0.1 * torch.eye(n, dtype=torch.float64), "c": 2 * normal(n)}
    if p:
        data["A"] = normal(p, n) / n**0.5
        data["b"] = (data["A"] @ inside.unsqueeze(-1)).squeeze(-1)
    if m:
        data["G"] = normal(m, n) / n**0.5
        data["h"] = (data["G"] @ inside.unsqueeze(-1)).squeeze(-1) + uniform(m)
    if bounds:
        data["lo"], data["hi"] = inside - uniform(n) - 0.1, inside + uniform(n) + 0.1
    return {name: value.to(dtype) for name, value in data.items()}


def stacked(one):
    """All inequalities of one program as Cx ≤ d, in numpy: rows of G, lower and upper bounds."""
    n = len(one["c"])
    C, d = [np.zeros((0, n))], [np.zeros(0)]
    if "G" in one:
        C, d = [*C, one["G"]], [*d, one["h"]]
    if "lo" in one:
        C, d = [*C, -np.eye(n)], [*d, -one["lo"]]
    if "hi" in one:
        C, d = [*C, np.eye(n)], [*d, one["hi"]]
    return np.vstack(C), np.concatenate(d)


def kkt_violation(one, x, y, z):
    """The largest violation of the conditions that make x a solution; z over all inequalities."""
    C, d = stacked(one)
    A, b = one.get("A", np.zeros((0, len(x)))), one.get("b", np.zeros(0))
    parts = [
        np.abs(one["Q"] @ x + one["c"] + A.T @ y + C.T @ z),
        np.abs(A @ x - b),
        np.maximum(C @ x - d, 0),
        np.maximum(-z, 0),
        np.abs(z * (C @ x - d)),
    ]
    return max(part.max() for part in parts if part.size)


def kkt_gradient(one, x, y, z, w):
    """The derivative of wᵀx in all data, from the KKT equations with z·(Cx − d) = 0.

    No active set is chosen: the matrix is regular where complementarity is strict and active
    constraints are independent.
    """
    n = len(x)
    C, d = stacked(one)
    A = one.get("A", np.zeros((0, n)))
    p, q = len(A), len(C)
    J = np.block(
        [
            [one["Q"], A.T, C.T],
            [A, np.zeros((p, p + q))],
            [z[:, None] * C, np.zeros((q, p)), np.diag(C @ x - d)],
        ]
    )
    v = np.linalg.solve(J.T, np.concatenate([w, np.zeros(p + q)]))
    v_x, v_y, v_z = v[:n], v[n : n + p], v[n + p :] * z
    found = {"Q": -(np.outer(v_x, x) + np.outer(x, v_x)) / 2, "c": -v_x}
    if p:
        found["A"], found["b"] = -np.outer(y, v_x) - np.outer(v_y, x), v_y
    m = len(one["h"]) if "h" in one else 0
    if m:
        found["G"] = -np.outer(z[:m], v_x) - np.outer(v_z[:m], x)
        found["h"] = v_z[:m]
    if "lo" in one:
        found["lo"], found["hi"] = -v_z[m : m + n], v_z[m + n :]
    return found


def by_clarabel(one):
    """x of one program by another solver, to its full accuracy."""
    x = cp.Variable(len(one["c"]))
    constraints = []
    if "A" in one:
        constraints.append(one["A"] @ x == one["b"])
    if "G" in one:
        constraints.append(one["G"] @ x <= one["h"])
    if "lo" in one:
        constraints.append(x >= one["lo"])
    if "hi" in one:
        constraints.append(x <= one["hi"])
    energy = 0.5 * cp.quad_form(x, cp.psd_wrap(one["Q"])) + one["c"] @ x
    problem = cp.Problem(cp.Minimize(energy), constraints)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
    problem.solve(solver=cp.CLARABEL, **tight, tol_ktratio=1e-10)
    return x.value


def instance(data, k):
    """One program of a batch with one leading axis, in numpy."""
    return {name: value[k].detach().double().numpy() for name, value in data.items()}


def multipliers(record, data):
    """All multipliers of inequalities in the order of :func:`stacked`, in numpy."""
    parts = [record.z] if "G" in data else []
    if "lo" in data:
        parts.append(record.z_lo)
    if "hi" in data:
        parts.append(record.z_hi)
    return torch.cat([record.x.new_zeros(*record.x.shape[:-1], 0).detach(), *parts], -1).numpy()
