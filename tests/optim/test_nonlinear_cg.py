"""Nonlinear conjugate gradients, measured against scipy's, and their line search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.datasets import load_breast_cancer
from torch.nn import functional as F

import legato as lg
from legato import optim
from legato.errors import InputError, NoStepError
from legato.optim.evaluation import Evaluation
from legato.optim.line_search import Ray
from optim.data import Counted, normal, rosenbrock

X, y = load_breast_cancer(return_X_y=True)
X = torch.tensor((X - X.mean(0)) / X.std(0))
y = torch.tensor(2.0 * y - 1)


def logistic_ridge(w):
    return F.softplus(-y * (X @ w)).sum() + 0.5 * (w @ w)


PROBLEMS = {
    "Rosenbrock-20": (rosenbrock, torch.tensor([-1.2, 1.0] * 10, dtype=torch.float64)),
    "logistic ridge": (logistic_ridge, torch.zeros(30, dtype=torch.float64)),
}
FORMULAS = [optim.PolakRibiere(), optim.FletcherReeves(), optim.HagerZhang()]


def scipy_evaluations(f, start):
    """Gradient evaluations of scipy's CG until ‖∇f‖ ≤ 1e-6."""

    def with_gradient(x):
        x = torch.tensor(x, requires_grad=True)
        value = f(x)
        return float(value.detach()), torch.autograd.grad(value, x)[0].numpy()

    found = scipy.optimize.minimize(
        with_gradient,
        start.numpy(),
        jac=True,
        method="CG",
        options={"gtol": 1e-6, "norm": 2, "maxiter": 10_000},
    )
    assert np.linalg.norm(found.jac) <= 1e-6
    return found.njev


@pytest.mark.parametrize("conjugacy", FORMULAS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_needs_no_more_gradients_than_scipy(problem, conjugacy):
    f, start = problem
    closure = Counted(f, start)
    optimizer = optim.NonlinearCG([closure.x], conjugacy)
    size = math.inf
    while size > 1e-6:
        optimizer.step(closure)
        size = float(torch.linalg.vector_norm(optimizer.remembered().gradient[0]))
        assert closure.calls < 5000
    assert closure.calls <= 1.5 * scipy_evaluations(f, start)


def test_on_a_quadratic_it_is_linear_cg():
    """n steps solve a quadratic in n dimensions, up to the inexact line search."""
    Q = torch.diag(torch.tensor([1.0, 3.0, 10.0, 30.0], dtype=torch.float64))
    c = torch.ones(4, dtype=torch.float64)
    closure = Counted(lambda x: 0.5 * x @ Q @ x - c @ x, torch.zeros(4, dtype=torch.float64))
    search = optim.StrongWolfe(c1=1e-8, c2=1e-6)  # all but exact
    optimizer = optim.NonlinearCG([closure.x], line_search=search, orthogonality=None)
    for _ in range(4):
        optimizer.step(closure)
    assert torch.allclose(closure.point, torch.linalg.solve(Q, c), atol=1e-5)


@pytest.mark.parametrize("conjugacy", FORMULAS)
def test_formulas_agree_on_a_quadratic_with_exact_line_search(conjugacy):
    """With exact steps all three βs are ‖g⁺‖²/‖g‖²."""
    Q = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64))
    x = torch.ones(3, dtype=torch.float64)
    g = Q @ x
    d = -g
    t = (g @ g) / (d @ Q @ d)
    new = Q @ (x + t * d)
    assert conjugacy.beta(g, d, new) == pytest.approx(float((new @ new) / (g @ g)))


def test_hager_zhang_is_its_formula():
    g, d, new = (normal(5, seed=seed) for seed in range(3))
    y = new - g
    expected = float((y - 2 * d * (y @ y) / (d @ y)) @ new / (d @ y))
    floor = float(-1 / (d.norm() * min(0.01, float(g.norm()))))
    assert optim.HagerZhang().beta(g, d, new) == pytest.approx(max(expected, floor))
    assert expected > floor
    tight = optim.HagerZhang(eta=1e3)
    steep = 1e-3 * d  # a large negative β is cut off
    beta = float((y - 2 * steep * (y @ y) / (steep @ y)) @ new / (steep @ y))
    least = float(-1 / (steep.norm() * g.norm()))
    assert tight.beta(g, steep, new) == pytest.approx(max(beta, least))


def test_hager_zhang_is_cut_at_a_hundred_over_the_length_of_the_direction():
    """Where the gradient is longer than η = 0.01; the formula would give about −1000 here."""
    g, d, new = (torch.tensor(v).double() for v in ([-1e-3, -1.0], [1.0, 0.0], [3e-3, 1.0]))
    assert optim.HagerZhang().beta(g, d, new) == pytest.approx(-100)
    assert optim.HagerZhang().beta(g, 2 * d, new) == pytest.approx(-50)


def test_polak_ribiere_is_cut_at_zero():
    g, new = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
    assert optim.PolakRibiere().beta(g, -g, new) == 0.0


def test_strong_wolfe_holds_at_every_accepted_point():
    closure = Counted(rosenbrock, torch.tensor([-1.2, 1.0] * 3, dtype=torch.float64))
    search = optim.StrongWolfe(c1=1e-4, c2=0.1)
    optimizer = optim.NonlinearCG([closure.x], line_search=search)
    for _ in range(40):
        before = closure.point
        if optimizer.remembered() is None:
            optimizer.step(closure)
            continue
        known = optimizer.remembered()
        direction = optimizer.state[closure.x]["direction"]
        slope = float(direction @ known.gradient[0])
        optimizer.step(closure)
        if optimizer.state[closure.x]["slope"] != slope:
            continue  # it restarted
        t = optimizer.state[closure.x]["t"]
        assert torch.allclose(closure.point, before + t * direction)
        new = optimizer.remembered()
        assert slope < 0
        assert new.loss <= known.loss + 1e-4 * t * slope + 1e-14
        assert abs(float(direction @ new.gradient[0])) <= 0.1 * abs(slope)


def ray(f):
    """φ(t) = f(t) with its derivative, as the line search sees it."""

    def phi(t):
        x = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        value = f(x)
        (slope,) = torch.autograd.grad(value, x)
        return Ray(t, float(value.detach()), float(slope), Evaluation(float(value.detach()), ()))

    return phi


@pytest.mark.parametrize("first", [1e-6, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize(
    "f",
    [
        lambda t: (t - 2) ** 2,
        lambda t: -t / (t * t + 2),  # Moré and Thuente's first function
        lambda t: torch.cosh(t - 1),
        lambda t: t - torch.log(t + 0.01) * 3,
        lambda t: (t - 1) ** 2 + 0.1 * torch.sin(10 * t),
    ],
)
def test_line_search_finds_a_point_from_any_first_step(f, first):
    phi = ray(f)
    start = phi(0.0)
    found = optim.StrongWolfe(c1=1e-4, c2=0.1).search(phi, start, first)
    assert found.value <= start.value + 1e-4 * found.t * start.slope
    assert abs(found.slope) <= 0.1 * abs(start.slope)


def test_line_search_backs_out_of_nan():
    phi = ray(lambda t: -t * (1 - t) if t < 1 else math.nan * t)
    start = phi(0.0)
    found = optim.StrongWolfe().search(phi, start, 100.0)
    assert 0 < found.t < 1
    assert found.value < start.value


def test_nan_in_the_middle_of_the_way():
    def cliff(x):
        return torch.where(x < 1, (x - 0.9) ** 2, torch.full_like(x, math.nan)).sum()

    closure = Counted(cliff, torch.full((1,), -50.0, dtype=torch.float64))
    optimizer = optim.NonlinearCG([closure.x])
    for _ in range(20):
        optimizer.step(closure)
    assert float(closure.point) == pytest.approx(0.9, abs=1e-6)


def test_a_wrong_gradient_ends_with_a_clear_word():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def closure():
        loss = (x**2).sum()
        (-loss).backward()
        return loss

    with pytest.raises(NoStepError, match="No step works"):
        optim.NonlinearCG([x]).step(closure)
    assert torch.equal(x.detach(), torch.ones(3, dtype=torch.float64))


def test_at_a_minimum_it_stands_still():
    closure = Counted(lambda x: (x**2).sum(), torch.zeros(2, dtype=torch.float64))
    optimizer = optim.NonlinearCG([closure.x])
    optimizer.step(closure)
    assert torch.equal(closure.point, torch.zeros(2, dtype=torch.float64))


def test_restarts_after_so_many_steps():
    closure = Counted(rosenbrock, torch.tensor([-1.2, 1.0] * 3, dtype=torch.float64))
    optimizer = optim.NonlinearCG([closure.x], optim.FletcherReeves(), restart=3)
    betas = []
    for _ in range(12):
        optimizer.step(closure)
        betas.append(optimizer.state[closure.x]["beta"])
    runs = "".join("0" if beta == 0 else "x" for beta in betas).split("0")
    assert max(map(len, runs)) <= 2
    assert any(runs)


def test_it_takes_no_prox():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(InputError, match="IPiano"):
        optim.NonlinearCG([{"params": [x], "prox": lg.L1(1.0)}])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: optim.NonlinearCG(x, "PR+"),
        lambda x: optim.NonlinearCG(x, line_search=0.1),
        lambda x: optim.NonlinearCG(x, restart=0),
        lambda x: optim.NonlinearCG(x, orthogonality=0.0),
        lambda x: optim.StrongWolfe(c1=0.5, c2=0.4),
        lambda x: optim.HagerZhang(eta=0.0),
    ],
)
def test_bad_hyperparameters_are_refused(make):
    with pytest.raises(InputError):
        make([torch.zeros(2, requires_grad=True)])
