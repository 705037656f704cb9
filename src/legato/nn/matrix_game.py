"""The equilibrium of a matrix game as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import describe, require_range
from legato._support.lazy import lazy
from legato._support.precision import out_of_autocast
from legato.algorithms import PrimalDual
from legato.errors import InputError
from legato.functions import Function, NegativeEntropy, Simplex
from legato.geometry import Entropy
from legato.gradients import GradientStrategy
from legato.nn._solve import LayerOutput, SolverLayer
from legato.operators import Dense
from legato.problems import Saddle


@dataclass
class MatrixGameOutput(LayerOutput):
    """What :meth:`MatrixGame.solve` returns: x is the row player's strategy, y the column's.

    >>> record = MatrixGame().solve(torch.tensor([[1.0, 2.0], [4.0, 3.0]]))
    >>> record.value.shape, bool(record.gap < 1e-3)
    (torch.Size([]), True)
    """

    payoffs: Tensor

    @property
    def value(self) -> Tensor:
        """xᵀAy (…,): what the row player pays on average."""
        return torch.einsum("...i,...ij,...j->...", self.x, self.payoffs, self.y)

    @lazy
    def gap(self) -> Tensor:
        """What both players could still gain together, (…,); zero at equilibrium.

        With ``epsilon``, gains in the regularised game.
        """
        with torch.no_grad():
            return self.problem.gap(self.x, self.y)


class MatrixGame(SolverLayer):
    r"""How two rational players with opposite interests play, differentiable in the payoffs.

    .. math:: \min_{x ∈ Δ} \max_{y ∈ Δ}\; x^⊤Ay \;
              (+\, ε \textstyle\sum_i x_i \log x_i − ε \sum_j y_j \log y_j)

    A_ij is what the row player pays to the column player. With ε > 0 the equilibrium is unique and
    smooth in A: players err as a logit says, x = softmax(−Ay/ε), y = softmax(Aᵀx/ε). Without,
    strategies may be many and jump, and only ``average`` is sure to converge fast enough: learn
    from the value (``solve(A).value``) then, not from the strategies.

    Defaults: ``epsilon=0.1``, ``iterations=200``.

    Args:
        epsilon (float): ε ≥ 0, the weight of the entropies. Default: 0.1
        average (bool): return the mean of the iterates instead of the last. Default: False
        iterations (int): entropic primal–dual steps of size 1/max|A_ij|, at most. Default: 200
        tol (float, optional): stop once the residual is at most this; a warning says where
            ``iterations`` do not reach it. Default: None, all iterations
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - payoffs A: (…, m, n)

    Returns:
        tuple[Tensor, Tensor]: the strategies x (…, m) of the row player and y (…, n) of the other.

    Reference: von Neumann (1928); McKelvey and Palfrey (1995), quantal response.

    >>> matching_pennies = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    >>> row, column = MatrixGame()(matching_pennies)
    >>> row
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        epsilon: float = 0.1,
        *,
        average: bool = False,
        iterations: int = 200,
        tol: float | None = None,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__(iterations, tol, gradient)
        if isinstance(epsilon, bool) or not 0 <= epsilon < math.inf:
            raise InputError(f"epsilon must be non-negative and finite, not {epsilon!r}.")
        self.epsilon, self.average = epsilon, bool(average)

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}, average={self.average}, {self._settings()}"

    def forward(self, payoffs: Tensor) -> tuple[Tensor, Tensor]:
        """Play the game.

        Args:
            payoffs (Tensor): A (…, m, n), what the row player pays to the column player.

        Returns:
            tuple[Tensor, Tensor]: the strategies x (…, m) of the row player and y (…, n) of the
            column player.
        """
        done = self.solve(payoffs)
        assert done.y is not None
        return done.x, done.y

    def solve(self, payoffs: Tensor, x0: Any = None) -> MatrixGameOutput:
        """The full record; ``x0`` is a first row strategy (…, m), or an earlier solution's state.

        The default is the uniform strategy.
        """
        payoffs = out_of_autocast(payoffs)
        if not isinstance(payoffs, Tensor) or payoffs.ndim < 2 or payoffs.numel() == 0:
            raise InputError(
                f"payoffs must be a matrix (…, m, n) with entries, not {describe(payoffs)}."
            )
        if not payoffs.is_floating_point():
            raise InputError(f"payoffs are {payoffs.dtype}: call .float() or .double() on them.")
        require_range(payoffs, "payoffs")
        mixed = self._strategy()
        problem = Saddle(Dense(payoffs.mT), mixed.conjugate(), nonsmooth=mixed)
        algorithm = PrimalDual(
            geometry=Entropy(),
            dual_geometry=Entropy(),
            average=self.average,
            norm=payoffs.abs().amax((-2, -1)),
        )
        if x0 is None:
            x0 = payoffs.new_full(payoffs.shape[:-1], 1 / payoffs.shape[-2])
        return MatrixGameOutput(problem, self._solve(problem, algorithm, x0), payoffs)

    def _strategy(self) -> Function:
        return Simplex() + NegativeEntropy(self.epsilon) if self.epsilon > 0 else Simplex()
