"""Examples 3 and 5 to 8 of the paper by its printed formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import legato as lg
from makers import rand, randn

C, STEP = randn(5, seed=1), 0.7
INSIDE = 0.1 + 0.8 * rand(5)


def at(g: lg.Function, geometry: lg.Geometry, x: Tensor) -> Tensor:
    """The prox of ⟨c, ·⟩ + g at the point x."""
    return (g + lg.Linear(C)).prox(x, STEP, geometry)


PRINTED = {
    "5": (lg.NonNegative(), lg.Entropy(), INSIDE, lambda x: x * torch.exp(-STEP * C)),
    "6": (
        lg.Simplex(), lg.Entropy(), INSIDE / INSIDE.sum(),
        lambda x: x * torch.exp(-STEP * C) / (x * torch.exp(-STEP * C)).sum(),
    ),
    "7": (
        lg.Box(-1.0, 1.0), lg.Interval(-1.0, 1.0), 2 * INSIDE - 1,
        lambda x: (torch.exp(-2 * STEP * C) - (1 - x) / (1 + x))
        / (torch.exp(-2 * STEP * C) + (1 - x) / (1 + x)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("example", PRINTED)
def test_proxes_as_printed(example: str) -> None:
    term, geometry, x, printed = PRINTED[example]
    torch.testing.assert_close(at(term, geometry, x), printed(x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("a", [0.25, 4.0])
def test_entropy_is_strongly_convex_on_bounded_sets(a: float) -> None:
    """a·x log x is 1-strongly convex on [0, a], so x log x has the modulus 1/a there (errata 9):
    steps that follow from it are those of the scaled entropy, and reach the solution."""
    psi, box = lg.Entropy(), lg.Box(0.0, a)
    assert float(psi.modulus(box.bounds())) == pytest.approx(1 / a)
    x, z = a * rand(200, seed=2), a * rand(200, seed=3)
    distance = x * torch.log(x / z) - x + z
    assert bool((a * distance >= (x - z) ** 2 / 2).all())
    tight = a * (1 - 1e-3 * torch.arange(2.0).double())
    worst = tight[1] * torch.log(tight[1] / tight[0]) - tight[1] + tight[0]
    assert float(a * worst / ((tight[0] - tight[1]) ** 2 / 2)) == pytest.approx(1, rel=1e-3)
    A, b = randn(6, 4, seed=4), randn(6, seed=5)
    energy = lg.LeastSquares(A, b) + lg.Box(0.0, a)
    L = float(torch.linalg.matrix_norm(A, 2)) ** 2
    found = lg.solve(
        lg.Composite(lg.LeastSquares(A, b), box), lg.ForwardBackward(geometry=psi),
        stop=lg.Stop(200_000, tol=1e-9),
    )  # fmt: skip
    assert float(found.steps["step"]) == pytest.approx(1 / (a * L), rel=1e-6)
    exact = lg.solve(energy, stop=lg.Stop(20_000, tol=1e-12)).x
    torch.testing.assert_close(found.x, exact, rtol=1e-4, atol=1e-4 * a)


def test_a_saddle_in_the_entropy_of_a_box_has_its_steps() -> None:
    box = lg.Composite(lg.Zero(), lg.Box(0.0, 4.0)).nonsmooth
    problem = lg.Saddle(
        lg.Differences((-1,)), lg.L1(0.1), smooth=lg.SquaredDistance(C.abs()), nonsmooth=box
    )
    found = lg.solve(problem, lg.PrimalDual(geometry=lg.Entropy()), stop=lg.Stop(10))
    norm = 2.0  # ‖K‖; the modulus of ψ is 1/4, L_f = 1
    assert float(found.steps["tau"]) == pytest.approx(0.25 / (norm + 1.0))


def test_one_homogeneous_functions_by_their_conjugates() -> None:
    """g(x) = Σ max over y in [a, b] of x y, whose dual step is Example 7's."""
    lo, hi = -rand(5, seed=6), rand(5, seed=7)
    g, x = lg.AsymmetricL1(lo, hi), randn(5, seed=8)
    torch.testing.assert_close(g(x), torch.maximum(lo * x, hi * x).sum())
    conjugate = g.conjugate()
    assert isinstance(conjugate, lg.Box)
    torch.testing.assert_close(conjugate.conjugate()(x), g(x))
    y = lo + (hi - lo) * INSIDE
    moved = (conjugate + lg.Linear(C)).prox(y, STEP, lg.Interval(lo, hi))
    r, t = (hi - lo) / 2, (2 * y - lo - hi) / (hi - lo)
    torch.testing.assert_close(moved, (lo + hi) / 2 + r * torch.tanh(torch.atanh(t) - STEP * C / r))
