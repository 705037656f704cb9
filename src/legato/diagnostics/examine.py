"""The front door of the diagnosis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.diagnostics.adjoint import Adjoint, adjoint
from legato.diagnostics.complementarity import margin
from legato.diagnostics.measure import Row, measure, scale
from legato.diagnostics.path import Path, follow
from legato.diagnostics.rate import Rate, rate
from legato.diagnostics.reference import Reference, disagreement, unrolled, unrolled_in_place
from legato.diagnostics.replica import Replica, lasting_leaves, replicate
from legato.diagnostics.report import Diagnosis, Facts
from legato.diagnostics.setting import Loss, Setting, checked_loss, require_dependence
from legato.diagnostics.strategies import candidates
from legato.diagnostics.uniqueness import compare_starts
from legato.diagnostics.verdict import REPELS, findings, recommend
from legato.errors import GradientError, InputError, NoInfluenceError
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.running import Stop
from legato.solving import Solution, solve


def diagnose(
    problem: Any,
    algorithm: Algorithm,
    loss: Loss,
    x0: Var | None = None,
    *,
    stop: Stop | None = None,
    params: Tensor | Sequence[Tensor] | None = None,
    gradients: Sequence[GradientStrategy] | None = None,
    tol: float = 1e-3,
    reference: Stop | None = None,
    directions: int = 2,
) -> Diagnosis:
    r"""Which gradient should I use here, and can I trust it?

    .. math:: \frac{‖g − ḡ‖}{‖ḡ‖} \quad\text{for every strategy's } g, \qquad
              ḡ = \frac{d}{dθ} L(x^*(θ))

    ``loss`` is a function of the solution. θ is every leaf that influences the loss and records
    gradients, or ``params``. ``gradients`` replaces the strategies that are tried. A strategy is
    recommended if it is within ``tol`` of ḡ without a warning and takes the fewest products. ḡ is
    the derivative of a float64 copy, unrolled until ``reference`` stops it, and checked by central
    differences along ``directions`` random directions. ``stop`` is that of the solve in question.
    Reference: Sections 4 and 5 of Ochs et al. (2016).

    >>> weight = torch.tensor(0.5, requires_grad=True)
    >>> problem = lg.Composite(lg.LeastSquares(torch.eye(3), torch.ones(3)), lg.L1(weight))
    >>> diagnosis = lg.diagnose(problem, lg.ForwardBackward(0.5), lambda x: x.square().sum())
    >>> type(diagnosis.recommendation.gradient).__name__
    'Implicit'
    """
    stop = Stop() if stop is None else stop
    reference = Stop(5000, tol=1e-12) if reference is None else reference
    _require_settings(loss, tol, reference, directions, gradients)
    setting = Setting(problem, algorithm, loss, x0)
    solution, found = _solve_attached(setting, stop, params)
    theta = _flat_params(params) if params is not None else found

    replica = replicate(setting, theta, torch.float64)
    given = tree.leaves(solution.x)[0].dtype
    if replica is None and given != torch.float64:
        replica = replicate(setting, theta, given)
    state = tree.detach(solution.state)
    truth, path, fixed, local = _reference(
        setting, replica, theta, state, reference, stop, directions
    )
    falls = rate(path.residuals, 100 * torch.finfo(truth.dtype).eps)
    facts = _facts(setting if replica is None else replica.setting, solution, path, falls, fixed)
    facts = dataclasses.replace(
        facts,
        amplification=None if local is None else local.amplification,
        certified=local is not None and local.certified,
    )
    variables = (solution.x, () if solution.y is None else solution.y)
    size = sum(t.numel() for t in tree.leaves(variables))
    tried = candidates(algorithm, theta, solution.iterations, size)
    if gradients is not None:
        tried = list(gradients)
    eps = torch.finfo(given).eps
    rows = tuple(
        _bounded(measure(setting, g, stop, theta, truth.gradient), truth.gradient, local, eps)
        for g in tried
    )
    full = next((r.error for r in rows if r.gradient == Unroll()), None)
    signs = findings(facts, truth, stop, given, full)
    return Diagnosis(rows, facts, truth, signs, recommend(rows, facts, truth, signs, tol))


def _require_settings(
    loss: Any, tol: float, reference: Any, directions: int, gradients: Any
) -> None:
    if not callable(loss):
        raise InputError(
            f"The loss must be a function of the solution, not {type(loss).__name__}: pass "
            "loss=lambda x: …, not its value, so that it can be evaluated elsewhere."
        )
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
            given = f"the class {g.__name__}" if isinstance(g, type) else repr(g)
            hint = f" Did you mean {g.__name__}()?" if isinstance(g, type) else ""
            raise InputError(f"gradients[{i}] must be a GradientStrategy, not {given}.{hint}")


def _flat_params(params: Tensor | Sequence[Tensor]) -> list[Tensor]:
    flat = [params] if isinstance(params, Tensor) else list(params)
    if not flat:
        raise InputError("params is empty: pass tensors, or None for all that matter.")
    for i, p in enumerate(flat):
        if not isinstance(p, Tensor) or not p.requires_grad:
            what = "does not require a gradient" if isinstance(p, Tensor) else "is no tensor"
            raise InputError(
                f"params[{i}] {what}. Call .requires_grad_() on it before building the problem."
            )
    return flat


def _solve_attached(
    setting: Setting, stop: Stop, params: Tensor | Sequence[Tensor] | None
) -> tuple[Solution, list[Tensor]]:
    """The solve as asked for, and the leaves behind its loss."""
    wanted = None if params is None else _flat_params(params)
    with torch.enable_grad():
        first, solution = (
            solve(setting.problem, setting.algorithm, setting.x0, gradient=Unroll(), stop=stop)
            for _ in range(2)
        )
        require_dependence(setting.loss, solution.x)
        value = checked_loss(setting.loss, solution.x)
        touched = [
            torch.stack([t.sum() for t in tree.leaves(s.x)]).sum() for s in (first, solution)
        ]
        if not lasting_leaves(*touched):
            raise NoInfluenceError(
                "No tensor behind the solution requires a gradient, so there is nothing to "
                "differentiate. Call .requires_grad_() on θ before building the problem from it."
            )
        if wanted is not None:
            grads = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
            idle = [i for i, g in enumerate(grads) if g is None]
            if idle:
                raise NoInfluenceError(
                    f"params[{idle[0]}] (shape {tuple(wanted[idle[0]].shape)}) does not influence "
                    "the loss: the problem was built from another tensor (a copy, a detached or "
                    "converted one), or does not use it. Build the problem from params[i] itself."
                )
        found = lasting_leaves(checked_loss(setting.loss, first.x), value)
    return dataclasses.replace(solution, x=tree.detach(solution.x)), found


def _reference(
    setting: Setting,
    replica: Replica | None,
    theta: list[Tensor],
    state: Any,
    reference: Stop,
    stop: Stop,
    directions: int,
) -> tuple[Reference, Path, Adjoint | None, Adjoint | None]:
    """ḡ, the run that led to it, and the adjoint systems at its end and at the user's iterate."""
    reference = Stop(max(reference.iterations, stop.iterations), reference.tol)
    least = min(2 * stop.iterations, reference.iterations) if stop.tol is None else 1
    if replica is None:
        path = follow(setting, reference, least)
        gradient, value = unrolled_in_place(setting, theta, path)
        truth = _as_reference(path, gradient, value, "unrolled", None)
        return truth, path, None, None
    path = follow(replica.setting, reference, least)
    fixed = _try_adjoint(replica, path.state)
    if fixed is not None and fixed.radius > 1 + REPELS and fixed.gradient is not None:
        with torch.no_grad():
            value = float(replica.setting.value(path.state))
        truth = _as_reference(path, fixed.gradient, value, "implicit, for unrolling diverges", None)
    else:
        gradient, value = unrolled(replica, path)
        off = disagreement(replica, path, gradient, directions) if directions else None
        truth = _as_reference(path, gradient, value, "unrolled", off)
    double = tree.tree_map(lambda t: t.to(replica.dtype) if t.is_floating_point() else t, state)
    return truth, path, fixed, _try_adjoint(replica, double)


def _as_reference(
    path: Path, gradient: Tensor, value: float, how: str, off: float | None
) -> Reference:
    return Reference(
        gradient=gradient.double().cpu(),
        loss=value,
        how=how,
        dtype=tree.leaves(path.state)[0].dtype,
        iterations=path.iterations,
        residual=path.residuals[-1],
        converged=path.converged,
        disagreement=off,
    )


def _try_adjoint(replica: Replica, state: Any) -> Adjoint | None:
    try:
        return adjoint(replica, state)
    except GradientError:  # no fixed point of a map, e.g. an average
        return None


def _facts(
    setting: Setting, solution: Solution, path: Path, falls: Rate, fixed: Adjoint | None
) -> Facts:
    return Facts(
        iterations=solution.iterations,
        residual=as_number(solution.residual),
        converged=solution.converged,
        rate=falls.factor,
        sublinear=falls.sublinear and not path.converged,
        spectral_radius=None if fixed is None else fixed.radius,
        amplification=None,
        certified=False,
        margin=margin(setting, path),
        uniqueness=compare_starts(setting, path, None if fixed is None else fixed.idle),
    )


def _bounded(row: Row, reference: Tensor, local: Adjoint | None, eps: float) -> Row:
    """The row with its bound: ‖ĝ − ḡ‖, measured, plus the bound on ‖g − ĝ‖ from the residual.

    ĝ solves the adjoint system at the same iterate exactly.
    """
    known = isinstance(row.gradient, FixedPointGradient) and row.residual is not None
    if not known or local is None or row.residual is None:
        return row
    if local.gradient is None or not math.isfinite(local.influence):
        return dataclasses.replace(row, bound=math.inf)
    forward = float(torch.linalg.vector_norm(local.gradient - reference))
    total = forward + local.bound(row.residual, eps)
    total += 20 * eps * float(torch.linalg.vector_norm(local.gradient))
    return dataclasses.replace(row, bound=total / scale(reference))
