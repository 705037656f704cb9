"""Newton's method for energies with second derivatives: a factor that is kept, a line search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support.checks import as_number, is_concrete
from legato._support.tree import Var
from legato.algorithms.base import Algorithm
from legato.algorithms.start import mirror_start, require_real_variable
from legato.errors import DivergenceError, DomainError, InputError, LegatoError, StepError
from legato.functions import Function, Zero
from legato.geometry import Euclidean
from legato.problems import Composite

_DESCENT = 1e-4
"""The share of the decrease promised by the slope that a step has to keep (Armijo)."""
_OVERSHOOT = 0.9
"""Curvature condition: accept a step only if φ′(t) ≤ 0.9·|φ′(0)|; a steeper uphill slope means
that the step overshot the minimum along the line."""


class NewtonState(NamedTuple):
    """A point with ∇E there, the factor in use (or ()), and three numbers.

    They are E at the point, ⟨∇E, H⁻¹∇E⟩ at the last point, and the step to try first.
    """

    point: Tensor
    gradient: Tensor
    factor: Var
    numbers: Tensor


class PointState(NamedTuple):
    """The point alone."""

    point: Tensor


@dataclass(frozen=True, eq=False)
class SmoothNewton(Algorithm[Composite, Any]):
    r"""The iteration of :class:`Newton` where the whole energy has second derivatives.

    .. math:: x^{n+1} = x^n − t\, H^{-1} ∇E(x^n), \qquad E = f + g, \quad H = ∇^2E

    H is factorised again only where ⟨∇E, H⁻¹∇E⟩^½ has not shrunk to ``reuse`` times its last value.
    With a new H the first step tried is t = 1, with an old one that of the secant (Barzilai and
    Borwein, 1988); it is halved until the energy descends (Armijo) and does not rise again as
    steeply. Reference: Boyd and Vandenberghe, Section 9.5.
    """

    reuse: float = 0.3
    most: int = 60

    def init(self, problem: Composite, x0: Var | None) -> NewtonState:
        energy = _energy(problem)
        shape = problem.start()
        for given in (x0, shape):
            if isinstance(given, tuple) or (isinstance(given, Tensor) and given.ndim == 0):
                kind = "a tuple" if isinstance(given, tuple) else "a number"
                raise InputError(
                    "Newton works on a tensor of shape (…, n), whose leading axes are a batch, not "
                    f"on {kind}. Write the problem for one vector, or use ForwardBackward."
                )
        x = mirror_start(Euclidean(), Zero(), shape, x0)
        require_real_variable(x)
        gradient = energy.grad(x)
        if is_concrete() and not bool(torch.isfinite(gradient.detach()).all()):
            raise DomainError(
                "The gradient at the start is NaN or infinite: the start lies outside the domain "
                "of the energy, or at its boundary. Pass an interior point as x0."
            )
        x = x.expand_as(gradient)  # weights may have more batch axes than the data
        numbers = torch.stack((_value(energy, x), x.new_zeros(()), x.new_ones(())))
        return NewtonState(x, gradient, (), numbers)

    def proceed(self, problem: Composite, state: NewtonState) -> NewtonState:
        return self.resume(problem, state)  # the factor may belong to data that have changed

    def recomputed(self, problem: Composite, state: NewtonState) -> NewtonState:
        return state._replace(gradient=_energy(problem).grad(state.point))

    def step(self, problem: Composite, state: NewtonState) -> NewtonState:
        energy = _energy(problem)
        value, last, t = state.numbers.tolist()
        x, gradient, factor = state.point, state.gradient, state.factor
        fresh = isinstance(factor, tuple) or self.reuse == 0
        if not fresh:
            direction = _solve(factor, gradient)
            slope = _inner(gradient, direction)
            # What does not shrink because it is rounding already would not gain from a new factor.
            fresh = slope > self.reuse**2 * last and not _is_below(direction, x, 2 / 3)
        if fresh:
            factor, t = _factorise(energy.hessian(x), "Newton"), 1.0
            direction = _solve(factor, gradient)
            slope = _inner(gradient, direction)
        point, gradient, value, t = self._move(energy, x, direction, value, slope, t)
        return NewtonState(point, gradient, factor, x.new_tensor((value, slope, t)))

    def _move(
        self, energy: Function, x: Tensor, direction: Tensor, old: float, slope: float, t: float
    ) -> tuple[Tensor, Tensor, float, float]:
        """The first of t, t/2, t/4, … that descends: point, gradient, energy and the secant's t."""
        visible = torch.finfo(x.dtype).eps ** 0.5 * (1 + abs(old))
        promised = t * slope > visible
        for _ in range(self.most):
            trial = torch.sub(x, direction, alpha=t)
            seen = t * slope > visible
            # Needed even where its decrease is below rounding: it may be infinite.
            value = as_number(_value(energy, trial))
            if value <= (old - _DESCENT * t * slope if seen else old + visible):
                still = not seen and _is_below(direction, x, 0.95, t)
                if still and promised:  # the slope promised a visible decrease, and no t brings it
                    break
                gradient = energy.grad(trial)
                end = _inner(gradient, direction)
                if still or end >= -_OVERSHOOT * slope:
                    # Energies that cannot be told apart differ by the mean of the slopes.
                    value = value if seen else old - 0.5 * t * (slope + end)
                    # Two slopes that are rounding tell nothing of the next step, whose derivative
                    # does not shrink at t = 2.
                    lost = _is_below(direction, x, 2 / 3, t)
                    return trial, gradient, value, 1.0 if lost else _secant(t, slope, end)
            t = 0.5 * t
        raise StepError(
            f"Newton found no step that descends (last tried {t:g}): the energy is NaN or infinite "
            "around the current point, not smooth there, or its gradient does not belong to its "
            "values. Check its data, or start elsewhere."
        )

    def solution(self, state: Any) -> Tensor:
        return state.point

    def fixed_point_map(self, state: NewtonState) -> tuple[Algorithm[Composite, Any], PointState]:
        return _FullStep(), PointState(state.point)

    def with_variables(self, state: NewtonState, reduced: PointState) -> NewtonState:
        return state._replace(point=reduced.point, factor=())  # which resume would not use

    def require_sound(self, state: NewtonState) -> None:
        if not bool(torch.isfinite(state.point).all()):
            raise DivergenceError(
                "Newton diverged: its point holds NaN or infinity. Start closer to the solution, "
                "look for non-finite values in the problem, or use ForwardBackward."
            )


@dataclass(frozen=True, eq=False)
class _FullStep(Algorithm[Composite, Any]):
    """The full step with a Hessian that counts as a constant.

    Its derivative in θ is that of Newton's step wherever ∇E = 0, because that of H⁻¹ is multiplied
    by ∇E; and its derivative in x is 0 there. The last factor is remembered with its point.
    """

    _last: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def init(self, problem: Composite, x0: Var | None) -> PointState:
        return PointState(SmoothNewton().init(problem, x0).point)

    def step(self, problem: Composite, state: PointState) -> PointState:
        energy = _energy(problem)
        factor = self._factor(problem, energy, state.point.detach())
        return PointState(state.point - _solve(factor, energy.grad(state.point)))

    def _factor(self, problem: Composite, energy: Function, x: Tensor) -> Tensor:
        last = self._last
        if last.get("problem") is problem and torch.equal(last["point"], x):
            return last["factor"]
        with torch.no_grad():
            factor = _factorise(energy.hessian(x), "The derivative of Newton's step")
        last.update(problem=problem, point=x, factor=factor)
        return factor

    def solution(self, state: PointState) -> Tensor:
        return state.point


def _energy(problem: Composite) -> Function:
    """E = f + g as one function."""
    if isinstance(problem.nonsmooth, Zero):
        return problem.smooth
    return problem.smooth + problem.nonsmooth


def is_smooth(problem: Any) -> bool:
    """Whether a problem is an energy with second derivatives, as a whole."""
    return isinstance(problem, Composite) and (
        isinstance(problem.nonsmooth, Zero) or problem.nonsmooth.is_smooth
    )


@torch.no_grad()
def _value(energy: Function, x: Tensor) -> Tensor:
    return energy.value(x.detach())


def _inner(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.detach().flatten(), b.detach().flatten()))


def _secant(t: float, begin: float, end: float) -> float:
    """The step at which a slope that falls from ``begin`` to ``end`` within t would vanish."""
    return min(max(t * begin / (begin - end), 0.5), 2.0) if begin > end else 1.0


@torch.no_grad()
def _is_below(move: Tensor, x: Tensor, digits: float, t: float = 1.0) -> bool:
    """Whether a move by t·move leaves the leading digits of x, down to eps^digits, as they are."""
    size = torch.finfo(x.dtype).eps ** digits
    return bool(t * torch.linalg.vector_norm(move) <= size * torch.linalg.vector_norm(x))


def _solve(factor: Tensor, gradient: Tensor) -> Tensor:
    """H⁻¹∇E; a factor without batch axes serves all batch elements at once."""
    if factor.ndim == 2 and gradient.ndim > 1:
        rows = gradient.reshape(-1, gradient.shape[-1])
        return _substitute(factor, rows.mT).mT.reshape(gradient.shape)
    return _substitute(factor, gradient.unsqueeze(-1)).squeeze(-1)


def _substitute(factor: Tensor, columns: Tensor) -> Tensor:
    """As torch.cholesky_solve, in two thirds of its time for a single column."""
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


def _factorise(H: Tensor, who: str) -> Tensor:
    """L with H = LLᵀ; refuses an H that is not positive definite beyond rounding."""
    factor, info = torch.linalg.cholesky_ex(H)
    with torch.no_grad():
        # L_ii² / H_ii is what the other variables leave of H_ii.
        left = factor.diagonal(dim1=-2, dim2=-1) ** 2 / H.diagonal(dim1=-2, dim2=-1)
        floor = 8 * H.shape[-1] * torch.finfo(H.dtype).eps
        if bool((info == 0).all()) and bool((left > floor).all()):
            return factor
    raise _not_definite(H.detach(), who)


def _not_definite(H: Tensor, who: str) -> LegatoError:
    matrices = H.reshape(-1, *H.shape[-2:])
    sound = torch.isfinite(matrices).all(-1).all(-1)
    if not bool(sound.all()):
        return DivergenceError(
            f"{who}: the Hessian holds NaN or infinity. Start closer to the solution, or look for "
            "non-finite values in the problem."
        )
    eigenvalues = torch.linalg.eigvalsh(0.5 * (matrices + matrices.mT))
    worst = int((eigenvalues[:, 0] / eigenvalues.abs().amax(-1)).argmin())
    where = f" of batch element {worst}" if len(matrices) > 1 else ""
    smallest, largest = as_number(eigenvalues[worst, 0]), as_number(eigenvalues[worst, -1])
    return InputError(
        f"{who} needs a positive definite Hessian, but that{where} has eigenvalues from "
        f"{smallest:.2e} to {largest:.2e}: the solution is not unique, the energy not convex, or "
        f"the data too badly scaled for {H.dtype}. Add SquaredNorm(ε), scale the data, take "
        "float64, or use ForwardBackward."
    )
