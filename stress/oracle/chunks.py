"""Random problems against the oracle, fifty at a time."""

from __future__ import annotations

import json
from collections import Counter

from tally import Tally

from oracle.drawing import Quotas
from oracle.features import features
from oracle.judge import judge
from oracle.vocabulary import everything

PROBLEMS = 50
"""Recipes of one chunk."""


def chunk(number: int, tally: Tally) -> None:
    """Problems number·50 … number·50 + 49; the rarest features of a chunk are drawn next."""
    wanted = everything()
    quotas = Quotas(wanted)
    seen: Counter[str] = Counter()
    for i in range(PROBLEMS):
        recipe = quotas.next(number * PROBLEMS + i)
        verdict = judge(recipe)
        tally.count("problems")
        tally.count(f"outcome: {verdict.outcome}")
        tally.count("gradients asked for", int(verdict.outcome not in ("refused", "raw error")))
        tally.count("refusals", int(verdict.outcome == "refused"))
        tally.count("comparisons", verdict.slopes)
        tally.count("undecided by the oracle", int(verdict.undecided))
        tally.count("well-posed problems", int(bool(verdict.notes.get("well posed"))))
        tally.count("gradients with a warning", int(bool(verdict.said)))
        if verdict.outcome not in ("refused", "raw error"):
            seen.update(features(recipe) & wanted)
        for kind, detail in verdict.findings.items():
            tally.count("disagreements")
            tally.finding(kind, f"{detail} | {json.dumps(recipe)}")
    for name in wanted:
        tally.count(f"quota {name}", seen[name])
