"""Bring results home: the numbers, and the table on this folder's page.

    python experiments/reconstruct/publish.py results.json [more.json …]

Rows of later files replace those of earlier ones; each keeps its own date, commit and settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from legato.studies.reconstruct.rows import ROWS

HERE = Path(__file__).parent
SETS = ("BSD68", "Set12")


def table_markdown(results: dict[str, Any]) -> str:
    """Mean PSNR ± its deviation over the seeds of the noise, and the gain over TV with one λ."""
    tasks = list(results["tasks"])
    head = ["", *(f"{task}, {name}" for task in tasks for name in SETS)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in ROWS:
        cells = [row]
        for task in tasks:
            for name in SETS:
                found = results["tasks"][task].get(row)
                if found is None:
                    cells.append("–")
                    continue
                score = found["scores"][name]
                plain = results["tasks"][task]["TV, one λ"]["scores"][name]["psnr"]
                gain = f" ({score['psnr'] - plain:+.2f})" if row in ROWS[3:] else ""
                cells.append(f"{score['psnr']:.2f} ± {score['std']:.2f}{gain}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def weights_markdown(results: dict[str, Any]) -> str:
    """λ of total variation, searched and learned; steps of the other rows."""
    lines = ["| | λ, grid | λ, bilevel | steps: TV, λ(y) | filters | filters, λ(y) |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for task, rows in results["tasks"].items():
        weights = [f"{rows[row]['weight']:.5f}" for row in ROWS[1:3]]
        steps = [str(rows[row]["training"]["steps"]) if row in rows else "–" for row in ROWS[3:]]
        lines.append("| " + " | ".join([task, *weights, *steps]) + " |")
    return "\n".join(lines) + "\n"


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between two comments exchanged."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def main(paths: list[Path]) -> None:
    whole: dict[str, Any] = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        found.pop("ridges", None)
        origin = {key: found[key] for key in ("date", "commit", "device") if key in found}
        tasks = whole.get("tasks", {})
        for task, rows in found["tasks"].items():
            for row, content in rows.items():
                if "scores" in content:  # not a weight that was only brought along
                    own = {"origin": origin, "settings": found.get("settings")}
                    tasks.setdefault(task, {})[row] = own | content
        whole = whole | found | {"tasks": tasks}
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results.json").write_text(text, encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    page = replaced(page, "table", table_markdown(whole))
    page = replaced(page, "weights", weights_markdown(whole))
    (HERE / "README.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
