"""Bring a finished table home: numbers, pictures, this folder's page, the shipped filters.

    python experiments/denoise/finish.py FOLDER --data DIR

FOLDER is what ``run.py`` or ``legato denoise table`` wrote.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from ship import main as ship

from legato.cli.denoise.figures import draw_all
from legato.cli.denoise.table_text import comparisons_markdown, markdown, weights_markdown
from legato.studies.denoise.image_sets import read_sets
from legato.studies.denoise.settings import StudySettings
from legato.studies.denoise.table import ALL, TableSettings, part_folder
from legato.studies.denoise.training import Recipe
from legato.studies.run_folder import RunFolder

HERE = Path(__file__).parent


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between two comments exchanged."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def stored(folder: Path) -> TableSettings:
    """The settings that a folder says it was made with, as far as pictures need them."""
    found = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["settings"]
    level = found["level"]
    level["recipe"] = Recipe(**level["recipe"])
    return TableSettings(sigmas=tuple(found["sigmas"]), level=StudySettings(**level))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    folder = RunFolder(arguments.folder)
    results = json.loads((folder.path / "results.json").read_text(encoding="utf-8"))
    for path in draw_all(folder, stored(folder.path), read_sets(arguments.data)):
        (HERE / "figures").mkdir(exist_ok=True)
        shutil.copyfile(path, HERE / "figures" / path.name)
    shutil.copyfile(folder.path / "results.json", HERE / "results.json")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    page = replaced(page, "table", markdown(results["table"]))
    page = replaced(page, "weights", weights_markdown(results["one_weight"]))
    page = replaced(page, "comparisons", comparisons_markdown(results["comparisons"]))
    (HERE / "README.md").write_text(page, encoding="utf-8")
    ship(part_folder(folder.path, ALL))


if __name__ == "__main__":
    main()
