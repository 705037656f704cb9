"""Numbers on the pages come from result files, read while the site is built.

``{results} NAME`` draws the table that NAME below makes of its files, with a line that says where,
when and on what they were measured; a file that is not there yet leaves a line that says so.
``{value}`FILE path/in/the/file FORMAT``` is one number in a sentence; FORMAT is Python's, or
``sci`` (7·10⁻¹¹) or ``percent`` (4 %).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).resolve().parents[2]


class Table(NamedTuple):
    """Head, rows (text; ``code`` in backquotes), which columns hold text, and the files behind."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    text_columns: tuple[int, ...]
    files: tuple[str, ...]


def load(name: str) -> dict[str, Any]:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


# --- how numbers are written ----------------------------------------------------------------------


def percent_range(cell: dict[str, float], sign: str = "") -> str:
    return f"{cell['mean']:{sign}.2f} ± {cell['std']:.2f}".replace("-", "−")


def scientific(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}·10{_raised(int(exponent))}"


def _raised(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


STYLES: dict[str, Callable[[float], str]] = {"sci": scientific, "percent": percent}


def mebibytes(count: float) -> str:
    value = count / 2**20
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


# --- tables ---------------------------------------------------------------------------------------

GRADIENTS = "benchmarks/results/gradients_cpu.json"


SAID = {
    "InexactGradientWarning": "inexact",
    "NotConvergedWarning": "not converged",
    "NonContractiveWarning": "not contractive",
}


def gradients(number: int) -> Table:
    case = load(GRADIENTS)["problems"][number]
    rows = [
        (
            f"`{row['gradient']}`",
            mebibytes(row["peak_bytes"]),
            f"{row['times_forward']:.1f}"
            if row["times_forward"] < 10
            else f"{row['times_forward']:.0f}",
            scientific(row["error"]),
            ", ".join(SAID[name] for name in row["warnings"]) or "–",
        )
        for row in case["rows"]
    ]
    head = ("gradient", "memory, MiB", "time, × forward", "relative error", "warned")
    return Table(head, rows, (0, 4), (GRADIENTS,))


def scaling(device: str) -> Table:
    name = f"benchmarks/results/scaling_{device}.json"
    rows = [
        (
            row["grows"],
            row["what"].replace('"', ""),
            "time" if row["measured"] == "seconds" else "memory",
            f"{row['sizes'][0]} … {row['sizes'][-1]}",
            f"{row['slope']:.2f}".replace("-", "−"),
            f"{row['expected']:g}",
        )
        for row in load(name)["curves"]
    ]
    head = ("grows", "what", "cost", "from … to", "slope", "expected")
    return Table(head, rows, (0, 1, 2, 3), (name,))


LOOP = "benchmarks/results/loop_cpu.json"


def loop() -> Table:
    rows = [
        (
            row["problem"],
            row["measured"],
            f"{row['hand_ms']:.1f}",
            f"{row['solve_ms']:.1f}",
            f"{row['ratio_of_medians']:.2f}",
        )
        for row in load(LOOP)["rows"]
    ]
    head = ("problem", "measured", "by hand, ms", "`solve`, ms", "ratio")
    return Table(head, rows, (0, 1), (LOOP,))


POTTS_GPU = "benchmarks/results/potts_h200.json"
POTTS_CPU = "benchmarks/results/potts_cpu.json"
TV_CPU = "benchmarks/results/tv_cpu.json"
BOTH = ("forward", "forward and reverse")


def potts_gpu() -> Table:
    found = load(POTTS_GPU)
    rows = []
    for problem, times in found["problems"].items():
        others = found["rivals"]["problems"].get(problem, {})

        def both(who: str, others: dict[str, Any] = others) -> str:
            return milliseconds(others[who]["both_ms"]) if who in others else "–"

        rows.append(
            (
                problem.replace("x", " × "),
                milliseconds(times["floor"]["both_ms"]),
                milliseconds(times["ours"]["both_ms"]),
                milliseconds(times["ours, the module"]["both_ms"]),
                both("jax"),
                both("compile"),
                both("eager"),
            )
        )
    head = ("costs", "floor", "kernels", "`Potts`", "jax", "torch.compile", "eager")
    return Table(head, rows, (0,), (POTTS_GPU,))


def potts_cpu() -> Table:
    problem = load(POTTS_CPU)["problems"][0]
    rows = [("floor", *(milliseconds(problem["floors"][k]) for k in ("forward_ms", "both_ms")), "")]
    rows += [
        (
            name,
            milliseconds(times["forward_ms"]),
            milliseconds(times["both_ms"]),
            f"{times['peak_MiB']:.0f}" if "peak_MiB" in times else "–",
        )
        for name, times in problem["times"].items()
    ]
    head = ("240 × 320, 3 labels, 100 iterations", "forward, ms", "and reverse, ms", "peak, MiB")
    return Table(head, rows, (0,), (POTTS_CPU,))


def tv() -> Table:
    found = load(TV_CPU)
    floor = found["floor_ms"]["forward, one pass over memory an iteration"]
    rows: list[tuple[str, ...]] = [("both", "floor", milliseconds(floor), "–")]
    rows += [
        (kind, who, *(milliseconds(found[kind][what][who]["ms"]) for what in BOTH))
        for kind in ("anisotropic", "isotropic")
        for who in found[kind]["forward"]
    ]
    size = found["size"]
    head = (f"{size} × {size}", "who", "forward, ms", "and reverse, ms")
    return Table(head, rows, (0, 1), (TV_CPU,))


TV_GPU = "benchmarks/results/tv_h200.json"


def tv_gpu() -> Table:
    rows = []
    for problem, found in load(TV_GPU).items():
        if not isinstance(found, dict) or "floor_ms" not in found:
            continue
        shape, kind = problem.split(", ")
        floors = (milliseconds(found["floor_ms"][what]) for what in BOTH)
        rows.append((shape.replace("x", " × "), kind, "floor", *floors))
        rows += [
            (
                shape.replace("x", " × "),
                kind,
                who,
                *(milliseconds(found[what][who]["ms"]) for what in BOTH),
            )
            for who in found["forward"]
        ]
    head = ("images", "norm", "who", "forward, ms", "and reverse, ms")
    return Table(head, rows, (0, 1, 2), (TV_GPU,))


SEGMENT = "experiments/segment/table/results.json"


def segment() -> Table:
    rows = [
        (
            f"`{name}`",
            row["what"],
            percent_range(row["test"]["accuracy"]),
            percent_range(row["test"]["iou"]),
            percent_range(row["gain"]["iou"], "+"),
        )
        for name, row in load(SEGMENT)["rows"].items()
        if "test" in row
    ]
    head = ("row", "what", "test accuracy, %", "test IoU, %", "gain in IoU")
    return Table(head, rows, (0, 1), (SEGMENT,))


ITERATIONS = "experiments/segment/iterations/results.json"


def iterations() -> Table:
    points = load(ITERATIONS)["points"]
    rows = []
    for count in sorted({p["iterations"] for p in points}):
        cells = [str(count)]
        for average in (False, True):
            some = [p for p in points if (p["average"], p["iterations"]) == (average, count)]
            loss, accuracy = (fmean(p[key] for p in some) for key in ("loss", "accuracy"))
            cells += [f"{loss:.4f}", f"{accuracy:.2f}"]
        rows.append(tuple(cells))
    head = ("inner iterations", "last: loss", "accuracy, %", "average: loss", "accuracy, %")
    return Table(head, rows, (), (ITERATIONS,))


TOY = "experiments/toy/results.json"


def toy() -> Table:
    sets = load(TOY)["sets"]
    first, second = (sets[name]["comparison"] for name in ("A", "B"))

    def number(value: float) -> str:
        text = f"{value:.8g}" if abs(value) >= 0.1 or value == 0 else scientific(value)
        return text.replace("-", "−")

    rows = [
        (row["what"].replace("|", "∣"), number(row["value"]), number(second[key]["value"]))
        for key, row in first.items()
    ]
    return Table(("at θ = 0.3 unless said otherwise", "set A", "set B"), rows, (0,), (TOY,))


COMING_FROM = "benchmarks/results/coming_from_cpu.json"


def coming_from() -> Table:
    rows = [
        (
            section,
            f"{row['library']} {row['version']}",
            scientific(row["solution_difference"]),
            scientific(row["gradient_difference"]),
        )
        for section, row in load(COMING_FROM)["sections"].items()
    ]
    head = ("beside", "version", "solutions", "gradients")
    return Table(head, rows, (0, 1), (COMING_FROM,))


TABLES: dict[str, Callable[[], Table]] = {
    "gradients-lasso": lambda: gradients(0),
    "gradients-simplex": lambda: gradients(1),
    "gradients-tv": lambda: gradients(2),
    "scaling-cpu": lambda: scaling("cpu"),
    "scaling-h200": lambda: scaling("h200"),
    "loop": loop,
    "potts-gpu": potts_gpu,
    "potts-cpu": potts_cpu,
    "tv": tv,
    "tv-gpu": tv_gpu,
    "segment": segment,
    "iterations": iterations,
    "toy": toy,
    "coming-from": coming_from,
}


# --- Sphinx ---------------------------------------------------------------------------------------


def _inline(text: str) -> list[nodes.Node]:
    pieces = text.split("`")
    return [
        nodes.literal(text=piece) if i % 2 else nodes.Text(piece)
        for i, piece in enumerate(pieces)
        if piece
    ]


def _table(table: Table) -> nodes.table:
    node = nodes.table(classes=["results"])
    group = nodes.tgroup(cols=len(table.head))
    node += group
    group += [nodes.colspec(colwidth=1) for _ in table.head]

    def line(cells: Iterable[str]) -> nodes.row:
        row = nodes.row()
        for i, cell in enumerate(cells):
            entry = nodes.entry(classes=[] if i in table.text_columns else ["num"])
            paragraph = nodes.paragraph()
            paragraph += _inline(cell)
            entry += paragraph
            row += entry
        return row

    head, body = nodes.thead(), nodes.tbody()
    head += line(table.head)
    body += [line(row) for row in table.rows]
    group += [head, body]
    return node


def _source(name: str) -> nodes.paragraph:
    found = load(name)
    node = nodes.paragraph(classes=["source"])
    node += nodes.Text("From ")
    node += nodes.literal(text=name)
    versions = found.get("versions", {})
    details = [found.get("date", "")[:10], found.get("device", "")]
    details += [f"torch {versions['torch']}"] if "torch" in versions else []
    threads = found.get("threads")
    if threads and "H200" not in str(found.get("device")):
        details.append("1 thread" if threads == 1 else f"{threads} threads")
    node += nodes.Text(": " + ", ".join(d for d in details if d) + ".")
    return node


class Results(Directive):
    """A table made from result files."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in TABLES:
            raise self.error(f"No table {name!r}; there are {', '.join(TABLES)}.")
        try:
            table = TABLES[name]()
        except FileNotFoundError as missing:
            return [_not_yet(Path(str(missing.filename)))]
        env = self.state.document.settings.env
        for file in table.files:
            env.note_dependency(str(ROOT / file))
        return [_table(table), *(_source(file) for file in table.files)]


class Picture(Directive):
    """A picture that a benchmark writes, or a line that says that it has not been written yet."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = ROOT / self.arguments[0]
        if not path.exists():
            return [_not_yet(path)]
        env = self.state.document.settings.env
        depth = len(Path(env.docname).parts)
        alt = " ".join(self.content) or path.stem
        return [nodes.image(uri="/".join([".."] * depth + [self.arguments[0]]), alt=alt)]


def include_race(app: Any, docname: str, source: list[str]) -> None:
    """The page that the race's report wrote, with its plots, in place of its mark on ours."""
    mark = "<!-- the report of the race -->"
    if mark not in source[0]:
        return
    folder = ROOT / "benchmarks" / "results"
    page = folder / "peers.md"
    text = f"Not measured yet: `{page.relative_to(ROOT)}`."
    if page.exists():
        app.env.note_dependency(str(page))
        plots = [
            f"![The race: {plot.stem}](../benchmarks/results/{plot.name})"
            for plot in sorted(folder.glob("peers_*.png"))
        ]
        report = page.read_text(encoding="utf-8").removeprefix("# The race\n")
        text = "\n\n".join([*plots, report])
    source[0] = source[0].replace(mark, text)


def _not_yet(path: Path) -> nodes.paragraph:
    node = nodes.paragraph(classes=["source"])
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    node += [nodes.Text("Not measured yet: "), nodes.literal(text=str(where)), nodes.Text(".")]
    return node


def _value(role: str, raw: str, text: str, line: int, inliner: Any, *_: Any, **__: Any) -> Any:
    file, place, style = text.split()
    found: Any = load(file)
    for part in place.split("/"):
        found = found[int(part)] if isinstance(found, list) else found[part.replace("·", " ")]
    inliner.document.settings.env.note_dependency(str(ROOT / file))
    written = STYLES[style](found) if style in STYLES else format(found, style)
    return [nodes.Text(written.replace("-", "−"))], []


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("results", Results)
    app.add_directive("picture", Picture)
    app.connect("source-read", include_race)
    app.add_role("value", _value)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
