"""The example of the introduction: the number of iterations is the smoothing."""

import math

import pytest
import torch

import legato as lg
from legato.studies.toy.nonunique import entropic_steps, step_curve

THETA = torch.linspace(-2, 2, 9, dtype=torch.float64)


def closed_form(theta, iterations, step, x0=0.5):
    """The number of steps and the step count as one, nα."""
    return x0 / (x0 + (1 - x0) * math.exp(iterations * step * theta))


@pytest.mark.parametrize("step", [0.3, 1.0])
@pytest.mark.parametrize("n", [1, 7, 100])
def test_formula(n, step):
    expected = [closed_form(t, n, step) for t in THETA.tolist()]
    found = entropic_steps(THETA, n, step)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("x0", [0.2, 0.5])
def test_the_interval_says_the_same(x0):
    """Interval's entropy is a quarter of the simplex's: a quarter of the step."""
    problem = lg.Composite(lg.Linear(THETA), lg.Box(0.0, 1.0))
    algorithm = lg.ForwardBackward(step_size=0.3 / 4, geometry=lg.Interval(0.0, 1.0))
    start = torch.full_like(THETA, x0)
    found = lg.solve(problem, algorithm, start, stop=lg.Stop(7)).x
    expected = [closed_form(t, 7, 0.3, x0) for t in THETA.tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_only_iterations_times_step_counts():
    many = entropic_steps(THETA, 12, 0.5)
    assert torch.allclose(many, entropic_steps(THETA, 1, 6.0), rtol=1e-12, atol=0)


def test_slope():
    """d(x − 1)²/dθ = −2(x − 1)·nα·x(1 − x): narrow and steep for large n."""
    for n in (1, 10, 100):
        curve = step_curve(n, 1.0, 41)
        for x, slope in zip(curve.x, curve.slope, strict=True):
            # Near 1 the difference 1 − x keeps as many digits as x has.
            assert slope == pytest.approx(-2 * (x - 1) * n * x * (1 - x), rel=1e-9, abs=1e-14)
    steep, flat = step_curve(100, 1.0, 41), step_curve(1, 1.0, 41)
    assert max(steep.slope) > 20 * max(flat.slope)
    assert steep.slope[-1] < 1e-30 < 1e-2 < flat.slope[-1]
