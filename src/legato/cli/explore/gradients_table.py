"""What each method says, in numbers and in the library's own words."""

from __future__ import annotations

import html

from legato.studies.explore import GradientView
from legato.studies.explore.gradients import Row
from legato.studies.toy.figures import COLOURS

WHAT = {
    "Smoothed-impl": "log barrier, Implicit(CG())",
    "Proj.GD": "projected steps, Unroll(last=K)",
    "Proj.GD2": "projected steps, FixedPoint(K)",
    "Bregman-FB": "entropic steps, Unroll(last=K)",
    "Bregman-FB2": "entropic steps, FixedPoint(K)",
    "Bregman-FB-impl": "entropic steps, Implicit(GMRES())",
}


def gradients_table(view: GradientView) -> str:
    """One row a method."""
    away = "from the interval" if view.at_kink else "error"
    body = "".join(map(_row, view.rows))
    return (
        "<table><thead><tr><th>Method</th>"
        f'<th class="number">dL/dθ</th><th class="number">{away}</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _row(row: Row) -> str:
    dot = f'<span class="dot" style="background:{COLOURS[row.method]}"></span>'
    words = "".join(f'<div class="warned">{html.escape(said)}</div>' for said in row.words)
    return (
        f'<tr><td><span class="name">{dot}{row.method}</span>'
        f'<div class="small">{WHAT[row.method]}</div>{words}</td>'
        f'<td class="number">{_number(row.gradient, "+.6g")}</td>'
        f'<td class="number">{_number(row.error, ".2g")}</td></tr>'
    )


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form).replace("-", "−")
