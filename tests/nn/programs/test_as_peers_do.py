"""What the tests of JAXopt (OSQP, BoxOSQP, EqualityConstrainedQP), qpth and cvxpylayers ask for."""

import numpy as np
import pytest
import torch

from legato.errors import NotConvergedWarning
from legato.nn import QuadraticProgram
from quadratic_programs import by_clarabel

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
