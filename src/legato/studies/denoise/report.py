"""The table in words: for a terminal, and for documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from legato.studies.denoise.training import Recipe

FEWEST_STEPS = 500
"""Steps below which a learned denoiser is not worth comparing."""

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


def no_training(steps: int) -> str | None:
    """What to say of a table whose models were trained for so few steps; None where it counts."""
    if steps >= FEWEST_STEPS:
        return None
    return (
        f"{steps} steps are no training: λ(y) and the filters stand where they began, mostly below "
        "total variation, whose one weight is learned. The rows show that everything runs, not "
        f"what it can do: without --quick it trains for {Recipe.steps} steps."
    )


def table_markdown(table: Mapping[str, Rows]) -> str:
    """All noise levels as a Markdown table, rows by their mean PSNR."""

    def mean(name: str) -> float:
        found = [one["psnr"] for rows in table.values() for one in rows.get(name, {}).values()]
        return sum(found) / len(found)

    names = dict.fromkeys(name for rows in table.values() for name in rows)
    columns = [(part, test) for part, rows in table.items() for test in _tests(rows)]
    return _markdown(
        {"": "---"} | {f"{test}, σ = {part}": "---:" for part, test in columns},
        [
            [name, *(_cell(table[part].get(name, {}), test) for part, test in columns)]
            for name in sorted(names, key=mean)
        ],
    )


def weights_markdown(found: Mapping[str, Any]) -> str:
    """λ of total variation for each noise level, learned and searched."""
    right = dict.fromkeys(
        ("λ, bilevel", "λ, grid", "difference", "hypergradients", "grid size"), "---:"
    )
    rows = [
        [
            part,
            kind,
            f"{one['bilevel']:.5f}",
            f"{one['grid']:.5f}",
            f"{100 * one['relative_difference']:+.2f} %".replace("-", "−"),
            str(one["hypergradients"]),
            str(one["grid_points"]),
        ]
        for part, kinds in found.items()
        for kind, one in kinds.items()
    ]
    return _markdown({"σ": "---:", "total variation": "---"} | right, rows)


def comparisons_markdown(found: Mapping[str, Any] | None) -> str:
    """Gradients and optimisers on the batch that stays."""
    if found is None:
        return "Not measured.\n"
    right = dict.fromkeys(
        ("PSNR, dB", "first gradient off by", "peak memory, MiB", "seconds"), "---:"
    )
    rows = [
        [name, f"{row['psnr']:.3f}", f"{row['first_gradient_off']:.1e}",
         str(row["peak_mebibytes"]), f"{row['seconds']:.1f}"]
        for name, row in found.get("gradients", {}).items()
    ] + [
        [f"`Unroll`, {name}, {len(row['losses'])} evaluations", f"{row['psnr']:.3f}", "", "",
         f"{row['seconds']:.1f}"]
        for name, row in found["optimisers"].items()
    ]  # fmt: skip
    return _markdown({"": "---"} | right, rows)


def _markdown(heads: Mapping[str, str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose heads stand with the lines that align their columns."""

    def line(cells: Iterable[str]) -> str:
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"

    rule = "|" + "|".join(heads.values()) + "|\n"
    return line(heads) + rule + "".join(map(line, rows))


def _tests(rows: Rows) -> list[str]:
    return list(dict.fromkeys(test for row in rows.values() for test in row))


def _cell(row: Mapping[str, Any], test: str) -> str:
    if test not in row:
        return ""
    return f"{row[test]['psnr']:.2f} / {row[test]['ssim']:.3f}"
