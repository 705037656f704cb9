"""Least squares on the non-negative orthant and on the simplex, as layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import (
    RANGE,
    as_number,
    cheap_to_read,
    hidden_values_in_words,
    require_range,
)
from legato._support.given import given
from legato._support.holding import held_tensors
from legato._support.lazy import lazy
from legato._support.precision import out_of_autocast
from legato._support.soundness import require_sound_data
from legato._support.tree import expand_over, largest_over
from legato.algorithms import Backtracking, ForwardBackward, Nesterov
from legato.errors import InputError
from legato.functions import Function, LeastSquares, NonNegative, Simplex, prox
from legato.geometry import Entropy, Euclidean, Geometry
from legato.gradients import GradientStrategy
from legato.nn._solve import LayerOutput, SolverLayer
from legato.operators import Convolution, Dense, Operator
from legato.problems import Composite


@dataclass
class LeastSquaresOutput(LayerOutput):
    """What ``solve`` of the two layers returns.

    >>> record = SimplexLeastSquares().solve(torch.eye(2), torch.tensor([3.0, 0.0]))
    >>> float(record.violation) < 1e-6
    True
    """

    @lazy
    def violation(self) -> Tensor:
        """The largest entry of x − proj(x − A*(Ax − b)), in any geometry; zero at a solution."""
        with torch.no_grad():
            x = self.x.detach()
            moved = x - self.problem.smooth.grad(x)
            return (x - prox(self.problem.nonsmooth, Euclidean(), moved, 1.0)).abs().amax()


class _ConstrainedLeastSquares(SolverLayer):
    constraint: Function

    def __init__(
        self,
        iterations: int = 200,
        *,
        geometry: Geometry | None = None,
        tol: float | None = None,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__(iterations, tol, gradient)
        self.geometry = Euclidean() if geometry is None else geometry
        if not isinstance(self.geometry, Geometry):
            raise InputError(f"geometry must be one such as Entropy(), not {geometry!r}.")

    def extra_repr(self) -> str:
        return f"geometry={self.geometry!r}, {self._settings()}"

    def forward(self, operator: Operator | Tensor, data: Tensor) -> Tensor:
        """Solve for x.

        Args:
            operator (Operator or Tensor): A, a matrix (…, m, n) or any operator.
            data (Tensor): b (…, m).

        Returns:
            Tensor: x (…, n).
        """
        return self.solve(operator, data).x

    def solve(
        self, operator: Operator | Tensor, data: Tensor, x0: Any = None
    ) -> LeastSquaresOutput:
        """The full record; ``x0`` is a first point (…, n), or an earlier solution's state."""
        data = out_of_autocast(data)
        if isinstance(operator, Tensor):
            operator = Dense(out_of_autocast(operator))
        if not isinstance(operator, Operator):
            raise InputError(
                f"operator must be a matrix or a legato operator, not {given(operator)}. "
                "Convert an array with torch.as_tensor."
            )
        if not isinstance(data, Tensor) or data.numel() == 0:
            found = "empty" if isinstance(data, Tensor) else f"a {type(data).__name__}"
            raise InputError(f"data must be a tensor with entries, but is {found}.")
        require_range(data, "data")
        for name, tensor, _ in held_tensors(operator):
            if tensor.is_floating_point():
                require_range(tensor, f"The operator's {name}")
        self._require_operator(operator, data)
        problem = Composite(LeastSquares(operator, data), self.constraint)
        if self.geometry.modulus(self.constraint.bounds()) is None:
            with hidden_values_in_words(f"The line search of {type(self).__name__}"):
                algorithm, start = self._by_backtracking(problem)
            x0 = start if x0 is None else x0
        else:
            algorithm = self._with_constant_step(operator)
        return LeastSquaresOutput(problem, self._solve(problem, algorithm, x0))

    @torch.no_grad()
    def _by_backtracking(self, problem: Composite) -> tuple[ForwardBackward, Tensor]:
        """No constant step is right everywhere on an unbounded domain; and a start of x's size."""
        f = problem.smooth
        assert isinstance(f, LeastSquares)
        require_sound_data(f, "The problem")  # before its size is asked for
        shape = f.start()
        assert isinstance(shape, Tensor)
        norm = _or_one(f.operator.norm(shape))
        limit, largest = RANGE[f.b.dtype], as_number(norm.amax())
        if not 1 / limit <= largest <= limit:
            raise InputError(
                f"The operator's norm {largest:.1e} is outside of {1 / limit:.0e} … {limit:.0e}, "
                f"where steps can be computed in {f.b.dtype}. Scale the data to the size of 1 or "
                "use float64."
            )
        # Every element of a batch has its own unit, and so its own start and first step.
        axes = f.operator.coupled
        seen, made = (shape.ndim, f.b.ndim) if axes is None else (max(1, n) for n in axes)
        unit = _or_one(largest_over(f.b.abs(), made)) / norm
        start = torch.ones_like(shape) * expand_over(unit, seen)
        # The first trial is such that no entry of the start would grow by more than a factor e.
        reach = self.geometry.mirror(math.e * start) - self.geometry.mirror(start)
        top = largest_over(f.operator.adjoint(f.b).abs(), seen)
        first = largest_over(reach, seen) / _or_one(top)
        energy = _or_one(f.values(shape, problem.batch(shape)))  # ½‖b‖²
        rule = Backtracking(expand_over(first, seen), unit=expand_over(energy, seen))
        # Without the tangents of forward mode, too, which no_grad() leaves.
        return ForwardBackward(rule, self.geometry), start.detach()

    def _require_operator(self, operator: Operator, data: Tensor) -> None:
        if not isinstance(operator, Convolution):
            return
        kernel = tuple(operator.kernel.shape[2:])
        if any(k > n for k, n in zip(kernel, data.shape[-len(kernel) :], strict=True)):
            raise InputError(
                f"The kernel {kernel} is larger than the data {tuple(data.shape[-len(kernel) :])}: "
                "parts of it touch nothing and cannot be told. Crop the kernel, or take more data."
            )

    def _with_constant_step(self, operator: Operator) -> ForwardBackward:
        if isinstance(self.geometry, Euclidean):
            return ForwardBackward(inertia=Nesterov())
        return ForwardBackward(self._longest_step(operator), self.geometry)

    def _longest_step(self, operator: Operator) -> Tensor | None:
        """1/max‖a_j‖², for the entropy is strongly convex in the ℓ1 norm too; None: 1/‖A‖²."""
        entropic = isinstance(self.geometry, Entropy) and isinstance(self.constraint, Simplex)
        if not (entropic and isinstance(operator, Dense)):
            return None
        # In double precision, where squares of small entries are not zero.
        matrix = operator.matrix if self.gradient.from_start else operator.matrix.detach()
        columns = matrix.double().square().sum(-2).amax(-1)
        step = 1 / torch.where(columns > 0, columns, torch.ones_like(columns))
        step = step.to(operator.matrix.dtype)
        return step if step.ndim == 0 else step.unsqueeze(-1)


def _or_one(sizes: Tensor) -> Tensor:
    """The sizes, and 1 in place of 0."""
    return torch.where(sizes > 0, sizes, torch.ones_like(sizes))


class NonNegativeLeastSquares(_ConstrainedLeastSquares):
    r"""The x ≥ 0 that explains data best, differentiable in operator and data.

    .. math:: x = \arg\min_{x ≥ 0}\; \tfrac12‖Ax − b‖²

    Default: ``iterations=200``.

    Args:
        iterations (int): steps, at most. Default: 200
        geometry (Geometry, optional): ``Euclidean()`` takes projected, accelerated steps;
            ``Entropy()`` multiplicative ones, found by backtracking, whose iterates are positive
            and smooth in the data. Default: ``Euclidean()``
        tol (float, optional): stop once the residual is at most this; a warning says where
            ``iterations`` do not reach it. Default: None, all iterations
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - operator A: a matrix (…, m, n), or any :class:`~legato.Operator`
        - data b: (…, m)

    Returns:
        Tensor: x (…, n).

    Reference: Lawson and Hanson (1974); Section 7 of Ochs et al. (2016).

    >>> NonNegativeLeastSquares()(torch.eye(2), torch.tensor([1.0, -1.0]))
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

    Default: ``iterations=200``.

    Args:
        iterations (int): steps, at most. Default: 200
        geometry (Geometry, optional): ``Euclidean()`` takes projected, accelerated steps;
            ``Entropy()`` exponentiated-gradient steps of constant size. Default: ``Euclidean()``
        tol (float, optional): stop once the residual is at most this; a warning says where
            ``iterations`` do not reach it. Default: None, all iterations
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - operator A: a matrix (…, m, n), or any :class:`~legato.Operator`
        - data b: (…, m)

    Returns:
        Tensor: x (…, n).

    Reference: Heinz and Chang (2001); Kivinen and Warmuth (1997).

    >>> SimplexLeastSquares()(torch.eye(2), torch.tensor([1.0, 0.5]))
    tensor([0.7500, 0.2500])
    """

    constraint = Simplex()
