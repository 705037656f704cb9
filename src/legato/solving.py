"""The front door: a problem, an algorithm and a gradient put together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import hidden_values_in_words, is_concrete
from legato._support.constants import noting
from legato._support.given import given, meant
from legato._support.later import later, put_off
from legato._support.lazy import lazy
from legato._support.precision import full_precision
from legato._support.soundness import require_sound_data
from legato._support.tree import Var
from legato.algorithms import (
    AdaptiveBalance,
    Algorithm,
    Backtracking,
    ForwardBackward,
    PrimalDual,
    Restart,
)
from legato.algorithms.base import is_euclidean
from legato.energy import fitting_geometry, split
from legato.engine import Engine
from legato.engine.switch import engine_of
from legato.errors import InputError
from legato.functions import Function
from legato.functions.kernels import same_geometry
from legato.geometry import Euclidean
from legato.gradients import Backward, GradientStrategy, Task, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.gradients.unsolved import warn_if_limited, warn_if_missed, warn_if_moving
from legato.problems import Composite, Problem, Saddle
from legato.running import Stop, Trace, most


@dataclass(repr=False)
class Solution:
    """What :func:`solve` found, attached to the autograd graph.

    Attributes:
        x: the primal variable.
        y: the dual variable, where there is one.
        state: a start for another problem, passed as x0.
        iterations: how many were run; with a tolerance, one for each element of a batch.
        residual: ‖xᴺ − xᴺ⁻¹‖/max_k ‖xᵏ‖, one for each element of a batch (see :class:`Stop`).
        converged: whether that reached the tolerance: a bool, or one for each element of a batch;
            None where no tolerance was asked for.
        steps: the step sizes used.
        trace: objective and residual of every iteration, if asked for.
        algorithm: the algorithm that ran.
        problem: the problem that it solved: an energy's splitting.
        given: the energy or problem as it was given to ``solve``.
        constant_steps: whether steps follow from what is learned by a norm that was found by
            iteration, as :func:`~legato.operators.lanczos_norm` does, or by a line search: the
            derivative of the iterations then counts them as constants. Steps from norms in closed
            form are differentiated; at a solution no steps matter.
        backward: what happened in the backward pass, filled by ``.backward()``.

    >>> energy = lg.SquaredDistance(torch.tensor([3.0, 0.5])) + lg.L1(1.0)
    >>> lg.solve(energy, stop=lg.Stop(50, tol=1e-6))
    Solution(x=tensor(2), ForwardBackward, 2 iterations, residual 0, converged)
    """

    x: Var
    y: Var | None
    state: Any
    iterations: int | Tensor
    residual: Tensor
    converged: Tensor | bool | None
    steps: dict[str, Any]
    trace: Trace | None
    algorithm: Algorithm[Any, Any]
    problem: Any
    given: Any
    constant_steps: bool = False
    backward: Backward = field(default_factory=Backward)

    @lazy
    def objective(self) -> Tensor:
        """The energy at x, for each element of a batch."""
        with torch.no_grad():
            return self.problem.objective(tree.detach(self.x))

    @lazy
    def gap(self) -> Tensor:
        """The primal–dual gap, an upper bound of objective − minimum, where it is known."""
        if self.y is None or not hasattr(self.problem, "gap"):
            who = type(self.algorithm if self.y is None else self.problem).__name__
            raise InputError(
                f"{who} has no dual variable, so there is no gap. Use "
                "the residual, or solve the problem as a Saddle with PrimalDual."
            )
        with torch.no_grad():
            return self.problem.gap(tree.detach(self.x), tree.detach(self.y))

    def __repr__(self) -> str:
        shape = tree.tree_map(lambda t: f"tensor({'×'.join(map(str, t.shape))})", self.x)
        words = [f"x={shape}", type(self.algorithm).__name__, f"{most(self.iterations)} iterations"]
        words.append(f"residual {float(self.residual.amax()):.2g}")
        if self.converged is not None:
            reached = torch.as_tensor(self.converged)
            count = f" {int(reached.sum())} of {reached.numel()}" if reached.ndim else ""
            words.append(f"converged{count}" if count or reached else "not converged")
        return f"Solution({', '.join(words)})"


def solve(
    problem: Function | Problem | Any,
    algorithm: Algorithm[Any, Any] | None = None,
    x0: Var | Solution | None = None,
    *,
    gradient: GradientStrategy | None = None,
    stop: Stop | None = None,
    trace: bool = False,
    engine: Engine | None = None,
) -> Solution:
    r"""Minimise an energy, so that the result can be differentiated.

    .. math:: x(θ) = 𝒜^{(N)}(x^0, θ) ≈ \arg\min_x E(x, θ)

    Every tensor that the problem's step touches gets its gradient, wherever it is kept.
    Reference: Section 4 of Ochs et al. (2016).

    Args:
        problem: an energy, which is split by the rules of :func:`split`, or a problem.
        algorithm: None takes :class:`PrimalDual` where a term stands behind an operator, with
            ``restart=Restart(), balance=AdaptiveBalance()`` where there is a tolerance, else
            :class:`ForwardBackward`, with a line search where no step can be derived.
        x0: a point, or the state of an earlier solution, which is a start with fresh steps; the
            Solution of this very problem goes on where it stopped, with its momentum and
            averages. None starts from a neutral point.
        gradient: how to differentiate; ``Unroll()`` if None.
        stop: None is 100 iterations for ``Unroll`` and ``Forward``, with a warning where they have
            not arrived, and for the fixed-point family as many as a solution takes (at most
            10 000, until the residual is 1e-9, or 1e-6 in float32).
        trace: record objective and residual of every iteration.
        engine: how the iterations run: :class:`Compiled`, :class:`Replayed`; None takes that of
            the block around, or runs step by step.

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> x = lg.solve(lg.LeastSquares(A, b) + lg.L1(weight), gradient=lg.Implicit()).x
    >>> x.sum().backward()
    >>> x.detach(), weight.grad  # x = (3 − weight, 0)
    (tensor([2., 0.]), tensor(-1.0000))
    """
    done = solve_silently(
        problem, algorithm, x0, gradient=gradient, stop=stop, trace=trace, engine=engine
    )
    if is_concrete():
        _say_what_is_missing(done, gradient, stop)
    return done


def _say_what_is_missing(
    done: Solution, gradient: GradientStrategy | None, stop: Stop | None
) -> None:
    implicit = isinstance(gradient, FixedPointGradient)
    if implicit and any(t.requires_grad for t in tree.leaves(done.state)):
        return  # what relies on a solution has said so, and what it means
    if stop is not None:
        warn_if_missed(done, stop.tol)
    elif done.converged is None:
        warn_if_moving(done)
    else:
        warn_if_limited(done, default_stop(gradient or Unroll(), done.state))


def solve_silently(
    problem: Function | Problem | Any,
    algorithm: Algorithm[Any, Any] | None = None,
    x0: Var | Solution | None = None,
    *,
    gradient: GradientStrategy | None = None,
    stop: Stop | None = None,
    trace: bool = False,
    engine: Engine | None = None,
) -> Solution:
    """As :func:`solve`, for callers that have words of their own for a solve that has not arrived.

    A gradient that relies on it speaks all the same.
    """
    gradient = Unroll() if gradient is None else gradient
    _require_kinds(algorithm, gradient, stop)
    running = engine_of(engine)
    how = (algorithm, x0, gradient, stop, trace, running)
    if running is not None and _reading_waits():
        # What goes wrong is said by the solve that reads.
        with full_precision(), put_off() as conditions, suppress(Exception):
            found = _solve(problem, *how)
            if conditions.hold():
                return found
    return _solve(problem, *how)


def _reading_waits() -> bool:
    return torch.cuda.is_initialized() and is_concrete()


def _solve(
    problem: Any, algorithm: Algorithm[Any, Any] | None, x0: Any, gradient: GradientStrategy,
    stop: Stop | None, trace: bool, engine: Engine | None,
) -> Solution:  # fmt: skip
    later(partial(require_sound_data, problem, "The problem"))
    report = Backward()
    with full_precision(), hidden_values_in_words("The solve"):
        given = problem
        problem, algorithm = prepare(problem, algorithm, has_tolerance(gradient, stop))
        attach = gradient.from_start and torch.is_grad_enabled()
        with torch.set_grad_enabled(attach), noting() as noted:
            start = _start(algorithm, problem, given, x0)
        history = Trace() if trace else None
        until = default_stop(gradient, start) if stop is None else stop
        task = Task(problem, algorithm, start, until, history, report, engine)
        done = gradient.differentiate(task)
    if is_concrete():
        algorithm.require_sound(tree.detach(done.state))
    return Solution(
        x=algorithm.solution(done.state),
        y=algorithm.dual(done.state),
        state=done.state,
        iterations=done.iterations,
        residual=done.residual,
        converged=done.converged,
        steps={
            name: _reported(step) for name, step in algorithm.steps(problem, done.state).items()
        },
        trace=done.trace,
        algorithm=algorithm,
        problem=problem,
        given=given,
        constant_steps=noted.found,
        backward=report,
    )


def _reported(step: Any) -> Any:
    """A derived step as numbers; one that was given is the tensor that was given."""
    if isinstance(step, tuple):
        return tree.rebuilt(step, map(_reported, step))
    return step.detach() if isinstance(step, Tensor) and not step.is_leaf else step


def prepare(
    given: Function | Any, algorithm: Algorithm[Any, Any] | None = None, tolerance: bool = False
) -> tuple[Any, Algorithm[Any, Any]]:
    """The problem and the algorithm that ``solve`` takes: an energy is split, None is chosen.

    ``tolerance`` says that iterations go on until a residual is reached.
    """
    problem = given
    if isinstance(given, Function):
        geometry = getattr(algorithm, "geometry", None)
        problem = split(given, geometry, getattr(algorithm, "dual_geometry", None))
    return problem, (
        choose_algorithm(problem, given, tolerance) if algorithm is None else algorithm
    )


def has_tolerance(gradient: GradientStrategy | None, stop: Stop | None) -> bool:
    """Whether a solve ends at a tolerance: one that is given, or that of the gradient."""
    if stop is not None:
        return stop.tol is not None
    return isinstance(gradient, FixedPointGradient) and is_concrete()


def default_stop(gradient: GradientStrategy, start: Any) -> Stop:
    """What ``stop=None`` means from a start; without a tolerance where values cannot be read."""
    dtype = tree.real_dtype(tree.leaves(start)[0].dtype)
    return gradient.default_stop(dtype) if is_concrete() else Stop()


def choose_algorithm(
    problem: Any, energy: Any = None, tolerance: bool = False
) -> Algorithm[Any, Any]:
    """The algorithm that fits the structure of a problem.

    A term behind an operator asks for PrimalDual; where a tolerance is to be reached, and the
    geometry is Euclidean, with restarts and a balance that adapts: a fixed one is mostly off on
    what a user brings, and takes thousands of iterations or never arrives. Without such a term
    ForwardBackward will do; where the gradient's Lipschitz constant or the geometry's modulus is
    unknown, a line search finds steps.
    """
    geometry = fitting_geometry(energy) if isinstance(energy, Function) else Euclidean()
    if isinstance(problem, Saddle):
        if tolerance and is_euclidean(geometry):
            return PrimalDual(geometry=geometry, balance=AdaptiveBalance(), restart=Restart())
        return PrimalDual(geometry=geometry)
    if not isinstance(problem, Composite):
        raise InputError(
            f"No algorithm is known for this problem, {given(problem)}. Pass one, or write the "
            "problem as an energy, a sum of terms such as SquaredDistance(y) + L1(0.1); a "
            f"differentiable callable is the term Smooth(callable).{meant(problem)}"
        )
    with torch.no_grad():
        derivable = problem.smooth.lipschitz() is not None and (
            geometry.modulus(problem.nonsmooth.bounds()) is not None
        )
    return ForwardBackward(None if derivable else Backtracking(grow=2.0), geometry)


def _start(algorithm: Algorithm[Any, Any], problem: Any, given: Any, x0: Any) -> Any:
    if isinstance(x0, Solution):
        if not _speaks_like(x0.algorithm, algorithm):
            return algorithm.init(problem, x0.x)
        same = x0.given is given
        return (algorithm.proceed if same else algorithm.resume)(problem, x0.state)
    if isinstance(x0, tuple) and hasattr(x0, "_fields"):
        return algorithm.resume(problem, _require_own_state(algorithm, x0))
    return algorithm.init(problem, x0)


def _speaks_like(one: Algorithm[Any, Any], other: Algorithm[Any, Any]) -> bool:
    """Whether the states of two algorithms mean the same: mirror coordinates are a geometry's."""
    if type(one) is not type(other):
        return False
    for name in ("geometry", "dual_geometry"):
        a, b = getattr(one, name, None), getattr(other, name, None)
        if a is not b and (a is None or b is None or not same_geometry(a, b)):
            return False
    return True


def _require_own_state(algorithm: Algorithm[Any, Any], state: Any) -> Any:
    try:
        algorithm.points(state)
    except AttributeError:
        raise InputError(
            f"x0 is a {type(state).__name__}, which is not a state of {type(algorithm).__name__}. "
            "Pass a state that the same algorithm returned, or a point."
        ) from None
    return state


_KINDS = {
    "algorithm": (Algorithm, "an Algorithm such as ForwardBackward()"),
    "gradient": (GradientStrategy, "a GradientStrategy such as Implicit()"),
    "stop": (Stop, "a Stop such as Stop(100)"),
    "x0": (Tensor | Solution, "a point"),
}


def _require_kinds(algorithm: Any, gradient: Any, stop: Any) -> None:
    for name, value in (("algorithm", algorithm), ("gradient", gradient), ("stop", stop)):
        kind, wanted = _KINDS[name]
        if isinstance(value, kind) or (name != "gradient" and value is None):
            continue
        others = (other for other, (its, _) in _KINDS.items() if isinstance(value, its))
        hint = "".join(f" Did you mean {other}=…?" for other in others) or meant(value)
        raise InputError(f"{name} must be {wanted}, not {given(value)}.{hint}")
