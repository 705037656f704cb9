"""Programs in the forms of others: cvxpy's problems, qpsolvers' arguments."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from legato.errors import InexactGradientWarning, InputError
from legato.nn import LPGD, LinearProgram, QuadraticProgram, from_cvxpy, solve_qp

F64 = torch.float64
TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)


def lasso():
    """Squares, an l1 norm with a learned weight, signs, an equation; two variables."""
    x, slack = cp.Variable((3, 2)), cp.Variable(2, nonneg=True)
    F, g, weight = cp.Parameter((4, 3)), cp.Parameter((4, 2)), cp.Parameter(nonneg=True)
    misfit = cp.sum_squares(F @ x - g) + weight * cp.norm1(x) + 0.1 * cp.sum_squares(slack)
    problem = cp.Problem(cp.Minimize(misfit + cp.sum(slack)), [cp.sum(x, 0) >= 1 - slack])
    return problem, [F, g, weight], [slack, x]


def portfolio():
    """To be maximised, with constraints that depend on a parameter on both sides."""
    x, mean, cap = cp.Variable(4), cp.Parameter(4), cp.Parameter(pos=True)
    S = np.cov(np.random.default_rng(0).standard_normal((4, 9)))
    risk = cp.quad_form(x, cp.psd_wrap(S + 0.1 * np.eye(4)))
    rows = [cp.sum(x) == 1, x >= 0, x <= cap]
    return cp.Problem(cp.Maximize(mean @ x - risk), rows), [mean, cap], [x]


def linear():
    x, c, b = cp.Variable(3), cp.Parameter(3), cp.Parameter()
    return cp.Problem(cp.Minimize(c @ x), [cp.sum(x) == b, x >= 0, x[0] <= 0.3 * b]), [c, b], [x]


def drawn(parameters, seed):
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(p.shape) for p in parameters]
    return [
        np.abs(v) + 0.3 if p.is_nonneg() else v for p, v in zip(parameters, values, strict=True)
    ]


def by_cvxpy(problem, parameters, variables, values):
    for parameter, value in zip(parameters, values, strict=True):
        parameter.value = np.asarray(value)
    problem.solve(solver=cp.CLARABEL, **TIGHT, tol_ktratio=1e-10)
    return np.concatenate([v.value.reshape(-1) for v in variables])


@pytest.mark.parametrize("make", [lasso, portfolio])
def test_solutions_and_gradients_of_cvxpy(make):
    problem, parameters, variables = make()
    layer = from_cvxpy(problem, parameters, variables)
    assert isinstance(layer.layer, QuadraticProgram)
    assert all(p.value is None for p in parameters)
    both = [drawn(parameters, seed) for seed in (0, 1)]
    given = [torch.tensor(np.stack(pair), requires_grad=True) for pair in zip(*both, strict=True)]
    found = torch.cat([v.flatten(1) for v in layer(*given)], 1)
    rng = np.random.default_rng(3)
    w = rng.standard_normal(found.shape[1])
    (found @ torch.tensor(w)).sum().backward()
    for k, values in enumerate(both):
        truth = by_cvxpy(problem, parameters, variables, values)
        assert np.abs(found[k].detach().numpy() - truth).max() < 1e-6
        directions = [rng.standard_normal(np.shape(v)) for v in values]
        ends = [
            w @ by_cvxpy(
                problem, parameters, variables,
                [v + s * 1e-5 * d for v, d in zip(values, directions, strict=True)],
            )
            for s in (1, -1)
        ]  # fmt: skip
        slope = sum(
            float((t.grad[k] * torch.tensor(d)).sum())
            for t, d in zip(given, directions, strict=True)
        )
        assert abs((ends[0] - ends[1]) / 2e-5 - slope) < 2e-4 * max(1, abs(slope))
    single = layer(*[t[0].detach() for t in given])
    torch.testing.assert_close(single[0], layer(*[t.detach() for t in given])[0][0])


def test_a_shared_parameter_and_float32():
    problem, parameters, variables = portfolio()
    layer = from_cvxpy(problem, parameters)
    mean = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    (x,) = layer(mean, torch.tensor(0.5))
    assert x.shape == (5, 4)
    assert x.dtype == torch.float32
    truth = by_cvxpy(problem, parameters, variables, [mean[2].numpy(), 0.5])
    assert np.abs(x[2].numpy() - truth).max() < 1e-5


def test_linear_programs():
    problem, parameters, _ = linear()
    layer = from_cvxpy(problem, parameters)
    values = [torch.tensor([1.0, 2.0, 3.0], dtype=F64), torch.tensor(2.0, dtype=F64)]
    torch.testing.assert_close(layer(*values)[0], torch.tensor([0.6, 1.4, 0.0], dtype=F64))
    cost = values[0].clone().requires_grad_()
    with pytest.warns(InexactGradientWarning, match="zero almost everywhere"):
        layer(cost, values[1])
    learning = from_cvxpy(problem, parameters, layer=LinearProgram(LPGD(5.0)))
    learning(cost, values[1])[0][1].backward()  # a dearer x₂
    torch.testing.assert_close(cost.grad, torch.tensor([0.0, -0.28, 0.28], dtype=F64))


def refused():
    x, p = cp.Variable(2), cp.Parameter(2, name="p")
    squares = cp.sum_squares(x - p)
    yield cp.Problem(cp.Minimize(cp.norm2(x - p))), [p], None, None, "it has cones"
    yield cp.Problem(cp.Minimize(squares), [cp.norm2(x) <= 1]), [p], None, None, "it has cones"
    whole = cp.Variable(2, integer=True)
    yield cp.Problem(cp.Minimize(cp.sum_squares(whole - p))), [p], None, None, "integer variables"
    yield cp.Problem(cp.Maximize(squares)), [p], None, None, "rules for convex problems"
    q = cp.Parameter(2)
    product = cp.multiply(cp.multiply(p, q), x)
    yield cp.Problem(cp.Minimize(squares + cp.sum(product))), [p, q], None, None, "not affine"
    plain = cp.Problem(cp.Minimize(squares))
    yield plain, [], None, None, r"it has \['p'\], but \[\] were given"
    yield plain, [p, p], None, None, "each parameter of the problem once"
    yield plain, [p], [cp.Variable(2, name="y")], None, "no variable y"
    even = cp.Parameter((2, 2), symmetric=True, name="even")
    both = cp.Problem(cp.Minimize(cp.sum_squares(x) + cp.sum(even @ x)))
    yield both, [even], None, None, "even is symmetric"
    yield plain, [p], None, LinearProgram(), "has squares"


@pytest.mark.filterwarnings("ignore:You are solving a parameterized problem")
def test_other_problems_are_refused_in_words():
    for problem, parameters, variables, layer, words in refused():
        with pytest.raises(InputError, match=words):
            from_cvxpy(problem, parameters, variables, layer)


def test_values_are_checked():
    layer = from_cvxpy(*portfolio()[:2])
    with pytest.raises(InputError, match="takes 2 tensors, not 1"):
        layer(torch.zeros(4))
    with pytest.raises(InputError, match=r"of shape \(…, 4\), but"):
        layer(torch.zeros(3), torch.tensor(1.0))
    with pytest.raises(InputError, match="does not fit a batch"):
        layer(torch.zeros(3, 4), torch.ones(2))
    with pytest.raises(InputError, match="one dtype"):
        layer(torch.zeros(4).double(), torch.tensor(1.0))


def test_bounds_that_belong_to_a_variable():
    x, p = cp.Variable(2, bounds=[0, 1]), cp.Parameter(2)
    layer = from_cvxpy(cp.Problem(cp.Minimize(cp.sum_squares(x - p))), [p])
    torch.testing.assert_close(layer(torch.tensor([0.3, 4.0]))[0], torch.tensor([0.3, 1.0]))


def test_a_problem_without_parameters():
    x = cp.Variable(2)
    layer = from_cvxpy(cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [x <= 0.5]), [])
    torch.testing.assert_close(layer()[0], torch.full((2,), 0.5, dtype=F64))


def test_the_order_of_qpsolvers():
    P, q = torch.diag(torch.tensor([1.0, 2.0, 4.0])), torch.tensor([1.0, -2.0, 1.0])
    G, h, A, b = torch.eye(3)[:1], torch.tensor([-1.5]), torch.ones(1, 3), torch.tensor([0.2])
    x = solve_qp(P, q, G, h, A, b, -2.0, torch.full((3,), 1.4))
    torch.testing.assert_close(x, QuadraticProgram()(P, q, A, b, G, h, -2.0, 1.4))
    torch.testing.assert_close(solve_qp(P, q, lb=0.0), torch.tensor([0.0, 1.0, 0.0]))


def test_a_batch_of_no_instances_is_named():
    x, a = cp.Variable(2), cp.Parameter(2, name="a")
    layer = from_cvxpy(cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a])
    with pytest.raises(InputError, match=r"parameter a \(0, 2\) has a batch of no instances"):
        layer(torch.zeros(0, 2))
