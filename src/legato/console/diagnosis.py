"""A diagnosis in a terminal of 80 columns."""

from __future__ import annotations

from rich.console import JustifyMethod
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from legato.console.talking import console
from legato.diagnostics import Diagnosis
from legato.diagnostics.measure import label
from legato.diagnostics.report import HEADINGS, cells, facts

_SHORT = {"residual": "resid.", "products": "prods"}


def show(diagnosis: Diagnosis) -> None:
    """Print strategies, facts, findings and the recommendation."""
    advice = diagnosis.recommendation
    chosen = None if advice.gradient is None else label(advice.gradient)
    # Warnings go below the table: nine columns would not fit a terminal of 80 characters.
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS[:-1]:
        justify: JustifyMethod = "left" if heading == "gradient" else "right"
        table.add_column(_SHORT.get(heading, heading), justify=justify, no_wrap=True)
    notes = []
    for row in diagnosis.rows:
        *numbers, says = cells(row)
        if row.skipped is not None:
            style = "dim"
        elif row.label == chosen:
            style = "bold green"
        else:
            style = "yellow" if row.warnings else ""
        table.add_row(*map(escape, numbers), style=style)
        if says:
            notes.append(f"[{style}]{escape(row.label)}[/]: {escape(says)}")
    console.print(table)
    for note in notes:
        console.print(note)
    console.print()
    listing = Table(box=None, show_header=False, pad_edge=False)
    listing.add_column(style="bold", no_wrap=True)
    listing.add_column()
    for name, text in facts(diagnosis):
        listing.add_row(escape(name), escape(text))
    console.print(listing)
    for finding in diagnosis.findings:
        console.print()
        console.print(f"[bold yellow]{escape(finding.symptom)}[/]: {escape(finding.message)}")
    console.print()
    console.print(Panel(escape(advice.sentence), title="recommendation", title_align="left"))
