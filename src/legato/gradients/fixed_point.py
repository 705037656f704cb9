"""Differentiating the fixed-point equation x* = 𝒜(x*, θ) instead of the path to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, inside_functional_transform, is_concrete
from legato._support.compiling import never_compiled
from legato._support.given import given, meant
from legato._support.holding import versions
from legato._support.precision import full_precision
from legato._support.telling import listening, tell
from legato.engine.at_once import at_once
from legato.errors import (
    GradientError,
    InexactGradientWarning,
    InputError,
    NonContractiveWarning,
    NonFiniteGradientWarning,
    NotConvergedWarning,
)
from legato.gradients.base import (
    GradientStrategy,
    Linearisation,
    Task,
    changed_since,
    inside_transforms,
    refuse_second_derivatives,
)
from legato.gradients.bending import warn_if_bent
from legato.gradients.distance import warn_if_far
from legato.gradients.exactness import warn_if_on_a_kink, warn_if_undetermined
from legato.gradients.linear import GMRES, LinearResult, LinearSolver, Neumann
from legato.gradients.linear.base import Product, residual_of, worst
from legato.gradients.outlook import Outlook
from legato.gradients.ties import may_be_tied
from legato.gradients.unseen import contracts, holds_unseen
from legato.gradients.unsolved import arrived, cures, still_vanishing
from legato.gradients.vanishing import warn_if_another_piece
from legato.running import Run, Stop, batch_of, most

FORWARD_TOLERANCE = 1e-3
"""Residual above which a solution is too far from a fixed point to be differentiated as one."""


DEFAULT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-9}
"""Residuals at which ``stop=None`` ends."""


class FixedPointGradient(GradientStrategy):
    r"""What the fixed-point family shares: solve detached, attach one step, replace its cotangent.

    .. math:: \frac{dL}{dθ} = A_θ^⊤ v, \qquad (I − A_x)^⊤ v = ξ = ∇_x L

    Memory does not grow with the number of iterations. The derivative is taken at the last iterate,
    in coordinates that are exact at boundary solutions (see ``Geometry.transport``).
    A member says how the system is solved, in :meth:`adjoint`.
    Reference: Section 4.3 of Ochs et al. (2016), with errata 8 and 13.
    """

    from_start: ClassVar[bool] = False

    @abstractmethod
    def adjoint(self, linearisation: Linearisation, xi: Tensor) -> LinearResult:
        """Solve (I − M)w = ξ for M = ``linearisation.transposed``.

        ξ is one vector, or has a row for each element of a batch: separate systems, all of which
        are to be solved to the tolerance.
        """

    def conclude(self, result: LinearResult, linearisation: Linearisation) -> None:
        """Say what is wrong with a result, in words and numbers."""
        warn_if_inexact(result, linearisation)

    def default_stop(self, dtype: torch.dtype) -> Stop:
        """What ``stop=None`` means: a solution, as far as the precision allows.

        The residual is read seldom, for a GPU waits each time.
        """
        return Stop(10_000, tol=DEFAULT_TOLERANCE.get(dtype, 1e-6), every=10)

    @never_compiled("the backward solve is data-dependent")
    def differentiate(self, task: Task) -> Run:
        with torch.no_grad():
            done = task.detached().run()
        if not torch.is_grad_enabled():
            return done
        with torch.no_grad():
            resting = task.algorithm.at_rest(task.problem, done.state)
        plain, before = task.algorithm.fixed_point_map(resting)
        before = tree.detach(before)
        start = before  # cotangents of points are what they are, wherever these began
        if plain.coordinates(before):
            start = tree.detach(task.algorithm.fixed_point_map(task.state)[1])
        after = tree.leaves(plain.step(task.problem, before))
        if not any(t.requires_grad for t in after):
            return done
        if inside_functional_transform():
            raise inside_transforms(
                f"{type(self).__name__} solves its linear system in .backward()"
            )
        with listening() as unsettled:
            _warn_unless_stationary(done, task)
        # Capture only the residual. Capturing `done` would create a reference cycle through the
        # autograd graph (done.state → grad_fn → closure → done), which Python's GC cannot collect.
        problem, report, last_change = task.problem, task.report, done.residual
        engine = task.engine
        then, changes = tuple(t.detach() for t in after), versions(problem)
        batch = batch_of(problem, plain, before)

        def replaced(grads: Sequence[Tensor]) -> list[Tensor]:
            linearisation = Linearisation(problem, plain, before, batch=batch, engine=engine)
            rows = linearisation.rows
            if versions(problem) != changes:
                raise changed_since("A tensor that the problem holds is another one now")
            xi = rows.flatten(grads)
            seen = xi, rows.flatten(linearisation.after).detach(), rows.flatten(then)
            sound, unit, lost, numbers = at_once(engine, _before_the_solve, *seen)
            away, any_lost, any_left = numbers.tolist()  # the one time that a GPU is waited for
            if away > 0:
                raise changed_since(
                    "One step from the solution leads elsewhere than when it was found, by "
                    f"{away:.2g} of its size"
                )
            if any_lost:
                _warn_of_the_loss(as_number(xi.abs().amax()))
            with listening() as report.warnings:
                solve = self.adjoint if any_left else _nothing
                result = solve(linearisation, sound)
                self.conclude(result, linearisation)
                warn_if_on_a_kink(linearisation, sound)
                if not unsettled:  # else it has been said, and where it leads costs a second solve
                    self._look_ahead(linearisation, last_change, result, sound, start)
            report.warnings[:0] = unsettled
            report.record(result)
            w = torch.where(lost, torch.nan, result.solution * unit)
            return tree.leaves(linearisation.transport(rows.unflatten(w)))

        attached = _ReplaceCotangent.apply(replaced, tree.leaves(before), *after)  # type: ignore[no-untyped-call]
        done.state = task.algorithm.with_variables(done.state, tree.rebuild(before, attached))
        return done

    def _look_ahead(
        self, linearisation: Linearisation, last_change: Tensor, result: LinearResult, xi: Tensor,
        start: Any,
    ) -> None:  # fmt: skip
        """Say where the solution may be another one than the point that is differentiated."""
        radius = result.spectral_radius
        if radius is not None and not radius < 1:
            return  # there is no one solution to be near to, which has been said
        outlook = Outlook.after(linearisation, last_change, result, xi)
        solved = last_change, result, xi, outlook
        if not warn_if_far(self.adjoint, linearisation, *solved):
            warn_if_bent(self.adjoint, linearisation, *solved, start)
            warn_if_another_piece(self.adjoint, linearisation, *solved)


class _ReplaceCotangent(torch.autograd.Function):
    """The solution; its backward turns ξ into the cotangent v of the attached step."""

    @staticmethod
    def forward(
        ctx: Any,
        replace: Callable[[Sequence[Tensor]], list[Tensor]],
        before: list[Tensor],
        *after: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.replace = replace
        return tuple(t.detach().clone() for t in before)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives()
        with full_precision():
            return (None, None, *ctx.replace(grads))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise GradientError(
            "The fixed-point family solves its linear system in .backward(), so it has no "
            "forward-mode derivative. Use Forward(parameters) or Unroll() under forward mode."
        )


# --- the family ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedPoint(FixedPointGradient):
    r"""The geometric series at the solution, cut off after ``terms`` terms.

    .. math:: v = \sum_{k=0}^{K−1} (A_x^⊤)^k ξ

    The paper's methods with a "2" in their names. Stops early once the rest is below ``tol`` and
    warns where it is not; ``tol=None`` takes exactly ``terms`` terms without comment.
    Defaults: ``terms=100``, ``tol=1e-6``.
    Reference: Section 4.3 of Ochs et al. (2016), with errata 8.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.FixedPoint(terms=50))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3), solution.backward.converged
    (tensor(-3.0410), True)
    """

    terms: int = 100
    tol: float | None = 1e-6

    def __post_init__(self) -> None:
        if isinstance(self.terms, bool) or not isinstance(self.terms, int) or self.terms < 1:
            raise InputError(f"FixedPoint needs a positive number of terms, not {self.terms!r}.")

    def adjoint(self, linearisation: Linearisation, xi: Tensor) -> LinearResult:
        return _in_units(Neumann(self.tol, self.terms), linearisation, xi)

    def conclude(self, result: LinearResult, linearisation: Linearisation) -> None:
        if self.tol is not None:
            warn_if_inexact(result, linearisation)


@dataclass(frozen=True)
class OneStep(FixedPointGradient):
    """The derivative of the last step alone, v = ξ: cheapest, and biased by a factor up to 1 − ρ.

    Reports the relative residual ‖A_xᵀξ‖/‖ξ‖ and warns where it exceeds ``tol``: then most of the
    gradient is missing. Reference: Bolte, Pauwels, Vaiter (2023).

    Default: ``tol=0.1``.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> problem = lg.Composite(lg.LeastSquares(torch.eye(1), torch.tensor([3.0])), lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(0.95), gradient=lg.OneStep())
    >>> solution.x.sum().backward()
    >>> weight.grad, round(solution.backward.residual, 3)  # not −1: 0.05 is left out
    (tensor(-0.9500), 0.05)
    """

    tol: float | None = 0.1

    def adjoint(self, linearisation: Linearisation, xi: Tensor) -> LinearResult:
        result = Neumann(None, 1).solve(linearisation.transposed, xi)
        result.converged = self.tol is None or result.residual <= self.tol
        return result

    def conclude(self, result: LinearResult, linearisation: Linearisation) -> None:
        if linearisation.algorithm.exact:
            warn_if_undetermined(result, linearisation)
        elif not result.converged:
            tell(
                f"OneStep leaves out a part of relative size {result.residual:.2g} of the "
                "cotangent: the iteration contracts too slowly for a one-step gradient. Use "
                "FixedPoint(terms), Implicit() or Unroll().",
                InexactGradientWarning,
            )


@dataclass(frozen=True)
class Implicit(FixedPointGradient):
    r"""The implicit function theorem on the fixed-point equation, with an iterative linear solve.

    .. math:: v = (I − A_x^⊤)^{-1} ξ

    The paper's "-impl" methods. ``solver`` is GMRES, BiCGStab, CG (short recurrences for proximal
    gradient steps), MINRES (the same for primal–dual ones), Neumann or Direct; a missed tolerance
    warns with its number.
    Reference: Section 4.3 of Ochs et al. (2016).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit())
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)  # −1 − 1/0.7²
    tensor(-3.0410)
    """

    solver: LinearSolver = field(default_factory=GMRES)

    def __post_init__(self) -> None:
        if not isinstance(self.solver, LinearSolver):
            raise InputError(
                f"Implicit takes a linear solver such as GMRES(tol=1e-8), not {given(self.solver)}."
                f"{meant(self.solver)}"
            )

    def adjoint(self, linearisation: Linearisation, xi: Tensor) -> LinearResult:
        parts: Product | None = None
        if self.solver.takes_rows and self.solver.takes_factors:
            parts = linearisation.factored()
        elif self.solver.takes_rows and self.solver.takes_saddle:
            parts = linearisation.saddle()
        if parts is not None:
            return self.solver.solve(parts, xi)
        return _in_units(self.solver, linearisation, xi)


def _in_units(solver: LinearSolver, linearisation: Linearisation, xi: Tensor) -> LinearResult:
    """A solve whose norms see cotangents of x and of its dual alike, whatever their sizes."""
    product, units = linearisation.scaled
    solve = solver.solve if solver.takes_rows else partial(_solve_as_one, solver)
    if units is None:
        return solve(product, xi)
    result = solve(product, units * xi)
    return replace(result, solution=result.solution / units)


def _solve_as_one(solver: LinearSolver, product: Product, xi: Tensor) -> LinearResult:
    """By a solver that knows vectors only; its result is then judged row by row."""

    def on_vectors(v: Tensor) -> Tensor:
        return product(v.reshape(xi.shape)).reshape(-1)

    result = solver.solve(on_vectors, xi.reshape(-1))
    w = result.solution.reshape(xi.shape)
    if xi.ndim == 1:
        return result
    residual = worst(residual_of(product, w, xi)[1])
    allowed = 2 * max(result.residual, result.tol or 0.0)
    converged = result.converged and residual <= allowed
    return replace(result, solution=w, residual=residual, converged=converged)


def _nothing(linearisation: Linearisation, xi: Tensor) -> LinearResult:
    """What solves the system where the loss sees nothing."""
    return LinearResult.zero(xi)


def _before_the_solve(xi: Tensor, found: Tensor, expected: Tensor) -> tuple[Tensor, ...]:
    """ξ in units of its size, these, which rows are no numbers; and three numbers for the host.

    By how much one step leads elsewhere than it did in the forward pass, from the same state; 0
    where that is rounding. Whether a row of ξ is lost, and whether anything is left to be solved.
    """
    # What is no number makes all of its element none: a zero in a coordinate that the loss does
    # not see would look healthy. The other elements of a batch are differentiated.
    lost = ~torch.isfinite(xi).all(-1, keepdim=True)
    kept = torch.where(lost, 0.0, xi)
    # The system is linear: solved for cotangents of size 1, no norm under- or overflows.
    unit = _power_of_two(kept)
    sound = kept / unit
    away = _led_elsewhere(found, expected)
    numbers = [away.double(), lost.any().double(), sound.any().double()]
    return sound, unit, lost, torch.stack(numbers)


def _led_elsewhere(found: Tensor, expected: Tensor) -> Tensor:
    """By how much a step leads elsewhere than it did, relative to its size; 0 up to rounding.

    The backward pass builds the step anew from present values. Where these take any entry elsewhere
    by more than rounding, on a GPU that adds up in any order, its derivative is that of another
    problem. Small entries are not judged by the size of large ones, as far as rounding allows.
    """
    eps = torch.finfo(expected.dtype).eps
    size = expected.abs().amax(-1, keepdim=True)
    away = (found - expected).abs()
    changed = away > eps**0.5 * expected.abs() + eps**0.75 * size
    return torch.where(changed, away / torch.maximum(expected.abs(), eps * size), 0.0).amax()


def _power_of_two(xi: Tensor) -> Tensor:
    """The power of two next to each row's largest entry: dividing by it leaves digits as they are.

    1 where there is nothing.
    """
    largest = xi.abs().amax(-1, keepdim=True) if xi.shape[-1] else xi.new_ones(*xi.shape[:-1], 1)
    unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    tiny = torch.finfo(xi.dtype).tiny
    return torch.where(largest > 0, torch.clamp(unit, min=tiny), 1.0)


# --- what is said about gradients that cannot be trusted -----------------------------------------


def warn_if_inexact(result: LinearResult, linearisation: Linearisation) -> None:
    """Warn about a missed tolerance, and about a map that does not contract."""
    if not contracts(linearisation, result):
        tell(
            f"The iteration does not contract at its solution: the spectral radius of A_x is about "
            f"{result.spectral_radius:.6g}. The solution is not unique, not isolated, or not "
            "attracting (without strict complementarity it tends to 1), so its derivative is not "
            "defined by the fixed-point equation. Use Unroll(), or make the solution unique, e.g. "
            "by adding SquaredNorm or NegativeEntropy. Relative residual of the backward solve: "
            f"{result.residual:.2e}.",
            NonContractiveWarning,
        )
    elif not result.converged:
        radius = result.spectral_radius
        wanted = f" > {result.tol:.0e}" if result.tol else ""
        known = "" if radius is None else f" The spectral radius of A_x is about {radius:.6g}."
        tell(
            f"The backward solve stopped after {result.iterations} products with relative residual "
            f"{result.residual:.2e}{wanted}: the gradient is approximate.{known} Allow more "
            "iterations or terms, loosen tol, or use Implicit(GMRES()) or Unroll().",
            InexactGradientWarning,
        )
    elif may_be_tied(linearisation.problem) and holds_unseen(linearisation, result):
        tell(
            "The fixed-point equation leaves the gradient open: its derivative has an eigenvalue 1 "
            "that the loss does not see, but parameters do (a dual that is not unique, a weight or "
            "radius of exactly 0, equal columns that are learned). What they get is one of many "
            "gradients. Make the solution unique, or keep weights above 0.",
            NonContractiveWarning,
        )


def _warn_of_the_loss(largest: float) -> None:
    """What came from the loss is no gradient; it goes on as it is, for a scaler to notice."""
    tell(
        f"The gradient of the loss with respect to the solution holds {largest}: nothing can be "
        "differentiated further. Look for a division by zero, a logarithm of zero or an overflow "
        "between the solution and the loss.",
        NonFiniteGradientWarning,
    )


def _warn_unless_stationary(done: Run, task: Task) -> None:
    if not is_concrete():
        return
    residual = as_number(done.residual.amax())
    allowed = FORWARD_TOLERANCE if task.stop.tol is None else task.stop.tol
    if residual <= allowed and done.settled is not None and not bool(done.settled.all()):
        tell(
            f"The solve ended after {most(done.iterations)} iterations with residual "
            f"{residual:.2e}, but entries at the boundary are on their way back inside, where they "
            "cannot be seen yet: its last iterate is no fixed point. Give Stop more iterations, or "
            "a start further inside.",
            NotConvergedWarning,
        )
    elif residual <= allowed and not arrived(done.converged):
        tell(still_vanishing(done.iterations, done.residual), NotConvergedWarning)
    if residual > allowed:
        tell(
            f"The solve ended after {most(done.iterations)} iterations with residual "
            f"{residual:.2e} > {allowed:.0e}, so its last iterate is not a fixed point, and a "
            "gradient that assumes one is off by an unknown amount. Give Stop more iterations or "
            f"a looser tol{cures(task.problem, task.algorithm, done.state)}; or use Unroll(), "
            "which is exact for any number of iterations.",
            NotConvergedWarning,
        )
