"""The parameters that come with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from legato.nn import AnalysisDenoiser

_FOLDER = Path(__file__).parent / "parameters"
PARAMETERS = _FOLDER / "filters.safetensors"
STORY = _FOLDER / "filters.json"


def shipped_denoiser() -> AnalysisDenoiser:
    """Filters for grey images in [0, 1], told σ or estimating it, from the project's training."""
    return AnalysisDenoiser.load(PARAMETERS)


def shipped_story() -> dict[str, Any]:
    """How those filters were trained."""
    return dict(json.loads(STORY.read_text(encoding="utf-8")))
