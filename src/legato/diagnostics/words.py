"""The words of a diagnosis: a table that fits 80 columns, and a key to it."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

import torch

from legato.diagnostics.margin import Margin
from legato.diagnostics.measure import Row
from legato.diagnostics.reference import Reference
from legato.diagnostics.uniqueness import Uniqueness
from legato.diagnostics.verdict import Facts, memory_text

WIDTH = 80
"""Columns that a line of text may take."""

COLUMNS = {
    "error": "‖g − ḡ‖/‖ḡ‖: how far its gradient g is from the reference ḡ",
    "bound": "the error is no larger, by the residuals of both solves (–: no bound is known)",
    "cosine": "of the angle between g and ḡ: 1 is the same direction",
    "resid.": "of the backward linear solve, relative to its right-hand side (–: there is none)",
    "prods": "products with A_xᵀ, or steps unrolled: the work of the backward pass",
    "seconds": "of the solve and its backward pass",
    "memory": "the most that the two held at once",
}
"""What the columns mean."""

FACTS = {
    "forward": "the solve as asked for; a residual is the relative change in one iteration",
    "rate": "the factor by which the residual falls in an iteration, late in the long run",
    "spectral radius of A_x": (
        "ρ: A_x is the derivative of one iteration at the solution; the fixed-point family needs "
        "ρ < 1, and takes about 1/(1 − ρ) terms"
    ),
    "‖(I − A_x)⁻¹‖": "by how much an error in the backward solve may grow",
    "strict complementarity": (
        "how far the solution is from a kink, where constraints change between active and not and "
        "the loss need not have a gradient"
    ),
    "two starts": "how far apart two runs end: far means that the solution is not unique",
    "reference": "ḡ, by which errors are measured, and how it was checked",
}
"""What the facts mean."""


def wrapped(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """A paragraph in lines of at most WIDTH, the first of which begins with ``first``."""
    indent = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def key() -> list[str]:
    """A line or more for each column and each fact."""
    lines = ["Columns"]
    for name, text in COLUMNS.items():
        lines += wrapped(text, f"  {name:<9}")
    lines.append("Facts")
    for name, text in FACTS.items():
        lines += wrapped(text, f"  {name}: ", "    ")
    return lines


# --- the table ------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def cells(row: Row) -> tuple[str, ...]:
    """The numbers of one strategy as strings, in the order of COLUMNS."""
    if row.skipped is not None:
        return tuple("–" for _ in COLUMNS)
    return (
        number(row.error),
        number(row.bound),
        "–" if row.cosine is None else f"{row.cosine:.4f}",
        number(row.residual),
        "–" if row.products is None else str(row.products),
        "–" if row.seconds is None else f"{row.seconds:.2g}",
        memory_text(row.peak_bytes),
    )


def says(row: Row) -> str:
    """The names of a strategy's warnings, or why it does not apply."""
    if row.skipped is not None:
        return f"does not apply: {re.split(r'[.:,] ', row.skipped)[0]}"
    return ", ".join(row.warnings)


def table(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """A heading and one text a strategy; a label too long for its line gets one of its own."""
    body = [cells(r) for r in rows]
    widths = [max(len(name), *(len(line[i]) for line in body)) for i, name in enumerate(COLUMNS)]

    def line(columns: Sequence[str]) -> str:
        return " ".join(c.rjust(w) for c, w in zip(columns, widths, strict=True))

    room = WIDTH - len(line(tuple(COLUMNS))) - 1
    first = max(0, min(room, max((len(r.label) for r in rows), default=0)))
    texts = []
    for row, columns in zip(rows, body, strict=True):
        if len(row.label) <= first:
            texts.append(f"{row.label:<{first}} {line(columns)}")
        else:
            texts.append(
                "\n".join([*wrapped(row.label, rest="  "), f"{'':<{first}} {line(columns)}"])
            )
    return f"{'gradient'[:first]:<{first}} {line(tuple(COLUMNS))}", texts


# --- facts ----------------------------------------------------------------------------------------


def facts(f: Facts, r: Reference) -> list[tuple[str, str]]:
    """The facts as pairs of name and text."""
    rho = f.spectral_radius
    precision = str(r.dtype).removeprefix("torch.")
    made = f"in a {precision} twin" if r.twin else f"in {precision}, as given"
    confirmed = "not checked by differences"
    if r.disagreement is not None:
        confirmed = f"central differences within {r.disagreement:.0e}"
    if r.uncertainty is not None and not r.converged:
        confirmed += f"; implicit derivatives there {r.uncertainty:.0e} apart"
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
