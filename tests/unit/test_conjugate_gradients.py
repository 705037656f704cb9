"""Conjugate gradients in the metric of a prox: every proximal gradient step, against dense."""

from __future__ import annotations

import pytest
import torch

import legato as lg
from legato.errors import GradientError, InexactGradientWarning, NonContractiveWarning
from legato.gradients.linear.cg import require_symmetric

UNTIL = lg.Stop(20000, tol=1e-14)


def randn(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


A, b = randn(12, 8, seed=1), randn(12, seed=2)
BATCH_A, BATCH_b = randn(3, 12, 8, seed=3), randn(3, 12, seed=4)

# θ ↦ problem; which kind of derivative the prox has.
PROBLEMS = {
    "no prox": lambda t: lg.Composite(lg.LeastSquares(A, t * b)),
    "ridge, a multiple of the identity": lambda t: lg.Composite(
        lg.LeastSquares(A, b), lg.SquaredNorm(t)
    ),
    "ridge, a diagonal": lambda t: lg.Composite(
        lg.LeastSquares(A, b), lg.SquaredNorm(t * torch.arange(1.0, 9.0, dtype=torch.float64))
    ),
    "lasso, a projection": lambda t: lg.Composite(lg.LeastSquares(A, b), lg.L1(t)),
    "elastic net, a multiple of a projection": lambda t: lg.Composite(
        lg.LeastSquares(A, b), lg.L1(t) + lg.SquaredNorm(0.5)
    ),
    "group lasso, neither": lambda t: lg.Composite(
        lg.LeastSquares(BATCH_A, 3 * BATCH_b), lg.GroupL1(t)
    ),
    "weighted elastic net, neither": lambda t: lg.Composite(
        lg.LeastSquares(A, t * b),
        lg.L1(0.1) + lg.SquaredNorm(torch.linspace(0.1, 1, 8, dtype=torch.float64)),
    ),
    "nonnegative": lambda t: lg.Composite(lg.LeastSquares(A, t * b), lg.NonNegative()),
    "box": lambda t: lg.Composite(lg.LeastSquares(A, 3 * b), lg.Box(-t, t)),
    "simplex, a batch with its own steps": lambda t: lg.Composite(
        lg.LeastSquares(BATCH_A, t * BATCH_b), lg.Simplex()
    ),
    "ball, neither": lambda t: lg.Composite(lg.LeastSquares(A, 5 * b), lg.L2Ball(0.5 * t)),
    "logistic": lambda t: lg.Composite(lg.Logistic(A, b.sign()), lg.SquaredNorm(t)),
}


def differentiate(make, solver, algorithm=None, stop=UNTIL) -> tuple[float, lg.Solution]:
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    algorithm = algorithm or lg.ForwardBackward(inertia=lg.Nesterov(restart=True))
    solution = lg.solve(make(t), algorithm, gradient=lg.Implicit(solver), stop=stop)
    x = solution.x
    (x * torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)).square().sum().backward()
    return float(t.grad), solution


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_as_a_dense_solve(name):
    found, solution = differentiate(PROBLEMS[name], lg.CG(1e-12))
    expected, _ = differentiate(PROBLEMS[name], lg.Direct())
    assert abs(expected) > 1e-3
    assert found == pytest.approx(expected, rel=1e-9)
    assert solution.backward.converged
    assert solution.backward.residual < 1e-11
    assert solution.backward.iterations <= 24  # at most the number of unknowns


@pytest.mark.parametrize("name", ["no prox", "lasso, a projection", "nonnegative"])
def test_the_spectral_radius_is_that_of_the_step(name):
    """Ritz values find it once the space is exhausted."""
    plain = lg.ForwardBackward()
    _, solution = differentiate(PROBLEMS[name], lg.CG(1e-13), plain)
    t = torch.tensor(0.7, dtype=torch.float64)
    problem = PROBLEMS[name](t)
    step_map, state = plain.fixed_point_map(solution.state)
    J = lg.gradients.Linearisation(problem, step_map, state)
    M = torch.stack([J.transposed(e) for e in torch.eye(8, dtype=torch.float64)], 1)
    # In the null space of the prox's derivative there is 0, which no conjugate gradient sees.
    assert solution.backward.spectral_radius == pytest.approx(
        float(torch.linalg.eigvals(M).abs().max()), rel=1e-6
    )


def test_a_large_null_space_does_not_drown_the_rest():
    """Three nearly dependent columns among many that the penalty switches off."""
    X = randn(40, 3, seed=7) @ torch.diag(torch.tensor([1.0, 0.03, 0.01], dtype=torch.float64))
    wide = torch.cat([X, randn(40, 60, seed=8)], 1)
    y = X @ torch.tensor([30.0, 900.0, 3000.0], dtype=torch.float64)

    def make(t):
        weights = torch.full((63,), 1e4, dtype=torch.float64)
        weights[:3] = 1e-3
        return lg.Composite(lg.LeastSquares(wide, t * y), lg.L1(weights))

    found, solution = differentiate(make, lg.CG(1e-10))
    expected, _ = differentiate(make, lg.Direct())
    assert found == pytest.approx(expected, rel=1e-6)
    assert solution.backward.converged


def test_few_products_are_reported_as_inexact():
    with pytest.warns(InexactGradientWarning, match="after 2 products"):
        differentiate(PROBLEMS["no prox"], lg.CG(1e-12, iterations=2))


def test_a_flat_direction_is_reported():
    """Every x is a solution: I − A_x = 0."""
    t = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    problem = lg.Composite(lg.Quadratic(torch.zeros(8, 8, dtype=torch.float64), 0 * t * b[:8]))
    start = torch.ones(8, dtype=torch.float64)
    solution = lg.solve(problem, lg.ForwardBackward(1.0), start, gradient=lg.Implicit(lg.CG()))
    with pytest.warns(NonContractiveWarning, match="spectral radius of A_x is about 1"):
        solution.x.sum().backward()


@pytest.mark.filterwarnings("ignore::legato.errors.NotConvergedWarning")
def test_other_geometries_are_refused():
    make = PROBLEMS["simplex, a batch with its own steps"]
    algorithm = lg.ForwardBackward(geometry=lg.Entropy())
    with pytest.raises(GradientError, match=r"symmetric.*GMRES"):
        differentiate(make, lg.CG(), algorithm, lg.Stop(10))


def test_the_probe():
    require_symmetric(lambda v: 2 * v, b, "CG")
    with pytest.raises(GradientError, match="one step size"):
        require_symmetric(lambda v: v.roll(1), b, "CG")


@pytest.mark.parametrize("coordinate", range(8))
def test_a_cotangent_does_not_decide_what_the_prox_is(coordinate):
    """On one coordinate P looks like a multiple of the identity, which it is not."""

    def gradient(solver):
        t = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        weights = torch.logspace(-1, 2, 8, dtype=torch.float64)
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(t) + lg.SquaredNorm(weights))
        algorithm = lg.ForwardBackward(0.02)
        solution = lg.solve(problem, algorithm, gradient=lg.Implicit(solver), stop=UNTIL)
        solution.x[coordinate].backward()
        return float(t.grad), solution.backward

    found, report = gradient(lg.CG(1e-10))
    assert found == pytest.approx(gradient(lg.GMRES(1e-12))[0], rel=1e-7, abs=1e-12)
    assert report.converged
    assert report.iterations <= 9


def test_a_loss_without_a_gradient_is_named():
    from legato.errors import NonFiniteGradientWarning

    t = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(t))
    for solver in (lg.CG(), lg.GMRES()):
        solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(solver), stop=UNTIL)
        with pytest.warns(NonFiniteGradientWarning, match="between the solution and the loss"):
            (solution.x.sum() * float("nan")).backward()
        assert t.grad.isnan()


def blocks(t, geometry, solver):
    C = randn(12, 3, seed=9)

    def fit(z):
        return 0.5 * (A @ z[0] + C @ z[1] - b).square().sum()

    L = float(torch.linalg.matrix_norm(torch.cat([A, C], 1), 2)) ** 2
    problem = lg.Composite(lg.Smooth(fit, L), lg.Separable(lg.L1(t), lg.SquaredNorm(0.3)))
    start = (torch.ones(8, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    gradient = lg.Unroll() if solver is None else lg.Implicit(solver)
    algorithm = lg.ForwardBackward(1 / L, geometry)
    x = lg.solve(problem, algorithm, start, gradient=gradient, stop=UNTIL).x
    return x[0].sum() + x[1].square().sum()


def test_a_product_of_euclidean_blocks_is_euclidean():
    """Against differences."""
    both = lg.Product(lg.Euclidean(), lg.Euclidean())
    t, h = torch.tensor(0.2, dtype=torch.float64), 1e-6
    expected = (blocks(t + h, both, None) - blocks(t - h, both, None)) / (2 * h)
    t.requires_grad_()
    blocks(t, both, lg.CG(1e-10)).backward()
    torch.testing.assert_close(t.grad, expected, rtol=1e-6, atol=1e-8)


def test_a_product_with_another_block_is_refused():
    t = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    problem = lg.Composite(
        lg.Smooth(lambda z: ((A @ z[0] - b) ** 2).sum() + (z[1].square() * z[0][0]).sum(), 1.0),
        lg.Separable(lg.SquaredNorm(t), lg.Simplex()),
    )
    start = (torch.ones(8, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64))
    algorithm = lg.ForwardBackward(0.01, lg.Product(lg.Euclidean(), lg.Entropy()))
    solution = lg.solve(problem, algorithm, start, gradient=lg.Implicit(lg.CG()), stop=lg.Stop(300))
    with pytest.raises(GradientError, match=r"symmetric.*GMRES"):
        solution.x[0].sum().backward()
