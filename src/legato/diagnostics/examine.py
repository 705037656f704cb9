"""The front door of the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.given import given, meant
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.diagnostics.differences import disagreement
from legato.diagnostics.margin import margin
from legato.diagnostics.measure import candidates, measure
from legato.diagnostics.outlook import look_ahead
from legato.diagnostics.reference import Path, Reference, follow, unrolled
from legato.diagnostics.report import Diagnosis
from legato.diagnostics.setting import Loss, Params, Setting, in_two_precisions
from legato.diagnostics.spectrum import Adjoint, adjoint, radius_of_matrix, rate
from legato.diagnostics.uniqueness import compare_starts
from legato.diagnostics.verdict import REPELLING_EXCESS, Facts, Symptom, findings, recommend
from legato.errors import GradientError, InputError
from legato.functions import Function
from legato.gradients import GradientStrategy, Unroll
from legato.running import Stop, most
from legato.solving import Solution


def diagnose(
    problem: Callable[..., Any] | Any,
    algorithm: Algorithm[Any, Any] | None = None,
    loss: Loss | None = None,
    x0: Var | None = None,
    *,
    dtype: torch.dtype | None = None,
    stop: Stop | None = None,
    params: Params | None = None,
    gradients: Sequence[GradientStrategy] | None = None,
    tol: float = 1e-3,
    reference: Stop | None = None,
    directions: int = 2,
) -> Diagnosis:
    r"""Which gradient should I use here, and can I trust it?

    .. math:: \frac{‖g − ḡ‖}{‖ḡ‖} \quad\text{for every strategy's } g, \qquad
              ḡ = \frac{d}{dθ} L(x^*(θ))

    ``diagnose(make)`` calls ``make(dtype)``, which returns (problem, algorithm, loss), and if need
    be x0 and params: once in the working precision, to measure every strategy, and once in float64,
    for the reference ḡ. ``diagnose(problem, algorithm, loss)``, or a ``make`` without an argument,
    measures a problem as it is, against a reference in its own precision, and says so.

    A strategy is recommended if it is within ``tol`` of ḡ without a warning and takes the fewest
    products. Reference: Sections 4 and 5 of Ochs et al. (2016).

    Args:
        problem: An energy or a problem; or, alone, the factory ``make``.
        algorithm: What solves it, chosen as by :func:`legato.solve` if None.
        loss: A function of the solution that returns one number.
        x0: Where to start, as for :func:`legato.solve`.
        dtype: The working precision in which ``make`` is measured, torch's default if None.
        stop: When the solve in question ends, 100 iterations if None.
        params: θ; if None, every leaf that influences the loss and records gradients.
        gradients: The strategies to try, all that may apply if None.
        tol: The relative error that counts as right.
        reference: When the long run ends that is unrolled for ḡ, ``Stop(5000, tol=1e-12)`` if None.
        directions: How many random directions check ḡ by central differences.

    >>> def make(dtype):
    ...     weight = torch.tensor(0.5, dtype=dtype, requires_grad=True)
    ...     data = lg.LeastSquares(torch.eye(3, dtype=dtype), torch.ones(3, dtype=dtype))
    ...     loss = lambda x: x.square().sum()
    ...     return lg.Composite(data, lg.L1(weight)), lg.ForwardBackward(0.5), loss
    >>> diagnosis = lg.diagnose(make)
    >>> type(diagnosis.recommendation.gradient).__name__
    'Implicit'
    """
    stop = Stop() if stop is None else stop
    reference = Stop(5000, tol=1e-12) if reference is None else reference
    _require_settings(tol, reference, directions, gradients)
    if loss is None:
        _require_alone(problem, algorithm, x0, params)
    make = problem if loss is None else lambda: (problem, algorithm, loss, x0, params)
    setting, exact, solution = in_two_precisions(make, dtype, stop)

    path = follow(exact, *_lengths(reference, stop))
    fixed = _try_adjoint(exact, path.state)
    truth = _reference(exact, path, fixed, directions, twin=exact is not setting)
    local = _try_adjoint(exact, _converted(solution.state, path.dtype))
    facts = _facts(exact, solution, path, fixed, local)
    tried = candidates(setting, solution) if gradients is None else gradients
    rows = tuple(measure(setting, g, stop, truth.gradient, local) for g in tried)
    full = next((r.error for r in rows if r.gradient == Unroll()), None)
    found = findings(facts, truth, stop, full, tol)
    ahead = None
    if Symptom.NOT_CONVERGED in {f.symptom for f in found}:
        going_on = _slowest(facts.rate, facts.spectral_radius)
        ahead = look_ahead(exact, path, solution, full, tol, stop, going_on)
    advice = recommend(rows, facts, found, tol, truth, ahead)
    return Diagnosis(rows, facts, truth, found, advice, ahead)


def _require_settings(tol: float, reference: Any, directions: int, gradients: Any) -> None:
    if not 0 < tol < 1:
        raise InputError(f"tol is a relative error in (0, 1), not {tol!r}.")
    if not isinstance(reference, Stop):
        raise InputError(f"reference must be a Stop, not {type(reference).__name__}.")
    if isinstance(directions, bool) or not isinstance(directions, int) or directions < 0:
        raise InputError(f"directions must be a number of directions, not {directions!r}.")
    if gradients is not None and not list(gradients):
        raise InputError("gradients is empty: pass strategies, or None for all that may apply.")
    for i, g in enumerate(gradients or ()):
        if not isinstance(g, GradientStrategy):
            raise InputError(
                f"gradients[{i}] must be a GradientStrategy, not {given(g)}.{meant(g)}"
            )


def _require_alone(make: Any, algorithm: Any, x0: Any, params: Any) -> None:
    if not callable(make) or isinstance(make, Function) or algorithm is not None:
        raise InputError(
            "There is no loss: pass diagnose(problem, algorithm, loss), or a factory alone, "
            "diagnose(make), whose make(dtype) returns these three."
        )
    if x0 is not None or params is not None:
        raise InputError(
            "x0 and params belong to one precision, and a factory is called with two: let "
            "make(dtype) return (problem, algorithm, loss, x0, params), with None for what is not "
            "needed."
        )


def _lengths(reference: Stop, stop: Stop) -> tuple[Stop, int]:
    """The long run is no shorter than the solve in question, and twice a fixed number of it."""
    longest = Stop(max(reference.iterations, stop.iterations), reference.tol)
    return longest, min(2 * stop.iterations, longest.iterations) if stop.tol is None else 1


def _converted(state: Any, dtype: torch.dtype) -> Any:
    return tree.tree_map(lambda t: t.detach().to(dtype) if t.is_floating_point() else t, state)


def _try_adjoint(setting: Setting, state: Any) -> Adjoint | None:
    try:
        return adjoint(setting, state)
    except GradientError:  # no fixed point of a map, e.g. an average
        return None


def _reference(
    setting: Setting, path: Path, fixed: Adjoint | None, directions: int, twin: bool
) -> Reference:
    """ḡ by unrolling the path, or from ``fixed`` where the fixed point repels and paths diverge."""
    off: float | None = None
    apart: float | None = None
    if fixed is not None and fixed.radius > 1 + REPELLING_EXCESS and fixed.gradient is not None:
        with torch.no_grad():
            loss = float(setting.value(setting.algorithm.solution(path.state)))
        gradient, how = fixed.gradient, "implicit, for unrolling diverges"
    else:
        gradient, loss = unrolled(setting, path)
        how = "unrolled"
        if directions:
            off = disagreement(setting, path, gradient, directions)
        if fixed is not None and fixed.gradient is not None:
            other = fixed.gradient.to(gradient)
            apart = float(torch.linalg.vector_norm(gradient - other) / _size(gradient))
    return Reference(
        gradient=gradient.double().cpu(),
        loss=loss,
        how=how,
        dtype=path.dtype,
        twin=twin,
        iterations=path.iterations,
        residual=path.residuals[-1],
        converged=path.converged,
        disagreement=off,
        uncertainty=apart,
    )


def _size(gradient: Tensor) -> Tensor:
    """‖ḡ‖, or 1 where only absolute errors mean something."""
    size = torch.linalg.vector_norm(gradient)
    return torch.where(size > 0, size, torch.ones_like(size))


def _facts(
    setting: Setting, solution: Solution, path: Path, fixed: Adjoint | None, local: Adjoint | None
) -> Facts:
    radius = None if fixed is None else fixed.radius
    rounding = 100 * torch.finfo(path.dtype).eps

    def radii() -> dict[int, float] | None:
        if fixed is None or not fixed.certified:
            return None
        return {path.midway: radius_of_matrix(setting, path.middle), path.iterations: fixed.radius}

    factor, sublinear = rate(path.residuals, rounding, radii)
    return Facts(
        iterations=most(solution.iterations),
        residual=as_number(solution.residual.amax()),
        converged=_all_converged(solution),
        rate=factor,
        sublinear=sublinear and not path.converged,
        spectral_radius=radius,
        amplification=None if local is None else local.amplification,
        certified=local is not None and local.certified,
        margin=margin(setting, path),
        uniqueness=compare_starts(setting, path, None if fixed is None else fixed.idle),
    )


def _slowest(rate: float | None, radius: float | None) -> float | None:
    """The factor at which the residual will go on: ρ, where a mean over the past is below it."""
    if rate is None or radius is None or not rate < radius < 1:
        return rate
    return radius


def _all_converged(solution: Solution) -> bool | None:
    """Whether every element of a batch has reached the tolerance."""
    if solution.converged is None:
        return None
    return bool(torch.as_tensor(solution.converged).all())
