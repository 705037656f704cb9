"""The front door: a problem, an algorithm and a gradient put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from legato._support import tree
from legato._support.checks import is_concrete, require_sound_data
from legato._support.precision import full_precision
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import InputError
from legato.gradients import Backward, GradientStrategy, Task, Unroll
from legato.problems import Composite, Saddle
from legato.running import Stop, Trace


@dataclass
class Solution:
    """What :func:`solve` found, attached to the autograd graph.

    ``y`` is the dual variable, where there is one, ``state`` continues the iteration when passed
    as x0. ``residual`` is ‖xᴺ − xᴺ⁻¹‖/max(1, ‖xᴺ‖); ``converged`` is None where no tolerance was
    asked for. ``steps`` are the step sizes used. ``backward`` is filled by ``.backward()``.
    Reference: :func:`solve`.

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), stop=lg.Stop(50, tol=1e-6))
    >>> solution.x, solution.converged, solution.steps["step"]
    (tensor([2., 0.]), True, tensor(1.0000))
    """

    x: Var
    y: Var | None
    state: Any
    iterations: int
    residual: Tensor
    converged: bool | None
    steps: dict[str, Any]
    trace: Trace | None = None
    backward: Backward = field(default_factory=Backward)


def solve(
    problem: Composite | Saddle | Any,
    algorithm: Algorithm,
    x0: Var | None = None,
    *,
    gradient: GradientStrategy | None = None,
    stop: Stop | None = None,
    trace: bool = False,
) -> Solution:
    r"""Minimise a problem with an algorithm, so that the result can be differentiated.

    .. math:: x(θ) = 𝒜^{(N)}(x^0, θ) ≈ \arg\min_x E(x, θ)

    Every tensor that the problem's step touches gets its gradient, wherever it is kept. ``x0`` is a
    point, or the state of an earlier solution; None starts from a neutral point. ``gradient``
    defaults to ``Unroll()`` and ``stop`` to 100 iterations. ``trace`` records objective and
    residual of every iteration. Reference: Section 4 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(weight))
    >>> x = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit()).x
    >>> x.sum().backward()
    >>> x.detach(), weight.grad  # x = (3 − weight, 0)
    (tensor([2., 0.]), tensor(-1.0000))
    """
    gradient = Unroll() if gradient is None else gradient
    stop = Stop() if stop is None else stop
    _require_kinds(algorithm, gradient, stop)
    require_sound_data(problem, "The problem")
    report = Backward()
    with full_precision():
        if _is_state(x0):
            start = algorithm.resume(problem, _require_own_state(algorithm, x0))
        else:
            start = algorithm.init(problem, x0)
        history = Trace() if trace else None
        done = gradient.differentiate(Task(problem, algorithm, start, stop, history, report))
    if is_concrete():
        algorithm.require_sound(tree.detach(done.state))
    return Solution(
        x=algorithm.solution(done.state),
        y=algorithm.dual(done.state),
        state=done.state,
        iterations=done.iterations,
        residual=done.residual,
        converged=done.converged,
        steps=algorithm.steps(problem, done.state),
        trace=done.trace,
        backward=report,
    )


def _is_state(x0: Any) -> bool:
    return isinstance(x0, tuple) and hasattr(x0, "_fields")


def _require_own_state(algorithm: Algorithm, state: Any) -> Any:
    try:
        algorithm.points(state)
    except AttributeError:
        raise InputError(
            f"x0 is a {type(state).__name__}, which is not a state of {type(algorithm).__name__}. "
            "Pass a state that the same algorithm returned, or a point."
        ) from None
    return state


def _require_kinds(algorithm: Any, gradient: Any, stop: Any) -> None:
    for name, value, kind in (
        ("algorithm", algorithm, Algorithm),
        ("gradient", gradient, GradientStrategy),
        ("stop", stop, Stop),
    ):
        if not isinstance(value, kind):
            given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            hint = f" Did you mean {value.__name__}()?" if isinstance(value, type) else ""
            raise InputError(f"{name} must be a {kind.__name__}, not {given}.{hint}")
