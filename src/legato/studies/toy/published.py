"""The numbers a run is compared with, as they were printed."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from legato.studies.toy.example import SMOOTH, Toy
from legato.studies.toy.methods import estimate

FEW = 15
"""Forward iterations at which the paper says FB and FB2 come apart."""

TRUNCATED = 10
"""Back-iterations at which errors are quoted."""


@dataclass(frozen=True)
class Comparison:
    """What came out beside what was printed; ``rounding`` marks nothing but rounding error."""

    key: str
    label: str
    value: float
    printed: str
    rounding: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the value rounds to what is printed, or is rounding error of that size too."""
        if self.rounding is not None:
            return 0 <= self.value <= float(self.printed) + self.rounding
        exponent = Decimal(self.printed).as_tuple().exponent
        assert isinstance(exponent, int)
        half = Decimal(5).scaleb(exponent - 1)
        return abs(Decimal(self.value) - Decimal(self.printed)) <= half


def compare(toy: Toy) -> list[Comparison]:
    """Every number of the errata's table, computed, beside what is printed for set A or B.

    The paper itself prints one of them, "of order 10⁻⁴" at 15 iterations.
    """
    exact = toy.derivative(SMOOTH)
    lo, hi = toy.clarke()

    def apart(method: str) -> float:
        """How far linearising at the last iterate leads away from unrolling."""
        one, two = (estimate(toy, name, SMOOTH, forward=FEW) for name in (method, f"{method}2"))
        return abs(one.gradient - two.gradient)

    def error(method: str) -> float:
        return abs(estimate(toy, method, SMOOTH, back=TRUNCATED).gradient - exact)

    rows = [
        ("analytic", "dL/dθ, analytic", exact, "-0.17215831", "-0.40090934"),
        ("fb_minus_fb2", f"|FB − FB2|, N = {FEW}", apart("Bregman-FB"), "1.32e-4", "1.59e-4"),
        ("pgd_minus_pgd2", f"|Proj − Proj2|, N = {FEW}", apart("Proj.GD"), "5.47e-4", "1.54e-4"),
        ("smoothed_error", "error of Smoothed-impl", error("Smoothed-impl"), "3.9e-2", "5.1e-2"),
        ("projected_error", f"error of Proj.GD, K = {TRUNCATED}", error("Proj.GD"),
         "1.4e-3", "1.4e-4"),
        ("bregman_error", f"error of FB, K = {TRUNCATED}", error("Bregman-FB"),
         "7.4e-4", "4.2e-5"),
        ("implicit_error", "error of FB-impl", error("Bregman-FB-impl"), "5.6e-17", "1.3e-15"),
        ("clarke_lo", "θ = 0: Clarke, from", lo, "-0.5", "-22.22"),
        ("clarke_hi", "θ = 0: Clarke, to", hi, "0", "0"),
    ]  # fmt: skip
    # Rounding differs between processors by a few units in the last place of the gradient.
    rounding = {"implicit_error": {"A": 2e-16, "B": 5e-16}[toy.name]}
    return [
        Comparison(key, label, value, a if toy.name == "A" else b, rounding.get(key))
        for key, label, value, a, b in rows
    ]
