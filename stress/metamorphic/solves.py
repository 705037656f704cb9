"""lg.solve as a subject: energies × algorithms × ways to differentiate × linear solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import legato as lg
from metamorphic.energies import Energy, regressions, saddles
from metamorphic.subject import ROUNDED, Inputs, Subject

TIGHT = 1e-10
"""The tolerance of solves that are differentiated at their solution."""

PATHS: dict[str, Callable[[Inputs], Any]] = {
    "Unroll": lambda t: lg.Unroll(),
    "Unroll(last)": lambda t: lg.Unroll(last=10),
    "Unroll(checkpoint)": lambda t: lg.Unroll(checkpoint=7),
    "Unroll(tol)": lambda t: lg.Unroll(tol=1e-9),
    "Forward": lambda t: (
        lg.Forward(*[v for v in t.values() if v.requires_grad])
        if any(v.requires_grad for v in t.values())
        else lg.Unroll()
    ),
}
POINTS: dict[str, Callable[[Inputs], Any]] = {
    "FixedPoint": lambda t: lg.FixedPoint(600, tol=1e-10),
    "GMRES": lambda t: lg.Implicit(lg.GMRES(tol=1e-10)),
    "BiCGStab": lambda t: lg.Implicit(lg.BiCGStab(tol=1e-10)),
    "Neumann": lambda t: lg.Implicit(lg.Neumann(tol=1e-10)),
    "Direct": lambda t: lg.Implicit(lg.Direct()),
    "default": lambda t: lg.Implicit(),
}
CONJUGATE: dict[str, Callable[[Inputs], Any]] = {"CG": lambda t: lg.Implicit(lg.CG(tol=1e-10))}
ROUGH: dict[str, Callable[[Inputs], Any]] = {"OneStep": lambda t: lg.OneStep(tol=None)}
SADDLE_ONLY: dict[str, Callable[[Inputs], Any]] = {
    "Piggyback": lambda t: lg.Piggyback(4000, tol=1e-10),
    "MINRES": lambda t: lg.Implicit(lg.MINRES(tol=1e-10)),
}


@dataclass(frozen=True)
class Setting:
    """What is given to solve."""

    energy: Any
    algorithm: Any
    gradient: Any
    stop: Any
    start: Any


def _solve(setting: Setting, t: Inputs) -> tuple[Tensor, ...]:
    found = lg.solve(
        setting.energy, setting.algorithm, setting.start,
        gradient=setting.gradient, stop=setting.stop,
    )  # fmt: skip
    return found.x if isinstance(found.x, tuple) else (found.x,)


def _subject(name: str, energy: Energy, algorithm: str, way: str, gradient: Any) -> Subject:
    path = way in PATHS
    stop = lg.Stop(min(energy.iterations, 25)) if path else lg.Stop(3000, tol=TIGHT)

    def build(t: Inputs, gradient: Any = gradient) -> Setting:
        problem = energy.make(t)
        if algorithm == "fixed step":
            problem = lg.split(problem)  # what solve does by itself
        chosen = energy.algorithms[algorithm](t)
        return Setting(problem, chosen, gradient(t), stop, energy.start(t))

    # A fixed number of iterations is the same computation; a solution is found to a tolerance.
    # Krylov's methods amplify rounding up to the tolerance they were given.
    rounding = 1e-9 if path else 1e-6
    rounding = {"default": 1e-4, "Unroll(tol)": 1e-7}.get(way, rounding)
    if algorithm == "backtracking" or "Burg" in name:
        rounding = max(rounding, 1e-6)  # its steps are measured by differences of gradients
    if name == "simplex, entropic":  # solutions at a corner are reached by exponentials
        rounding = max(rounding, 1e-5)
    if algorithm == "Newton" and way == "Unroll(last)":
        rounding = 1e-6  # one line search and one factor serve a whole batch, and the cut sees both
    facts = dict(energy.facts)
    if path:  # a start at zero is not shifted along
        facts.pop("shifted", None)
    more: dict[str, Any] = {"rounding": rounding, "covers": ("solve", "split", way)}
    more["bits"] = ROUNDED
    more["slopes_scale"] = way != "OneStep"  # what it leaves out depends on the step
    if "Burg" in name:
        more["in_single"] = 1e-2
    if way == "Unroll(last)":
        more["untruncated"] = lambda t: build(t, PATHS["Unroll"])
    more["tangents"] = way not in ("Unroll(last)", "OneStep")
    return Subject(
        f"{name}, {algorithm}, {way}", "solve", energy.draw, build, _solve,
        **{**more, **facts},
    )  # fmt: skip


def solve_subjects() -> list[Subject]:
    found = []
    for name, energy in {**regressions(), **saddles()}.items():
        saddle = name in saddles()
        ways = dict(PATHS)
        if energy.unique:
            ways |= POINTS | ROUGH
            if saddle and name != "average":
                ways |= SADDLE_ONLY
            if energy.symmetric and not saddle:
                ways |= CONJUGATE
        for number, algorithm in enumerate(energy.algorithms):
            for way, gradient in ways.items():
                # Every way with the first algorithm; the others with one of each kind.
                if number and way not in ("Unroll", "GMRES"):
                    continue
                if algorithm == "Newton" and way in ("CG", "Piggyback", "MINRES"):
                    continue
                if algorithm == "Entropy" and way == "MINRES":
                    continue  # which takes Euclidean steps
                found.append(_subject(name, energy, algorithm, way, gradient))
    return found
