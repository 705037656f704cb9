"""Solutions on the faces of polyhedra, against closed forms and an interior-point solver."""

from __future__ import annotations

import math

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import legato as lg
from legato.errors import DomainError, GradientError, InputError
from makers import rand, randn

both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
TRIANGLE = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]]).double()
CORNER = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
"""The first four meet in (1, 1) for b = (1, 1, 2, 3, 1, 1)."""
STRATEGIES = [
    lg.Implicit(),
    lg.Implicit(lg.BiCGStab()),
    lg.Implicit(lg.Direct()),
    lg.FixedPoint(terms=300),
    lg.Unroll(),
    lg.Unroll(last=60),
    lg.Forward,
]
each_strategy = pytest.mark.parametrize(
    ("gradient", "dtype"),
    # Single precision is the harder one; in double precision all but sums and products agree.
    [(gradient, torch.float32) for gradient in STRATEGIES]
    + [(gradient, torch.float64) for gradient in (lg.Implicit(), lg.Forward)],
    ids=str,
)


def box(n: int, dtype: torch.dtype = torch.float64) -> lg.Polyhedral:
    return lg.Polyhedral(
        torch.cat([torch.eye(n), -torch.eye(n)]).to(dtype), torch.ones(2 * n).to(dtype)
    )


def jacobian(psi: lg.Geometry, theta: Tensor, gradient: lg.GradientStrategy, step=0.5, count=80):
    """x and dx/dθ for the projection of θ onto the domain of ψ."""
    theta = theta.clone().requires_grad_()
    gradient = gradient(theta) if gradient is lg.Forward else gradient
    algorithm = lg.ForwardBackward(step, psi)
    solution = lg.solve(
        lg.Composite(lg.SquaredDistance(theta)), algorithm, gradient=gradient, stop=lg.Stop(count)
    )
    rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in solution.x.flatten()]
    return solution, torch.stack(rows)


def require_close(found: Tensor, truth: Tensor, tol: float = 1e-4) -> None:
    torch.testing.assert_close(found.detach().double(), truth.double(), atol=tol, rtol=0)


@each_strategy
def test_one_active_constraint_leaves_the_others(gradient, dtype):
    theta = torch.tensor([2.0, 0.3, -0.5], dtype=dtype)
    solution, J = jacobian(box(3, dtype), theta, gradient)
    require_close(solution.x, torch.tensor([1.0, 0.3, -0.5]))
    require_close(J, torch.diag(torch.tensor([0.0, 1.0, 1.0])))


@each_strategy
def test_an_edge_that_is_not_along_an_axis(gradient, dtype):
    psi = lg.Polyhedral(TRIANGLE.to(dtype), torch.ones(3, dtype=dtype))
    solution, J = jacobian(psi, torch.tensor([1.5, 0.7], dtype=dtype), gradient)
    require_close(solution.x, torch.tensor([0.9, 0.1]))
    require_close(J, torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))


@pytest.mark.parametrize(
    ("gradient", "dtype"),
    [(lg.Implicit(), torch.float64), (lg.FixedPoint(terms=300), torch.float32)],
    ids=str,
)
@pytest.mark.parametrize(
    ("theta", "x", "truth"),
    [
        ((3.0, 2.0), (1.0, 1.0), torch.zeros(2, 2)),  # inside the normal cone of four rows
        ((2.0, 0.3), (1.0, 0.3), torch.diag(torch.tensor([0.0, 1.0]))),
    ],
    ids=["vertex", "edge"],
)
@pytest.mark.parametrize("copies", [1, 3])
def test_degenerate_vertices_and_repeated_rows(copies, theta, x, truth, gradient, dtype):
    A = CORNER.to(dtype).repeat(copies, 1)
    b = torch.tensor([1.0, 1.0, 2.0, 3.0, 1.0, 1.0], dtype=dtype).repeat(copies)
    target = torch.tensor(theta, dtype=dtype)
    # Repeated rows make ψ more strongly convex, and allow as much longer steps.
    solution, J = jacobian(lg.Polyhedral(A, b), target, gradient, 0.5 * copies)
    require_close(solution.x, torch.tensor(x))
    require_close(J, truth)


@pytest.mark.parametrize("seed", range(3))
def test_random_polytopes_against_an_interior_point_solver(seed):
    """The projection of θ, clearly outside: dx/dθ projects onto the directions of the face."""
    n = 3
    eye = torch.eye(n).double()
    A = torch.cat([torch.nn.functional.normalize(randn(8, n, seed=seed)), eye, -eye])
    b = torch.cat([0.3 + 0.5 * rand(8, seed=seed + 50), torch.ones(6).double()])
    for theta in 3 * randn(40, n, seed=seed + 100):
        x = cp.Variable(n)
        rows = A.numpy() @ x <= b.numpy()
        cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - theta.numpy())), [rows]).solve(cp.CLARABEL)
        multipliers, point = torch.as_tensor(rows.dual_value), torch.as_tensor(x.value)
        active = multipliers > 1e-4
        if (
            0 < active.sum() < n
            and multipliers[active].min() > 0.5
            and (b - A @ point)[~active].min() > 0.05
        ):
            break
    else:
        raise AssertionError("No draw was clear: choose other seeds.")
    G = A[active]
    truth = eye - torch.linalg.pinv(G) @ G
    step = lg.Polyhedral(A, b).modulus((-1.0, 1.0))
    for dtype, tol in (torch.float64, 1e-5), (torch.float32, 1e-3):
        psi = lg.Polyhedral(A.to(dtype), b.to(dtype))
        solution, J = jacobian(psi, theta.to(dtype), lg.Implicit(), 2 * step, 200)
        require_close(solution.x, point, tol)
        require_close(J, truth, tol)


@both_precisions
def test_a_batch_equals_its_elements(dtype):
    """Elements inside, on an edge, in a vertex; one with NaN does not spoil the others."""
    psi = lg.Polyhedral(TRIANGLE.to(dtype), torch.ones(3, dtype=dtype))
    y = torch.tensor([[0.3, -0.2], [80.0, 79.0], [3000.0, 100.0], [math.nan, 1.0]], dtype=dtype)
    w = randn(4, 2, dtype=dtype)
    after = 1.01 * y
    together = psi.unmirror(y), psi.transport(y, after, w), psi.inverse_metric(y, w)
    for k in range(3):
        alone = (
            psi.unmirror(y[k]),
            psi.transport(y[k], after[k], w[k]),
            psi.inverse_metric(y[k], w[k]),
        )
        for many, one in zip(together, alone, strict=True):
            torch.testing.assert_close(many[k], one)
    assert bool(torch.isnan(together[0][3]).all())


@pytest.mark.parametrize("size", [1.0, 30.0, 1e3, 1e5])
def test_transport_of_a_turned_box_is_that_of_intervals(size):
    """In the coordinates of its sides a box is a product of intervals, with a closed form."""
    Q = torch.linalg.qr(randn(3, 3)).Q
    psi = lg.Polyhedral(torch.cat([Q, -Q]), torch.ones(6).double())
    before, step, w = size * randn(3, seed=1), randn(3, seed=2), randn(3, seed=3)
    after = before + step
    interval = lg.Interval(-1.0, 1.0)  # with half the mirror coordinates
    truth = Q.mT @ interval.transport(0.5 * Q @ before, 0.5 * Q @ after, Q @ w)
    torch.testing.assert_close(psi.transport(before, after, w), truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(psi.unmirror(before), Q.mT @ torch.tanh(0.5 * Q @ before))


@pytest.mark.parametrize("own", [True, False], ids=["closed form", "default of the base class"])
def test_gradients_in_the_rows_of_an_active_constraint(own):
    """x = θ − a(⟨a, θ⟩ − b)/‖a‖² on the face of a; the multiplier moves with a."""

    class ByDefault(lg.Polyhedral):
        attach_drift = lg.Geometry.attach_drift

    theta, slope = torch.tensor([1.5, 0.7]).double(), torch.tensor([1.0, -0.3]).double()
    A, b = (
        (TRIANGLE + torch.tensor([0.0, 0.2])).requires_grad_(),
        torch.ones(3).double().requires_grad_(),
    )
    a = A[2]
    closed = theta - a * ((a @ theta - b[2]) / (a @ a))
    truth = torch.autograd.grad(closed @ slope, (A, b))
    psi = (lg.Polyhedral if own else ByDefault)(A, b)
    problem, algorithm = lg.Composite(lg.SquaredDistance(theta)), lg.ForwardBackward(0.3, psi)
    x = lg.solve(problem, algorithm, gradient=lg.Implicit(), stop=lg.Stop(150)).x
    require_close(x, closed, 1e-8)
    for found, true in zip(torch.autograd.grad(x @ slope, (A, b)), truth, strict=True):
        require_close(found, true, 1e-6)


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [(lg.Backtracking(), torch.float64), (lg.Backtracking(grow=1.2), torch.float32)],
    ids=str,
)
def test_backtracking_keeps_its_step_at_the_boundary(rule, dtype):
    psi = lg.Polyhedral(TRIANGLE.to(dtype), torch.ones(3, dtype=dtype))
    theta = torch.tensor([1.5, 0.7], dtype=dtype)
    for gradient in lg.Implicit(), lg.Unroll(last=40):
        solution, J = jacobian(psi, theta, gradient, rule, 60)
        assert float(solution.state.step) > 0.05
        require_close(J, torch.tensor([[0.5, -0.5], [-0.5, 0.5]]), 1e-3)


@pytest.mark.parametrize(
    "A", [TRIANGLE, CORNER.double(), torch.eye(3).repeat(2, 1).double()], ids=len
)
def test_the_modulus_bounds_the_curvature_of_bounded_sets(A):
    A = torch.cat([A, -A.sum(0, keepdim=True)])
    psi = lg.Polyhedral(A, torch.ones(len(A)).double())
    modulus = psi.modulus((-math.inf, math.inf))
    x = psi.unmirror(3 * randn(200, A.shape[1]))
    s = psi.slack(x)
    curvature = torch.linalg.eigvalsh((A.mT / s.unsqueeze(-2)) @ A)[:, 0]
    assert 0 < modulus <= float(curvature.min()) * (1 + 1e-9)


def test_the_modulus_of_a_box_is_known_and_that_of_a_wedge_is_not():
    assert box(4).modulus((-math.inf, math.inf)) == pytest.approx(1.0, rel=1e-4)  # slacks up to 2
    strip = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    for A in strip, TRIANGLE[:2], torch.tensor([[1.0, 1e-3], [-1.0, 1e-3]]):
        assert lg.Polyhedral(A, torch.ones(len(A)).to(A)).modulus((-math.inf, math.inf)) is None


def test_a_bounded_set_has_a_derived_step():
    problem = lg.Composite(lg.SquaredDistance(torch.tensor([1.5, 0.7]).double()))
    algorithm = lg.ForwardBackward(geometry=lg.Polyhedral(TRIANGLE, torch.ones(3).double()))
    solution = lg.solve(problem, algorithm, stop=lg.Stop(300, tol=1e-8))
    assert solution.converged
    require_close(solution.x, torch.tensor([0.9, 0.1]), 1e-6)


def test_a_matrix_of_deficient_rank_is_refused():
    for A in torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.ones(1, 2):
        with pytest.raises(InputError, match="full column rank"):
            lg.Polyhedral(A, torch.ones(len(A)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_and_ends_that_are_no_numbers_are_refused(value):
    A, b = torch.tensor([[1.0], [-1.0]]), torch.ones(2)
    for which in 0, 1:
        data = [A.clone(), b.clone()]
        data[which][-1] = value
        with pytest.raises(InputError, match="of Polyhedral holds 1 NaN or infinite"):
            lg.Polyhedral(*data)


def test_points_far_out_in_an_unbounded_set():
    half_line = lg.Polyhedral(-torch.eye(1).double(), torch.ones(1).double())
    for y in 1.0, 10.0, 700.0:
        found = half_line.unmirror(torch.tensor([y]).double())
        truth = torch.tensor([math.expm1(y - 1)], dtype=torch.float64)
        torch.testing.assert_close(found, truth)
    for psi, y in (half_line, 800.0), (lg.Polyhedral(-torch.eye(1), torch.ones(1)), 100.0):
        far = torch.tensor([y], dtype=psi.A.dtype)
        assert not bool(psi.mirror_interior(far).any())
        problem = lg.Composite(lg.Linear(-far))
        with pytest.raises(DomainError, match="too large for its precision"):
            lg.solve(problem, lg.ForwardBackward(1.0, psi), stop=lg.Stop(1))


class Ball(lg.Geometry):
    """ψ(x) = −√(1 − ‖x‖²), whose entries are coupled, with the default transport."""

    def summands(self, x):
        return -torch.sqrt(1 - (x * x).sum(-1))

    def mirror(self, x):
        return x / torch.sqrt(1 - (x * x).sum(-1, keepdim=True))

    def unmirror(self, y):
        return y / torch.sqrt(1 + (y * y).sum(-1, keepdim=True))

    def interior(self, x):
        return (x * x).sum(-1) < 1


@pytest.mark.filterwarnings("ignore:The derivative of the step still changes")
def test_a_coupled_geometry_without_transport_is_right_or_refuses():
    """The projection of θ onto the ball: dx/dθ = (I − xxᵀ)/‖θ‖."""
    theta = torch.tensor([1.0, 0.8])
    unit = (theta / theta.norm()).double()
    truth = (torch.eye(2).double() - torch.outer(unit, unit)) / theta.double().norm()
    _, J = jacobian(Ball(), theta.double(), lg.Implicit(), 0.5, 200)
    require_close(J, truth, 1e-3)
    with pytest.raises(GradientError, match="lost its digits"):
        jacobian(Ball(), theta, lg.Implicit(), 0.5, 20000)


def test_a_set_away_from_the_origin():
    """With an interior point given, everything is as for the set moved to the origin."""
    centre, b = 5 * randn(2, seed=9), torch.ones(3).double()
    home = lg.Polyhedral(TRIANGLE, b)
    away = lg.Polyhedral(TRIANGLE, b + TRIANGLE @ centre, start=centre)
    for size in 1.0, 30.0, 1e3:
        y = size * randn(4, 2, seed=3)
        torch.testing.assert_close(away.unmirror(y), home.unmirror(y) + centre)
        w, after = randn(4, 2, seed=4), y + randn(4, 2, seed=5)
        torch.testing.assert_close(away.transport(y, after, w), home.transport(y, after, w))


def test_distances_of_a_batch_are_those_of_its_elements_at_the_boundary_too():
    """Σ s log(s/r) − s + r is Σ r where s = 0, up to rounding on either side of it."""
    A = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    psi = lg.Polyhedral(A, torch.ones(3, dtype=torch.float64))
    z = torch.tensor([0.2, -0.3], dtype=torch.float64)
    corner = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    x = torch.stack([corner, corner * (1 + 2**-52), z])
    s, r = torch.tensor(3.0).double(), psi.slack(z)
    expected = s * torch.log(s / r[0]) - s + r.sum()
    found = psi.distances(x, z.expand(3, 2), 1)
    torch.testing.assert_close(found, torch.stack([expected, expected, 0 * expected]))
    torch.testing.assert_close(psi.distance(x, z.expand(3, 2)), found.sum())
