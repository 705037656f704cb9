"""The numbers of a run for the eyes, beside those they are compared with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from legato.studies.toy.example import KINK
from legato.studies.toy.methods import FORWARD
from legato.studies.toy.published import FEW, TRUNCATED
from legato.studies.toy.study import ToyResults


def report(results: ToyResults, console: Console) -> None:
    """Print the comparison with the errata, the limits at θ = 0, and where the paper differs."""
    notes = Table.grid(padding=(0, 1))
    for sentence in _differences(results):
        notes.add_row("•", Text(sentence))
    for part in (_comparison(results), _kink(results), _coupled(results), notes):
        console.print(part)
        console.print()


def printed_like(value: float, text: str) -> str:
    """``value`` with as many digits as ``text`` shows, in the same notation."""
    mantissa, marker, _ = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    if not marker:
        return minus(f"{value:.{decimals}f}")
    if value == 0:
        return "0"
    digits, _, exponent = f"{value:.{decimals}e}".partition("e")
    return minus(f"{digits}e{int(exponent)}")


def minus(text: str) -> str:
    """The same with − for the hyphen."""
    return text.replace("-", "−")


def _comparison(results: ToyResults) -> Table:
    table = _table(
        f"θ = 0.3 unless said; K of N back-iterations, N = {FORWARD} unless said",
        f"The paper prints one of these: “of order 10⁻⁴” at about {FEW} iterations.",
    )
    for name in results.sets:
        table.add_column(f"set {name}", justify="right", no_wrap=True)
        table.add_column("errata", justify="right", no_wrap=True, style="dim")
    for rows in zip(*(found.comparisons for found in results.sets.values()), strict=True):
        cells = [Text(rows[0].label)]
        for row in rows:
            mark, style = ("✓", "green") if row.agrees else ("✗", "bold red")
            cells.append(Text(f"{printed_like(row.value, row.printed)} {mark}", style))
            cells.append(Text(minus(row.printed)))
        table.add_row(*cells)
    return table


def _kink(results: ToyResults) -> Table:
    table = _table("θ = 0: shares of λb(x(0) − g), the steepest Clarke slope")
    some = next(iter(results.sets.values()))
    for name in results.sets:
        for heading in (
            f"{name}: K={TRUNCATED}",
            f"K={FORWARD}",
            f"N=K={some.approach[-1].forward}",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True, style="dim")
    for method, limit in some.limits.items():
        cells = [method]
        for found in results.sets.values():
            panels = found.estimates[KINK][method]
            last = found.approach[-1].gradients[method]
            shown = (panels[TRUNCATED].gradient, panels[FORWARD].gradient, last)
            cells += [f"{value / found.toy.slope_at_kink():.3f}" for value in shown]
        table.add_row(*cells, f"{limit / some.toy.slope_at_kink():.3f}")
    return table


def _coupled(results: ToyResults) -> Table:
    names = list(dict.fromkeys(row.problem for row in results.coupled))
    table = _table(f"Relative errors where entries are coupled, N = {FORWARD}")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for method in dict.fromkeys(row.method for row in results.coupled):
        errors = {r.problem: r.error for r in results.coupled if r.method == method}
        table.add_row(method, *(printed_like(errors[name], "1.0e-1") for name in names))
    return table


def _differences(results: ToyResults) -> list[str]:
    """Where the paper's text does not hold, in sentences that quote the run."""
    found = next(iter(results.sets.values()))
    slope, last = found.toy.slope_at_kink(), found.approach[-1]
    fb, fb2 = (found.estimates[KINK][m] for m in ("Bregman-FB", "Bregman-FB2"))
    whole = fb[FORWARD].gradient
    return [
        "The paper calls the convergence along the back-iterations linear. That holds at θ = 0.3; "
        f"at θ = 0 the iterates fall like 1/(αN) (set {found.toy.name}: αNx = {last.scaled_x:.3f} "
        f"at N = {last.forward}), and K of N back-iterations miss (1 − K/N)² of the limit.",
        "The paper finds that Bregman-FB2 accumulates the gradient of Bregman-FB. At θ = 0 it does "
        f"not: shares {fb2[FORWARD].gradient / slope:.3f} and {whole / slope:.3f}, with limits "
        f"{found.limits['Bregman-FB2'] / slope:.3f} and {found.limits['Bregman-FB'] / slope:.3f}.",
        "The paper finds all methods equally good at θ = 0. All lie in the Clarke subdifferential, "
        f"but {TRUNCATED} of {FORWARD} back-iterations find "
        f"{100 * fb[TRUNCATED].gradient / whole:.0f} % of Bregman-FB’s own value.",
    ]


def _table(title: str, caption: str | None = None) -> Table:
    table = Table(
        title=title, caption=caption, box=None, header_style="bold", title_style="italic",
        title_justify="left", caption_justify="left", pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    return table
