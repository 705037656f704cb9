"""The example itself: what is written in closed form is what the solver finds."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from legato.studies.toy.example import SETS
from legato.studies.toy.methods import energies
from legato.studies.toy.solution_map import check_derivative, landscape, solve_accurately

each_set = pytest.mark.parametrize("toy", SETS.values(), ids=SETS.keys())


@each_set
def test_solver_and_closed_form_agree(toy):
    curve = landscape(toy, -1.0, 2.0, 61)
    for theta, x, loss in zip(curve.theta, curve.x, curve.loss, strict=True):
        assert x == pytest.approx(toy.solution(theta), abs=1e-12)
        residual = toy.solution(theta) - toy.solution(toy.theta_star)
        assert loss == pytest.approx(0.5 * residual**2, abs=1e-12)


@each_set
@pytest.mark.parametrize("theta", [-0.7, -0.05, 0.05, 0.3, 0.9, 1.7])
def test_analytic_derivative_against_central_differences(toy, theta):
    """Including θ < 0, where the paper's formula does not hold and the derivative is 0."""
    h = 1e-6
    ends = torch.tensor([theta + h, theta - h], dtype=torch.float64)
    up, down = toy.loss(solve_accurately(toy, ends)).tolist()
    expected = (up - down) / (2 * h)
    assert toy.derivative(theta) == pytest.approx(expected, abs=1e-8 * abs(toy.slope_at_kink()))
    if theta < 0:
        assert toy.derivative(theta) == 0


@each_set
def test_one_sided_slopes_are_the_ends_of_the_clarke_interval(toy):
    h = 1e-7
    around = toy.loss(solve_accurately(toy, torch.tensor([-h, 0.0, h], dtype=torch.float64)))
    left, right = (around.diff() / h).tolist()
    lo, hi = toy.clarke()
    assert left == pytest.approx(hi, abs=1e-12)
    assert right == pytest.approx(lo, rel=1e-5)
    assert lo < hi == 0  # decreasing to the right only: the kink is concave


def test_no_derivative_at_the_kink():
    with pytest.raises(ValueError, match="clarke"):
        SETS["A"].derivative(0.0)


def test_a_negative_b_turns_everything_around():
    toy = dataclasses.replace(SETS["B"], b=-2.0, theta_star=-0.5)
    assert toy.solution(-0.5) == SETS["B"].solution(0.5)
    assert toy.derivative(-0.3) == -SETS["B"].derivative(0.3)
    assert toy.derivative(0.3) == 0
    assert toy.clarke() == (0.0, -SETS["B"].clarke()[0])


@each_set
def test_not_identifiable(toy):
    assert toy.solution(toy.twin()) == pytest.approx(toy.solution(toy.theta_star), rel=1e-15)


@each_set
def test_random_check(toy):
    first, again, other = (check_derivative(toy, seed) for seed in (0, 0, 1))
    assert first == again != other
    for check in (first, other):
        assert check.differences < 1e-8
        assert check.implicit < 1e-12


@each_set
@pytest.mark.parametrize("theta", [0.3, 0.0])
def test_energies(toy, theta):
    """The splitting methods decrease the energy towards its minimum; the barrier stalls above."""
    for method in ("Proj.GD", "Bregman-FB"):
        gaps = energies(toy, method, theta)
        assert len(gaps) == 200
        assert all(b <= a + 1e-14 for a, b in pairwise(gaps))
        assert -1e-14 <= gaps[-1] < (1e-14 if theta or method == "Proj.GD" else 1e-3)
    smoothed = energies(toy, "Smoothed-impl", theta)
    assert smoothed[-1] == pytest.approx(smoothed[-50], rel=1e-9)
    assert smoothed[-1] > 1e-4


def test_projected_steps_need_one_iteration_at_the_kink():
    assert energies(SETS["A"], "Proj.GD", 0.0, 3) == [0.0, 0.0, 0.0]
