"""Bring what side_by_side.py and peers.py computed home: numbers, pictures, this page's tables.

    python experiments/segment/publish.py FOLDER --commit COMMIT [--into table]
    python experiments/segment/publish.py FOLDER --into peers

FOLDER is what they wrote. The machine with the GPU had a copy of the source without its latest
history: COMMIT is what was sent there. ``--into variants`` is for a run of further rows, and
``--into peers-regions`` for the eight classes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from legato.studies.segment.figures import (
    definitions_markdown,
    draw_iterations,
    draw_table,
    iterations_markdown,
    markdown,
)
from legato.studies.segment.iterations import IterationSettings, slope
from legato.studies.segment.table import TableSettings, collect

HERE = Path(__file__).parent
TOLD = ("date", "device", "cores", "threads", "versions")


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between two comments exchanged."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def provenance(settings: dict[str, Any], commit: str) -> dict[str, Any]:
    told = {key: settings[key] for key in TOLD}
    return told | {"commit": commit, "uncommitted_changes": None}


def cut_short(folder: Path) -> list[str]:
    """Rows that the limit of time ended after they were scored: only their counts are known."""
    names = set()
    for counts in folder.glob("seed-*/*.npz"):
        row = counts.with_suffix(".json")
        if not row.exists():
            row.write_text(json.dumps({"cut_short": True}) + "\n")
        if "cut_short" in json.loads(row.read_text()):
            names.add(counts.stem)
    return sorted(names)


def rows_of_before(path: Path, new: set[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Rows that this run has not made again, with what made them; gains are over their control."""
    before = json.loads(path.read_text(encoding="utf-8"))
    source = {key: before[key] for key in ("date", "commit", "device")}
    sources = before.get("earlier_rows", {})
    rows = before["rows"].items()
    return {name: (sources.get(name, source), row) for name, row in rows if name not in new}


def publish_table(folder: Path, commit: str, into: str) -> dict[str, str]:
    """Numbers into results.json; tables for the page, by name."""
    told = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    asked = told["settings"]["table"]
    asked["variants"] = tuple(asked["variants"])
    settings = TableSettings(seeds=tuple(asked["seeds"]), variants=asked["variants"])
    short = cut_short(folder)
    rows = collect(folder, settings)
    found = provenance(told, commit) | {"settings": asked, "cut_short": short}
    if into == "variants":
        kept = rows_of_before(HERE / into / "results.json", set(rows))
        found["earlier_rows"] = {name: source for name, (source, _) in kept.items()}
        rows |= {name: row for name, (_, row) in kept.items()}
    write(HERE / into / "results.json", found | {"rows": rows})
    tables = {into: markdown(rows).split("\n\n")[0] + "\n"}
    if into == "table":
        draw_table(HERE / into / "table.png", rows)
        tables["definitions"] = definitions_markdown(rows)
    return tables


def publish_iterations(folder: Path, commit: str) -> str:
    told = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    settings = IterationSettings(**told["settings"])
    points, times = [], []
    for average in settings.averages:
        for count in settings.counts:
            name = f"{'average' if average else 'last'}-{count}.json"
            points += json.loads((folder / "rows" / name).read_text(encoding="utf-8"))
            took = json.loads((folder / "rows" / f"time-{name}").read_text(encoding="utf-8"))
            times.append({"iterations": count, "average": average, "milliseconds": took})
    search = json.loads((HERE / "iterations" / "search.json").read_text(encoding="utf-8"))
    found = provenance(told, commit) | {
        "settings": told["settings"],
        "points": points,
        "times": times,
        "slopes": {
            name: slope([t for t in times if t["average"] == average])
            for average, name in ((False, "last"), (True, "average"))
        },
        "search": search,
    }
    write(HERE / "iterations" / "results.json", found)
    draw_iterations(HERE / "iterations" / "iterations.png", found)
    return iterations_markdown(found)


PEERS = {
    "softmax": "nothing (softmax)",
    "blurred softmax": "Gaussian blur of the softmax",
    "dense CRF": "fully connected CRF, mean field",
    "Potts, contrast weights": "`Potts`, contrast weights, 100 iterations",
    "Potts, far neighbours": "`Potts`, similarity weights, far neighbours, 100 iterations",
}
"""What the page calls the rows of peers.py."""


def peers_markdown(found: dict[str, Any]) -> str:
    """The rows of peers.py: scores, milliseconds by the clock and of the processor."""
    lines = [
        "| after the network | accuracy | mean IoU | ms, clock | ms, processor |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, what in PEERS.items():
        if (row := found["rows"].get(name)) is not None:
            scores = f"{row['accuracy']:.2f} | {row['iou']:.2f}"
            times = [f"{row['times'][kind + '_least']:.1f}" for kind in ("wall", "processor")]
            lines.append(f"| {what} | {scores} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def publish_peers(folder: Path, into: str) -> str:
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    name = "results" if into == "peers" else into.removeprefix("peers-")
    write(HERE / "peers" / f"{name}.json", found)
    return peers_markdown(found)


def write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", help="of what side_by_side.py ran")
    choices = ("table", "variants", "peers", "peers-regions")
    parser.add_argument("--into", choices=choices, default="table")
    options = parser.parse_args()
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    if options.into.startswith("peers"):
        text = publish_peers(options.folder, options.into)
        path.write_text(replaced(page, options.into, text), encoding="utf-8")
        return
    if options.commit is None:
        parser.error("--commit is needed: what side_by_side.py ran")
    tables = publish_table(options.folder / "surfaces", options.commit, options.into)
    for name, text in tables.items():
        page = replaced(page, name, text)
    if (options.folder / "iterations").exists():
        text = publish_iterations(options.folder / "iterations", options.commit)
        page = replaced(page, "iterations", text)
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
