"""What JAXopt's tests ask for: projections, proxes, isotonic regression, and their solvers."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from sklearn import datasets, isotonic, linear_model

import legato as lg
from draws import rand, randn
from legato.errors import InputError
from legato.nn import QuadraticProgram

X, WEIGHTS = 2 * rand(20, seed=1) - 1, rand(20, seed=2)
F32 = torch.float32


# --- projections ----------------------------------------------------------------------------------


def test_bounds_of_arrays_and_of_tuples():
    x = torch.tensor([-1.0, 2.0, 3.0])
    torch.testing.assert_close(lg.NonNegative().prox(x), torch.tensor([0.0, 2.0, 3.0]))
    for g in (lg.Box(0.0, 2.0), lg.Box(torch.zeros(3), torch.full((3,), 2.0))):
        expected = torch.tensor([0.0, 2.0, 2.0])
        torch.testing.assert_close(g.prox(x), expected)
        pair = lg.Separable(g, g).prox((x, x))
        torch.testing.assert_close(pair, (expected, expected))
    cube = torch.tensor([-1.0, 2.0, 0.5])
    torch.testing.assert_close(lg.Box(0.0, 0.8).prox(cube), torch.tensor([0.0, 0.8, 0.5]))


@pytest.mark.parametrize("scale", [1.0, 1e9])
@pytest.mark.parametrize("total", [1.0, 0.8])
def test_the_simplex(scale, total):
    g = lg.Simplex() @ ((1 / total) * lg.Identity())
    for seed in range(10):
        p = g.prox((scale * randn(50, seed=seed)).to(F32))
        assert float(p.sum()) == pytest.approx(total, rel=1e-5)
        assert bool((p >= 0).all() & (p <= total * (1 + 1e-6)).all())
    far = torch.tensor([0.0, 0.0, -torch.inf])
    torch.testing.assert_close(lg.SoftMaximum(2.0).grad(far), torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_the_jacobian_of_the_simplex(scale):
    x, prox = (scale * rand(5, seed=2)).to(F32), lg.Simplex().prox
    s = (prox(x) > 0).to(F32)
    truth = torch.diag(s) - torch.outer(s, s) / s.sum()
    v = (scale * randn(5, seed=3)).to(F32)
    torch.testing.assert_close(torch.func.jacrev(prox)(x), truth)
    torch.testing.assert_close(torch.func.jacfwd(prox)(x), truth)
    torch.testing.assert_close(torch.func.vjp(prox, x)[1](v)[0], v @ truth)
    torch.testing.assert_close(torch.func.jvp(prox, (x,), (v,))[1], truth @ v)


def test_the_simplex_of_a_batch():
    x = randn(4, 5, seed=4)
    p = torch.func.vmap(lg.Simplex().prox)(x)
    torch.testing.assert_close(p, lg.Simplex().prox(x))
    torch.testing.assert_close(p.sum(-1), torch.ones(4).double())
    assert torch.autograd.gradcheck(
        lambda t: lg.Simplex().prox(t).square().sum(), x.requires_grad_()
    )


@pytest.mark.parametrize("order", [1, 2])
def test_spheres(order):
    """Of many points of the sphere none is nearer, for points inside and outside."""
    sphere = lg.functions.L1Sphere if order == 1 else lg.functions.L2Sphere
    x = torch.cat((randn(5, 4, seed=30), 0.05 * randn(5, 4, seed=31)))
    for radius in (1.0, 0.3, 2.0):
        found = sphere(radius).prox(x)
        sizes = torch.linalg.vector_norm(found, ord=order, dim=-1)
        torch.testing.assert_close(sizes, torch.full((10,), radius).double())
        others = randn(5000, 1, 4, seed=32)
        others = radius * others / torch.linalg.vector_norm(others, order, dim=-1, keepdim=True)
        nearest = (others - x).norm(dim=-1).amin(0)
        assert bool(((found - x).norm(dim=-1) <= nearest).all())


BALLS = {"l1": (lg.L1Ball, 1), "l2": (lg.L2Ball, 2), "linf": (lg.LInfBall, torch.inf)}


@pytest.mark.parametrize("name", BALLS)
def test_balls(name):
    """Inside and on the boundary nothing moves; outside the point lies on it, as the slopes say."""
    ball, order = BALLS[name]
    x = randn(9, seed=5)
    size = torch.linalg.vector_norm(x, order)

    def project(t, radius):
        return ball(radius).prox(t)

    for radius in (2 * size, size):
        torch.testing.assert_close(project(x, radius), x)
        torch.testing.assert_close(torch.func.jacrev(project)(x, radius), torch.eye(9).double())
        assert not torch.func.jacrev(project, argnums=1)(x, radius).any()
    p = project(x, size / 2)
    torch.testing.assert_close(torch.linalg.vector_norm(p, order), size / 2)
    given = (x.requires_grad_(), (size / 2).detach().requires_grad_())
    assert torch.autograd.gradcheck(project, given)


def test_planes_and_half_spaces():
    x, a = randn(50, seed=6), randn(50, seed=7)
    on = lg.AffineSet(a[None], torch.ones(1).double()).prox(x)
    assert float(a @ on) == pytest.approx(1.0)
    tree, normal = (
        torch.tensor([1.0, 2, 2, 1, 2]).double(),
        torch.tensor([1.0, 1, 1, 0, 1]).double(),
    )
    expected = torch.tensor([-0.5, 0.5, 0.5, 1, 0.5]).double()
    plane = lg.AffineSet(normal[None], torch.ones(1).double())
    torch.testing.assert_close(plane.prox(tree), expected)
    torch.testing.assert_close(lg.Halfspaces(normal, 10000.0).prox(tree), tree)
    low = lg.AffineSet(normal[None], torch.full((1,), -10000.0).double())
    torch.testing.assert_close(lg.Halfspaces(normal, -10000.0).prox(tree), low.prox(tree))


def test_affine_sets_and_their_derivatives():
    given = [randn(5, seed=8), randn(3, 5, seed=9), randn(3, seed=10)]
    x, A, b = given
    torch.testing.assert_close(A @ lg.AffineSet(A, b).prox(x), b)
    for t in given:
        t.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, A, b: lg.AffineSet(A, b).prox(x), given)


def test_polyhedra():
    x, A, b, G, h = (randn(*s, seed=k) for k, s in enumerate([(5,), (3, 5), (3,), (2, 5), (2,)]))
    given = [t.requires_grad_() for t in (x, A, b, G, h)]

    def project(x, A, b, G, h):
        return QuadraticProgram()(torch.eye(5).double(), -x, A=A, b=b, G=G, h=h)

    p = project(*given).detach()
    torch.testing.assert_close(A.detach() @ p, b.detach())
    assert bool((G.detach() @ p <= h.detach() + 1e-9).all())
    assert torch.autograd.gradcheck(project, given)


@pytest.mark.filterwarnings("ignore")
def test_a_polyhedron_without_points():
    A, b = torch.tensor([[1.0, 1], [0, 1], [-1, 1]]).double(), torch.tensor([1.0, 1, -1]).double()
    record = QuadraticProgram().solve(
        torch.eye(2).double(), torch.zeros(2).double(), A=A, b=b, lo=0.0
    )
    assert not bool(record.solved)
    assert bool(record.x.isnan().all())


def test_sections_of_a_box():
    x, w = torch.tensor([1.2, 3.0, 0.7]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    p = lg.BoxSection(1.0, w, 0.0, 0.8).prox(x)
    program = QuadraticProgram()(
        torch.eye(3).double(), -x, A=w[None], b=torch.ones(1).double(), lo=0.0, hi=0.8
    )
    torch.testing.assert_close(p, program, atol=1e-7, rtol=0)
    for lo, hi in ((1.5, 2.0), (-1.0, -0.5)):
        with pytest.raises(InputError, match="No point"):
            lg.BoxSection(1.0, w, lo, hi).prox(x)
    y = rand(5, seed=11)
    torch.testing.assert_close(lg.BoxSection(1.0).prox(y), lg.Simplex().prox(y))
    ours, theirs = (torch.func.jacrev(g.prox)(y) for g in (lg.BoxSection(1.0), lg.Simplex()))
    torch.testing.assert_close(ours, theirs)


def marginals(rows, columns):
    """Sums along rows and along columns, of a plan laid flat."""
    over = torch.eye(rows).double()[:, :, None].expand(rows, rows, columns).flatten(1)
    down = torch.eye(columns).double()[:, None, :].expand(columns, rows, columns).flatten(1)
    return torch.cat((over, down))


@pytest.mark.parametrize("kind", ["transport", "Birkhoff"])
def test_plans_of_given_marginals(kind):
    """The nearest plan, and the most likely one, which Sinkhorn's iteration finds, too."""
    rows, columns = (5, 6) if kind == "transport" else (5, 5)
    S = rand(rows, columns, seed=12)
    a, b = (
        (rand(rows, seed=13), rand(columns, seed=14))
        if kind == "transport"
        else (torch.ones(5).double(), torch.ones(5).double())
    )
    a, b = (a / a.sum(), b / b.sum()) if kind == "transport" else (a, b)
    M, c = marginals(rows, columns), torch.cat((a, b))
    near = QuadraticProgram()(
        torch.eye(rows * columns).double(), -S.flatten(), A=M[:-1], b=c[:-1], lo=0.0
    )
    P = cp.Variable((rows, columns), nonneg=True)
    cp.Problem(
        cp.Minimize(cp.sum_squares(P - S.numpy())),
        [cp.sum(P, axis=1) == a.numpy(), cp.sum(P, axis=0) == b.numpy()],
    ).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(near.reshape(rows, columns).numpy(), P.value, atol=1e-5)
    u, v, K = torch.ones(rows).double(), torch.ones(columns).double(), torch.exp(S)
    for _ in range(500):
        u = a / (K @ v)
        v = b / (K.T @ u)
    size = float(a.sum())  # shares of a whole, of which the entropy is strongly convex
    energy = lg.Linear(-S.flatten()) + lg.NegativeEntropy(1.0) + lg.Simplex()
    energy = energy + lg.Equality(c / size) @ M
    found = size * lg.solve(energy, stop=lg.Stop(4000)).x
    likely = u[:, None] * K * v
    torch.testing.assert_close(found.reshape(rows, columns), likely, atol=1e-4, rtol=0)


# --- proxes ---------------------------------------------------------------------------------------


def soft(x, w):
    return torch.sign(x) * torch.clamp(x.abs() - w, min=0)


PROXES = {
    "none": (lambda: lg.Zero(), lambda x: x),
    "lasso": (lambda: lg.L1(0.5), lambda x: soft(x, 0.5)),
    "lasso of weights": (lambda: lg.L1(WEIGHTS), lambda x: soft(x, WEIGHTS)),
    "elastic net": (lambda: lg.L1(0.5) + lg.SquaredNorm(0.05), lambda x: soft(x, 0.5) / 1.05),
    "group lasso": (lambda: lg.L2Norm(0.1), lambda x: (1 - 0.1 / x.norm()) * x),
    "group lasso, zero": (lambda: lg.L2Norm(10.0), lambda x: 0 * x),
    "ridge": (lambda: lg.SquaredNorm(10.0), lambda x: x / 11),
    "non-negative ridge": (
        lambda: lg.SquaredNorm(10.0) + lg.NonNegative(),
        lambda x: torch.clamp(x, min=0) / 11,
    ),
    "non-negative lasso": (
        lambda: lg.L1(0.5) + lg.NonNegative(),
        lambda x: torch.clamp(x - 0.5, min=0),
    ),
    "a projection": (lambda: lg.LInfBall(0.3), lambda x: x.clamp(-0.3, 0.3)),
}


@pytest.mark.parametrize("name", PROXES)
def test_proxes(name):
    make, truth = PROXES[name]
    torch.testing.assert_close(make().prox(X), truth(X))
    y = randn(20, seed=15)
    pair = lg.Separable(make(), make()).prox((X, y))
    torch.testing.assert_close(pair, (truth(X), truth(y)))
    slopes = torch.func.jacrev(make().prox)(X)
    torch.testing.assert_close(slopes, torch.func.jacrev(truth)(X))


# --- isotonic regression --------------------------------------------------------------------------


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("bounded", [False, True])
def test_isotonic_regression(increasing, bounded):
    y = randn(10, seed=16)
    ends = (float(y.sort().values[2]), float(y.sort().values[5])) if bounded else (None, None)
    sign = 1.0 if increasing else -1.0

    def fit(t):
        g = lg.Monotone()
        if bounded:
            lo, hi = sorted(sign * e for e in ends)
            g = g + lg.Box(lo, hi)
        return sign * g.prox(sign * t)

    expected = isotonic.isotonic_regression(
        y.numpy(), y_min=ends[0], y_max=ends[1], increasing=increasing
    )
    found = fit(y)
    assert (found.shape, found.dtype) == (y.shape, y.dtype)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    t = y.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: (fit(v**3) + fit(v) ** 2).mean(), (t,))
    assert torch.autograd.gradgradcheck(lambda v: (fit(v**3) + fit(v) ** 2).mean(), (t,))


def test_isotonic_regressions_of_a_batch():
    y = randn(16, 10, seed=17)
    found = torch.func.vmap(lg.Monotone().prox)(y)
    for row, fitted in zip(y, found, strict=True):
        torch.testing.assert_close(fitted, lg.Monotone().prox(row))


# --- solvers --------------------------------------------------------------------------------------

A0, B0 = (torch.from_numpy(t) for t in datasets.make_regression(10, 3, random_state=0))


def sklearn_lasso(weight):
    """½‖Ax − b‖² + n·weight‖x‖₁, as scikit-learn scales it."""
    model = linear_model.Lasso(alpha=weight, fit_intercept=False, tol=1e-12, max_iter=100000)
    return torch.from_numpy(model.fit(A0.numpy(), B0.numpy()).coef_)


@pytest.mark.parametrize("inertia", [0.0, lg.Nesterov()], ids=["plain", "accelerated"])
def test_lasso_as_a_loop_and_as_a_run(inertia):
    energy = lg.LeastSquares(A0, B0) + lg.L1(100.0)
    algorithm = lg.ForwardBackward(inertia=inertia)
    truth = sklearn_lasso(10.0)
    problem = lg.split(energy)
    state = algorithm.init(problem, torch.zeros(3).double())
    for _ in range(200):
        state = algorithm.step(problem, state)
    torch.testing.assert_close(algorithm.solution(state), truth, atol=1e-5, rtol=0)
    x = lg.solve(energy, algorithm, stop=lg.Stop(2000, tol=1e-12)).x
    torch.testing.assert_close(x, truth, atol=1e-8, rtol=0)


def test_the_derivative_of_a_lasso():
    weight = torch.tensor(10.0).double()

    def solution(w):
        energy = lg.LeastSquares(A0, B0) + lg.L1(10 * w)
        stop = lg.Stop(5000, tol=1e-13)
        return lg.solve(energy, gradient=lg.Implicit(), stop=stop).x

    slopes = torch.autograd.functional.jacobian(solution, weight)
    expected = (sklearn_lasso(10 + 1e-4) - sklearn_lasso(10 - 1e-4)) / 2e-4
    torch.testing.assert_close(slopes, expected, atol=1e-4, rtol=0)


def test_elastic_net_and_several_targets():
    energy = lg.LeastSquares(A0, B0) + lg.L1(20.0) + lg.SquaredNorm(16.0)
    x = lg.solve(energy, stop=lg.Stop(5000, tol=1e-12)).x
    model = linear_model.ElasticNet(alpha=3.6, l1_ratio=2 / 3.6, fit_intercept=False, tol=1e-12)
    np.testing.assert_allclose(x.numpy(), model.fit(A0.numpy(), B0.numpy()).coef_, atol=1e-6)
    M, W = randn(50, 10, seed=18), randn(10, 3, seed=19)
    Y = M @ W + randn(50, 3, seed=20)
    energy = lg.SquaredDistance(Y.mT) @ lg.Dense(M) + lg.GroupL1(15.0, dim=-2)
    x = lg.solve(energy, x0=torch.zeros(3, 10).double(), stop=lg.Stop(5000, tol=1e-12)).x
    many = linear_model.MultiTaskLasso(alpha=0.3, fit_intercept=False, tol=1e-12, max_iter=100000)
    np.testing.assert_allclose(x.numpy(), many.fit(M.numpy(), Y.numpy()).coef_, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_logistic_regression_and_its_derivative(classes, penalty):
    """Several classes are a soft maximum of scores; the truth is cvxpy's."""
    features, labels = datasets.make_classification(
        20, 5, n_informative=3, n_classes=classes, random_state=0
    )
    A, onehot = (
        torch.from_numpy(features),
        torch.nn.functional.one_hot(torch.from_numpy(labels), classes).double(),
    )
    K = lg.operators.from_function(lambda w: A @ w, (5, classes), torch.float64)
    weight = torch.tensor(0.8).double().requires_grad_()
    rule = lg.L1(weight) if penalty == "l1" else lg.SquaredNorm(weight)
    energy = lg.SoftMaximum(1.0) @ K + lg.Linear(-A.mT @ onehot) + rule
    if classes == 2:
        energy = lg.Logistic(A, 2 * onehot[:, 1] - 1) + rule
    start = torch.zeros(5).double() if classes == 2 else torch.zeros(5, classes).double()
    solution = lg.solve(energy, x0=start, gradient=lg.Implicit(), stop=lg.Stop(20000, tol=1e-12))

    def truth(size):
        w = cp.Variable(tuple(start.shape))
        scores = features @ w
        if classes == 2:
            value = cp.sum(cp.logistic(cp.multiply(1 - 2 * onehot[:, 1].numpy(), scores)))
        else:
            value = cp.sum(cp.log_sum_exp(scores, axis=1)) - cp.sum(
                cp.multiply(onehot.numpy(), scores)
            )
        cost = size * cp.norm1(w) if penalty == "l1" else 0.5 * size * cp.sum_squares(w)
        cp.Problem(cp.Minimize(value + cost)).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        return w.value

    np.testing.assert_allclose(solution.x.detach().numpy(), truth(0.8), atol=1e-5)
    solution.x.square().sum().backward()
    slope = ((truth(0.81) ** 2).sum() - (truth(0.79) ** 2).sum()) / 0.02
    assert float(weight.grad) == pytest.approx(slope, rel=5e-3)


@pytest.mark.parametrize("geometry", [lg.Entropy(), lg.Euclidean()], ids=["mirror", "projected"])
def test_the_dual_of_a_support_vector_machine_of_three_classes(geometry):
    features, labels = datasets.make_classification(
        20, 5, n_informative=3, n_classes=3, random_state=0
    )
    A = torch.nn.functional.normalize(torch.from_numpy(features))
    Y = torch.nn.functional.one_hot(torch.from_numpy(labels), 3).double()
    K = lg.operators.from_function(lambda b: A.mT @ b, (20, 3), torch.float64)
    weight = torch.tensor(10.0).double().requires_grad_()

    def weights(w):
        energy = (1 / w) * lg.LeastSquares(K, A.mT @ Y) + lg.Linear(Y - 1) + lg.Simplex()
        solution = lg.solve(
            lg.split(energy, geometry),
            lg.ForwardBackward(geometry=geometry, inertia=0.0),
            x0=torch.full((20, 3), 1 / 3).double(),
            gradient=lg.Unroll(last=300),
            stop=lg.Stop(3000),
        )
        return A.mT @ (Y - solution.x) / w

    def truth(w):
        b = cp.Variable((20, 3), nonneg=True)
        seen = A.numpy().T @ (b - Y.numpy())
        cost = cp.sum_squares(seen) / (2 * w) + cp.sum(cp.multiply(Y.numpy() - 1, b))
        cp.Problem(cp.Minimize(cost), [cp.sum(b, axis=1) == 1]).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        )
        return A.numpy().T @ (Y.numpy() - b.value) / w

    found = weights(weight)
    np.testing.assert_allclose(found.detach().numpy(), truth(10.0), atol=1e-3)
    found.square().sum().backward()
    slope = ((truth(10.01) ** 2).sum() - (truth(9.99) ** 2).sum()) / 0.02
    assert float(weight.grad) == pytest.approx(slope, rel=2e-2)


def test_least_squares_with_projections():
    M, w = randn(10, 5, seed=21), rand(5, seed=22)
    y = M @ w + 0.3 * randn(10, seed=23)
    x = lg.solve(lg.LeastSquares(M, y) + lg.NonNegative(), stop=lg.Stop(5000, tol=1e-12)).x
    np.testing.assert_allclose(x.numpy(), nnls(M.numpy(), y.numpy())[0], atol=1e-8)

    def inside(radius):
        energy = lg.LeastSquares(M, y) + lg.L2Ball(radius)
        return lg.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(5000, tol=1e-13)).x

    radius = torch.tensor(0.1).double()
    assert float(inside(radius).norm()) == pytest.approx(0.1)
    slopes = torch.autograd.functional.jacobian(inside, radius)
    torch.testing.assert_close(
        slopes, (inside(radius + 1e-5) - inside(radius - 1e-5)) / 2e-5, atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("solver", [lg.CG(), lg.GMRES(), lg.Direct()], ids=repr)
def test_the_derivative_of_ridge_regression(solver):
    weight = torch.tensor(5.0).double().requires_grad_()
    energy = lg.LeastSquares(A0, B0, 0.1) + lg.SquaredNorm(weight)
    x = lg.solve(energy, gradient=lg.Implicit(solver), stop=lg.Stop(5000, tol=1e-13)).x

    def closed(w):
        return torch.linalg.solve(A0.mT @ A0 + 10 * w * torch.eye(3).double(), A0.mT @ B0)

    torch.testing.assert_close(x, closed(weight))
    v = randn(3, seed=24)
    (found,) = torch.autograd.grad(x @ v, weight)
    (expected,) = torch.autograd.grad(closed(weight) @ v, weight)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-6)
