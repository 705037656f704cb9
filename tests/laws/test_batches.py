"""A batch is its elements: solutions, steps, residuals and gaps, one by one."""

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
