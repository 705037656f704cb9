"""The six methods against the paper's formulas for one variable, written out."""

import math
import warnings

import pytest

from legato.errors import LegatoWarning
from legato.studies.toy.example import SETS
from legato.studies.toy.methods import BACK_ITERATED, METHODS, estimate

each_set = pytest.mark.parametrize("toy", SETS.values(), ids=SETS.keys())
each_theta = pytest.mark.parametrize("theta", [0.3, 0.0])


def slopes(toy, theta, x):
    """f′, f″ and ∂_θ f′ of λ/2 (θx − b)² + ½x²."""
    return (
        toy.lam * theta * (theta * x - toy.b) + x,
        toy.lam * theta**2 + 1,
        2 * toy.lam * theta * x - toy.lam * toy.b,
    )


def bregman(toy, theta, x):
    """x⁺ = x e^{−αf′} with its derivatives in x and θ."""
    a = toy.bregman_step
    first, second, mixed = slopes(toy, theta, x)
    shrink = math.exp(-a * first)
    return x * shrink, shrink * (1 - a * x * second), -a * x * shrink * mixed


def projected(toy, theta, x):
    """x⁺ = max(0, x − αf′); where the maximum is a tie, the derivative of its second half."""
    a = toy.projected_steps[theta]
    first, second, mixed = slopes(toy, theta, x)
    moved = x - a * first
    inside = moved >= 0
    return max(0.0, moved), inside * (1 - a * second), inside * -a * mixed


def by_hand(toy, step, theta, forward, back, frozen):
    """Algorithm 1 of the paper for numbers; ``frozen`` takes every derivative at the end."""
    xs = [toy.x0]
    for _ in range(forward):
        xs.append(step(toy, theta, xs[-1])[0])
    z, w = xs[-1] - toy.solution(toy.theta_star), 0.0
    for k in range(back):
        _, A_x, A_theta = step(toy, theta, xs[-1] if frozen else xs[-2 - k])
        w += A_theta * z
        z *= A_x
    return w


@each_set
@each_theta
@pytest.mark.parametrize(("forward", "back"), [(15, 15), (200, 10), (200, 200)])
@pytest.mark.parametrize("method", BACK_ITERATED)
def test_back_iterated_methods(toy, theta, forward, back, method):
    step = projected if method.startswith("Proj") else bregman
    expected = by_hand(toy, step, theta, forward, back, frozen=method.endswith("2"))
    found = estimate(toy, method, theta, back=back, forward=forward).gradient
    assert found == pytest.approx(expected, rel=1e-11)


@each_set
@each_theta
def test_implicit_of_the_bregman_step(toy, theta):
    found = estimate(toy, "Bregman-FB-impl", theta)
    _, A_x, A_theta = bregman(toy, theta, found.x)
    expected = (found.x - toy.solution(toy.theta_star)) * A_theta / (1 - A_x)
    assert found.gradient == pytest.approx(expected, rel=1e-9)


@each_set
@each_theta
def test_smoothed(toy, theta):
    """−(x − g) f_μ″⁻¹ ∂_θ f_μ′ where f_μ′ = 0; with θ = 0, x = √μ and μ/x² = 1."""
    found = estimate(toy, "Smoothed-impl", theta)
    x = found.x
    first, second, mixed = slopes(toy, theta, x)
    assert first == pytest.approx(toy.mu / x, abs=1e-12)
    expected = -(x - toy.solution(toy.theta_star)) / (second + toy.mu / x**2) * mixed
    assert found.gradient == pytest.approx(expected, rel=1e-9)
    if theta == 0:
        assert x == pytest.approx(math.sqrt(toy.mu), rel=1e-9)


@each_set
def test_all_converge_but_the_smoothed(toy):
    exact = toy.derivative(0.3)
    errors = {m: abs(estimate(toy, m, 0.3).gradient - exact) for m in METHODS}
    assert errors.pop("Smoothed-impl") > 0.03
    assert max(errors.values()) < 1e-14


def test_what_the_library_says_is_kept_not_shown():
    """Five iterations are no fixed point, and legato says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LegatoWarning)
        found = estimate(SETS["A"], "Bregman-FB-impl", 0.3, forward=5)
        quiet = estimate(SETS["A"], "Bregman-FB-impl", 0.3)
    assert any("not a fixed point" in text for text in found.warnings)
    assert quiet.warnings == ()
