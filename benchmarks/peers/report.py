"""The tables and pictures of the races, made from their JSON and from nothing else.

    python benchmarks/peers/report.py

Writes peers.md, peers_error_time.png and peers_memory.png beside benchmarks/results/peers_cpu.json,
and peers_h200.md beside peers_h200.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
FLOOR = 1e-9
"""Errors below it count as equal: few truths are checked any closer."""
COMPARABLE = 10.0
"""A peer's error is comparable up to this many times legato's; a smaller one always is."""

Row = dict[str, Any]


def gradient_error(row: Row, problem: dict[str, Any]) -> float:
    """The error, no smaller than what the check of the truth can tell."""
    return max(row.get("gradient_error", math.inf), problem.get("uncertainty", 0.0), FLOOR)


def verdict(rows: list[Row], problem: dict[str, Any]) -> dict[str, Any] | None:
    """Whether legato's error is the least or as small, and which peers are faster.

    A peer is the rival of a row of legato if its error is at most ``COMPARABLE`` times that row's.
    It is *faster* if it needs less time to solve and differentiate once than the most accurate row
    that it rivals, and than every row that is more accurate still. It is *coarser* if it is not,
    but has its own, clearly larger error sooner than any row of legato that is comparable to it.
    Both come with the ratio of the times. None where one side has no row yet.
    """
    raced = [r for r in rows if "failed" not in r and "both_s" in r]
    own = [(gradient_error(r, problem), r["both_s"]) for r in raced if r["library"] == "legato"]
    peers = [r for r in raced if r["library"] != "legato"]
    if not own or not peers:
        return None
    found: dict[str, Any] = {"faster": [], "coarser": []}
    for peer in peers:
        error, time = gradient_error(peer, problem), peer["both_s"]
        rivalled = [e for e, _ in own if error <= COMPARABLE * e]
        beaten = min((t for e, t in own if rivalled and e <= min(rivalled)), default=0.0)
        behind = min((t for e, t in own if e <= COMPARABLE * error), default=0.0)
        if time < beaten:
            found["faster"].append((peer, beaten / time))
        elif time < behind:
            found["coarser"].append((peer, behind / time))
    least = min(gradient_error(r, problem) for r in peers)
    return found | {"accurate": min(e for e, _ in own) <= COMPARABLE * least}


def number(value: float | None) -> str:
    return "—" if value is None else f"{value:.1e}"


def seconds(value: float | None) -> str:
    if value is None:
        return "—"
    if value < 0.0995:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s"


def about_results(row: Row) -> list[str]:
    """Warnings that could be about the numbers, not about packages growing old."""
    old = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "SyntaxWarning")
    return [text for text in row.get("warnings", ()) if not text.startswith(old)]


def says(row: Row) -> str:
    """What the library said, shortened; silence is worth a word where the gradient is wrong."""
    said = [text.partition(": ")[2][:110] for text in about_results(row)]
    if said:
        return said[0].replace("|", "\\|")
    wrong = row.get("gradient_error", 0.0) > 0.01
    return "**nothing**" if wrong else ""


def table(rows: list[Row]) -> list[str]:
    memory = any("peak_MiB" in row for row in rows)
    lines = [
        "| library | method | says | error of ∇ | error of x | forward | backward | first |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    if memory:
        lines = [lines[0] + " MiB |", lines[1] + "---:|"]
    for row in rows:
        name = f"| {row['library']} | {row['method']} "
        if "failed" in row:
            reason = row["failed"].replace("|", "\\|")[:200]
            errors = " | ".join(number(row.get(f"{of}_error")) for of in ("gradient", "solution"))
            lines.append(f"{name}| {reason} | {errors} | — | — | — |" + " — |" * memory)
            continue
        note = row["note"] if row["note"] == "solution only" else says(row)
        lines.append(
            f"{name}| {note} | {number(row.get('gradient_error'))} | "
            f"{number(row['solution_error'])} | {seconds(row['forward_s'])} | "
            f"{seconds(row.get('backward_s'))} | {seconds(row['first_s'])} |"
            + (f" {row['peak_MiB']:.0f} |" if memory else "")
        )
    return lines


def summary(name: str, data: dict[str, Any]) -> str:
    """One sentence about a problem."""
    problem = data["problems"][name]
    found = verdict([r for r in data["rows"] if r["problem"] == name], problem)
    if found is None:
        return "not raced yet."
    accurate = (
        "legato's error is the smallest or as small"
        if found["accurate"]
        else "**a peer's error is smaller**"
    )
    parts = [accurate, f"faster at comparable or smaller error: {_named(found['faster'])}"]
    if found["coarser"]:
        parts.append(f"faster with a clearly larger error: {_named(found['coarser'], problem)}")
    return "; ".join(parts) + "."


def _named(peers: list[tuple[Row, float]], problem: dict[str, Any] | None = None) -> str:
    """Peers by how much faster they are, with their errors where a problem is given."""
    named = []
    for peer, times in sorted(peers, key=lambda p: -p[1]):
        error = "" if problem is None else f", error {number(gradient_error(peer, problem))}"
        named.append(f"{peer['library']} ({peer['method']}): {times:.1f} ×{error}")
    return "; ".join(named) or "no peer"


def _silently(row: Row, error: float) -> bool:
    return row.get("gradient_error", 0.0) > error and not about_results(row)


class Claim(NamedTuple):
    """Something that trials before the race suggested, the rows that decide, what confirms it."""

    text: str
    library: str
    concerns: Callable[[str], bool]
    confirmed_by: Callable[[Row], bool]


CLAIMS = (
    Claim("cvxpylayers' default solver delivers wrong gradients in silence", "cvxpylayers",
          lambda method: method == "default solver", lambda row: _silently(row, 0.01)),
    Claim("jaxopt's mirror descent returns exactly 0 after underflow", "jaxopt",
          lambda method: "MirrorDescent" in method, lambda row: bool(row.get("gradient_is_zero"))),
    Claim("torchdeq's Jacobian-free gradient is far off at a solved fixed point", "torchdeq",
          lambda method: "free," in method, lambda row: _silently(row, 0.5)),
    Claim("deepinv's primal–dual deep equilibrium crashes", "deepinv",
          lambda method: "PDCP" in method, lambda row: "failed" in row),
)  # fmt: skip


def claims(data: dict[str, Any]) -> list[str]:
    """Each claim, whether it is confirmed, and what its rows say."""
    lines = []
    for claim in CLAIMS:
        rows = [
            r for r in data["rows"] if r["library"] == claim.library and claim.concerns(r["method"])
        ]
        told, others = [], []
        for row in rows:
            if "failed" in row:
                told.append(f"{_title(data, row)}: {row['failed'][:160]}")
                continue
            exactly = ", exactly 0" if row.get("gradient_is_zero") else ""
            warned = "warned" if about_results(row) else "silent"
            evidence = told if claim.confirmed_by(row) else others
            evidence.append(
                f"{_title(data, row)}: {number(row.get('gradient_error'))}{exactly}, {warned}"
            )
        found = "confirmed" if any(map(claim.confirmed_by, rows)) else "not confirmed"
        words = [f"- {claim.text}: **{found}**. {'; '.join(told or others) or 'Not raced'}."]
        if told and others:
            words.append(f"Not so: {'; '.join(others)}.")
        lines.append(" ".join(words))
    return lines


def _title(data: dict[str, Any], row: Row) -> str:
    """The name of a row's problem, as readers know it."""
    return str(data["problems"][row["problem"]]["title"])


def versions(data: dict[str, Any]) -> str:
    found = sorted({(r["library"], r["version"]) for r in data["rows"] if "version" in r})
    return ", ".join(f"{library} {version}" for library, version in found)


def markdown(data: dict[str, Any]) -> str:
    """The whole page."""
    load = max((r.get("load", 0.0) for r in data["rows"]), default=0.0)
    lines = [
        "# The race",
        "",
        f"{data['date'][:10]}, commit `{str(data['commit'])[:10]}`, {data['device']}, one thread; "
        f"highest load average {load:.1f}. {versions(data)}.",
        "",
        "Errors are relative. *Forward* solves; *backward* is what solving and differentiating "
        "takes beyond that; both are medians of wall time. *First* is the first call with "
        "everything it sets up or compiles. *MiB* is what the process added at its peak. *Says* "
        "is the first warning; **nothing** marks a gradient that is more than 1 % off and "
        "delivered in silence, an empty cell one that is closer.",
    ]
    lines += [
        "", "## What was suspected, and what the race found", "",
        "Trials before the race suggested four faults of other libraries. What became of them, "
        "with the error of the gradient on each problem:",
        "", *claims(data), *sections(data),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def gpu_markdown(data: dict[str, Any]) -> str:
    """The page of the race on a GPU."""
    lines = [
        "# The race on a GPU",
        "",
        f"{data['date'][:10]}, commit `{str(data['commit'])[:10]}`, {data['device']}. torch "
        f"{data['versions']['torch']}, {versions(data)}.",
        "",
        "Errors are relative to the truth in float64, which a problem's data in float32 move by "
        "their rounding; *jax_scan* is the loop written by hand in JAX. *Forward* solves; "
        "*backward* is what solving and differentiating takes beyond that; both are medians of "
        "wall time, all contestants' calls in turns. *First* is the first call with everything "
        "it sets up or compiles, while the other problems' contestants compiled, too. *Says* is "
        "the first warning; **nothing** marks a gradient that is more than 1 % off and delivered "
        "in silence.",
        *sections(data, "###"),
    ]
    return "\n".join(lines) + "\n"


def sections(data: dict[str, Any], level: str = "##") -> list[str]:
    """A table and a verdict for each problem."""
    lines: list[str] = []
    for name, problem in data["problems"].items():
        rows = [r for r in data["rows"] if r["problem"] == name]
        if not rows:
            continue
        known = number(problem.get("uncertainty"))
        lines += [
            "", f"{level} {problem['title']}", "",
            f"min {problem['energy']}, loss {problem['loss']}{_precision(problem)}. "
            f"Truth: {problem['truth']}; "
            f"consistent to {known}. Verdict: {summary(name, data)}",
            "", *table(rows),
        ]  # fmt: skip
    return lines


def _precision(problem: dict[str, Any]) -> str:
    return f", {problem['precision']}" if "precision" in problem else ""


# --- pictures -------------------------------------------------------------------------------------


def colours(data: dict[str, Any]) -> dict[str, Any]:
    import matplotlib

    names = sorted({r["library"] for r in data["rows"]} - {"legato"})
    palette = matplotlib.colormaps["tab10"]
    return {"legato": "black"} | {name: palette(k % 10) for k, name in enumerate(names)}


def plot_error_time(data: dict[str, Any], path: Path) -> None:
    """Error of the gradient against the time of solving and differentiating, a panel a problem."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    names = [n for n in data["problems"] if any(_raced(r, n) for r in data["rows"])]
    columns = 2
    figure, axes = plt.subplots(
        math.ceil(len(names) / columns), columns, layout="constrained", squeeze=False,
        figsize=(8.5, 3 * math.ceil(len(names) / columns)),
    )  # fmt: skip
    colour, shown = colours(data), {}
    for axis, name in zip(axes.flat, names, strict=False):
        for row in (r for r in data["rows"] if _raced(r, name)):
            error = max(min(row["gradient_error"], 1e2), 1e-12)
            star = row["library"] == "legato"
            shown[row["library"]] = axis.scatter(
                row["both_s"], error, color=colour[row["library"]],
                marker="*" if star else "o", s=90 if star else 28, zorder=3 if star else 2,
            )  # fmt: skip
        axis.set(
            xscale="log", yscale="log", title=data["problems"][name]["title"],
            xlabel="seconds for a solution and its gradient", ylabel="error of the gradient",
        )  # fmt: skip
        axis.title.set_fontsize(11)
        axis.xaxis.set_minor_formatter(NullFormatter())  # panels of less than a decade would crowd
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=5)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _raced(row: Row, name: str) -> bool:
    return row["problem"] == name and "failed" not in row and "both_s" in row


SIZES = {"potts64": 3 * 64**2, "potts256": 3 * 256**2, "tv1d": 10_000, "tv2d": 256**2}


def plot_memory(data: dict[str, Any], path: Path) -> None:
    """Peak memory of each library's most accurate row against the number of unknowns."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    colour = colours(data)
    for library in colour:
        points = []
        for name, size in SIZES.items():
            rows = [r for r in data["rows"] if _raced(r, name) and r["library"] == library]
            if rows:
                best = min(rows, key=lambda r: r["gradient_error"])
                points.append((size, max(best["peak_MiB"], 1.0)))
        if points:
            style = {"color": colour[library], "marker": "*" if library == "legato" else "o"}
            axis.plot(*zip(*sorted(points), strict=True), label=library, **style)
    axis.set(
        xscale="log", yscale="log", xlabel="unknowns (total variation and Potts)",
        ylabel="peak MiB of the most accurate row",
    )  # fmt: skip
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "peers_cpu.json")
    parser.add_argument("--gpu", type=Path, default=RESULTS / "peers_h200.json")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    given = parser.parse_args()
    data = json.loads(given.results.read_text())
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "peers.md").write_text(markdown(data))
    plot_error_time(data, given.folder / "peers_error_time.png")
    plot_memory(data, given.folder / "peers_memory.png")
    raced = [data]
    if given.gpu.exists():
        raced.append(json.loads(given.gpu.read_text()))
        (given.folder / "peers_h200.md").write_text(gpu_markdown(raced[-1]))
    for found in raced:
        for name in found["problems"]:
            print(f"{name}: {summary(name, found)}")


if __name__ == "__main__":
    main()
