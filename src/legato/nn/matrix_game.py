"""The equilibrium of a matrix game as a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from legato.algorithms import PrimalDual
from legato.errors import InputError
from legato.functions import Function, NegativeEntropy, Simplex
from legato.geometry import Entropy
from legato.gradients import GradientStrategy
from legato.nn.inputs import require_finite, watch_gradient
from legato.nn.lower_level import require_stop, require_strategy, solve_lower_level
from legato.operators import Dense
from legato.problems import Saddle
from legato.solving import Solution


@dataclass
class MatrixGameOutput:
    """What :class:`MatrixGame` returns; all but the gap is attached to the graph.

    ``row`` is x (…, m), ``column`` is y (…, n): one mixed strategy each.
    Reference: :class:`MatrixGame`.

    >>> output = MatrixGame()(torch.tensor([[1.0, 2.0], [4.0, 3.0]]))
    >>> output.value.shape, bool(output.gap < 1e-3)
    (torch.Size([]), True)
    """

    row: Tensor
    column: Tensor
    payoffs: Tensor
    problem: Saddle
    solution: Solution

    @property
    def value(self) -> Tensor:
        """xᵀAy (…,): what the row player pays on average."""
        return torch.einsum("...i,...ij,...j->...", self.row, self.payoffs, self.column)

    @cached_property
    def gap(self) -> Tensor:
        """What both players could still gain together, summed over the batch; zero at equilibrium.

        With ``epsilon``, gains in the regularised game.
        """
        with torch.no_grad():
            return self.problem.gap(self.row, self.column)


class MatrixGame(nn.Module):
    r"""How two rational players with opposite interests play, differentiable in the payoffs.

    .. math:: \min_{x ∈ Δ} \max_{y ∈ Δ}\; x^⊤Ay \;
              (+\, ε \textstyle\sum_i x_i \log x_i − ε \sum_j y_j \log y_j)

    A_ij is what the row player pays to the column player. With ``epsilon`` > 0 the equilibrium is
    unique and smooth in A: players err as a logit says, x = softmax(−Ay/ε), y = softmax(Aᵀx/ε);
    without, strategies may be many and jump, and only ``average`` is sure to converge fast enough:
    take the value then, not the strategies, to learn from. Entropic primal–dual steps of size
    1/max|A_ij|. ``forward`` takes A (…, m, n). ``gradient`` is any strategy (default Unroll).
    Reference: von Neumann (1928); McKelvey and Palfrey (1995), quantal response.

    >>> matching_pennies = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    >>> MatrixGame()(matching_pennies).row
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
        super().__init__()
        if isinstance(epsilon, bool) or not 0 <= epsilon < float("inf"):
            raise InputError(f"epsilon must be non-negative and finite, not {epsilon!r}.")
        self.stop = require_stop(iterations, tol, "MatrixGame")
        self.gradient = require_strategy(gradient)
        self.epsilon, self.average = epsilon, bool(average)

    def extra_repr(self) -> str:
        return (
            f"epsilon={self.epsilon}, average={self.average}, iterations={self.stop.iterations}, "
            f"tol={self.stop.tol}, gradient={self.gradient!r}"
        )

    def forward(self, payoffs: Tensor) -> MatrixGameOutput:
        if not isinstance(payoffs, Tensor) or payoffs.ndim < 2 or payoffs.numel() == 0:
            found = tuple(payoffs.shape) if isinstance(payoffs, Tensor) else type(payoffs).__name__
            raise InputError(f"payoffs must be a matrix (…, m, n) with entries, not {found}.")
        if not payoffs.is_floating_point():
            raise InputError(f"payoffs are {payoffs.dtype}: call .float() or .double() on them.")
        require_finite(payoffs, "payoffs")
        game = Dense(watch_gradient(payoffs, "payoffs").mT)
        problem = Saddle(game, self._strategy(), nonsmooth=self._strategy())
        algorithm = PrimalDual(
            geometry=Entropy(),
            dual_geometry=Entropy(),
            average=self.average,
            norm=payoffs.detach().abs().amax((-2, -1)).unsqueeze(-1),
        )
        start = payoffs.new_full(payoffs.shape[:-1], 1 / payoffs.shape[-2])
        done = solve_lower_level(
            problem, algorithm, start, self.gradient, self.stop, type(self).__name__
        )
        assert isinstance(done.y, Tensor)
        return MatrixGameOutput(done.x, done.y, payoffs, problem, done)

    def _strategy(self) -> Function:
        return Simplex() + NegativeEntropy(self.epsilon) if self.epsilon > 0 else Simplex()
