"""The table in words: for a terminal, and for documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

Rows = Mapping[str, Mapping[str, Any]]
_HEADS = ("train acc.", "train IoU", "test acc.", "test IoU", "gain acc.", "gain IoU")


def rich_table(rows: Rows) -> Table:
    """The rows of ``collect`` for a terminal."""
    table = Table(
        title=_caption(rows),
        box=None,
        header_style="bold",
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for head in _HEADS[2:]:
        table.add_column(head, justify="right", no_wrap=True)
    best = max(rows, key=lambda name: rows[name]["test"]["iou"]["mean"], default=None)
    for name, row in rows.items():
        cells = _cells(row)[2:]
        table.add_row(escape(name), *cells, style="bold green" if name == best else "")
    return table


def markdown(rows: Rows) -> str:
    """The rows of ``collect`` as a Markdown table."""
    lines = [
        "| | what | " + " | ".join(_HEADS) + " |",
        "|---|---|" + "---:|" * len(_HEADS),
    ]
    for name, row in rows.items():
        what = row["what"].replace("|", "\\|")
        lines.append(f"| {name} | {what} | " + " | ".join(_cells(row)) + " |")
    return "\n".join([*lines, "", _caption(rows)]) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [
        _spread(row[part][key]) if part in row else ""
        for part in ("train", "test")
        for key in ("accuracy", "iou")
    ]
    gains = [_spread(row["gain"][key], "+") if "gain" in row else "" for key in ("accuracy", "iou")]
    return cells + gains


def _spread(value: Mapping[str, Any], sign: str = "") -> str:
    text = f"{value['mean']:{sign}.2f}".replace("-", "−")
    return f"{text} ± {value['std']:.2f}" if len(value["each"]) > 1 else text


def _caption(rows: Rows) -> str:
    seeds = max((len(row["test"]["iou"]["each"]) for row in rows.values()), default=0)
    if seeds < 2:
        return "Per cent, one seed; gain over the control."
    return (
        f"Per cent, mean ± standard deviation over {seeds} seeds; gain over the control of the "
        "same seed."
    )
