"""Draw the figure of inner iterations from the two result files.

    python experiments/segment/iterations.py

iterations/results.json are trainings that shared a GPU; iterations/time_cpu.json is a short run by
itself (``legato segment iterations --steps 9 --device cpu``), for the times alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from legato.studies.segment.figures import draw_iterations

FOLDER = Path(__file__).parent / "iterations"


def read(name: str) -> dict:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    draw_iterations(FOLDER / "iterations.png", read("results.json"), read("time_cpu.json"))
