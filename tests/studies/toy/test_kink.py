"""θ = 0: a sublinear rate, limits inside the subdifferential, and FB2 apart from FB."""

import math
from functools import cache
from itertools import pairwise

import pytest

from legato.studies.toy.example import SETS
from legato.studies.toy.kink import approach, limits
from legato.studies.toy.methods import METHODS, energies, estimate

each_set = pytest.mark.parametrize("toy", SETS.values(), ids=SETS.keys())


@cache
def far(name):
    return approach(SETS[name], (200, 800, 3200))


@each_set
def test_limits(toy):
    """λb/2 (x(0) − g) for FB and FB-impl, (1 − e⁻²)/2 λb (x(0) − g) for FB2."""
    slope = toy.lam * toy.b * (0 - toy.solution(toy.theta_star))
    expected = {
        "Bregman-FB": slope / 2,
        "Bregman-FB-impl": slope / 2,
        "Bregman-FB2": (1 - math.exp(-2)) / 2 * slope,
    }
    assert limits(toy) == pytest.approx(expected)
    rows = far(toy.name)
    for method, limit in expected.items():
        errors = [abs(row.gradients[method] - limit) for row in rows]
        assert errors[-1] < 3e-3 * abs(slope)
        # Like (log N)/N: four times the iterations leave about a quarter, and no less.
        for fewer, more in pairwise(errors):
            assert 0.2 < more / fewer < 0.4


@each_set
def test_sublinear_rate(toy):
    """x ≈ 1/(αN): αNx tends to 1, and the energy falls like 1/N², not like a power of ρ < 1."""
    rows = far(toy.name)
    distances = [abs(1 - row.scaled_x) for row in rows]
    assert distances[0] < 0.08
    assert distances[0] > 2.5 * distances[1] > 2.5 * 2.5 * distances[2]
    gaps = energies(toy, "Bregman-FB", 0.0)
    assert 0.2 < gaps[199] / gaps[99] < 0.32  # twice the iterations, a quarter of the energy
    linear = energies(toy, "Bregman-FB", 0.3)
    assert linear[19] < 1e-4 * linear[9]  # at θ = 0.3 it is linear


def expected_accumulation(toy, method, back, forward):
    """The leading behaviour of K back-iterations out of N: no fixed K is enough."""
    t = back / forward
    part = 1 - math.exp(-2 * t) if method == "Bregman-FB2" else 1 - (1 - t) ** 2
    return toy.slope_at_kink() / 2 * part


@each_set
def test_truncation_loses_a_fixed_share(toy):
    """K of N back-iterations gather 1 − (1 − K/N)² of FB's limit, 1 − e^{−2K/N} of FB2's scale."""
    scale = abs(toy.slope_at_kink())
    for method in ("Bregman-FB", "Bregman-FB2"):
        for forward, allowed in ((200, 0.02), (800, 0.006)):
            for back in (forward // 20, forward // 4, forward // 2, forward):
                found = estimate(toy, method, 0.0, back=back, forward=forward).gradient
                expected = expected_accumulation(toy, method, back, forward)
                assert abs(found - expected) < allowed * scale
    assert expected_accumulation(toy, "Bregman-FB", 200, 200) == limits(toy)["Bregman-FB"]
    assert expected_accumulation(toy, "Bregman-FB2", 200, 200) == limits(toy)["Bregman-FB2"]


@each_set
def test_fb2_is_not_fb(toy):
    fb, fb2 = (estimate(toy, m, 0.0).gradient for m in ("Bregman-FB", "Bregman-FB2"))
    assert fb2 / fb == pytest.approx(1 - math.exp(-2), abs=0.02)


@each_set
def test_all_lie_in_the_subdifferential(toy):
    lo, hi = toy.clarke()
    for method in METHODS:
        for back in (5, 50, 200):
            gradient = estimate(toy, method, 0.0, back=back).gradient
            assert lo <= gradient <= hi
            if method.startswith("Proj"):
                assert gradient == pytest.approx(lo, rel=1e-15)  # an end of it
            else:
                assert lo < gradient < hi  # inside
