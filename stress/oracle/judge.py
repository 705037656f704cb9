"""Legato's solution and gradient against the truth: within what it claims, or a word was said.

Claims are what a user can read: ``converged`` on the solution and on the backward report, residuals
and warnings. Silence with a wrong number is a finding. So is a warning where all is well.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import legato as lg
from legato.errors import LegatoError, LegatoWarning
from oracle.cones import Array
from oracle.recipes import Recipe, build
from oracle.truth import Answer, Element, Theta, values_of

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


@dataclass
class Attempt:
    """What legato did: a solution with its gradient, or an error."""

    solution: Any = None
    x: list[Array] = field(default_factory=list)
    gradient: dict[str, Array] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    error: Exception | None = None
    told: bool = False


def attempt(recipe: Recipe) -> Attempt:
    """Solve and differentiate a recipe; everything that is said is written down."""
    done = Attempt()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            case = build(recipe)
            found = lg.solve(
                case.problem, case.algorithm, case.x0, gradient=case.gradient, stop=case.stop
            )
            learned = case.learned
            loss = case.loss(found.x)
            if learned and loss.requires_grad:
                grads = torch.autograd.grad(loss, list(learned.values()), allow_unused=True)
            else:
                grads = (None,) * len(learned)
            done.solution = found
            done.gradient = {
                name: np.zeros(t.shape) if g is None else g.double().numpy()
                for (name, t), g in zip(learned.items(), grads, strict=True)
            }
        except Exception as error:  # which kind it is is part of the verdict
            done.error = error
    done.said = [
        f"{w.category.__name__}: {w.message}" for w in said if issubclass(w.category, LegatoWarning)
    ]
    if done.error is None:
        parts = found.x if isinstance(found.x, tuple) else (found.x,)
        done.x = [p.detach().double().numpy() for p in parts]
        done.told = bool(done.said) or _flagged(found, recipe)
    return done


def _flagged(found: Any, recipe: Recipe) -> bool:
    """Whether the solution or its backward report says that something is not as asked for."""
    if found.converged is not None and not bool(torch.as_tensor(found.converged).all()):
        return True
    report = found.backward
    if report.converged is False:
        return True
    by_design = recipe["gradient"]["name"] in ("OneStep", "FixedPoint", "Unroll")
    return by_design and report.residual is not None and report.residual > 1e-3


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
            verdict.finding("raw error", f"{type(done.error).__name__}: {str(done.error)[:200]}")
        return verdict
    count = 1 if recipe["sizes"] is None else len(recipe["sizes"])
    elements = [_Element(recipe, done, number) for number in range(count)]
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


class _Element:
    """One element of a batch beside its truth."""

    def __init__(self, recipe: Recipe, done: Attempt, number: int) -> None:
        self.recipe = recipe
        self.done = done
        self.number = number
        self.truth = Element(recipe, number)
        self.theta = values_of(recipe)
        self.base: Answer = self.truth.base(self.theta)
        batched = recipe["sizes"] is not None
        self.x = np.concatenate([(x[number] if batched else x).ravel() for x in done.x])
        self.unique = self.many = self.well_posed = False
        self.distance = math.nan
        converged = done.solution.converged
        if converged is None:
            self.claims = float(done.solution.residual.amax()) <= 100 * self._tol
        else:
            flags = torch.as_tensor(converged)
            own = flags.ndim > 0 and flags.numel() == len(recipe["sizes"] or [])
            self.claims = bool(flags.flatten()[number] if own else flags.all())

    @property
    def _tol(self) -> float:
        return self.recipe["stop"].get("tol") or (
            1e-10 if self.recipe["dtype"] == "float64" else 1e-6
        )

    def judge_value(self, verdict: Verdict) -> None:
        if self.base.infeasible or not self.base.solved:
            verdict.outcome = "no minimiser" if self.base.infeasible else "undecided"
            verdict.undecided = not self.base.infeasible
            silent = self.claims and not self.done.told and self.recipe["stop"].get("tol")
            if self.base.infeasible and silent:
                verdict.finding("converged without a minimiser", f"x = {_short(self.x)}")
            return
        rng = np.random.default_rng(self.recipe["seed"])
        self.stiffness = self.truth.stiffness(self.theta, self.base, rng)
        self.well_posed = self.stiffness < WELL_POSED
        self.unique = self.stiffness < NOT_UNIQUE
        if not self.unique and self.base.error < 1e-6 * self.truth.unit:
            # A minimiser that is one of many moves as far for a tilt ten times smaller.
            closer = self.truth.stiffness(self.theta, self.base, rng, 1e-6)
            self.many = 3 * self.stiffness < closer < np.inf
        scale = max(float(np.linalg.norm(self.base.x)), 1e-3 * self.truth.size)
        self.distance = float(np.linalg.norm(self.x - self.base.x)) / scale
        known = self.base.error / scale
        if not np.isfinite(self.x).all():
            if not self.done.told:
                verdict.finding("silent NaN", f"x = {_short(self.x)}")
            return
        if not self.unique or known > 1e-4:
            verdict.notes["not unique"] = True
            self._judge_objective(verdict, scale)
            return
        if self.claims and self.distance > FAR * max(1.0, self.stiffness / WELL_POSED):
            value = self.truth.value_at(self.theta, self.x)
            if value is not None and value < self.base.value - 1e-6 * self.truth.unit**2:
                verdict.outcome, verdict.undecided = "the oracle is beaten", True
                return
            detail = (
                f"element {self.number}: {self.distance:.2g} away (relative), "
                f"x = {_short(self.x)}, true {_short(self.base.x)}, "
                f"residual {float(self.done.solution.residual.amax()):.1e}"
            )
            if self.recipe["stop"].get("tol"):
                verdict.finding("converged far from the minimiser", detail)
            elif not self.done.told:
                verdict.finding("small residual far from the minimiser", detail)

    def _judge_objective(self, verdict: Verdict, scale: float) -> None:
        """Where minimisers are many, the energy has to be that of one of them."""
        if not self.claims or not self.recipe["stop"].get("tol"):
            return
        value = self.truth.value_at(self.theta, self.x)
        if value is None:  # outside a constraint by rounding: what it costs is not known
            verdict.undecided = True
            return
        excess = value - self.base.value
        unit = max(abs(self.base.value), scale**2)
        if excess > 1e-3 * unit + self.base.gap:
            verdict.finding(
                "converged above the minimum",
                f"element {self.number}: {excess / unit:.2g} above (relative)",
            )


class Gradients:
    """Directional derivatives along random directions, for each element and for all together."""

    def __init__(
        self, recipe: Recipe, done: Attempt, elements: list[_Element], verdict: Verdict
    ) -> None:
        self.recipe = recipe
        self.done = done
        self.elements = elements
        self.verdict = verdict
        self.errors: list[float] = []
        self.kinks = False
        self.undecided = 0
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
        unrolled = self.recipe["gradient"]["name"] in ("Unroll", "Forward")
        if unrolled and not all(e.claims for e in self.elements):
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

    def _along(
        self, names: list[str], single: bool = False, element: _Element | None = None
    ) -> None:
        direction = self._direction(names, single, element)
        slopes = []
        for each in self.elements if element is None else [element]:
            slope = each.truth.slope(each.theta, direction, each.base)
            if not slope.decided:
                self.verdict.undecided = True
                self.undecided += 1
                return
            slopes.append(slope)
        self.verdict.slopes += 1
        found = sum(float((self.done.gradient[n] * d).sum()) for n, d in direction.items())
        low, high = sum(s.low for s in slopes), sum(s.high for s in slopes)
        scale = sum(s.scale for s in slopes)
        doubt = sum(s.error for s in slopes)
        kink = any(s.kink for s in slopes)
        self.kinks = self.kinks or kink
        outside = max(low - found, found - high, 0.0)
        # At a kink a selection inside the interval is as good as its ends.
        error = max(0.0, outside - doubt) / scale if scale > 0 else 0.0
        self.errors.append(error)
        if error > FAR and not self.done.told:
            who = "" if element is None else f" element {element.number}"
            report = self.done.solution.backward
            self.verdict.finding(
                "silent wrong gradient" + (" at a kink" if kink else ""),
                f"{'+'.join(names) if len(names) < 3 else 'all'}{who}: {found:.6g}, truth "
                f"{low:.6g}{f'…{high:.6g}' if kink else ''} ± {doubt:.1g}, {error:.2g} of the scale; "
                f"report residual {report.residual}, radius {report.spectral_radius}",
            )

    def _direction(self, names: list[str], single: bool, element: _Element | None) -> Theta:
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
    if alarms and gradients.errors and max(gradients.errors) < RIGHT:
        verdict.finding("false alarm", alarms[0][:300])


def _short(x: Array) -> str:
    return "(" + ", ".join(f"{v:.4g}" for v in x[:6]) + (", …" if len(x) > 6 else "") + ")"
