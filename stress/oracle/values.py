"""One element of a batch beside its truth: is it the minimiser that legato says it is?"""

from __future__ import annotations

import math

import numpy as np
import torch

from oracle.attempt import Attempt
from oracle.cones import Array
from oracle.recipes import Recipe
from oracle.truth import Answer, Element, values_of
from oracle.verdict import FAR, NOT_UNIQUE, RIGHT, WELL_POSED, Verdict


class Judged:
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
        self.double = recipe["dtype"] == "float64"
        self.unique = self.many = self.well_posed = False
        self.distance, self.near = math.nan, False
        converged = done.solution.converged
        if converged is None:  # a mean stands still long before it has arrived
            averaged = bool((recipe["algorithm"] or {}).get("average"))
            small = 1e-8 if self.double else 2e-6
            self.claims = not averaged and float(done.solution.residual.amax()) <= small
        else:
            flags = torch.as_tensor(converged)
            own = flags.ndim > 0 and flags.numel() == len(recipe["sizes"] or [])
            self.claims = bool(flags.flatten()[number] if own else flags.all())

    def _start(self) -> float:
        """The size of a start that was given: residuals are relative to it where it is larger."""
        given = (self.recipe.get("start") or {}).get("value")
        if given is None or isinstance(given, dict):
            return 0.0
        start = np.asarray(given, float)
        return float(np.linalg.norm(start[self.number] if self.recipe["sizes"] else start))

    def _dual(self) -> float:
        """What the tolerance leaves of x where its dual is larger by far.

        A tolerance is relative to the largest iterate, of x and its dual together. Where a ball of
        radius 1e-6 holds x against a force of 1, the dual is 1, and what is asked of the pair says
        little of x; in float32, adding a part of x to the dual loses its digits.
        """
        dual = self.done.solution.y
        if dual is None:
            return 0.0
        parts = [dual] if isinstance(dual, torch.Tensor) else list(dual)
        own = [p.detach().double().cpu().numpy() for p in parts]
        own = [p[self.number] if self.recipe["sizes"] is not None else p for p in own]
        tol = self.recipe["stop"].get("tol") or (1e-8 if self.double else 2e-6)
        return 1e3 * tol * float(np.sqrt(sum((p**2).sum() for p in own)))

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
        # A minimiser of 0 is met to the digits that its neighbours, the data and duals, leave.
        least = 1e-3 if self.double else 1e-2
        scale = max(float(np.linalg.norm(self.base.x)), least * self.truth.size, self._start())
        scale = max(scale, self.truth.domain(self.theta), self._dual())
        self.distance = float(np.linalg.norm(self.x - self.base.x)) / scale
        own = max(float(np.linalg.norm(self.base.x)), least * self.truth.size)
        self.near = self.distance * scale < RIGHT * own
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
            said = any(w.startswith("NotConvergedWarning") for w in self.done.said)
            if self.recipe["stop"].get("tol") and not said:
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


def _short(x: Array) -> str:
    return "(" + ", ".join(f"{v:.4g}" for v in x[:6]) + (", …" if len(x) > 6 else "") + ")"
