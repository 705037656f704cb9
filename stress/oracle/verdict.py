"""What is said about a recipe in the end, and the sizes that decide it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FAR = 0.02
"""A relative error of a gradient, or of a solution, that its user has to be told about."""

RIGHT = 1e-3
"""A relative error below which a warning was not needed."""

WELL_POSED = 300.0
"""How far a minimiser may move per unit of a linear term, in a problem called well-posed."""

NOT_UNIQUE = 3e4
"""From where on a minimiser counts as not unique: a tilt of 1e-5 moves it by a third."""


@dataclass
class Verdict:
    """What became of a recipe: one word, findings with their size, and what was said."""

    outcome: str = "right"
    findings: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    undecided: bool = False
    slopes: int = 0

    def finding(self, kind: str, detail: str) -> None:
        self.findings.setdefault(kind, detail)
