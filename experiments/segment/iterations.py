"""Put the figure of inner iterations together from what the GPU had time for, and draw it.

    python experiments/segment/iterations.py ROWS LOG

``legato segment iterations`` computes all of it in one go. The committed results come from two
runs: ROWS is a folder with one file a row (``train_row``: one training for each of ten seeds), of a
run in which rows shared the GPU; LOG is what a run printed that had the GPU for itself and was cut
short: means over the ten seeds, and the time of an outer iteration. iterations/search.json is its
search.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from legato.studies.segment.figures import draw_iterations
from legato.studies.segment.iterations import slope

FOLDER = Path(__file__).parent / "iterations"
KEPT = ("date", "commit", "uncommitted_changes", "device", "cores", "versions")
LINE = re.compile(
    r"^ *(\d+) iterations, (last|average) +loss ([\d.]+) +accuracy ([\d.]+) +([\d.]+) ms$"
)


def logged(text: str) -> list[dict[str, Any]]:
    """The rows of a log, with their means."""
    found = (LINE.match(line) for line in text.splitlines())
    return [
        {
            "iterations": int(m[1]), "average": m[2] == "average", "loss": float(m[3]),
            "accuracy": float(m[4]), "milliseconds": float(m[5]),
        }
        for m in found if m
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("log", type=Path)
    chosen = parser.parse_args()
    rows = [json.loads(file.read_text("utf-8")) for file in sorted(chosen.rows.glob("row-*.json"))]
    lines = logged(chosen.log.read_text(encoding="utf-8"))
    points = [point for row in rows for point in row["points"]]
    points.sort(key=lambda p: (p["average"], p["iterations"], p["seed"]))
    results = {key: rows[0][key] for key in KEPT} | {
        "settings": rows[0]["settings"],
        "images": rows[0]["images"],
        "points": points,
        "cut_short": lines,
        "times": [
            {key: m[key] for key in ("iterations", "average", "milliseconds")} for m in lines
        ],
        "slopes": {"last": slope([m for m in lines if not m["average"]])},
        "search": json.loads((FOLDER / "search.json").read_text(encoding="utf-8")),
    }
    text = json.dumps(results, indent=1) + "\n"
    (FOLDER / "results.json").write_text(text, encoding="utf-8")
    draw_iterations(FOLDER / "iterations.png", results)


if __name__ == "__main__":
    main()
