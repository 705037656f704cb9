"""Bring a finished table home: numbers, pictures, this folder's page, the shipped models.

    python experiments/denoise/publish.py FOLDER

FOLDER is what ``legato denoise table`` wrote.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from legato.nn import AnalysisDenoiser
from legato.studies.denoise.clean import FILTERS_FILE, MAPS_FILE, story_of
from legato.studies.denoise.levels import FILTERS, MAPPED_FILTERS
from legato.studies.denoise.models import MappedAnalysis
from legato.studies.denoise.report import comparisons_markdown, table_markdown, weights_markdown
from legato.studies.denoise.settings import ALL
from legato.studies.denoise.table import gains, model_file, part_folder

HERE = Path(__file__).parent
KEPT = ("date", "commit", "uncommitted_changes", "device", "versions")
ROW = ("training", "recipe", "parameters")


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between two comments exchanged."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The parts that were computed now, and from before those that were not."""
    results = before | {key: found[key] for key in KEPT}
    for section in ("one_weight", "training", "origin"):
        results[section] = before[section] | found[section]
    results["table"] = {
        part: before["table"].get(part, {}) | found["table"].get(part, {})
        for part in before["table"] | found["table"]
    }
    results["gain"] = gains(results["table"])
    results["comparisons"] = found["comparisons"] or before["comparisons"]
    return results


def publish_table(folder: Path) -> None:
    """Take numbers and pictures of the parts that are there, and write the tables of the page."""
    if (folder / "figures").is_dir():
        shutil.copytree(folder / "figures", HERE / "figures", dirs_exist_ok=True)
    before, found = (
        json.loads((place / "results.json").read_text(encoding="utf-8")) for place in (HERE, folder)
    )
    results = merged(before, found)
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results.json").write_text(text, encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    page = replaced(page, "table", table_markdown(results["table"]))
    page = replaced(page, "weights", weights_markdown(results["one_weight"]))
    page = replaced(page, "comparisons", comparisons_markdown(results["comparisons"]))
    (HERE / "README.md").write_text(page, encoding="utf-8")


def publish_models(folder: Path) -> None:
    """Ship what was trained for every level, with how and where."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for name, load, shipped in (
        (FILTERS, AnalysisDenoiser.load, FILTERS_FILE),
        (MAPPED_FILTERS, MappedAnalysis.load, MAPS_FILE),
    ):
        row, path = results["rows"][name], model_file(folder, name)
        load(path)  # raises if it is none
        story = {key: results[key] for key in KEPT} | {key: row[key] for key in ROW}
        story["levels"] = results["levels"]
        story["data"] = "BSDS500, the 200 training images, grey"
        story["psnr"] = {
            sigma: {test: round(one["psnr"], 3) for test, one in tests.items()}
            for sigma, tests in row["scores"].items()
        }
        shutil.copyfile(path, shipped)
        text = json.dumps(story, indent=1, ensure_ascii=False) + "\n"
        story_of(shipped).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    publish_table(Path(sys.argv[1]))
    publish_models(part_folder(Path(sys.argv[1]), ALL))
