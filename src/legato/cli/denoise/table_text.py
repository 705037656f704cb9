"""The table in words: for a terminal, and for documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

Rows = Mapping[str, Mapping[str, Any]]


def rich_table(part: str, rows: Rows, gain: Mapping[str, Any]) -> Table:
    """One noise level for a terminal."""
    table = Table(
        title=f"σ = {part}: PSNR in dB / SSIM, means over the images",
        box=None, header_style="bold", title_justify="left", title_style="italic", pad_edge=False,
    )  # fmt: skip
    tests = _tests(rows)
    table.add_column("", no_wrap=True)
    for test in tests:
        table.add_column(test, justify="right", no_wrap=True)
    table.add_column("over TV", justify="right", no_wrap=True)
    for name, row in rows.items():
        more = gain.get(name, {})
        over = f"{more[tests[0]]:+.2f}".replace("-", "−") if tests[0] in more else ""
        table.add_row(escape(name), *(_cell(row, test) for test in tests), over)
    return table


def markdown(table: Mapping[str, Rows]) -> str:
    """All noise levels as a Markdown table, rows by name."""
    names = list(dict.fromkeys(name for rows in table.values() for name in rows))
    names.sort(key=lambda name: _mean(table, name))
    heads = [(part, test) for part, rows in table.items() for test in _tests(rows)]
    lines = [
        "| | " + " | ".join(f"{test}, σ = {part}" for part, test in heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    for name in names:
        cells = [_cell(table[part].get(name, {}), test) for part, test in heads]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def weights_markdown(found: Mapping[str, Any]) -> str:
    """λ of total variation for each noise level, learned and searched."""
    lines = [
        "| σ | total variation | λ, bilevel | λ, grid | difference | hypergradients | grid size |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for part, kinds in found.items():
        for kind, one in kinds.items():
            off = f"{100 * one['relative_difference']:+.2f} %".replace("-", "−")
            lines.append(
                f"| {part} | {kind} | {one['bilevel']:.5f} | {one['grid']:.5f} | {off} | "
                f"{one['hypergradients']} | {one['grid_points']} |"
            )
    return "\n".join(lines) + "\n"


def comparisons_markdown(found: Mapping[str, Any] | None) -> str:
    """Gradients and optimisers on the batch that stays."""
    if found is None:
        return "Not measured.\n"
    lines = [
        "| | PSNR, dB | first gradient off by | peak memory, MiB | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in found.get("gradients", {}).items():
        lines.append(
            f"| {name} | {row['psnr']:.3f} | {row['first_gradient_off']:.1e} | "
            f"{row['peak_mebibytes']} | {row['seconds']:.1f} |"
        )
    for name, row in found["optimisers"].items():
        lines.append(
            f"| `Unroll`, {name}, {len(row['losses'])} evaluations | {row['psnr']:.3f} | | | "
            f"{row['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _mean(table: Mapping[str, Rows], name: str) -> float:
    """For the order of the rows: the mean of a row's PSNRs."""
    found = [one["psnr"] for rows in table.values() for one in rows.get(name, {}).values()]
    return sum(found) / len(found)


def _tests(rows: Rows) -> list[str]:
    return list(dict.fromkeys(test for row in rows.values() for test in row))


def _cell(row: Mapping[str, Any], test: str) -> str:
    if test not in row:
        return ""
    return f"{row[test]['psnr']:.2f} / {row[test]['ssim']:.3f}"
