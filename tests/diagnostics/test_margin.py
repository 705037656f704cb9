"""Where the geometry's domain is the only constraint, and where a prox has kinks of its own."""

import pytest
import torch

import legato as lg
from legato.diagnostics.margin import _only_shifts, _Prox
from makers import randn


class Tilt(lg.Function):
    """A user's own term, linear on x ≥ 0."""

    def value(self, x):
        return 0.3 * x.sum()


class Ceiling(Tilt):
    """A user's own constraint, x ≤ 1."""


@lg.register_prox(Tilt, lg.Entropy)
def _(g, geometry, y, alpha):
    return y - 0.3 * alpha


@lg.register_prox(Ceiling, lg.Entropy)
def _(g, geometry, y, alpha):
    return torch.clamp(y, max=1.0)  # ∇ψ(1) = 1


@pytest.mark.parametrize(
    ("term", "geometry", "expected"),
    [
        (lg.Zero(), lg.Entropy(), True),
        (lg.NonNegative(), lg.Entropy(), True),
        (lg.NonNegative(), lg.Burg(), True),
        (lg.L1(0.4), lg.Entropy(), True),
        (lg.Simplex(), lg.Entropy(), True),
        (lg.Simplex(dim=0) + lg.NegativeEntropy(0.2), lg.Entropy(), True),
        (lg.Box(-1.0, 1.0), lg.Interval(-1.0, 1.0), True),
        (Tilt(), lg.Entropy(), True),
        (lg.Box(0.0, 1.0), lg.Entropy(), False),
        (lg.Box(-0.5, 0.5), lg.Interval(-1.0, 1.0), False),
        (lg.L1(0.4), lg.Interval(-1.0, 1.0), False),
        (Ceiling(), lg.Entropy(), False),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_prox_without_kinks_is_recognised_whoever_wrote_it(term, geometry, expected):
    point = randn(4, 3, seed=1).sigmoid()
    y = geometry.mirror(point)
    assert _only_shifts(_Prox(term, geometry, y, 0.7, y, y, y)) is expected
