"""Adjoints that are solved on what is active, or by recurrences, on a GPU and by its engines."""

import pytest
import torch

import legato as lg

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"


def randn(*shape, seed=0):
    """As in tests/makers.py, which needs packages that a GPU machine may not have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def lasso(device, weight, seed):
    A, b = randn(60, 150, seed=seed).to(device), randn(60, seed=seed + 1).to(device)
    return lg.Composite(lg.LeastSquares(A, b), lg.L1(weight))


def fits(term):
    def build(device, weight, seed):
        A, b = randn(20, 9, 5, seed=seed).to(device), randn(20, 9, seed=seed + 1).to(device)
        return lg.Composite(lg.LeastSquares(lg.Dense(A), weight * b), term)

    return build


def labels(device, weight, seed):
    cost = lg.Linear(randn(3, 9, 8, seed=seed).to(device))
    return lg.Saddle(
        lg.Differences(), lg.L1(weight), nonsmooth=lg.Simplex(-3) + lg.SquaredNorm() + cost
    )


CASES = {
    "lasso": (lasso, lg.Direct(), 8.0),
    "non-negative fits": (fits(lg.NonNegative()), lg.Direct(), 0.7),
    "fits on the simplex": (fits(lg.Simplex()), lg.Direct(), 0.7),
    "labels": (labels, lg.MINRES(tol=1e-11), 0.3),
}


def slope(case, device, seed, engine=None):
    build, solver, at = CASES[case]
    weight = torch.tensor(at, dtype=torch.float64, device=device, requires_grad=True)
    problem, stop = build(device, weight, seed), lg.Stop(20_000, tol=1e-13, every=20)
    found = lg.solve(problem, gradient=lg.Implicit(solver), stop=stop, engine=engine)
    angles = torch.arange(found.x.numel(), dtype=torch.float64, device=device)
    (found.x.flatten() * torch.sin(1 + angles)).sum().backward()
    return weight.grad.cpu(), found.backward


@pytest.mark.parametrize("engine", [None, lg.Replayed(), lg.Compiled(steps=2)], ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_the_gpu_agrees_with_the_cpu(case, engine):
    """Data change from call to call, and with them what is active: graphs are made for sizes."""
    for seed in (0, 2, 4):
        ours, report = slope(case, DEVICE, seed, engine)
        theirs, _ = slope(case, "cpu", seed)
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
        assert report.converged
        assert not report.warnings
