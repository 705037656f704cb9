"""What a long run counts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from legato._support.files import replacing

KEPT = 20
"""Findings of one kind that are written out; all are counted."""


class Tally:
    """Counts by name, and findings by kind with what is needed to see them again."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.findings: dict[str, list[str]] = {}

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def finding(self, kind: str, detail: str) -> None:
        """Something that must not happen."""
        self.counts[f"findings: {kind}"] += 1
        kept = self.findings.setdefault(kind, [])
        if len(kept) < KEPT:
            kept.append(detail)

    def require_none(self, *kinds: str) -> None:
        """Fail with the first findings of these kinds (of all, if none is named)."""
        shown = {k: v for k, v in self.findings.items() if not kinds or k in kinds}
        lines = [
            f"{self.counts[f'findings: {k}']} × {k}, e.g.\n    {v[0]}" for k, v in shown.items()
        ]
        assert not lines, "\n  ".join(["findings:", *lines])

    def write(self, path: Path) -> None:
        content = {"counts": dict(sorted(self.counts.items())), "findings": self.findings}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n")
