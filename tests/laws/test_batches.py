"""A batch is its elements: solutions, steps, residuals and gaps, one by one."""

from functools import cache

import pytest
import torch

import legato as lg
from legato.testing import check_algorithm
from makers import randn

STOP = lg.Stop(5000, tol=1e-12)
SIZES = torch.tensor([1.0, 10.0, 0.1]).double()
MATRICES = randn(3, 9, 5, seed=1) * SIZES.reshape(3, 1, 1)
DATA = randn(3, 9, seed=2)
IMAGES = randn(3, 2, 6, 5, seed=3)
WEIGHTS = torch.tensor([0.1, 2.0, 0.5]).double().reshape(3, 1, 1, 1, 1)


def lasso(A, b):
    return lg.LeastSquares(A, b) + lg.L1(0.2)


def simplex(A, b):
    return lg.LeastSquares(A, b) + lg.Simplex()


def fused(A, b):
    return lg.LeastSquares(A, b) + lg.L1(0.2) @ lg.Differences(dims=(-1,))


def seen_through_differences(A, b):
    signal = randn(5, seed=4).expand(*A.shape[:-2], 5)
    return lg.SquaredDistance(signal) + lg.L1(0.2) @ lg.Differences((-1,)) @ lg.Dense(A)


def diagonal(A, b):
    return lg.LeastSquares(lg.Diagonal(A[..., 0, :]), b[..., :5]) + lg.L1(0.2) @ lg.Dense(A)


def tv(image, weight):
    return lg.SquaredDistance(image) + lg.L1() @ lg.Differences(weights=weight)


def potts(image, weight):
    K = lg.Differences(weights=weight)
    return lg.Linear(image) + lg.Simplex(dim=-3) + lg.SquaredNorm(0.5) + lg.L1() @ K


CASES = {
    "lasso": (lasso, MATRICES, DATA, None),
    "restarted": (lasso, MATRICES, DATA, lg.ForwardBackward(inertia=lg.Nesterov(restart=True))),
    "simplex": (simplex, MATRICES, DATA, None),
    "fused": (fused, MATRICES, DATA, None),
    "diagonal": (diagonal, MATRICES, DATA, None),
    "composed": (seen_through_differences, MATRICES, DATA, None),
    "tv": (tv, IMAGES, WEIGHTS, None),
    "potts": (potts, IMAGES, WEIGHTS, None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_equals_its_elements(name):
    make, first, second, algorithm = CASES[name]
    together = lg.solve(make(first, second), algorithm, stop=STOP)
    single = lg.solve(make(first[0], second[0]), algorithm, stop=STOP)
    batch = together.x.ndim - single.x.ndim
    assert together.residual.shape[:1] == (3,)
    assert bool(together.converged.all())
    for i in range(3):
        alone = lg.solve(make(first[i], second[i]), algorithm, stop=STOP)
        torch.testing.assert_close(together.x[i], alone.x, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(
            together.objective[i], alone.objective, rtol=1e-9, atol=1e-10, check_stride=False
        )
        if alone.y is not None and name not in ("fused", "composed", "diagonal"):
            assert float((together.gap[i] - alone.gap).abs().max()) < 1e-7
    assert batch == 1


@pytest.mark.parametrize("name", CASES)
def test_laws(name):
    """No element's steps, momentum or restarts depend on the others."""
    make, first, second, algorithm = CASES[name]
    whole = lg.solve(make(first, second), algorithm, stop=lg.Stop(1))
    singles = [lg.split(make(*parts)) for parts in zip(first, second, strict=True)]
    report = check_algorithm(whole.algorithm, whole.problem, singles=singles)
    assert report["separate elements"] is not None


def test_convergence_is_said_for_each_element():
    slow = torch.stack([torch.eye(4), torch.diag(torch.logspace(0, -3, 4))]).double()
    energy = lg.LeastSquares(slow, torch.ones(2, 4).double()) + lg.L1(1e-4)
    with pytest.warns(lg.errors.NotConvergedWarning, match="after 50 iterations"):
        found = lg.solve(energy, stop=lg.Stop(50, tol=1e-10))
    assert found.converged.tolist() == [True, False]
    assert "1 of 2" in repr(found)


@pytest.mark.parametrize("axes", [(), (1,)])
def test_data_that_a_batch_shares(axes):
    """The batch may come from the operator alone; its elements are told apart all the same."""
    y, A = randn(*axes, 5, seed=1), randn(3, 4, 5, seed=2)
    stop = lg.Stop(40)
    found = lg.solve(lg.SquaredDistance(y) + lg.L1(0.3) @ A, stop=stop)
    assert found.residual.shape == found.objective.shape == found.gap.shape == (3,)
    for i in range(3):
        one = lg.solve(lg.SquaredDistance(y.reshape(5)) + lg.L1(0.3) @ A[i], stop=stop)
        torch.testing.assert_close(found.x[i], one.x)
        torch.testing.assert_close(found.residual[i], one.residual)
        torch.testing.assert_close(found.gap[i], one.gap)


# --- gradients ------------------------------------------------------------------------------------

RATIOS = [1.0, 1e-3, 1e-7, 1e-12, 0.0]
ENTROPIC = lg.ForwardBackward(geometry=lg.Entropy())
PLAIN = MATRICES / SIZES.reshape(3, 1, 1)


def softened(A, b):
    return lg.LeastSquares(A, b) + lg.NegativeEntropy(0.5) + lg.Simplex()


def ridge(A, b):
    return lg.LeastSquares(A, b) + lg.SquaredNorm(0.1)


DIFFERENTIATED = {
    "lasso": (lasso, None, PLAIN, DATA),
    "ridge": (ridge, None, PLAIN, DATA),
    "simplex": (simplex, None, PLAIN, DATA),
    "softened simplex": (softened, ENTROPIC, PLAIN, DATA),
    "fused": (fused, None, PLAIN, DATA),
    "tv": (tv, None, IMAGES[:, :, :4, :3], WEIGHTS),
}
STRATEGIES = {
    "GMRES": lg.Implicit(lg.GMRES()),
    "GMRES, restarted": lg.Implicit(lg.GMRES(restart=4)),
    "BiCGStab": lg.Implicit(lg.BiCGStab()),
    "MINRES": lg.Implicit(lg.MINRES()),
    "CG": lg.Implicit(lg.CG()),
    "Direct": lg.Implicit(lg.Direct()),
    "Neumann": lg.Implicit(lg.Neumann(iterations=20000)),
    "FixedPoint": lg.FixedPoint(20000),
    "Piggyback": lg.Piggyback(20000),
    "Unroll": lg.Unroll(),
    "Unroll(tol)": lg.Unroll(tol=1e-6),
}


def applies(strategy, name):
    saddle = name in ("fused", "tv")
    if strategy in ("Piggyback", "MINRES"):
        return saddle
    return strategy != "CG" or not (saddle or name == "softened simplex")


def gradients_of(make, algorithm, first, second, strategy, start=None):
    """cotangents of x ↦ the gradient in ``first``, and the solution: solved once."""
    first = first.clone().requires_grad_()
    stop = lg.Stop(20000, tol=1e-10)
    found = lg.solve(make(first, second), algorithm, start, gradient=strategy, stop=stop)

    def gradient(cotangents):
        return torch.autograd.grad(found.x, first, cotangents, retain_graph=True)[0]

    return gradient, found


@cache
def elements(name):
    """The state of the whole solved, cotangents, and what they make of each element alone."""
    make, algorithm, first, second = DIFFERENTIATED[name]
    whole = lg.solve(make(first, second), algorithm, stop=lg.Stop(20000, tol=1e-10))
    cotangents = randn(*whole.x.shape, seed=5)
    exact = lg.Implicit(lg.Direct())
    alone = [
        gradients_of(make, algorithm, first[i], second[i], exact)[0](cotangents[i])
        for i in range(3)
    ]
    return whole.state, cotangents, alone


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_gradient_of_a_batch_is_that_of_its_elements(name, strategy):
    """Whatever the ratio of their cotangents: each is solved to the tolerance of its own size."""
    if not applies(strategy, name):
        pytest.skip("not a gradient of this problem")
    make, algorithm, first, second = DIFFERENTIATED[name]
    state, cotangents, alone = elements(name)
    unrolled = strategy.startswith("Unroll")
    gradient, solution = gradients_of(
        make, algorithm, first, second, STRATEGIES[strategy], None if unrolled else state
    )
    for ratio in RATIOS:
        sizes = [1.0, ratio, ratio]
        found = gradient(torch.stack([c * size for c, size in zip(cotangents, sizes, strict=True)]))
        assert solution.backward.converged is not False
        for i in range(3):
            expected = alone[i] * sizes[i]
            error = float((found[i] - expected).norm())
            assert error <= 2e-3 * float(expected.norm()), (ratio, i)


def test_a_lost_cotangent_of_one_element_does_not_touch_the_others():
    gradient, _ = gradients_of(lasso, None, PLAIN, DATA, lg.Implicit())
    cotangents = randn(3, 5, seed=9)
    expected = gradient(cotangents)
    cotangents[1, 2] = float("nan")
    with pytest.warns(lg.errors.NonFiniteGradientWarning):
        found = gradient(cotangents)
    assert bool(found[1].isnan().any())
    torch.testing.assert_close(found[::2], expected[::2])


def test_a_solver_that_knows_vectors_only():
    """It has one tolerance for all rows, which are of one size when it sees them."""

    class Vectors(lg.gradients.LinearSolver):
        def solve(self, product, xi):
            assert xi.ndim == 1
            w, r, count = torch.zeros_like(xi), xi, 0
            while float(r.norm()) > 1e-6 * float(xi.norm()):
                w, count = w + r, count + 1
                r = xi - w + product(w)
            size = float(r.norm() / xi.norm())
            return lg.gradients.LinearResult(w, size, count, True, tol=1e-6)

    cotangents = randn(3, 5, seed=9) * torch.tensor([1.0, 1e-7, 1e-12]).double()[:, None]
    gradient, _ = gradients_of(lasso, None, PLAIN, DATA, lg.Implicit(lg.Direct()))
    expected = gradient(cotangents)
    gradient, solution = gradients_of(lasso, None, PLAIN, DATA, lg.Implicit(Vectors()))
    found = gradient(cotangents)
    assert solution.backward.converged
    for i in range(3):
        assert float((found[i] - expected[i]).norm()) <= 1e-4 * float(expected[i].norm())


def test_one_row_that_missed_the_tolerance_is_enough():
    """A solver for vectors that leaves one element out is found out."""

    class Careless(lg.gradients.LinearSolver):
        def solve(self, product, xi):
            result = lg.Direct().solve(product, xi)
            result.solution[-5:] = 0
            return result

    gradient, found = gradients_of(lasso, None, PLAIN, DATA, lg.Implicit(Careless()))
    with pytest.warns(lg.errors.InexactGradientWarning):
        gradient(randn(3, 5, seed=9))
    assert not found.backward.converged


@pytest.mark.parametrize("strategy", [lg.Implicit(), lg.FixedPoint(), lg.OneStep()], ids=repr)
@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_a_lost_cotangent_reaches_what_hangs_on_the_dual(strategy, lost):
    """A zero there would look healthy to whoever asks w.grad for NaN."""
    b, w = randn(5, seed=3).requires_grad_(), torch.tensor(0.3).double().requires_grad_()
    energy = lg.SquaredDistance(b) + lg.L1(w) @ lg.Differences(dims=(-1,))
    x = lg.solve(energy, gradient=strategy, stop=lg.Stop(500, tol=1e-10)).x
    with pytest.warns(lg.errors.NonFiniteGradientWarning):
        slopes = torch.autograd.grad(x[2] * lost, (b, w))
    assert not any(bool(s.isfinite().any()) for s in slopes)
