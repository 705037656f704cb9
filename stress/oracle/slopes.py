"""Directional derivatives of a loss: what legato's gradient gives beside the truth."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from oracle.attempt import Attempt
from oracle.cones import Array
from oracle.recipes import Recipe
from oracle.truth import Theta
from oracle.values import Judged
from oracle.verdict import FAR, Verdict


class Gradients:
    """Directional derivatives along random directions, for each element and for all together."""

    def __init__(
        self, recipe: Recipe, done: Attempt, elements: list[Judged], verdict: Verdict
    ) -> None:
        self.recipe = recipe
        self.done = done
        self.elements = elements
        self.verdict = verdict
        self.errors: list[float] = []
        self.kinks = False
        self.undecided = 0
        self.unrolled = recipe["gradient"]["name"] in ("Unroll", "Forward")
        # Derivatives of iterates arrive after them, by more the looser the tolerance is.
        self.far = 2.5 * FAR if self.unrolled and recipe["dtype"] == "float32" else FAR
        digest = hashlib.sha256(json.dumps(recipe["loss"], sort_keys=True).encode()).digest()
        self.rng = np.random.default_rng(int.from_bytes(digest[:4], "big"))

    def judge(self) -> None:
        if not self.done.gradient:
            return
        if not all(np.isfinite(g).all() for g in self.done.gradient.values()):
            if not self.done.told:
                self.verdict.finding("silent NaN", "a gradient that is not finite")
            return
        if not all(e.unique for e in self.elements):
            self._judge_undetermined()
            return
        if self.unrolled and not all(e.claims and e.near for e in self.elements):
            return  # exact for the iterations made, which are not the solution yet
        names = list(self.done.gradient)
        chosen = [names, [str(self.rng.choice(names))], [str(self.rng.choice(names))]]
        for turn, learned in enumerate(chosen):
            self._along(learned, single=turn == 2)
        batched = self.recipe["sizes"] is not None and len(self.elements) > 1
        own = [n for n in names if self.recipe["theta"][n]["batched"]]
        if batched and own:
            for element in self.elements:
                self._along(own, element=element)

    def _judge_undetermined(self) -> None:
        """Where minimisers are many, the fixed-point equation defines no derivative."""
        family = self.recipe["gradient"]["name"] in ("Implicit", "FixedPoint", "Piggyback")
        if family and not self.done.told and any(e.many for e in self.elements):
            self.verdict.finding(
                "silent gradient of one of many minimisers",
                f"report residual {self.done.solution.backward.residual}",
            )

    def _along(self, names: list[str], single: bool = False, element: Judged | None = None) -> None:
        direction = self._direction(names, single, element)
        elements = self.elements if element is None else [element]
        found = sum(float((self.done.gradient[n] * d).sum()) for n, d in direction.items())
        for careful in (False, True):  # before a finding, its truth is asked for twice
            slopes = [e.truth.slope(e.theta, direction, e.base, careful) for e in elements]
            if not all(slope.decided for slope in slopes):
                self.verdict.undecided = True
                self.undecided += 1
                return
            low, high = sum(s.low for s in slopes), sum(s.high for s in slopes)
            scale = sum(s.scale for s in slopes)
            doubt = sum(s.error for s in slopes) + sum(self._resolution(e) for e in elements)
            outside = max(low - found, found - high, 0.0)
            # At a kink a selection inside the interval is as good as its ends.
            error = max(0.0, outside - doubt) / scale if scale > 0 else 0.0
            if error <= self.far:
                break
        self.verdict.slopes += 1
        kink = any(s.kink for s in slopes)
        self.kinks = self.kinks or kink
        self.errors.append(error)
        if error > self.far and not self.done.told:
            who = "" if element is None else f" element {element.number}"
            what = "+".join(names) if len(names) < 3 else "all"
            known = f"{low:.6g}…{high:.6g}" if kink else f"{low:.6g} ± {doubt:.1g}"
            report = self.done.solution.backward
            self.verdict.finding(
                f"silent wrong gradient: {self.recipe['gradient']['name']}",
                f"{what}{who}: {found:.6g}, truth {known}, {error:.2g} of the scale; "
                f"report residual {report.residual}, radius {report.spectral_radius}",
            )

    def _resolution(self, element: Judged) -> float:
        """What a backward solve to its tolerance leaves of a gradient in a polyhedron's geometry.

        Its sides move every point by their own size, in x as in the step, and the two cancel.
        """
        tol = 1e-6 if self.recipe["dtype"] == "float64" else 1e-5
        slope = float(np.linalg.norm(element.truth.loss_gradient(element.base.x)))
        return 3 * tol * slope * element.truth.domain(element.theta)

    def _direction(self, names: list[str], single: bool, element: Judged | None) -> Theta:
        direction = {}
        for name in names:
            entry = self.recipe["theta"][name]
            value = np.asarray(entry["value"], float)
            d = self.rng.normal(size=value.shape)
            if single and value.size > 1:
                keep = np.zeros(value.size)
                keep[int(self.rng.integers(value.size))] = 1.0
                d = d * keep.reshape(value.shape)
            if entry["kind"] == "symmetric":
                d = (d + np.swapaxes(d, -1, -2)) / 2
            if entry["kind"] in ("nonnegative", "positive"):
                d = np.where(value == 0, np.abs(d), d)
            d = d * _sizes(value, entry["batched"])
            if element is not None:
                mask = np.zeros(len(value))
                mask[element.number] = 1.0
                d = d * mask.reshape(-1, *[1] * (d.ndim - 1))
            direction[name] = d
        for lo, hi in self.recipe.get("ordered", ()):  # equal ends move apart, or together
            if lo in direction and hi in direction:
                same = np.asarray(self.recipe["theta"][lo]["value"]) == np.asarray(
                    self.recipe["theta"][hi]["value"]
                )
                direction[hi] = np.where(same, direction[lo], direction[hi])
            elif lo in direction or hi in direction:
                name, sign = (lo, -1.0) if lo in direction else (hi, 1.0)
                same = np.asarray(self.recipe["theta"][lo]["value"]) == np.asarray(
                    self.recipe["theta"][hi]["value"]
                )
                direction[name] = np.where(same, sign * np.abs(direction[name]), direction[name])
        return direction


def _sizes(value: Array, batched: bool) -> Any:
    """The size of a tensor, or of each element of it: directions move all by the same share."""
    if not batched:
        return max(float(np.sqrt((value**2).mean())), 1e-3)
    axes = tuple(range(1, value.ndim))
    size = np.sqrt((value**2).mean(axis=axes, keepdims=True)) if axes else np.abs(value)
    return np.where(size > 0, size, max(float(np.abs(value).max()), 1e-3))
