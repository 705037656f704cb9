"""Legato's solution and gradient against the truth: within what it claims, or a word was said.

Claims are what a user can read: ``converged`` on the solution and on the backward report, residuals
and warnings. Silence with a wrong number is a finding. So is a warning where all is well.
"""

from __future__ import annotations

import json

import numpy as np

from legato.errors import LegatoError
from oracle.attempt import attempt
from oracle.recipes import Recipe
from oracle.slopes import Gradients
from oracle.values import Judged
from oracle.verdict import RIGHT, Verdict


def judge(recipe: Recipe) -> Verdict:
    verdict = Verdict()
    done = attempt(recipe)
    verdict.said = done.said
    if done.error is not None:
        verdict.notes["error"] = f"{type(done.error).__name__}: {done.error}"
        if isinstance(done.error, LegatoError):
            verdict.outcome = "refused"
        else:
            verdict.outcome = "raw error"
            verdict.finding(f"raw error: {type(done.error).__name__}", str(done.error)[:300])
        return verdict
    shapes = recipe["shape"] if recipe["form"] == "blocks" else [recipe["shape"]]
    lead = [] if recipe["sizes"] is None else [len(recipe["sizes"])]
    found = [list(x.shape) for x in done.x]
    if found == shapes and lead and _batch_is_hidden(recipe):
        verdict.outcome, verdict.undecided = "one problem, as far as anybody can see", True
        return verdict
    if found != [[*lead, *shape] for shape in shapes]:
        verdict.finding("another shape", f"x has {[x.shape for x in done.x]}")
        verdict.outcome = "finding"
        return verdict
    count = 1 if recipe["sizes"] is None else len(recipe["sizes"])
    elements = [Judged(recipe, done, number) for number in range(count)]
    for element in elements:
        element.judge_value(verdict)
        if verdict.outcome != "right":
            return verdict
    gradients = Gradients(recipe, done, elements, verdict)
    gradients.judge()
    _judge_alarm(gradients)
    if verdict.findings and verdict.outcome == "right":
        verdict.outcome = "finding"
    return verdict


def _batch_is_hidden(recipe: Recipe) -> bool:
    """Whether only callables hold data with a batch: what they return may be summands as well."""
    seen = json.dumps([t for t in recipe["terms"] if t["f"] != "Smooth"])
    return not any(f'"{k}"' in seen for k, entry in recipe["theta"].items() if entry["batched"])


def _has_a_weight_of_zero(recipe: Recipe) -> bool:
    weights = (e["value"] for e in recipe["theta"].values() if e["kind"] == "nonnegative")
    return any(bool((np.asarray(value) == 0).any()) for value in weights)


def _judge_alarm(gradients: Gradients) -> None:
    """A warning although the problem is well posed, solved, and all numbers are right."""
    verdict, elements = gradients.verdict, gradients.elements
    well_posed = all(e.well_posed and e.claims and e.distance < RIGHT for e in elements)
    if not well_posed or verdict.findings or gradients.kinks or gradients.undecided:
        return
    verdict.notes["well posed"] = True
    verdict.notes["error"] = max(gradients.errors, default=0.0)
    truncated = gradients.recipe["gradient"]["name"] in ("FixedPoint", "OneStep") or (
        gradients.recipe["gradient"].get("solver", {}).get("name") == "Neumann"
    )
    # So many terms and no more were asked for: that their rest exceeds the tolerance is true.
    alarms = [w for w in verdict.said if not (truncated and w.startswith("InexactGradient"))]
    # Beside a start, or a domain, that is far larger, x may be right and still a percent away.
    if not all(e.near for e in elements):
        alarms = [w for w in alarms if not w.startswith("NotConverged")]
    # At a weight of 0 its term has a kink, where a gradient is one-sided.
    if _has_a_weight_of_zero(gradients.recipe):
        alarms = [w for w in alarms if "Complementarity is not strict" not in w]
    if alarms and gradients.errors and max(gradients.errors) < RIGHT:
        verdict.finding("false alarm", alarms[0][:300])
