"""A diagnosis for the eyes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from legato.diagnose import Diagnosis
from legato.diagnose.report import HEADINGS, cells, facts
from legato.diagnose.strategies import label


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print strategies, facts, findings and the recommendation."""
    advice = diagnosis.recommendation
    chosen = None if advice.gradient is None else label(advice.gradient)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in HEADINGS:
        left = heading in ("gradient", "says")
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
    for row in diagnosis.rows:
        if row.skipped is not None:
            style = "dim"
        elif row.label == chosen:
            style = "bold green"
        else:
            style = "yellow" if row.warnings else ""
        table.add_row(*map(escape, cells(row)), style=style)
    console.print(table)
    console.print()
    listing = Table(box=None, show_header=False, pad_edge=False)
    listing.add_column(style="bold", no_wrap=True)
    listing.add_column()
    for name, text in facts(diagnosis):
        listing.add_row(escape(name), escape(text))
    console.print(listing)
    for finding in diagnosis.findings:
        console.print()
        console.print(f"[bold yellow]{escape(finding.sign)}[/]: {escape(finding.message)}")
    console.print()
    console.print(Panel(escape(advice.sentence), title="recommendation", title_align="left"))
