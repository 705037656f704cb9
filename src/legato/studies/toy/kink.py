"""θ = 0, where the solution map has its kink and Bregman-FB loses its linear rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from legato.studies.toy.example import KINK, Toy
from legato.studies.toy.methods import estimate


def limits(toy: Toy) -> dict[str, float]:
    r"""What the Bregman methods tend to at θ = 0 as the iterations N = K grow.

    There x⁺ = x e^{−αx}, so that xᴺ ≈ 1/(αN), A_x ≈ 1 − 2/N and A_θ ≈ λb/N at the N-th iterate.

    .. math:: \tfrac12 λb(x^*(0) − g), \qquad
              \tfrac{1 − e^{−2}}{2} λb(x^*(0) − g) \;\text{for Bregman-FB2}

    Reference: the errata to Section 7.2 of Ochs et al. (2016).
    """
    slope = toy.slope_at_kink()
    return {
        "Bregman-FB": slope / 2,
        "Bregman-FB2": (1 - math.exp(-2)) / 2 * slope,
        "Bregman-FB-impl": slope / 2,
    }


@dataclass(frozen=True)
class KinkRow:
    """N forward iterations, αNxᴺ (which tends to 1), and the gradients with K = N."""

    forward: int
    scaled_x: float
    gradients: dict[str, float]


def approach(toy: Toy, forwards: Sequence[int]) -> list[KinkRow]:
    """The way to the limits."""
    rows = []
    for forward in forwards:
        found = {name: estimate(toy, name, KINK, forward=forward) for name in limits(toy)}
        x = found["Bregman-FB"].x
        gradients = {name: e.gradient for name, e in found.items()}
        rows.append(KinkRow(forward, toy.bregman_step * forward * x, gradients))
    return rows
