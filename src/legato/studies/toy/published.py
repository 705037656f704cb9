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
class Printed:
    """A number as printed; ``rounding`` marks one that is nothing but rounding error."""

    text: str
    rounding: float | None = None

    def agrees(self, value: float) -> bool:
        """Whether ``value`` rounds to what is printed, or is rounding error of that size too."""
        if self.rounding is not None:
            return 0 <= value <= float(self.text) + self.rounding
        exponent = Decimal(self.text).as_tuple().exponent
        assert isinstance(exponent, int)
        half = Decimal(5).scaleb(exponent - 1)
        return abs(Decimal(value) - Decimal(self.text)) <= half


@dataclass(frozen=True)
class Comparison:
    """One row: what it is, what came out, what was printed."""

    key: str
    label: str
    value: float
    printed: Printed

    @property
    def agrees(self) -> bool:
        return self.printed.agrees(self.value)


# Rounding differs from one processor to the next by a few units in the last place of the gradient.
PRINTED = {
    "A": {
        "analytic": Printed("-0.17215831"),
        "fb_minus_fb2": Printed("1.32e-4"),
        "pgd_minus_pgd2": Printed("5.47e-4"),
        "smoothed_error": Printed("3.9e-2"),
        "projected_error": Printed("1.4e-3"),
        "bregman_error": Printed("7.4e-4"),
        "implicit_error": Printed("5.6e-17", rounding=2e-16),
        "clarke_lo": Printed("-0.5"),
        "clarke_hi": Printed("0"),
    },
    "B": {
        "analytic": Printed("-0.40090934"),
        "fb_minus_fb2": Printed("1.59e-4"),
        "pgd_minus_pgd2": Printed("1.54e-4"),
        "smoothed_error": Printed("5.1e-2"),
        "projected_error": Printed("1.4e-4"),
        "bregman_error": Printed("4.2e-5"),
        "implicit_error": Printed("1.3e-15", rounding=5e-16),
        "clarke_lo": Printed("-22.22"),
        "clarke_hi": Printed("0"),
    },
}
"""The errata's table; the paper itself prints one number, "of order 10⁻⁴" at 15 iterations."""

LABELS = {
    "analytic": "dL/dθ, analytic",
    "fb_minus_fb2": f"|FB − FB2|, N = {FEW}",
    "pgd_minus_pgd2": f"|Proj − Proj2|, N = {FEW}",
    "smoothed_error": "error of Smoothed-impl",
    "projected_error": f"error of Proj.GD, K = {TRUNCATED}",
    "bregman_error": f"error of FB, K = {TRUNCATED}",
    "implicit_error": "error of FB-impl",
    "clarke_lo": "θ = 0: Clarke, from",
    "clarke_hi": "θ = 0: Clarke, to",
}


def compare(toy: Toy) -> list[Comparison]:
    """Every number of the table, computed."""
    exact = toy.derivative(SMOOTH)

    def few(method: str) -> float:
        return estimate(toy, method, SMOOTH, forward=FEW).gradient

    def error(method: str) -> float:
        return abs(estimate(toy, method, SMOOTH, back=TRUNCATED).gradient - exact)

    lo, hi = toy.clarke()
    values = {
        "analytic": exact,
        "fb_minus_fb2": abs(few("Bregman-FB") - few("Bregman-FB2")),
        "pgd_minus_pgd2": abs(few("Proj.GD") - few("Proj.GD2")),
        "smoothed_error": error("Smoothed-impl"),
        "projected_error": error("Proj.GD"),
        "bregman_error": error("Bregman-FB"),
        "implicit_error": error("Bregman-FB-impl"),
        "clarke_lo": lo,
        "clarke_hi": hi,
    }
    printed = PRINTED[toy.name]
    return [Comparison(key, LABELS[key], value, printed[key]) for key, value in values.items()]
