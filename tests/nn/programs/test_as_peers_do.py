"""What the tests of JAXopt (OSQP, BoxOSQP, EqualityConstrainedQP), qpth and cvxpylayers ask for."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from legato.errors import InputError, NotConvergedWarning
from legato.nn import QuadraticProgram, from_cvxpy
from quadratic_programs import by_clarabel, kkt_gradient, random_programs

F64 = torch.float64


def tensor(values):
    return torch.tensor(values, dtype=F64)


def test_a_textbook_program():
    """Two variables, a simplex and an inequality that is not active."""
    Q, c = tensor([[4.0, 1.0], [1.0, 2.0]]), tensor([1.0, 1.0])
    record = QuadraticProgram().solve(Q, c, tensor([[1.0, 1.0]]), tensor([1.0]), lo=0.0, hi=0.7)
    torch.testing.assert_close(record.x, tensor([0.3, 0.7]))
    torch.testing.assert_close(
        Q @ record.x + c + record.y - record.z_lo + record.z_hi, tensor([0.0, 0.0])
    )


def test_a_program_with_equations_is_one_linear_system():
    g = torch.Generator().manual_seed(0)
    L = torch.randn(8, 8, generator=g, dtype=F64)
    Q, c = L @ L.T + torch.eye(8, dtype=F64), torch.randn(8, generator=g, dtype=F64)
    A, b = torch.randn(3, 8, generator=g, dtype=F64), torch.randn(3, generator=g, dtype=F64)
    given = [t.requires_grad_() for t in (Q, c, A, b)]
    x = QuadraticProgram()(*given)
    system = torch.cat([torch.cat([Q, A.T], 1), torch.cat([A, torch.zeros(3, 3, dtype=F64)], 1)])
    truth = torch.linalg.solve(system, torch.cat([-c, b]))[:8]
    torch.testing.assert_close(x, truth)
    w = torch.randn(8, generator=g, dtype=F64)
    found = torch.autograd.grad((x * w).sum(), given)
    expected = torch.autograd.grad((truth * w).sum(), given)
    torch.testing.assert_close(found[0], (expected[0] + expected[0].T) / 2)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("condition", [1e2, 4e6, 1e10])
def test_an_ill_conditioned_objective(condition):
    g = torch.Generator().manual_seed(1)
    U = torch.linalg.qr(torch.randn(10, 10, generator=g, dtype=F64))[0]
    Q = U @ torch.diag(torch.logspace(0, np.log10(condition), 10, dtype=F64)) @ U.T
    Q = (Q + Q.T) / 2
    c, A = torch.randn(10, generator=g, dtype=F64), torch.randn(4, 10, generator=g, dtype=F64)
    b = torch.randn(4, generator=g, dtype=F64)
    record = QuadraticProgram().solve(Q, c, A, b)
    assert bool(record.solved)
    force = Q @ record.x + c + A.T @ record.y
    assert float(force.abs().max()) < 1e-9 * condition**0.5
    assert float((A @ record.x - b).abs().max()) < 1e-10


@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_the_dual_of_a_support_vector_machine(C):
    """Equations, a box, and a Q of low rank; the gradient in C by differences of another solver."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(20) > 0, 1.0, -1.0)
    K = torch.tensor(np.outer(y, y) * (X @ X.T)) + 1e-2 * torch.eye(20, dtype=F64)
    given = {
        "Q": K,
        "c": -torch.ones(20, dtype=F64),
        "A": torch.tensor(y)[None],
        "b": tensor([0.0]),
    }
    top = tensor(C).requires_grad_()
    x = QuadraticProgram()(**given, lo=0.0, hi=top.expand(20))
    w = torch.linspace(-1, 1, 20, dtype=F64)
    (x * w).sum().backward()

    def other(level):
        one = {name: value.numpy() for name, value in given.items()}
        return by_clarabel(one | {"lo": np.zeros(20), "hi": np.full(20, level)})

    assert np.abs(x.detach().numpy() - other(C)).max() < 1e-7 * max(1, C)
    step = 1e-5 * C
    expected = w.numpy() @ (other(C + step) - other(C - step)) / (2 * step)
    assert abs(float(top.grad) - expected) < 1e-4 * max(1.0, abs(expected))


def test_the_projection_onto_the_simplex():
    """Against the formula by sorting, with the derivative of its support."""
    g = torch.Generator().manual_seed(2)
    point = torch.randn(50, 7, generator=g, dtype=F64, requires_grad=True)
    one = torch.ones(1, 7, dtype=F64)
    x = QuadraticProgram()(torch.eye(7, dtype=F64), -point, one, tensor([1.0]), lo=0.0)
    ordered = point.detach().sort(-1, descending=True).values
    shifts = (ordered.cumsum(-1) - 1) / torch.arange(1, 8, dtype=F64)
    count = (ordered > shifts).sum(-1, keepdim=True)
    truth = (point.detach() - shifts.gather(-1, count - 1)).clamp(min=0)
    torch.testing.assert_close(x.detach(), truth)
    w = torch.randn(50, 7, generator=g, dtype=F64)
    (x * w).sum().backward()
    on = (truth > 0).to(F64)
    mean = (w * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)
    torch.testing.assert_close(point.grad, (w - mean) * on)


def test_non_negative_least_squares_as_a_program():
    g = torch.Generator().manual_seed(3)
    A, b = torch.randn(12, 5, generator=g, dtype=F64), torch.randn(12, generator=g, dtype=F64)
    x = QuadraticProgram()(A.T @ A, -A.T @ b, lo=0.0)
    from scipy.optimize import nnls

    assert np.abs(x.numpy() - nnls(A.numpy(), b.numpy())[0]).max() < 1e-10


def test_one_inequality_written_in_three_ways():
    """x ≤ u as a bound, as rows of G, and as an equation with a slack variable."""
    g = torch.Generator().manual_seed(4)
    L = torch.randn(4, 4, generator=g, dtype=F64)
    Q, c, u = (
        L @ L.T + torch.eye(4, dtype=F64),
        torch.randn(4, generator=g, dtype=F64),
        tensor(0.05),
    )
    eye, zero = torch.eye(4, dtype=F64), torch.zeros(4, 4, dtype=F64)
    bound = QuadraticProgram()(Q, c, hi=u.expand(4))
    rows = QuadraticProgram()(Q, c, G=eye, h=u.expand(4))
    wide = torch.cat([torch.cat([Q, zero], 1), torch.cat([zero, 0 * eye], 1)])
    low = torch.cat([torch.full((4,), -torch.inf, dtype=F64), torch.zeros(4, dtype=F64)])
    slack = QuadraticProgram()(
        wide, torch.cat([c, 0 * c]), torch.cat([eye, eye], 1), u.expand(4), lo=low
    )
    torch.testing.assert_close(rows, bound)
    torch.testing.assert_close(slack[:4], bound)


def test_infeasible_and_unbounded_are_recognised():
    one = tensor([[1.0, 1.0]])
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        QuadraticProgram()(torch.eye(2, dtype=F64), A=one, b=tensor([3.0]), lo=0.0, hi=1.0)
    with pytest.warns(NotConvergedWarning, match="falls without end"):
        QuadraticProgram()(c=tensor([1.0, 1.0]), G=one, h=tensor([1.0]))


def test_gradcheck():
    """torch's own differences, of the whole layer, in the entries of symmetric Q."""
    g = torch.Generator().manual_seed(5)
    L = torch.randn(2, 4, 4, generator=g, dtype=F64)
    c, A = torch.randn(2, 4, generator=g, dtype=F64), torch.randn(1, 4, generator=g, dtype=F64)
    G = torch.randn(3, 4, generator=g, dtype=F64)
    b, h = torch.zeros(1, dtype=F64), torch.full((2, 3), 0.1, dtype=F64)
    lo, hi = torch.full((4,), -0.6, dtype=F64), torch.full((4,), 0.6, dtype=F64)

    def layer(L, *rest):
        return QuadraticProgram()(L @ L.mT + torch.eye(4, dtype=F64), *rest)

    given = [t.clone().requires_grad_() for t in (L, c, A, b, G, h, lo, hi)]
    assert torch.autograd.gradcheck(layer, given)


def test_a_least_squares_layer_learns():
    """qpth's use: a matrix behind a program is found again from the program's answers."""
    g = torch.Generator().manual_seed(6)
    true = torch.rand(1, 6, generator=g, dtype=F64) + 0.5
    costs = torch.randn(60, 6, generator=g, dtype=F64)
    layer, eye, one = QuadraticProgram(), torch.eye(6, dtype=F64), tensor([1.0])
    wanted = layer(eye, costs, true, one, lo=-3.0, hi=3.0)
    A = torch.ones(1, 6, dtype=F64, requires_grad=True)
    optimizer = torch.optim.LBFGS([A], max_iter=50, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (layer(eye, costs, A, one, lo=-3.0, hi=3.0) - wanted).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(A.detach(), true, rtol=1e-3, atol=1e-3)


def box_program(n, equal, between, seed=42):
    """Rows between two ends, the last of which are equal; Q of full rank."""
    rng = np.random.default_rng(seed)
    root, rows = rng.standard_normal((n, n)), rng.standard_normal((between + equal, n))
    low = rng.standard_normal(between + equal)
    high = low + np.append(np.abs(rng.standard_normal(between)), np.zeros(equal))
    return [torch.tensor(v) for v in (root.T @ root, rng.standard_normal(n), rows, low, high)]


def test_a_random_program_of_rows_between_two_ends():
    """Its solution, and its whole Jacobian in Q and c by the KKT equations."""
    Q, c, rows, low, high = box_program(16, 2, 4)
    Q.requires_grad_(), c.requires_grad_()
    record = QuadraticProgram().solve(Q, c, G=rows, lower=low, upper=high)
    one = {"Q": Q.detach().numpy(), "c": c.detach().numpy()}
    one |= {"A": rows[4:].numpy(), "b": low[4:].numpy()}
    one |= {"G": np.vstack([rows[:4], -rows[:4]]), "h": np.concatenate([high[:4], -low[:4]])}
    x, z = record.x.detach().numpy(), record.z.numpy()
    assert np.abs(x - by_clarabel(one)).max() < 1e-6
    both = np.concatenate([np.maximum(z[:4], 0), np.maximum(-z[:4], 0)])
    for k in range(16):
        w = np.eye(16)[k]
        expected = kkt_gradient(one, x, z[4:], both, w)
        found = torch.autograd.grad(record.x[k], (Q, c), retain_graph=True)
        for name, ours in zip(("Q", "c"), found, strict=True):
            assert np.abs(ours.numpy() - expected[name]).max() < 1e-9


def test_a_larger_program_of_rows_between_two_ends():
    Q, c, rows, low, high = box_program(200, 30, 70)
    record = QuadraticProgram().solve(Q, c, G=rows, lower=low, upper=high)
    assert bool(record.solved)
    assert float((Q @ record.x + c + rows.T @ record.z).abs().max()) < 1e-8
    row = rows @ record.x
    assert float(torch.maximum(low - row, row - high).max()) < 1e-10
    assert float((record.z.clamp(min=0) * (high - row)).abs().max()) < 1e-8
    assert float((record.z.clamp(max=0) * (row - low)).abs().max()) < 1e-8


@pytest.mark.parametrize("form", ["equal ends", "equation"])
def test_the_projection_onto_a_hyperplane(form):
    point = tensor([1.0, 2.0]).requires_grad_()
    normal, offset = tensor([-0.5, 1.5]).requires_grad_(), tensor([0.3]).requires_grad_()
    eye, layer = torch.eye(2, dtype=F64), QuadraticProgram()
    if form == "equation":
        x = layer(eye, -point, normal[None], offset)
    else:
        x = layer(eye, -point, G=normal[None], lower=offset, upper=offset)
    truth = point - normal * (normal @ point - offset) / normal.square().sum()
    torch.testing.assert_close(x, truth)
    w, given = tensor([0.7, -1.1]), (point, normal, offset)
    found = torch.autograd.grad((x * w).sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad((truth * w).sum(), given))


def test_the_derivative_in_an_equation_written_as_equal_ends():
    """Two variables on a line with signs, in each of A, b, G and h, by torch's differences."""

    def solved(c, A, b, G, h):
        free = torch.full_like(h, -torch.inf)
        lower, upper = torch.cat([b, free]), torch.cat([b, h])
        Q = tensor([[4.0, 1.0], [1.0, 2.0]])
        return QuadraticProgram()(Q, c, G=torch.cat([A, G]), lower=lower, upper=upper)

    given = tensor([1.0, 1.0]), tensor([[1.0, 1.0]]), tensor([1.0]), -torch.eye(2).double()
    given = [t.requires_grad_() for t in (*given, tensor([0.0, -0.4]))]
    torch.testing.assert_close(solved(*given), tensor([0.25, 0.75]))
    c, A, b, G, h = given
    moved = tensor([0.0, -0.8]).requires_grad_()  # now the second sign holds x back
    torch.testing.assert_close(solved(c, A, b, G, moved), tensor([0.2, 0.8]))
    # Equal ends are moved together: the sum of their gradients is the derivative in b.
    assert torch.autograd.gradcheck(solved, (c, A, b, G, h))
    assert torch.autograd.gradcheck(solved, (c, A, b, G, moved))


def test_the_support_vector_machine_of_scikit_learn():
    """Its dual in signed coefficients: one row of ones between equal ends, and a box."""
    from sklearn.datasets import make_classification
    from sklearn.svm import SVC

    X, labels = make_classification(50, 8, n_informative=6, random_state=0)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    y, C = 2.0 * labels - 1, 0.1
    K = X @ X.T
    record = QuadraticProgram().solve(
        torch.tensor(K), -torch.tensor(y), G=torch.ones(1, 50, dtype=F64), lower=0.0, upper=0.0,
        lo=torch.tensor(np.minimum(C * y, 0)), hi=torch.tensor(np.maximum(C * y, 0)),
    )  # fmt: skip
    assert bool(record.solved)
    machine = SVC(kernel="precomputed", C=C, tol=1e-8).fit(K, y)
    truth = np.zeros(50)
    truth[machine.support_] = machine.dual_coef_[0]
    beta = record.x.numpy()  # K is of rank 8: the coefficients need not be unique, their sum is
    assert np.abs(K @ (beta - truth)).max() < 1e-5
    assert abs(0.5 * beta @ K @ beta - y @ beta - (0.5 * truth @ K @ truth - y @ truth)) < 1e-7


def test_three_programs_without_a_solution():
    """No point for five rows, none for three, and one that falls without end."""
    layer, inf = QuadraticProgram(), torch.inf
    A = tensor([[1.0, 1.0], [0.0, 1.0], [-1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    low, high = tensor([1.0, 1.0, -1.0, -inf, -inf]), tensor([1.0, 1.0, -1.0, 0.0, 0.0])
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        layer(torch.eye(2, dtype=F64), G=A, lower=low, upper=high)
    A, low = tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), tensor([6.0, 6.0, -inf])
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        layer(c=tensor([1.0, 1.0]), G=A, lower=low, upper=tensor([inf, inf, 11.0]))
    A, ends = tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), (tensor([0.0, 1.0]), tensor([inf, 1.0]))
    with pytest.warns(NotConvergedWarning, match="falls without end"):
        layer(c=tensor([-1.0, -2.0, 1.0]), G=A, lower=ends[0], upper=ends[1])


def test_a_lasso_as_a_program():
    """min ‖y‖² + 20λ 1ᵀt with y = Xw − b and −t ≤ w ≤ t: scikit-learn's, and its Jacobian in X."""
    from sklearn.linear_model import Lasso

    rng = np.random.default_rng(0)
    X, lam = rng.standard_normal((10, 3)), 0.4
    target = X @ np.array([2.0, 0.0, -1.0]) + 0.1 * rng.standard_normal(10)
    data = torch.tensor(X).requires_grad_()
    Q = torch.diag(torch.cat([torch.zeros(3), 2 * torch.ones(10), torch.zeros(3)]).double())
    c = torch.cat([torch.zeros(13), 20 * lam * torch.ones(3)]).double()
    eye, gap = torch.eye(3, dtype=F64), torch.zeros(3, 10, dtype=F64)
    A = torch.cat([data, -torch.eye(10, dtype=F64), gap.T], 1)
    G = torch.cat([torch.cat([eye, gap, -eye], 1), torch.cat([-eye, gap, -eye], 1)])
    ends = {"lower": torch.cat([torch.tensor(target), torch.full((6,), -torch.inf)])}
    ends["upper"] = torch.cat([torch.tensor(target), torch.zeros(6, dtype=F64)])
    x = QuadraticProgram()(Q, c, G=torch.cat([A, G]), **ends)
    truth = Lasso(lam, fit_intercept=False, tol=1e-12).fit(X, target).coef_
    assert np.abs(x[:3].detach().numpy() - truth).max() < 1e-6
    on = torch.tensor(truth != 0)
    assert 0 < int(on.sum()) < 3
    part = data[:, on]
    right = part.T @ torch.tensor(target) - 10 * lam * torch.tensor(np.sign(truth))[on]
    closed = torch.linalg.solve(part.T @ part, right)
    for ours, theirs in zip(x[:3][on], closed, strict=True):
        found, expected = (
            torch.autograd.grad(v, data, retain_graph=True)[0] for v in (ours, theirs)
        )
        torch.testing.assert_close(found, expected)


def test_a_portfolio_on_the_simplex():
    rng = np.random.default_rng(0)
    F, D = rng.standard_normal((10, 3)), np.diag(rng.uniform(0, 3**0.5, 10))
    Q, c = torch.tensor(2 * (F @ F.T + D)), torch.tensor(rng.standard_normal(10))
    rows = torch.cat([torch.ones(1, 10, dtype=F64), torch.eye(10, dtype=F64)])
    low = tensor([1.0] + [0.0] * 10)
    high = tensor([1.0] + [torch.inf] * 10)
    x = QuadraticProgram()(Q, c, G=rows, lower=low, upper=high)
    torch.testing.assert_close(x, QuadraticProgram()(Q, c, rows[:1], low[:1], lo=0.0))
    force = Q @ x + c
    price = force[x > 1e-9].mean()
    assert float((force[x > 1e-9] - price).abs().max()) < 1e-12
    assert bool((force >= price - 1e-12).all())


def test_nearly_as_many_equations_as_variables():
    """98 of 100, entries between 0 and 1 everywhere: condition numbers of many millions."""
    rng = np.random.default_rng(511)
    X, A = rng.random((100, 100)), rng.random((98, 100))
    Q, c, b = torch.tensor(X @ X.T), torch.tensor(rng.random(100)), torch.tensor(rng.random(98))
    record = QuadraticProgram().solve(Q, c, torch.tensor(A), b)
    force = Q @ record.x + c + torch.tensor(A).T @ record.y
    assert float(force.norm()) < 1e-6
    assert float((torch.tensor(A) @ record.x - b).norm()) < 1e-10
    again = QuadraticProgram().solve(Q, c, torch.tensor(A), b, start=record)
    torch.testing.assert_close(again.x, record.x)


def test_what_a_batch_shares_gets_the_sum_of_its_gradients():
    data = random_programs((4,), 5, 2, 6, seed=7)
    shared = {k: (v[0] if k in "QAG" else v).clone().requires_grad_() for k, v in data.items()}
    inside = (data["lo"] + data["hi"]) / 2
    with torch.no_grad():  # feasible with the rows of the first
        shared["b"].copy_(inside @ shared["A"].T)
        shared["h"].copy_(inside @ shared["G"].T + 0.3)
    w = torch.linspace(-1, 1, 5, dtype=F64)
    (QuadraticProgram()(**shared) @ w).sum().backward()
    total = {k: torch.zeros_like(shared[k]) for k in "QAG"}
    for k in range(4):
        one = {n: (v if n in "QAG" else v[k]).detach().requires_grad_() for n, v in shared.items()}
        (QuadraticProgram()(**one) @ w).backward()
        for name in total:
            total[name] += one[name].grad
        torch.testing.assert_close(one["c"].grad, shared["c"].grad[k])
    for name, value in total.items():
        torch.testing.assert_close(shared[name].grad, value)


def regression(m=12, n=5):
    A, b, x = cp.Parameter((m, n)), cp.Parameter(m), cp.Variable(n)
    return cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b) + cp.sum_squares(x))), [A, b]


def test_ridge_regression_in_cvxpy():
    """Solution and gradient by normal equations; b a batch, A shared by it."""
    layer = from_cvxpy(*regression())
    g = torch.Generator().manual_seed(0)
    A = torch.randn(12, 5, generator=g, dtype=F64, requires_grad=True)
    b = torch.randn(3, 12, generator=g, dtype=F64, requires_grad=True)
    (x,) = layer(A, b)
    truth = torch.linalg.solve(A.T @ A + torch.eye(5, dtype=F64), A.T @ b.T).T
    torch.testing.assert_close(x, truth)
    found = torch.autograd.grad(x.sum(), (A, b))
    torch.testing.assert_close(found, torch.autograd.grad(truth.sum(), (A, b)))
    for shape_A, shape_b in (((32, 12, 5), (20, 12)), ((32, 12, 5), (32, 24)), ((12, 5), (24,))):
        with pytest.raises(InputError):
            layer(torch.zeros(shape_A), torch.zeros(shape_b))


def test_the_first_example_of_cvxpylayers():
    """min ½‖Ax − b‖₁ over x ≥ 0, a linear program; derivatives in A and b by differences."""
    x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(0.5 * cp.pnorm(A @ x - b, p=1)), [x >= 0])
    layer = from_cvxpy(problem, [A, b])
    at = tensor([[1.0, 0.2], [0.3, 1.5], [0.7, -0.4]]), tensor([1.0, 2.0, -0.3])
    given = [t.requires_grad_() for t in at]
    assert torch.autograd.gradcheck(lambda *v: layer(*v)[0], given)
    A.value, b.value = (t.detach().numpy() for t in given)
    problem.solve(solver=cp.CLARABEL)
    assert np.abs(layer(*given)[0].detach().numpy() - x.value).max() < 1e-6


def test_two_cvxpy_problems_of_one_parameter():
    A, x = cp.Parameter((6, 3)), cp.Variable(3)
    rng = np.random.default_rng(1)
    layers = [
        from_cvxpy(cp.Problem(cp.Minimize(cp.sum_squares(A @ x - rng.standard_normal(6)))), [A])
        for _ in range(2)
    ]
    values = torch.tensor(rng.standard_normal((6, 3)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: torch.cat([layer(v)[0] for layer in layers]), values)


def test_equations_in_cvxpy():
    x, b = cp.Variable(4), cp.Parameter(4)
    layer = from_cvxpy(cp.Problem(cp.Minimize(cp.sum_squares(x)), [np.eye(4) @ x == b]), [b])
    values = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=F64)
    values.requires_grad_()
    torch.testing.assert_close(layer(values)[0], values)
    assert torch.autograd.gradcheck(lambda v: layer(v)[0], values)


def test_infeasible_and_unbounded_problems_of_cvxpy():
    x, p = cp.Variable(1), cp.Parameter(1)
    none = from_cvxpy(cp.Problem(cp.Minimize(cp.sum(p)), [x >= 1, x <= -1]), [p], [x])
    with pytest.warns(NotConvergedWarning, match="no x satisfies"):
        assert none(torch.ones(1))[0].isnan().all()
    falling = from_cvxpy(cp.Problem(cp.Minimize(cp.sum(x)), [x <= p]), [p])
    with pytest.warns(NotConvergedWarning, match="falls without end"):
        assert falling(torch.ones(1))[0].isnan().all()
