"""Bring a finished table home: numbers, pictures, this folder's page, the shipped filters.

    python experiments/denoise/publish.py FOLDER

FOLDER is what ``legato denoise table`` wrote.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from legato.nn import AnalysisDenoiser
from legato.studies.denoise.clean import PARAMETERS, STORY
from legato.studies.denoise.report import comparisons_markdown, table_markdown, weights_markdown
from legato.studies.denoise.settings import ALL
from legato.studies.denoise.table import part_folder

HERE = Path(__file__).parent
KEPT = ("date", "commit", "uncommitted_changes", "device", "versions", "training", "recipe")


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between two comments exchanged."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def publish_table(folder: Path) -> None:
    """Copy numbers and pictures, and write the tables of the page."""
    shutil.copyfile(folder / "results.json", HERE / "results.json")
    shutil.copytree(folder / "figures", HERE / "figures", dirs_exist_ok=True)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    page = (HERE / "README.md").read_text(encoding="utf-8")
    page = replaced(page, "table", table_markdown(results["table"]))
    page = replaced(page, "weights", weights_markdown(results["one_weight"]))
    page = replaced(page, "comparisons", comparisons_markdown(results["comparisons"]))
    (HERE / "README.md").write_text(page, encoding="utf-8")


def publish_filters(folder: Path) -> None:
    """Ship the filters for every level, with how and where they were trained."""
    AnalysisDenoiser.load(folder / "filters.safetensors")  # raises if it is none
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    story = {key: results[key] for key in KEPT}
    story["levels"] = results["levels"]
    story["data"] = "BSDS500, the 200 training images, grey"
    story["psnr"] = {
        sigma: {test: round(one["psnr"], 3) for test, one in tests.items()}
        for sigma, tests in results["scores"].items()
    }
    shutil.copyfile(folder / "filters.safetensors", PARAMETERS)
    STORY.write_text(json.dumps(story, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    publish_table(Path(sys.argv[1]))
    publish_filters(part_folder(Path(sys.argv[1]), ALL))
