"""How many operations of torch one step takes where no engine runs it, views left out."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import legato as lg
from makers import randn

A, B, COST = randn(6, 4, seed=0), randn(6, seed=1), randn(3, 4, 5, seed=2)
L = float(torch.linalg.matrix_norm(A, 2) ** 2)
LASSO = lg.Composite(lg.LeastSquares(A, B), lg.L1(0.3))
HALF = {"tau": 8**-0.5, "sigma": 8**-0.5}


def potts(*terms):
    return lg.Saddle(lg.Differences(), lg.L1(1.0), nonsmooth=sum(terms, lg.Simplex(-3)))


class Operations(TorchDispatchMode):
    """Counts operations that compute something."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not views
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("problem", "algorithm", "most"),
    [
        (LASSO, lg.ForwardBackward(1 / L, inertia=0.0), 4),
        (LASSO, lg.ForwardBackward(1 / L, inertia=lg.Nesterov()), 7),
        (LASSO, lg.ForwardBackward(), 12),
        (
            lg.Composite(lg.Logistic(A, torch.sign(B)), lg.L1(0.3)),
            lg.ForwardBackward(),
            16,
        ),
        (potts(lg.SquaredNorm(), lg.Linear(COST)), lg.PrimalDual(**HALF), 24),
        (
            potts(lg.Linear(COST)),
            lg.PrimalDual(**HALF, geometry=lg.Entropy(), dual_geometry=lg.Interval()),
            19,
        ),
    ],
    ids=["plain", "momentum", "restarts", "logistic", "potts", "entropic potts"],
)
def test_a_step_takes_no_more(problem, algorithm, most):
    with torch.no_grad():
        state = algorithm.step(problem, algorithm.init(problem, None))
        with Operations() as operations:
            algorithm.step(problem, state)
    assert operations.count <= most
