"""From facts to findings, and from findings to one recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from legato.diagnostics.measure import Row
from legato.diagnostics.reference import Reference
from legato.diagnostics.report import Facts, Finding, Recommendation, Sign, size
from legato.gradients import Direct, Implicit, Unroll
from legato.gradients.fixed_point import FORWARD_TOLERANCE
from legato.running import Stop

ON_THE_CIRCLE = 1e-7
"""Distance of ρ from 1 that cannot be told from 0 in float64."""
REPELS = 1e-3
"""Excess of ρ over 1 that is no inaccuracy of power iteration."""


def findings(
    facts: Facts, reference: Reference, stop: Stop, given: torch.dtype, error: float | None
) -> tuple[Finding, ...]:
    """Everything that is wrong, most serious first; ``error`` is that of full unrolling."""
    found: list[Finding] = []

    def say(sign: Sign, message: str) -> None:
        found.append(Finding(sign, message))

    rho, margin, starts = facts.spectral_radius, facts.margin, facts.uniqueness
    repelling = rho is not None and rho > 1 + REPELS
    if repelling:
        say(
            Sign.REPELLING,
            f"the spectral radius of A_x is {rho:.4g} > 1, so the iteration leaves this fixed "
            "point as soon as anything moves. Take a smaller step.",
        )
    not_unique = starts is not None and not starts.unique
    dual_not_unique = starts is not None and not starts.unique_dual
    if not_unique and starts is not None and not repelling:
        equal = "" if starts.gap is None else f" with objectives {starts.gap:.1e} apart"
        say(
            Sign.NOT_UNIQUE,
            f"two starts lead to solutions {starts.primal:.2g} apart{equal}. Which one is returned "
            "depends on the start. Add SquaredNorm or NegativeEntropy to make it unique.",
        )
    elif dual_not_unique and starts is not None and not repelling:
        say(
            Sign.DUAL_NOT_UNIQUE,
            f"two starts lead to the same solution but to dual variables {starts.dual:.2g} apart, "
            "so A_x has an eigenvalue 1. Add a kernel to the dual term to make them unique.",
        )
    loose = margin is not None and margin.strict is False
    if loose and margin is not None and not not_unique:
        say(
            Sign.NO_STRICT_COMPLEMENTARITY,
            f"the margin is {margin.value:.2g}: a small change of θ changes which constraints are "
            "active, so the loss may have a kink here, and a gradient is one of many.",
        )
    if facts.sublinear and not repelling:
        say(
            Sign.SUBLINEAR,
            f"after {reference.iterations} iterations the residual still falls like a power of n "
            f"({reference.residual:.1e} now): no finite number of iterations is enough for the "
            "fixed-point family.",
        )
    elif not reference.converged and not repelling:
        say(
            Sign.NOT_CONVERGED,
            f"the reference itself has not converged: residual {reference.residual:.1e} after "
            f"{reference.iterations} iterations. Errors are relative to it. Pass a longer "
            "reference=Stop(…).",
        )
    elif _short(facts, stop) and not repelling:
        say(
            Sign.NOT_CONVERGED,
            f"the solve stops at residual {facts.residual:.1e} after {facts.iterations} "
            "iterations, before it has converged"
            + ("" if error is None else f"; unrolling it is {error:.1e} off")
            + ".",
        )
    explained = repelling or not_unique or dual_not_unique or loose or facts.sublinear
    exact = facts.certified or facts.amplification == math.inf
    if rho is not None and rho > 1 - ON_THE_CIRCLE and exact and not explained:
        say(
            Sign.NOT_CONTRACTING,
            f"the spectral radius of A_x is {rho:.9g}: the fixed point is not isolated, or hardly. "
            "The fixed-point family divides by 1 − ρ.",
        )
    limit = 1e-3 if reference.dtype == torch.float64 else 0.1
    if reference.disagreement is not None and reference.disagreement > limit and not repelling:
        say(
            Sign.NOT_CONFIRMED,
            f"central differences are off the reference by {reference.disagreement:.1e}: the loss "
            "has a kink near θ, or a callable is not what autograd sees (in-place, random, "
            "detached).",
        )
    if given != torch.float64 and reference.dtype != torch.float64:
        say(
            Sign.LOW_PRECISION,
            f"the problem could not be copied in float64, so the reference is in {reference.dtype} "
            "and so accurate. Keep data in tensors that legato finds, and do not fix dtypes inside "
            "callables.",
        )
    if float(torch.linalg.vector_norm(reference.gradient)) == 0:
        say(
            Sign.ZERO_GRADIENT,
            "the reference gradient is exactly 0: errors are absolute. θ does not move the loss "
            "here, e.g. because it acts on entries that a constraint holds fixed.",
        )
    return tuple(found)


def _short(facts: Facts, stop: Stop) -> bool:
    """Whether the solve ended too early, as the fixed-point family sees it."""
    allowed = FORWARD_TOLERANCE if stop.tol is None else stop.tol
    return facts.residual > allowed


def recommend(
    rows: Sequence[Row],
    facts: Facts,
    reference: Reference,
    found: Sequence[Finding],
    tol: float,
) -> Recommendation:
    """The cheapest silent strategy within ``tol`` of the reference, or what to mend first."""
    signs = {f.sign for f in found}
    unroll = next((r for r in rows if r.gradient == Unroll()), None)
    exact = unroll is not None and unroll.error is not None and unroll.error <= tol
    if Sign.REPELLING in signs:
        return Recommendation(
            None,
            f"Trust none of these gradients: the iteration is unstable at its solution (ρ = "
            f"{facts.spectral_radius:.4g} > 1), so take a smaller step first.",
        )
    if Sign.NOT_UNIQUE in signs:
        if not exact:
            return Recommendation(
                None,
                "Trust none of these gradients: the solution is not unique and what unrolling "
                "gives depends on the number of iterations, so make the solution unique first, "
                "for instance by adding SquaredNorm or NegativeEntropy.",
            )
        return Recommendation(
            Unroll(),
            "Use Unroll(): the solution is not unique, and unrolling differentiates the one that "
            "this start leads to.",
        )
    if signs & {Sign.NO_STRICT_COMPLEMENTARITY, Sign.SUBLINEAR}:
        why = (
            "the iteration converges sublinearly, so that ρ tends to 1 and the fixed-point family "
            "has nothing to stand on"
            if Sign.SUBLINEAR in signs
            else "strict complementarity fails, so that the loss may have a kink here"
        )
        return Recommendation(
            Unroll(), f"Use Unroll() and take its result as a generalised gradient: {why}."
        )
    if Sign.NOT_CONFIRMED in signs:
        return Recommendation(
            Unroll(),
            "Use Unroll() with care: finite differences do not confirm the reference, so nothing "
            "here is known to be the gradient.",
        )
    trusted = [r for r in rows if _trusted(r, tol)]
    if trusted:
        return _cheapest(trusted, unroll)
    return _iterate_more(unroll, facts, tol)


def _trusted(row: Row, tol: float) -> bool:
    checker = isinstance(row.gradient, Implicit) and isinstance(row.gradient.solver, Direct)
    return row.error is not None and row.error <= tol and not row.warnings and not checker


def _cheapest(trusted: Sequence[Row], unroll: Row | None) -> Recommendation:
    best = min(trusted, key=lambda r: math.inf if r.products is None else r.products)
    others = ""
    if unroll is not None and best is not unroll and unroll.products is not None:
        others = (
            f", where Unroll() takes {unroll.products} and {size(unroll.peak_bytes)} instead of "
            f"{size(best.peak_bytes)}"
        )
    if best.bound == math.inf:
        others += ", although no bound certifies it (I − A_x is singular, or nearly so)"
    plural = "" if best.products == 1 else "s"
    return Recommendation(
        best.gradient,
        f"Use {best.label}: it is within {best.error:.1e} of the reference after {best.products} "
        f"backward product{plural}{others}.",
    )


def _iterate_more(unroll: Row | None, facts: Facts, tol: float) -> Recommendation:
    error = None if unroll is None else unroll.error
    if error is None or not math.isfinite(error):
        return Recommendation(
            None, f"Trust none of these gradients: none is within {tol:.0e} of the reference."
        )
    if error <= tol:
        return Recommendation(
            Unroll(), f"Use Unroll(): only unrolling is within {tol:.0e} of the reference."
        )
    needed = ""
    if facts.rate is not None and 0 < facts.rate < 1:
        more = math.ceil(math.log(tol / error) / math.log(facts.rate))
        needed = f" (about {facts.iterations + more} iterations, at rate {facts.rate:.4g})"
    return Recommendation(
        Unroll(),
        f"Use Unroll() and more iterations{needed}: the solve has not converged, Unroll() is exact "
        f"for the iterations that there are, and they are {error:.1e} from the gradient.",
    )
