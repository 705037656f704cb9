"""A diagnosis in a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.panel import Panel

from legato.console.talking import console
from legato.diagnostics import Diagnosis
from legato.diagnostics.measure import label
from legato.diagnostics.words import facts, key, says, table, wrapped


def show(diagnosis: Diagnosis) -> None:
    """Print strategies, facts, findings, the recommendation, and a key to all of it."""
    advice = diagnosis.recommendation
    chosen = None if advice.gradient is None else label(advice.gradient)
    heading, texts = table(diagnosis.rows)
    _print(heading, "bold")
    notes = []
    for row, text in zip(diagnosis.rows, texts, strict=True):
        if row.skipped is not None:
            style = "dim"
        elif row.label == chosen:
            style = "bold green"
        else:
            style = "yellow" if row.warnings else ""
        _print(text, style)
        if says(row):
            notes.append(f"[{style}]{escape(row.label)}[/]: {escape(says(row))}")
    for note in notes:
        console.print(note)
    console.print()
    for name, text in facts(diagnosis.facts, diagnosis.reference):
        first, *rest = wrapped(text, f"{name:<24}")
        console.print(f"[bold]{escape(first[:24])}[/]{escape(first[24:])}", soft_wrap=True)
        for line in rest:
            _print(line)
    console.print()
    for line in key():
        _print(line, "dim")
    for finding in diagnosis.findings:
        console.print()
        console.print(f"[bold yellow]{escape(finding.symptom)}[/]: {escape(finding.message)}")
    console.print()
    console.print(Panel(escape(advice.sentence), title="recommendation", title_align="left"))


def _print(line: str, style: str = "") -> None:
    """A line that is laid out already, whole whatever the width of the terminal."""
    console.print(escape(line), style=style, soft_wrap=True)
