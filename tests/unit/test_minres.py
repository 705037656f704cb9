"""MINRES on primal–dual steps: against differences, on kinks, and what it refuses."""

import warnings

import pytest
import torch

import legato as lg
from legato._support import tree
from legato.errors import GradientError
from legato.gradients import Linearisation
from makers import randn

EXACT = lg.MINRES(tol=1e-12)
Y, IMAGE, A = 3 * randn(7, seed=1), randn(5, 4, seed=2), randn(9, 7, seed=3)
PROBLEMS = {
    "fused lasso": lambda w: lg.Saddle(
        lg.Differences(dims=(-1,)), lg.L1(w[0]), nonsmooth=lg.SquaredDistance(Y) + lg.L1(w[1])
    ),
    "a smooth term": lambda w: lg.Saddle(
        lg.Differences(dims=(-1,)), lg.L1(w[0]), lg.LeastSquares(A, randn(9, seed=4)),
        lg.SquaredNorm(w[1]),
    ),
    "isotropic": lambda w: lg.split(
        lg.SquaredDistance(w[1] * IMAGE) + w[0] * lg.IsotropicTV()
    ),
    "labels": lambda w: lg.Saddle(
        lg.Differences(), lg.L1(w[0]),
        nonsmooth=lg.Simplex(-3) + lg.SquaredNorm() + lg.Linear(w[1] * randn(3, 5, 4, seed=5)),
    ),
    "a balance that adapts": lambda w: lg.SquaredDistance(w[1] * Y)
    + lg.L1(w[0]) @ lg.Differences(dims=(-1,)),
}  # fmt: skip
AT = torch.tensor([0.4, 0.7], dtype=torch.float64)
UNTIL = lg.Stop(100_000, tol=1e-13)


def loss(problem, w, solver, engine=None):
    algorithm = None if problem == "a balance that adapts" else lg.PrimalDual()
    gradient = lg.Implicit(solver)
    found = lg.solve(PROBLEMS[problem](w), algorithm, gradient=gradient, stop=UNTIL, engine=engine)
    weights = torch.sin(1 + torch.arange(found.x.numel(), dtype=w.dtype)).reshape(found.x.shape)
    return (weights * found.x + 0.1 * found.x**2).sum(), found


def slope(problem, solver, engine=None):
    w = AT.clone().requires_grad_()
    value, found = loss(problem, w, solver, engine)
    return torch.autograd.grad(value, w)[0], found


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_is_that_of_differences(problem):
    found, solution = slope(problem, EXACT)
    assert solution.backward.converged
    assert solution.backward.residual <= 2e-12
    h, columns = 1e-6, torch.eye(2, dtype=torch.float64)
    with torch.no_grad():
        true = [
            (loss(problem, AT + h * e, EXACT)[0] - loss(problem, AT - h * e, EXACT)[0]) / (2 * h)
            for e in columns
        ]
    torch.testing.assert_close(found, torch.stack(true), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", [lg.Replayed(), lg.Compiled(steps=2)], ids=repr)
@pytest.mark.parametrize("problem", ["fused lasso", "labels"])
def test_by_an_engine(problem, engine):
    eager, engined = (slope(problem, lg.MINRES(), e)[0] for e in (None, engine))
    torch.testing.assert_close(eager, engined, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("problem", ["fused lasso", "labels", "a smooth term"])
def test_its_products_are_those_of_the_step(problem, dtype):
    """Also where duals lie on their bound to the last digit, and that digit decides."""
    w = AT.to(dtype).requires_grad_()

    def lower(value):
        return value.to(dtype) if torch.is_tensor(value) else value

    # The data of the problems are float64: solved there, and looked at in both precisions.
    energy = PROBLEMS[problem](w.double()) if dtype == torch.float64 else _lowered(problem, w)
    found = lg.solve(energy, lg.PrimalDual(), gradient=lg.Implicit(), stop=lg.Stop(3000))
    algorithm, before = found.algorithm.fixed_point_map(tree.detach(found.state))
    made = Linearisation(found.problem, algorithm, before)
    parts = made.saddle()
    for seed in range(3):
        v = lower(randn(made.rows.flatten(before).shape[-1], seed=seed))
        rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-13, 1e-13)
        torch.testing.assert_close(parts(v), made.transposed(v), rtol=rtol, atol=atol)


def _lowered(problem, w):
    y, a, b = Y.float(), A.float(), randn(9, seed=4).float()
    if problem == "fused lasso":
        data = lg.SquaredDistance(y) + lg.L1(w[1])
        return lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(w[0]), nonsmooth=data)
    if problem == "a smooth term":
        fit = lg.LeastSquares(a, b)
        return lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(w[0]), fit, lg.SquaredNorm(w[1]))
    cost = lg.Linear(w[1] * randn(3, 5, 4, seed=5).float())
    labels = lg.Simplex(-3) + lg.SquaredNorm() + cost
    return lg.Saddle(lg.Differences(), lg.L1(w[0]), nonsmooth=labels)


def test_a_step_of_ones_own_is_not_taken_for_the_librarys():
    """Its derivative is not symmetric in the same way, so that it is refused."""

    class Lazy(lg.PrimalDual):
        def step(self, problem, state):
            after = super().step(problem, state)
            if not hasattr(after, "_fields") or len(after) > 2:
                return after
            return tree.tree_map(lambda a, b: 0.5 * (a + b), after, state)

    w = AT.clone().requires_grad_()
    problem, gradient = PROBLEMS["fused lasso"](w), lg.Implicit(lg.MINRES())
    found = lg.solve(problem, Lazy(), gradient=gradient, stop=lg.Stop(3000))
    with pytest.raises(GradientError, match="MINRES needs"):
        found.x.sum().backward()


def test_a_symmetric_matrix_is_solved_as_it_is():
    """Also an indefinite one, for which CG has no meaning."""
    M = torch.diag(torch.tensor([0.5, 3.0, -2.0, 0.9], dtype=torch.float64))
    xi = randn(4, seed=6)
    result = EXACT.solve(lambda w: M @ w, xi)
    torch.testing.assert_close(result.solution, xi / (1 - M.diagonal()))
    assert result.converged


@pytest.mark.parametrize(
    ("energy", "algorithm"),
    [
        (lg.LeastSquares(A, randn(9, seed=4)) + lg.L1(0.3), lg.ForwardBackward()),
        (PROBLEMS["fused lasso"](AT), lg.PrimalDual(precondition=True)),
        (
            lg.Saddle(randn(3, 4, seed=7), lg.Simplex().conjugate(), nonsmooth=lg.Simplex()),
            lg.PrimalDual(geometry=lg.Entropy()),
        ),
    ],
    ids=["proximal gradient", "a step for each entry", "curved"],
)
def test_what_is_not_symmetric_is_refused_in_words(energy, algorithm):
    w = torch.ones(9 if isinstance(algorithm, lg.ForwardBackward) else (), dtype=torch.float64)
    w.requires_grad_()
    tilted = energy
    if isinstance(algorithm, lg.ForwardBackward):
        tilted = lg.LeastSquares(A, w * randn(9, seed=4)) + lg.L1(0.3)
    elif algorithm.precondition:
        tilted = PROBLEMS["fused lasso"](w * AT)
    else:
        tilted = lg.Saddle(w * randn(3, 4, seed=7), lg.Simplex().conjugate(), lg.SquaredNorm(0.1),
                           nonsmooth=lg.Simplex())  # fmt: skip
    stop = lg.Stop(3000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.errors.NotConvergedWarning)
        found = lg.solve(tilted, algorithm, gradient=lg.Implicit(lg.MINRES()), stop=stop)
        with pytest.raises(GradientError, match="MINRES needs a step whose derivative is symm"):
            (found.x * torch.arange(found.x.numel())).sum().backward()
