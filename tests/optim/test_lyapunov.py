"""H never rises: ten problems, convex and not, with every rule of iPiano that applies to them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

import legato as lg
from legato import optim
from optim.data import Counted, least_squares, normal, rosenbrock

A, b = normal(30, 20, seed=1), normal(30, seed=2)
labels = torch.sign(normal(30, seed=3))
EPS = torch.finfo(torch.float64).eps


def logistic(x):
    return F.softplus(-labels * (A @ x)).sum()


def student(x):
    """A robust loss that is not convex."""
    return torch.log1p((A @ x - b) ** 2).sum()


def wavy(x):
    return least_squares(A, b)(x) + 5 * torch.sin(3 * x).sum()


def barrier(x):
    """NaN outside x > 0."""
    return (x * x).sum() - torch.log(x).sum()


def bilevel(theta):
    """The validation loss of a lasso with learned penalties.

    Of plain steps: where momentum restarts, so few iterations jump.
    """
    problem = lg.Composite(lg.LeastSquares(A[:15], b[:15]), lg.L1(F.softplus(theta)))
    x = lg.solve(problem, lg.ForwardBackward(inertia=0.0), stop=lg.Stop(60)).x
    return ((A[15:] @ x - b[15:]) ** 2).mean()


PROBLEMS = {
    "least squares": (least_squares(A, b), None),
    "lasso": (least_squares(A, b), lg.L1(3.0)),
    "box": (least_squares(A, b), lg.Box(-0.1, 0.1)),
    "logistic, x ≥ 0": (logistic, lg.NonNegative()),
    "Rosenbrock": (rosenbrock, None),
    "Rosenbrock with ℓ1": (rosenbrock, lg.L1(0.5)),
    "wavy on a box": (wavy, lg.Box(-1.0, 0.5)),
    "wavy on the simplex": (wavy, lg.Simplex()),
    "least squares with ℓ0": (least_squares(A, b), lg.functions.L0(1.0)),
    "robust with ℓ0": (student, lg.functions.L0(0.3)),
    "barrier": (barrier, None),
    "bilevel with ℓ1": (bilevel, lg.L1(0.001)),
}
RULES = {
    "backtracking": optim.SearchedStep(),
    "much inertia": optim.SearchedStep(momentum=0.95),
    "variable inertia": optim.VariableMomentum(),
    "non-convex": optim.NonConvexStep(),
    "no inertia": optim.NonConvexStep(momentum=0.0),
}


PAIRS = [
    pytest.param(*PROBLEMS[p], RULES[r], id=f"{p}, {r}")
    for p in PROBLEMS
    for r in RULES
    if not (RULES[r].needs_convex_prox and isinstance(PROBLEMS[p][1], lg.functions.L0))
]


@pytest.mark.parametrize(("f", "g", "rule"), PAIRS)
def test_lyapunov_value_never_rises(f, g, rule):
    closure = Counted(f, torch.full((20,), 0.3, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], rule, prox=g)
    values, before = [], None
    for _ in range(40 if f is bilevel else 120):
        previous = closure.point.clone()
        optimizer.step(closure)
        rounding = 16 * EPS * (abs(optimizer.H) + abs(optimizer.remembered().loss))
        if values:
            # H_{n+1} ≤ H_n − γ_n ‖xⁿ − xⁿ⁻¹‖² where the step used its inertia, else H_{n+1} ≤ H_n
            room = 0.0
            (used,) = optimizer.steps
            if used.momentum > 0:
                room = used.gamma * float(((previous - before) ** 2).sum())
            assert values[-1] - room + rounding >= optimizer.H
        before = previous
        values.append(optimizer.H)
    assert values[-1] < values[0]


@pytest.mark.parametrize("g", [None, lg.L1(3.0), lg.Box(-0.1, 0.1)])
@pytest.mark.parametrize("momentum", [0.0, 0.4, 0.8])
def test_constant_steps_decrease_it_too(g, momentum):
    L = float(torch.linalg.matrix_norm(A, 2)) ** 2
    closure = Counted(least_squares(A, b), torch.full((20,), 0.3, dtype=torch.float64))
    rule = optim.ConstantStep(0.99 * 2 * (1 - momentum) / L, momentum, L)
    optimizer = optim.IPiano([closure.x], rule, prox=g)
    values = []
    for _ in range(200):
        optimizer.step(closure)
        values.append(optimizer.H)
    assert all(new <= old * (1 + 16 * EPS) for old, new in pairwise(values))
    assert values[-1] < values[0]


def test_too_large_a_constant_step_would_be_noticed():
    """The test above can fail: with a step beyond the condition, H does rise."""
    L = float(torch.linalg.matrix_norm(A, 2)) ** 2
    closure = Counted(least_squares(A, b), torch.full((20,), 0.3, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(1.02 * 2 * (1 + 0.4) / L, 0.4))
    values = []
    for _ in range(200):
        optimizer.step(closure)
        values.append(optimizer.H)
    assert any(new > 1.01 * old for old, new in pairwise(values))
