"""Numbers on the pages come from result files, read while the site is built.

``{results} NAME`` draws the table NAME of result_tables.py, with a line that says where, when and
on what it was measured; a file that is not there yet leaves a line that says so. ``{picture} FILE``
is a picture that a benchmark wrote. ``{value}`FILE path/in/the/file FORMAT``` is one number in a
sentence; FORMAT is Python's, or ``sci`` (7·10⁻¹¹) or ``percent`` (4 %).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from result_tables import ROOT, TABLES, Table, load, percent, scientific

STYLES: dict[str, Callable[[float], str]] = {"sci": scientific, "percent": percent}


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
            entry = nodes.entry(classes=[] if i in table.text else ["num"])
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
        env.note_dependency(str(ROOT / table.file))
        return [_table(table), _source(table.file)]


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


# What stands on the page of the race, the report it stands for, and the plots before it.
RACES = {
    "<!-- the report of the race -->": ("peers.md", "peers_*.png"),
    "<!-- the report of the race on a GPU -->": ("peers_h200.md", None),
}


def include_race(app: Any, docname: str, source: list[str]) -> None:
    """The pages that the race's report wrote, with their plots, in place of their marks on ours."""
    for mark, (name, pictures) in RACES.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, _race(app, name, pictures))


def _race(app: Any, name: str, pictures: str | None) -> str:
    folder = ROOT / "benchmarks" / "results"
    page = folder / name
    if not page.exists():
        return f"Not measured yet: `{page.relative_to(ROOT)}`."
    app.env.note_dependency(str(page))
    plots = [
        f"![The race: {plot.stem}](../benchmarks/results/{plot.name})"
        for plot in (sorted(folder.glob(pictures)) if pictures else ())
    ]
    _, _, report = page.read_text(encoding="utf-8").partition("\n")  # the page has its own title
    return "\n\n".join([*plots, report])


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
