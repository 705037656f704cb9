"""The tables of the pages, each made of one result file.

``@table(NAME, FILE, text=COLUMNS)`` registers a function that makes head and rows of the file's
contents; the columns that hold text are aligned to the left, those of numbers to the right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = "benchmarks/results"
BOTH = ("forward", "forward and reverse")

Results = dict[str, Any]
Row = tuple[str, ...]  # `code` stands in backquotes
Maker = Callable[[Results], tuple[Row, list[Row]]]


class Table(NamedTuple):
    """Head and rows of text, which columns are text, and the file behind."""

    head: Row
    rows: list[Row]
    text: tuple[int, ...]
    file: str


TABLES: dict[str, Callable[[], Table]] = {}


def load(file: str) -> Results:
    return json.loads((ROOT / file).read_text(encoding="utf-8"))


def table(name: str, file: str, text: tuple[int, ...]) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        TABLES[name] = lambda: Table(*make(load(file)), text, file)
        return make

    return register


# --- how numbers are written ----------------------------------------------------------------------


def scientific(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.0e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{raised}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def mean_and_spread(cell: dict[str, float], sign: str = "") -> str:
    return f"{cell['mean']:{sign}.2f} ± {cell['std']:.2f}".replace("-", "−")


def two_digits(value: float) -> str:
    """At least two digits, none behind the point from ten on."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def shape(written: str) -> str:
    return written.replace("x", " × ")


# --- benchmarks -----------------------------------------------------------------------------------

SAID = {
    "InexactGradientWarning": "inexact",
    "NotConvergedWarning": "not converged",
    "NonContractiveWarning": "not contractive",
}


def gradients(number: int, found: Results) -> tuple[Row, list[Row]]:
    rows = [
        (
            f"`{row['gradient']}`",
            two_digits(row["peak_bytes"] / 2**20),
            f"{row['times_forward']:.{0 if row['times_forward'] >= 10 else 1}f}",
            scientific(row["error"]),
            ", ".join(SAID[name] for name in row["warnings"]) or "–",
        )
        for row in found["problems"][number]["rows"]
    ]
    return ("gradient", "memory, MiB", "time, × forward", "relative error", "warned"), rows


GRADIENTS = f"{BENCHMARKS}/gradients_cpu.json"
for _number, _problem in enumerate(("lasso", "simplex", "tv")):
    table(f"gradients-{_problem}", GRADIENTS, (0, 4))(partial(gradients, _number))


@table("scaling-h200", f"{BENCHMARKS}/scaling_h200.json", (0, 1, 2, 3))
@table("scaling-cpu", f"{BENCHMARKS}/scaling_cpu.json", (0, 1, 2, 3))
def scaling(found: Results) -> tuple[Row, list[Row]]:
    rows = [
        (
            row["grows"],
            row["what"].replace('"', ""),
            "time" if row["measured"] == "seconds" else "memory",
            f"{row['sizes'][0]} … {row['sizes'][-1]}",
            f"{row['slope']:.2f}".replace("-", "−"),
            f"{row['expected']:g}",
        )
        for row in found["curves"]
    ]
    return ("grows", "what", "cost", "from … to", "slope", "expected"), rows


@table("loop", f"{BENCHMARKS}/loop_cpu.json", (0, 1))
def loop(found: Results) -> tuple[Row, list[Row]]:
    rows = [
        (
            row["problem"],
            row["measured"],
            f"{row['hand_ms']:.1f}",
            f"{row['solve_ms']:.1f}",
            f"{row['ratio_of_medians']:.2f}",
        )
        for row in found["rows"]
    ]
    return ("problem", "measured", "by hand, ms", "`solve`, ms", "ratio"), rows


@table("potts-gpu", f"{BENCHMARKS}/potts_h200.json", (0,))
def potts_gpu(found: Results) -> tuple[Row, list[Row]]:
    rows = []
    for problem, times in found["problems"].items():
        everybody = found["rivals"]["problems"].get(problem, {}) | times
        who = ("floor", "ours", "ours, the module", "jax", "compile", "eager")
        cells = (two_digits(everybody[w]["both_ms"]) if w in everybody else "–" for w in who)
        rows.append((shape(problem), *cells))
    return ("costs", "floor", "kernels", "`Potts`", "jax", "torch.compile", "eager"), rows


@table("potts-cpu", f"{BENCHMARKS}/potts_cpu.json", (0,))
def potts_cpu(found: Results) -> tuple[Row, list[Row]]:
    rows = [
        (
            name,
            two_digits(times["forward_ms"]),
            two_digits(times["both_ms"]),
            f"{times['peak_MiB']:.0f}" if "peak_MiB" in times else "–",
        )
        for name, times in found["problems"]["1x3x240x320"].items()
    ]
    head = ("240 × 320, 3 labels, 100 iterations", "forward, ms", "and reverse, ms", "peak, MiB")
    return head, rows


@table("tv", f"{BENCHMARKS}/tv_cpu.json", (0, 1))
def tv(found: Results) -> tuple[Row, list[Row]]:
    floor = found["floor_ms"]["forward, one pass over memory an iteration"]
    rows: list[Row] = [("both", "floor", two_digits(floor), "–")]
    rows += [
        (kind, who, *(two_digits(found[kind][what][who]["ms"]) for what in BOTH))
        for kind in ("anisotropic", "isotropic")
        for who in found[kind]["forward"]
    ]
    return (f"{found['size']} × {found['size']}", "who", "forward, ms", "and reverse, ms"), rows


@table("tv-gpu", f"{BENCHMARKS}/tv_h200.json", (0, 1, 2))
def tv_gpu(found: Results) -> tuple[Row, list[Row]]:
    rows: list[Row] = []
    for problem, times in found.items():
        if not isinstance(times, dict) or "floor_ms" not in times:
            continue
        size, norm = problem.split(", ")
        floors = (two_digits(times["floor_ms"][what]) for what in BOTH)
        rows.append((shape(size), norm, "floor", *floors))
        rows += [
            (shape(size), norm, who, *(two_digits(times[what][who]["ms"]) for what in BOTH))
            for who in times["forward"]
        ]
    return ("images", "norm", "who", "forward, ms", "and reverse, ms"), rows


@table("coming-from", f"{BENCHMARKS}/coming_from_cpu.json", (0, 1))
def coming_from(found: Results) -> tuple[Row, list[Row]]:
    rows = [
        (
            section,
            f"{row['library']} {row['version']}",
            scientific(row["solution_difference"]),
            scientific(row["gradient_difference"]),
        )
        for section, row in found["sections"].items()
    ]
    return ("beside", "version", "solutions", "gradients"), rows


@table("referee", f"{BENCHMARKS}/referee_cpu.json", (0, 1, 2, 3))
def referee(found: Results) -> tuple[Row, list[Row]]:
    rows = []
    for row in found["rows"].values():
        told = [v for v in row.get("verdicts", []) if v["state"] == "wrong"]
        words = "; ".join(f"{v['law']}: {v['words']}" for v in told) or row.get("words", "–")
        version = f"{row['library']} {row.get('version', '')}".strip()
        rows.append((version, row["layer"], row["state"], words.replace("`", "")))
    return ("library", "layer", "verdict", "what is wrong, in the referee's words"), rows


# --- studies --------------------------------------------------------------------------------------


@table("segment", "experiments/segment/table/results.json", (0, 1))
def segment(found: Results) -> tuple[Row, list[Row]]:
    rows: list[Row] = [
        ("the paper", "FCN", "92.40", "82.65", "97.54", "92.21", "–"),
        ("the paper", "FCN + global model", "93.00", "84.01", "97.90", "93.53", "+1.36"),
    ]
    for name, row in found["rows"].items():
        if "test" in row:
            scores = (
                mean_and_spread(row[part][key]) if part in row else "–"
                for part in ("test", "train")
                for key in ("accuracy", "iou")
            )
            rows.append(
                (f"`{name}`", row["what"], *scores, mean_and_spread(row["gain"]["iou"], "+"))
            )
    heads = ("test accuracy, %", "test IoU, %", "train accuracy, %", "train IoU, %", "gain in IoU")
    return ("row", "what", *heads), rows


@table("iterations", "experiments/segment/iterations/results.json", ())
def iterations(found: Results) -> tuple[Row, list[Row]]:
    from legato.studies.segment.figures import iterations_table

    return iterations_table(found)


@table("toy", "experiments/toy/results.json", (0,))
def toy(found: Results) -> tuple[Row, list[Row]]:
    first, second = (found["sets"][name]["comparison"] for name in ("A", "B"))

    def number(value: float) -> str:
        text = f"{value:.8g}" if abs(value) >= 0.1 or value == 0 else scientific(value)
        return text.replace("-", "−")

    rows = [
        (row["what"].replace("|", "∣"), number(row["value"]), number(second[key]["value"]))
        for key, row in first.items()
    ]
    return ("at θ = 0.3 unless said otherwise", "set A", "set B"), rows


@table("toy-coupled", "experiments/toy/results.json", (0,))
def toy_coupled(found: Results) -> tuple[Row, list[Row]]:
    errors = {(row["method"], row["problem"]): row["error"] for row in found["coupled"]}
    problems = list(dict.fromkeys(problem for _, problem in errors))
    rows = [
        (f"`{method}`" if "(" in method else method,
         *(scientific(errors[method, problem]) for problem in problems))
        for method in dict.fromkeys(method for method, _ in errors)
    ]  # fmt: skip
    return ("gradient", *problems), rows
