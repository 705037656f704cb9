"""What a diagnosis says, as data and as plain text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from legato.diagnostics.measure import Row, label
from legato.diagnostics.outlook import Outlook
from legato.diagnostics.reference import Reference
from legato.diagnostics.verdict import Facts, Finding, Recommendation, Symptom
from legato.diagnostics.words import facts, key, says, table, wrapped


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
    outlook: Outlook | None = None

    @property
    def symptoms(self) -> frozenset[Symptom]:
        """What was found, without the words."""
        return frozenset(f.symptom for f in self.findings)

    def row(self, name: str) -> Row:
        """The row of a strategy by its label, e.g. ``"Unroll(last=10)"``."""
        return {r.label: r for r in self.rows}[name]

    def __str__(self) -> str:
        heading, texts = table(self.rows)
        lines = [heading, "─" * len(heading), *texts]
        for row in self.rows:
            lines += wrapped(f"{row.label}: {says(row)}", "  ", "    ") if says(row) else []
        lines.append("")
        for name, value in facts(self.facts, self.reference):
            lines += wrapped(value, f"{name:<24}")
        lines += ["", *key(), ""]
        for finding in self.findings:
            lines += wrapped(f"{finding.symptom}: {finding.message}", "! ")
        if self.findings:
            lines.append("")
        return "\n".join([*lines, *wrapped(str(self.recommendation), "→ ")])

    def plot(self, axes: Any) -> Any:
        """Draw error against time on matplotlib ``axes``, the area of a point being its memory.

        Horizontal lines end at the bound. Labels stand in a column at the right, within the axes
        and right of all points, in their order, so that none lies on another or is cut off.
        The axes are the caller's: legato opens no window and imports no plotting library.
        """
        measured = [r for r in self.rows if r.error is not None and r.seconds is not None]
        measured.sort(key=lambda r: r.seconds or 0.0)
        floor, ends = 1e-17, []
        advice = self.recommendation.gradient
        recommended = None if advice is None else label(advice)
        for place, row in enumerate(measured):
            x, y = max(row.error or 0.0, floor), row.seconds or 0.0
            area = 20 + 20 * math.log2(1 + (row.peak_bytes or 0) / 1024)
            chosen = row.label == recommended
            colour = "tab:green" if chosen else "tab:red" if row.warnings else "tab:blue"
            axes.scatter([x], [y], s=[area], color=colour, alpha=0.6)
            axes.annotate(
                row.label,
                (x, y),
                xytext=(0.98, (place + 0.5) / len(measured)),
                textcoords="axes fraction",
                horizontalalignment="right",
                verticalalignment="center",
                size=8,
                color=colour,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.6},
            )
            ends.append(x)
            if row.bound is not None and math.isfinite(row.bound):
                ends.append(max(row.bound, floor))
                axes.plot([x, ends[-1]], [y, y], color=colour, linewidth=0.7)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=_with_room(ends),
            xlabel="relative error of the gradient (line: up to its bound)",
            ylabel="seconds",
            title="green: recommended, red: warns, area: memory",
        )
        return axes


def _with_room(ends: list[float]) -> tuple[float, float]:
    """The limits of a logarithmic axis on which everything drawn lies in the left 6/10."""
    first, last = (math.log10(f(ends, default=1.0)) for f in (min, max))
    span = max(last - first, 1.0)
    return 10 ** (first - 0.08 * span), 10 ** (first + 1.72 * span)
