"""From facts to findings, and from findings to one recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from legato.diagnostics.margin import Margin
from legato.diagnostics.measure import Row, label
from legato.diagnostics.outlook import Outlook
from legato.diagnostics.reference import Reference
from legato.diagnostics.uniqueness import Uniqueness
from legato.gradients import Direct, GradientStrategy, Implicit, Unroll
from legato.gradients.fixed_point import FORWARD_TOLERANCE
from legato.running import Stop

UNIT_RADIUS = 1e-7
"""Distance of ρ from 1 that cannot be told from 0 in float64."""
REPELLING_EXCESS = 1e-3
"""Excess of ρ over 1 that is no inaccuracy of power iteration."""
ROUGH = 0.1
"""Relative error above which a recommendation warns of itself."""


class Symptom(StrEnum):
    """What can be wrong with a gradient, whatever strategy computes it.

    >>> from legato.diagnostics import Symptom
    >>> sorted(symptom.name for symptom in Symptom)[:2]
    ['DUAL_NOT_UNIQUE', 'LOW_PRECISION']
    """

    NOT_CONVERGED = "not converged"
    SUBLINEAR = "sublinear"
    NOT_CONTRACTING = "not contracting"
    REPELLING = "repelling"
    NOT_UNIQUE = "not unique"
    DUAL_NOT_UNIQUE = "dual not unique"
    NO_STRICT_COMPLEMENTARITY = "no strict complementarity"
    NOT_CONFIRMED = "not confirmed"
    LOW_PRECISION = "low precision"
    ZERO_GRADIENT = "zero gradient"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in words and numbers, and what to try.

    >>> [finding.symptom.name for finding in diagnosis.findings]
    []
    """

    symptom: Symptom
    message: str


@dataclass(frozen=True)
class Facts:
    """What the recommendation rests on.

    ``iterations``, ``residual`` and ``converged`` belong to the solve as asked for (converged:
    None where no tolerance was asked for). ``rate`` is the factor per iteration by which the
    residual falls, from the long reference run, as are ``margin`` and ``uniqueness``.
    ``spectral_radius`` is that of A_x at the reference solution; ``amplification`` is ‖(I − A_x)⁻¹‖
    at the iterate that the strategies differentiate, exact if ``certified``, else an upper bound
    that holds except with probability 5e-4. None marks what could not be examined.

    >>> round(diagnosis.facts.spectral_radius, 2), diagnosis.facts.amplification  # 1/(1 − ρ)
    (0.5, 2.0)
    """

    iterations: int
    residual: float
    converged: bool | None
    rate: float | None
    sublinear: bool
    spectral_radius: float | None
    amplification: float | None
    certified: bool
    margin: Margin | None
    uniqueness: Uniqueness | None


@dataclass(frozen=True)
class Recommendation:
    """The strategy to use (None: none can be trusted), and why, in one sentence.

    ``error`` is that of the strategy's own row, None where it was not measured.

    >>> diagnosis.recommendation.gradient
    Implicit(solver=GMRES(tol=1e-06, restart=50, iterations=500))
    >>> diagnosis.recommendation.sentence.split()[0]
    'Use'
    """

    gradient: GradientStrategy | None
    sentence: str
    error: float | None = None

    def __str__(self) -> str:
        return self.sentence


# --- findings -------------------------------------------------------------------------------------


def findings(
    facts: Facts, reference: Reference, stop: Stop, error: float | None, tol: float
) -> tuple[Finding, ...]:
    """Everything that is wrong, most serious first; ``error`` is that of full unrolling."""
    found: list[Finding] = []

    def say(symptom: Symptom, message: str) -> None:
        found.append(Finding(symptom, message))

    rho = 0.0 if facts.spectral_radius is None else facts.spectral_radius
    margin = facts.margin or Margin(math.inf, None)
    starts = facts.uniqueness or Uniqueness(0.0, 0.0, None, settled=False)
    repelling, loose = rho > 1 + REPELLING_EXCESS, margin.strict is False
    if repelling:
        say(
            Symptom.REPELLING,
            f"the spectral radius of A_x is {rho:.4g} > 1, so the iteration leaves this fixed "
            "point as soon as anything moves. Take a smaller step.",
        )
    elif not starts.unique:
        equal = "" if starts.gap is None else f" with objectives {starts.gap:.1e} apart"
        say(
            Symptom.NOT_UNIQUE,
            f"two starts lead to solutions {starts.primal:.2g} apart{equal}. Which one is returned "
            "depends on the start. Add SquaredNorm or NegativeEntropy to make it unique.",
        )
    elif not starts.unique_dual:
        say(
            Symptom.DUAL_NOT_UNIQUE,
            f"two starts lead to the same solution but to dual variables {starts.dual:.2g} apart, "
            "so A_x has an eigenvalue 1. Add a kernel to the dual term to make them unique.",
        )
    if loose and starts.unique:
        say(
            Symptom.NO_STRICT_COMPLEMENTARITY,
            f"the margin is {margin.value:.2g}: a small change of θ changes which constraints are "
            "active, so the loss may have a kink here, and a gradient is one of many.",
        )
    if repelling:
        pass  # how it converges means nothing then
    elif facts.sublinear:
        say(
            Symptom.SUBLINEAR,
            f"after {reference.iterations} iterations the residual still falls like a power of n "
            f"({reference.residual:.1e} now) and ρ goes on towards 1: no finite number of "
            "iterations is enough for the fixed-point family.",
        )
    elif not reference.settles(tol):
        known = "which way it differs from the solution's is not known"
        if reference.uncertainty is not None:
            known = f"it is uncertain by about {reference.uncertainty:.1e}, and so are the errors"
        say(
            Symptom.NOT_CONVERGED,
            f"the reference itself has not converged: residual {reference.residual:.1e} after "
            f"{reference.iterations} iterations; {known}. Pass a longer reference=Stop(…), or an "
            "algorithm that converges faster.",
        )
    elif facts.residual > (FORWARD_TOLERANCE if stop.tol is None else stop.tol) or (
        error is not None and error > tol and starts.unique and starts.unique_dual and not loose
    ):
        off = "" if error is None else f"; unrolling it is {error:.1e} off"
        say(
            Symptom.NOT_CONVERGED,
            f"the solve stops at residual {facts.residual:.1e} after {facts.iterations} "
            f"iterations, before it has converged{off}.",
        )
    explained = repelling or loose or facts.sublinear or not (starts.unique and starts.unique_dual)
    exact = facts.certified or facts.amplification == math.inf
    if rho > 1 - UNIT_RADIUS and exact and not explained:
        say(
            Symptom.NOT_CONTRACTING,
            f"the spectral radius of A_x is {rho:.9g}: the fixed point is not isolated, or hardly. "
            "The fixed-point family divides by 1 − ρ.",
        )
    limit = 1e-3 if reference.dtype == torch.float64 else 0.1
    if reference.disagreement is not None and reference.disagreement > limit and not repelling:
        say(
            Symptom.NOT_CONFIRMED,
            f"central differences are off the reference by {reference.disagreement:.1e}: the loss "
            "has a kink near θ, or a callable is not what autograd sees (in-place, random, "
            "detached).",
        )
    if reference.dtype != torch.float64:
        say(
            Symptom.LOW_PRECISION,
            f"the problem was measured as given, in {reference.dtype}, and so the reference is no "
            "more exact than the rest. Pass a factory, diagnose(make), whose make(dtype) returns "
            "(problem, algorithm, loss), for a reference in float64.",
        )
    if float(torch.linalg.vector_norm(reference.gradient)) == 0:
        say(
            Symptom.ZERO_GRADIENT,
            "the reference gradient is exactly 0: errors are absolute. θ does not move the loss "
            "here, e.g. because it acts on entries that a constraint holds fixed.",
        )
    return tuple(found)


# --- recommendation -------------------------------------------------------------------------------


def recommend(
    rows: Sequence[Row],
    facts: Facts,
    found: Sequence[Finding],
    tol: float,
    reference: Reference,
    ahead: Outlook | None = None,
) -> Recommendation:
    """The cheapest silent strategy within ``tol`` of the reference, or what to mend first.

    Where the solve has not converged, what it needs comes before any strategy, and no strategy is
    named without its own error beside it.
    """
    known, symptoms = reference.settles(tol), {f.symptom for f in found}
    gradient, reason = _choose(rows, facts, symptoms, tol, known)
    if gradient is None:
        return Recommendation(None, f"Trust none of these gradients: {reason}.")
    error = next((r.error for r in rows if r.gradient == gradient), None)
    own = "not measured" if error is None else f"{error:.1e}"
    if error is not None and not error <= ROUGH:
        own += ", more than 10 % off the reference, so that it is at best a rough direction"
    if error is not None and not known:
        doubt = reference.uncertainty
        own += ", against a reference that has not converged"
        own += "" if doubt is None else f" (uncertain by about {doubt:.1e})"
    right = known and error is not None and error <= tol
    first = "Use" if right or Symptom.NOT_CONVERGED not in symptoms else _first(ahead)
    use = f"{first} {label(gradient)}{reason}; its own error here is {own}."
    return Recommendation(gradient, use, error)


def _choose(
    rows: Sequence[Row],
    facts: Facts,
    symptoms: set[Symptom],
    tol: float,
    known: bool,
) -> tuple[GradientStrategy | None, str]:
    """A strategy, with what follows its name in a sentence, or None and why none is right."""
    unroll = next((r for r in rows if r.gradient == Unroll() and r.error is not None), None)
    error = math.inf if unroll is None or unroll.error is None else unroll.error
    if Symptom.REPELLING in symptoms:
        return None, (
            f"the iteration is unstable at its solution (ρ = {facts.spectral_radius:.4g} > 1), so "
            "take a smaller step first"
        )
    if Symptom.NOT_UNIQUE in symptoms and error > tol:
        return None, (
            "the solution is not unique and what unrolling gives depends on the number of "
            "iterations, so make the solution unique first, for instance by adding SquaredNorm or "
            "NegativeEntropy"
        )
    if Symptom.NOT_UNIQUE in symptoms:
        return Unroll(), (
            ": the solution is not unique, and unrolling differentiates the one that this start "
            "leads to"
        )
    generalised = " and take its result as a generalised gradient: "
    if Symptom.SUBLINEAR in symptoms:
        return Unroll(), generalised + (
            "the iteration converges sublinearly, so that ρ tends to 1 and the fixed-point family "
            "has nothing to stand on"
        )
    if Symptom.NO_STRICT_COMPLEMENTARITY in symptoms:
        return Unroll(), generalised + (
            "strict complementarity fails, so that the loss may have a kink here"
        )
    if Symptom.NOT_CONFIRMED in symptoms:
        return Unroll(), (
            " with care: finite differences do not confirm the reference, so nothing here is known "
            "to be the gradient"
        )
    trusted = [r for r in rows if known and _trusted(r, tol)]
    if trusted:
        best = min(trusted, key=lambda r: math.inf if r.products is None else r.products)
        return best.gradient, _cost(best, unroll)
    if not math.isfinite(error):
        return None, f"none is within {tol:.0e} of the reference"
    if known and error <= tol:
        return Unroll(), f": only unrolling is within {tol:.0e} of the reference"
    return Unroll(), ", which is exact for the iterations that there are, not for the solution"


def _first(ahead: Outlook | None) -> str:
    """What to do before any gradient is worth its name: how many iterations, or what takes fewer.

    Ends where a strategy for the time until then is to follow.
    """
    text, count = "Run more iterations", None if ahead is None else ahead.iterations
    if ahead is not None and count is not None:
        text = f"Run about {_rounded(count)} iterations, for a residual of {ahead.target:.0e}"
        if not ahead.counted:
            text += f" at the rate {ahead.rate:.6g}"
    if ahead is not None and ahead.restarted is not None:
        text += f", or inertia=Nesterov(restart=True), which took {ahead.restarted}"
    elif ahead is not None and ahead.remedy:
        text += f"; {ahead.remedy}"
    return f"{text}: the solve has not converged, and until then use"


def _rounded(count: int) -> int:
    """Two digits: an extrapolation has no more."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / unit) * unit


def _trusted(row: Row, tol: float) -> bool:
    checker = isinstance(row.gradient, Implicit) and isinstance(row.gradient.solver, Direct)
    return row.error is not None and row.error <= tol and not row.warnings and not checker


def _cost(best: Row, unroll: Row | None) -> str:
    plural = "" if best.products == 1 else "s"
    text = f": it is right and silent after {best.products} backward product{plural}"
    if unroll is not None and best is not unroll:
        text += (
            f", where Unroll() takes {unroll.products} and {memory_text(unroll.peak_bytes)} "
            f"instead of {memory_text(best.peak_bytes)}"
        )
    if best.bound == math.inf:
        text += ", although no bound certifies it (I − A_x is singular, or nearly so)"
    return text


def memory_text(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "–"
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
