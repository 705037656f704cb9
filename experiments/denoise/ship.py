"""Make a training of ``all`` the filters that come with the package.

    python experiments/denoise/ship.py FOLDER/all

Copies filters.safetensors, and writes beside it how and where they were trained.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from legato.nn import AnalysisDenoiser
from legato.studies.denoise.shipped import PARAMETERS, STORY

KEPT = ("date", "commit", "uncommitted_changes", "device", "versions", "training", "recipe")


def main(folder: Path) -> None:
    AnalysisDenoiser.load(folder / "filters.safetensors")  # raises if it is none
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    story = {key: results[key] for key in KEPT}
    story["levels"] = results["levels"]
    story["data"] = "BSDS500, the 200 training images, grey"
    story["psnr"] = {
        sigma: {test: round(one["psnr"], 3) for test, one in tests.items()}
        for sigma, tests in results["scores"].items()
    }
    PARAMETERS.write_bytes((folder / "filters.safetensors").read_bytes())
    STORY.write_text(json.dumps(story, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
