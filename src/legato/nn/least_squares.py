"""Least squares on the non-negative orthant and on the simplex, as layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from legato._support.checks import require_sound_data
from legato.algorithms import Backtracking, ForwardBackward, Nesterov
from legato.errors import InputError
from legato.functions import Function, LeastSquares, NonNegative, Simplex, prox, strong_convexity
from legato.geometry import Entropy, Euclidean, Geometry
from legato.gradients import GradientStrategy
from legato.nn.inputs import cheap_to_read, require_finite, watch_gradient
from legato.nn.lower_level import require_stop, require_strategy, solve_lower_level
from legato.nn.units import Units
from legato.operators import Convolution, Dense, Operator
from legato.problems import Composite
from legato.solving import Solution


@dataclass
class LeastSquaresOutput:
    """What the two layers return: ``value`` is x; ``solution`` is the report of the solve.

    Reference: :class:`SimplexLeastSquares`, :class:`NonNegativeLeastSquares`.

    >>> output = SimplexLeastSquares()(torch.eye(2), torch.tensor([3.0, 0.0]))
    >>> float(output.violation) < 1e-6
    True
    """

    x: Tensor
    problem: Composite
    solution: Solution

    @cached_property
    def violation(self) -> Tensor:
        """The largest entry of x − proj(x − A*(Ax − b)), in any geometry; zero at a solution."""
        with torch.no_grad():
            x = self.x.detach()
            moved = x - self.problem.smooth.grad(x)
            return (x - prox(self.problem.nonsmooth, Euclidean(), moved, 1.0)).abs().amax()


class _ConstrainedLeastSquares(nn.Module):
    constraint: Function

    def __init__(
        self,
        iterations: int = 200,
        *,
        geometry: Geometry | None = None,
        tol: float | None = None,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__()
        self.stop = require_stop(iterations, tol, type(self).__name__)
        self.gradient = require_strategy(gradient)
        self.geometry = Euclidean() if geometry is None else geometry
        if not isinstance(self.geometry, Geometry):
            raise InputError(f"geometry must be one such as Entropy(), not {geometry!r}.")

    def extra_repr(self) -> str:
        return (
            f"iterations={self.stop.iterations}, tol={self.stop.tol}, "
            f"geometry={self.geometry!r}, gradient={self.gradient!r}"
        )

    def forward(
        self, operator: Operator | Tensor, data: Tensor, x0: Tensor | None = None
    ) -> LeastSquaresOutput:
        if isinstance(operator, Tensor):
            operator = Dense(operator)
        if not isinstance(operator, Operator):
            raise InputError(
                f"operator must be a matrix or a legato operator, not {type(operator).__name__}."
            )
        if not isinstance(data, Tensor) or data.numel() == 0:
            found = "empty" if isinstance(data, Tensor) else f"a {type(data).__name__}"
            raise InputError(f"data must be a tensor with entries, but is {found}.")
        require_finite(data, "data")
        self._require_operator(operator, data)
        if type(operator) is Dense and operator.matrix.requires_grad:
            operator = Dense(watch_gradient(operator.matrix, "operator"))
        smooth = LeastSquares(operator, watch_gradient(data, "data"))
        problem = Composite(smooth, self.constraint)
        if strong_convexity(self.geometry, self.constraint) is None:
            done = self._solve_in_units(smooth, x0)
        else:
            done = self._solve(smooth, self._algorithm(operator), x0)
        return LeastSquaresOutput(done.x, problem, done)

    def _solve(
        self, smooth: LeastSquares, algorithm: ForwardBackward, x0: Tensor | None
    ) -> Solution:
        problem = Composite(smooth, self.constraint)
        name = type(self).__name__
        return solve_lower_level(problem, algorithm, x0, self.gradient, self.stop, name)

    def _solve_in_units(self, smooth: LeastSquares, x0: Tensor | None) -> Solution:
        """By backtracking: no constant step is right everywhere on an unbounded domain."""
        require_sound_data(smooth, "The problem")  # before its size is asked for
        units = Units.of(smooth)
        measured = units.measure(smooth)
        # The first trial is such that no entry would grow by more than a factor e at x = 0.
        with torch.no_grad():
            top = float(measured.operator.adjoint(measured.b).abs().amax())
        algorithm = ForwardBackward(Backtracking(1 / top if top > 0 else 1.0), self.geometry)
        return units.restore(self._solve(measured, algorithm, units.start(x0)), self.geometry)

    def _require_operator(self, operator: Operator, data: Tensor) -> None:
        if not isinstance(operator, Convolution):
            return
        kernel = tuple(operator.kernel.shape[2:])
        if any(k > n for k, n in zip(kernel, data.shape[-len(kernel) :], strict=True)):
            raise InputError(
                f"The kernel {kernel} is larger than the data {tuple(data.shape[-len(kernel) :])}: "
                "parts of it touch nothing and cannot be told. Crop the kernel, or take more data."
            )

    def _algorithm(self, operator: Operator) -> ForwardBackward:
        if isinstance(self.geometry, Euclidean):
            return ForwardBackward(inertia=Nesterov())
        return ForwardBackward(self._longest_step(operator), self.geometry)

    def _longest_step(self, operator: Operator) -> Tensor | None:
        """1/max‖a_j‖², for the entropy is strongly convex in the ℓ1 norm too; None: 1/‖A‖²."""
        entropic = isinstance(self.geometry, Entropy) and isinstance(self.constraint, Simplex)
        if not (entropic and isinstance(operator, Dense)):
            return None
        # In double precision, where squares of small entries are not zero.
        columns = operator.matrix.detach().double().square().sum(-2).amax(-1)
        step = 1 / torch.where(columns > 0, columns, torch.ones_like(columns))
        step = step.to(operator.matrix.dtype)
        return step if step.ndim == 0 else step.unsqueeze(-1)


class NonNegativeLeastSquares(_ConstrainedLeastSquares):
    r"""The x ≥ 0 that explains data best, differentiable in operator and data.

    .. math:: x = \arg\min_{x ≥ 0}\; \tfrac12‖Ax − b‖²

    ``forward(operator, data)`` takes a matrix (…, m, n) or any :class:`~legato.Operator`, and data
    (…, m). ``geometry`` is Euclidean (projected, accelerated steps) or Entropy (multiplicative
    steps, found by backtracking, whose iterates are positive and smooth in the data). A ``tol``
    that ``iterations`` do not reach is warned about. ``gradient`` is any strategy (default Unroll).
    Reference: Lawson and Hanson (1974); Section 6 of Ochs et al. (2016).

    >>> NonNegativeLeastSquares()(torch.eye(2), torch.tensor([1.0, -1.0])).x
    tensor([1., 0.])
    """

    constraint = NonNegative()

    def _require_operator(self, operator: Operator, data: Tensor) -> None:
        super()._require_operator(operator, data)
        if not isinstance(operator, Dense) or not cheap_to_read(operator.matrix):
            return
        zero = (operator.matrix.detach() == 0).all(-2).nonzero()
        if len(zero):
            where = tuple(zero[0].tolist())
            raise InputError(
                f"Column {where[-1] if len(where) == 1 else where} of the matrix is zero: any "
                "x ≥ 0 would do there, and its derivative is undefined. Leave the column out."
            )


class SimplexLeastSquares(_ConstrainedLeastSquares):
    r"""The mixture that explains data best, differentiable in operator and data.

    .. math:: x = \arg\min_{x ∈ Δ}\; \tfrac12‖Ax − b‖², \quad
              Δ = \{x ≥ 0,\; \textstyle\sum_j x_j = 1\}

    In spectral unmixing the columns of A are spectra of pure materials and x their abundances.
    Arguments as for :class:`NonNegativeLeastSquares`; Entropy takes exponentiated-gradient steps of
    constant size. Reference: Heinz and Chang (2001); Kivinen and Warmuth (1997).

    >>> SimplexLeastSquares()(torch.eye(2), torch.tensor([1.0, 0.5])).x
    tensor([0.7500, 0.2500])
    """

    constraint = Simplex()
