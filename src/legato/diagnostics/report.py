"""What a diagnosis says, as data and as plain text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from legato.diagnostics.margin import Margin
from legato.diagnostics.measure import Row, label
from legato.diagnostics.reference import Reference
from legato.diagnostics.uniqueness import Uniqueness
from legato.diagnostics.verdict import Facts, Finding, Recommendation, Symptom, memory_text


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Which gradient to use and whether to trust it; ``print`` it, or ``plot`` it on your axes.

    >>> [type(row.gradient).__name__ for row in diagnosis.rows if row.skipped is None][:3]
    ['OneStep', 'Implicit', 'Implicit']
    >>> diagnosis.facts.spectral_radius < 1
    True
    """

    rows: tuple[Row, ...]
    facts: Facts
    reference: Reference
    findings: tuple[Finding, ...]
    recommendation: Recommendation

    @property
    def symptoms(self) -> frozenset[Symptom]:
        """What was found, without the words."""
        return frozenset(f.symptom for f in self.findings)

    def row(self, name: str) -> Row:
        """The row of a strategy by its label, e.g. ``"Unroll(last=10)"``."""
        return {r.label: r for r in self.rows}[name]

    def __str__(self) -> str:
        lines = [*table(self.rows), ""]
        lines += [f"{name:<24}{value}" for name, value in facts(self)]
        lines += ["", *(f"! {f.symptom}: {f.message}" for f in self.findings)]
        if self.findings:
            lines.append("")
        return "\n".join([*lines, f"→ {self.recommendation}"])

    def plot(self, axes: Any) -> Any:
        """Draw error against time on matplotlib ``axes``, the area of a point being its memory.

        Horizontal lines end at the bound. The axes are the caller's: legato opens no window and
        imports no plotting library.
        """
        measured = [r for r in self.rows if r.error is not None and r.seconds is not None]
        floor = 1e-17
        advice = self.recommendation.gradient
        recommended = None if advice is None else label(advice)
        for row in measured:
            x, y = max(row.error or 0.0, floor), row.seconds or 0.0
            area = 20 + 20 * math.log2(1 + (row.peak_bytes or 0) / 1024)
            chosen = row.label == recommended
            colour = "tab:green" if chosen else "tab:red" if row.warnings else "tab:blue"
            axes.scatter([x], [y], s=[area], color=colour, alpha=0.6)
            axes.annotate(row.label, (x, y), xytext=(5, 4), textcoords="offset points", size=7)
            if row.bound is not None and math.isfinite(row.bound):
                axes.plot([x, max(row.bound, floor)], [y, y], color=colour, linewidth=0.7)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="relative error of the gradient (line: up to its bound)",
            ylabel="seconds",
            title="green: recommended, red: warns, area: memory",
        )
        return axes


# --- text -----------------------------------------------------------------------------------------

NUMBERS = ("error", "bound", "cosine", "residual", "products", "seconds", "memory")
HEADINGS = ("gradient", *NUMBERS, "says")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def cells(row: Row) -> tuple[str, ...]:
    """One strategy as strings, in the order of HEADINGS."""
    if row.skipped is not None:
        reason = re.split(r"[.:,] ", row.skipped)[0]
        return (row.label, *("–" for _ in NUMBERS), f"does not apply: {reason}")
    return (
        row.label,
        number(row.error),
        number(row.bound),
        "–" if row.cosine is None else f"{row.cosine:.4f}",
        number(row.residual),
        "–" if row.products is None else str(row.products),
        "–" if row.seconds is None else f"{row.seconds:.4f}",
        memory_text(row.peak_bytes),
        ", ".join(row.warnings),
    )


def table(rows: tuple[Row, ...]) -> list[str]:
    """The strategies as lines of text, with columns aligned."""
    body = [HEADINGS, *(cells(r) for r in rows)]
    widths = [max(len(line[i]) for line in body) for i in range(len(HEADINGS) - 1)]
    lines = []
    for first, *numbers, says in body:
        columns = [c.rjust(w) for c, w in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join((first.ljust(widths[0]), *columns, says)).rstrip())
    return [lines[0], "─" * max(map(len, lines)), *lines[1:]]


def facts(d: Diagnosis) -> list[tuple[str, str]]:
    """The facts as pairs of name and text."""
    f, r, rho = d.facts, d.reference, d.facts.spectral_radius
    precision = str(r.dtype).removeprefix("torch.")
    made = f"in a {precision} twin" if r.twin else f"in {precision}, as given"
    confirmed = "not checked by differences"
    if r.disagreement is not None:
        confirmed = f"central differences within {r.disagreement:.0e}"
    return [
        ("forward", f"residual {f.residual:.1e} after {f.iterations} iterations"),
        ("rate", "–" if f.rate is None else f"{f.rate:.6g}{' (sublinear)' * f.sublinear}"),
        ("spectral radius of A_x", "–" if rho is None else f"{rho:.6g}"),
        ("‖(I − A_x)⁻¹‖", _amplification(f)),
        ("strict complementarity", _margin(f.margin)),
        ("two starts", _uniqueness(f.uniqueness)),
        ("loss", f"{r.loss:.6g}, ‖gradient‖ {float(torch.linalg.vector_norm(r.gradient)):.6g}"),
        (
            "reference",
            f"{r.how}, {made}, {r.iterations} iterations, residual {r.residual:.1e}; {confirmed}",
        ),
    ]


def _amplification(f: Facts) -> str:
    if f.amplification is None:
        return "–"
    kind = "exact" if f.certified else "upper bound with probability 0.9995"
    text = f"{f.amplification:.4g} ({kind})"
    if f.spectral_radius is not None and f.spectral_radius < 1:
        text += f"; 1/(1 − ρ) = {1 / (1 - f.spectral_radius):.4g}"
    return text


def _margin(m: Margin | None) -> str:
    if m is None:
        return "not known for this prox or algorithm"
    words = {True: "strict", False: "not strict", None: "undecided: not converged"}
    value = "no kink or boundary in reach" if math.isinf(m.value) else f"margin {m.value:.2g}"
    return f"{value} ({words[m.strict]})"


def _uniqueness(u: Uniqueness | None) -> str:
    if u is None:
        return "not examined"
    if not u.settled:
        return "undecided: not converged"
    gap = "" if u.gap is None else f", objectives {u.gap:.1e}"
    return f"end {u.primal:.1e} apart (dual {u.dual:.1e}{gap})"
