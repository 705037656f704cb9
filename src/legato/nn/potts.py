"""The Potts model as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from legato._support.checks import (
    as_number,
    cheap_to_read,
    require_finite,
    require_iterations,
    require_like,
    require_nonnegative,
)
from legato._support.precision import full_precision
from legato.errors import GradientError, InputError, StepError
from legato.gradients import GradientStrategy, Unroll
from legato.nn.kernels.choice import require_known
from legato.nn.kernels.neighbourhood import Offset, offsets
from legato.nn.kernels.potts_choice import choose_kernel
from legato.nn.kernels.potts_iterates import PottsIterates, canonical_weights
from legato.nn.kernels.potts_reference import model, solve_implicitly
from legato.problems import Saddle

LONG_SOLVE = 200
"""Iterations beyond which a learned balance with entropy is left to the reference kernel."""


class PottsState(NamedTuple):
    """Mirror variables to start another solve from: a (B, L, *spatial), b (B, L, E, *spatial).

    u = softmax(a) over the labels and p = tanh(b). Reference: :class:`Potts`.
    """

    mirror: Tensor
    dual: Tensor


@dataclass
class PottsOutput:
    """What :class:`Potts` returns; everything is attached to the graph but the gap.

    ``probabilities`` is u, the last or the averaged iterate; ``state`` starts another solve;
    ``kernel`` names the implementation that ran. The other fields are the data of the ``problem``
    that was solved. What not everybody needs is computed when it is asked for.
    Reference: :class:`Potts`.
    """

    probabilities: Tensor
    state: PottsState
    kernel: str
    cost: Tensor
    weights: Tensor
    directions: tuple[Offset, ...]
    epsilon: float

    # Not cached: torch.compile does not see through cached properties.
    @property
    def log_probabilities(self) -> Tensor:
        """log u of the last iterate: the log-softmax of its mirror variable, always finite."""
        return torch.log_softmax(self.state.mirror, 1)

    @property
    def y(self) -> Tensor:
        """p = tanh b, the dual variable, in [−1, 1]."""
        return torch.tanh(self.state.dual)

    @cached_property
    def problem(self) -> Saddle:
        """The saddle-point problem that was solved."""
        return model(self.cost, self.weights, self.directions, self.epsilon)

    @cached_property
    def gap(self) -> Tensor:
        """The primal–dual gap, summed over the batch: by at most this the energy is too large."""
        with torch.no_grad():
            return self.problem.gap(self.probabilities, self.y)

    @cached_property
    def energy(self) -> Tensor:
        """⟨c, u⟩ + ‖W∇u‖₁ (+ ε Σ u log u), summed over the batch."""
        return self.problem.objective(self.probabilities)


class Potts(nn.Module):
    r"""Multi-label segmentation with a length penalty, after any network.

    .. math:: \min_{u ∈ Δ}\; ⟨c, u⟩ + ‖W∇u‖₁ \;(+\, ε \textstyle\sum u \log u)

    ``forward(cost, weights)`` takes costs (B, L, H, W) or (B, L, D, H, W) and weights: None, a
    scalar, or a tensor whose axes are those of (B, L, E, *spatial) or one, for E directions
    (``neighbours`` 4: the axes; 8: and the diagonals, in the plane). Steps are τ = r/‖K‖ and
    σ = 1/(r‖K‖) with ``balance`` r, learned if ``learn_balance``; ‖K‖ comes from the largest weight
    of the batch, and its own dependence on the weights is not differentiated: the gradient is that
    of the iteration with these steps held fixed. Give ``tau`` and ``sigma`` where a result must not
    depend on the other images of a batch. Costs are float32 or float64, under autocast too.
    ``gradient`` is Unroll (default; ``last``, ``checkpoint``), or, with ``epsilon`` > 0, any of
    the fixed-point family. ``kernel`` overrides the choice among "triton", "numba", "reference".
    Reference: Section 7 of Ochs et al. (2016).
    """

    log_balance: Tensor

    def __init__(
        self,
        iterations: int = 100,
        *,
        balance: float = 1.0,
        learn_balance: bool = False,
        tau: float | None = None,
        sigma: float | None = None,
        neighbours: int = 4,
        average: bool = False,
        epsilon: float = 0.0,
        gradient: GradientStrategy | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__()
        require_iterations(iterations, "Potts")
        if (tau is None) != (sigma is None):
            raise StepError("Give both tau and sigma, or neither.")
        for name, value in (("balance", balance), ("tau", tau), ("sigma", sigma)):
            if value is not None and not 0 < value < math.inf:
                raise StepError(f"{name} must be positive and finite, not {value!r}.")
        if not 0 <= epsilon < math.inf:
            raise InputError(f"epsilon must be non-negative, not {epsilon!r}.")
        if neighbours not in (4, 8):
            raise InputError(f"neighbours must be 4 or 8, not {neighbours!r}.")
        if learn_balance and tau is not None:
            raise StepError("tau and sigma leave no balance to learn: give one or the other.")
        require_known(kernel)
        self.iterations = iterations
        self.tau, self.sigma = tau, sigma
        self.neighbours = neighbours
        self.average = average
        self.epsilon = float(epsilon)
        self.gradient = Unroll() if gradient is None else gradient
        self.kernel = kernel
        log_balance = torch.tensor(math.log(balance))
        if learn_balance:
            self.log_balance = nn.Parameter(log_balance)
        else:
            self.register_buffer("log_balance", log_balance)
        self._require_applicable()

    def _require_applicable(self) -> None:
        if not isinstance(self.gradient, GradientStrategy):
            raise InputError(
                f"gradient must be a strategy such as Unroll(), not {self.gradient!r}."
            )
        if isinstance(self.gradient, Unroll):
            if self.gradient.checkpoint is not None and self.gradient.last is not None:
                raise InputError("Potts takes Unroll(last=…) or Unroll(checkpoint=…), not both.")
            if self.gradient.tol is not None:
                raise InputError("Potts does not take Unroll(tol=…): choose last=K.")
            return
        if self.epsilon == 0:
            raise GradientError(
                f"{type(self.gradient).__name__} needs a unique solution: give Potts an epsilon > "
                "0, e.g. 0.05, or use Unroll()."
            )
        if self.average:
            raise GradientError(
                "The averaged iterate is no fixed point: use average=False with "
                f"{type(self.gradient).__name__}, or Unroll()."
            )

    def extra_repr(self) -> str:
        return (
            f"iterations={self.iterations}, neighbours={self.neighbours}, average={self.average}, "
            f"epsilon={self.epsilon:g}, gradient={self.gradient!r}"
        )

    def forward(
        self, cost: Tensor, weights: Tensor | float | None = None, state: PottsState | None = None
    ) -> PottsOutput:
        with full_precision():
            return self._solve(cost, weights, state)

    def _solve(
        self, cost: Tensor, weights: Tensor | float | None, state: PottsState | None
    ) -> PottsOutput:
        _require_cost(cost, self.neighbours)
        directions = offsets(cost.ndim - 2, self.neighbours)
        w = _require_weights(weights, cost, len(directions))
        state = _require_state(state, cost, len(directions))
        tau, sigma = self._steps(w, len(directions), cost)
        if isinstance(self.gradient, Unroll):
            name, iterates = self._unroll(cost, w, tau, sigma, state)
        else:
            name = "reference"
            problem = model(cost, w, directions, self.epsilon)
            iterates = solve_implicitly(
                problem, cost, tau, sigma, state, self.iterations, self.gradient
            )
        mean = iterates.mean
        return PottsOutput(
            probabilities=iterates.probabilities if mean is None else mean,
            state=PottsState(iterates.mirror, iterates.dual),
            kernel=name,
            cost=cost,
            weights=w,
            directions=directions,
            epsilon=self.epsilon,
        )

    def _steps(self, w: Tensor, directions: int, cost: Tensor) -> tuple[Tensor, Tensor]:
        unit = 2 * math.sqrt(directions)
        largest = torch.linalg.vector_norm(w.detach(), math.inf)
        # Without coupling any step is stable: then those of unit weights, which Scale assumes too.
        tiny = 1e6 * torch.finfo(largest.dtype).tiny  # so that steps and their balance are numbers
        norm = unit * nn.functional.threshold(largest, tiny, 1.0)
        if cheap_to_read(norm) and not math.isfinite(as_number(norm)):
            raise StepError(
                f"The largest weight is {as_number(largest):g}, and ‖K‖ ≤ {unit:g} times that is "
                f"no number of {norm.dtype}: no step fits. Divide cost and weights by such a "
                "number, which changes no solution without epsilon, or use float64."
            )
        if self.tau is not None and self.sigma is not None:
            tau, sigma = cost.new_full((), self.tau), cost.new_full((), self.sigma)
            _require_stable(tau, sigma, norm)
            return tau, sigma
        r = self.log_balance.exp().to(cost)
        return r / norm, (r * norm).reciprocal()

    def _unroll(
        self, cost: Tensor, w: Tensor, tau: Tensor, sigma: Tensor, state: PottsState | None
    ) -> tuple[str, PottsIterates]:
        assert isinstance(self.gradient, Unroll)
        # ∂τ with entropy is ill-conditioned over long solves: fused kernels lose up to ten times
        # more of it than the engine does, 1e-4 at 500 iterations.
        long = self.iterations > LONG_SOLVE and self.epsilon > 0 and tau.requires_grad
        precise = "reference" if long else None
        name, kernel = choose_kernel(cost, self.kernel or precise)
        mirror, dual = (None, None) if state is None else state
        last, interval = self.gradient.last, self.gradient.checkpoint
        settings = {"epsilon": self.epsilon, "neighbours": self.neighbours}
        if last is not None and last < self.iterations:
            if self.average:
                raise GradientError("Unroll(last=K) and average=True cannot be combined.")
            with torch.no_grad():
                early = kernel(
                    cost, w, tau, sigma, mirror=mirror, dual=dual,
                    iterations=self.iterations - last, **settings,
                )  # fmt: skip
            mirror, dual = early.mirror, early.dual
            return name, kernel(
                cost, w, tau, sigma, mirror=mirror, dual=dual, iterations=last, **settings
            )
        if interval == "sqrt":
            interval = math.ceil(math.sqrt(self.iterations))
        assert not isinstance(interval, str)
        return name, kernel(
            cost, w, tau, sigma, mirror=mirror, dual=dual, iterations=self.iterations,
            average=self.average, checkpoint=interval, **settings,
        )  # fmt: skip


def _require_cost(cost: Tensor, neighbours: int) -> None:
    if not isinstance(cost, Tensor) or cost.ndim not in (4, 5):
        shape = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
        raise InputError(f"cost must have shape (B, L, H, W) or (B, L, D, H, W), not {shape}.")
    if cost.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"cost is {cost.dtype}; the solver computes in float32 or float64. Call .float() on "
            "the network's output."
        )
    if cost.shape[1] < 2:
        raise InputError(
            f"cost has {cost.shape[1]} label(s) on axis 1; a segmentation needs at least 2. For a "
            "binary problem use the costs (0, c)."
        )
    if cost.is_meta:
        raise InputError("cost is on the meta device: it has a shape, but nothing to segment.")
    if cost.numel() == 0:
        raise InputError(f"cost of shape {tuple(cost.shape)} is empty: nothing to segment.")
    if neighbours == 8 and cost.ndim == 5:
        raise InputError("8 neighbours exist in the plane only; use neighbours=4 for volumes.")
    require_finite(cost, "cost")


def _require_weights(weights: Tensor | float | None, cost: Tensor, directions: int) -> Tensor:
    if isinstance(weights, (int, float)):
        weights = cost.new_tensor(float(weights))
    if weights is not None:
        if not isinstance(weights, Tensor):
            raise InputError(f"weights must be a number or a tensor, not {type(weights).__name__}.")
        require_like(weights, cost, "weights", "cost")
    w = canonical_weights(weights, cost, directions)
    require_finite(w, "weights")
    if cheap_to_read(w):
        require_nonnegative(w, "weights")
    return w


def _require_state(state: PottsState | None, cost: Tensor, directions: int) -> PottsState | None:
    if state is None:
        return None
    parts = tuple(state) if isinstance(state, tuple) else ()
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        raise InputError("state must be a PottsState, such as the state of an earlier output.")
    expected = (cost.shape, (*cost.shape[:2], directions, *cost.shape[2:]))
    for name, tensor, shape in zip(("mirror", "dual"), parts, expected, strict=True):
        found = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if found != (tuple(shape), cost.dtype, cost.device):
            raise InputError(
                f"The state's {name} variable has shape {found[0]}, {found[1]} on {found[2]}, but "
                f"this cost needs {tuple(shape)}, {cost.dtype} on {cost.device}."
            )
        require_finite(tensor, f"The state's {name} variable")
    return state


def _require_stable(tau: Tensor, sigma: Tensor, norm: Tensor) -> None:
    """τσ‖K‖² ≤ 1, checked on the device itself where reading would make it wait."""
    product = tau * sigma * norm * norm
    if tau.is_cuda:
        torch._assert_async(product <= 1 + 1e-5, "Potts: tau·sigma·‖K‖² exceeds 1")
    elif cheap_to_read(product) and as_number(product) > 1 + 1e-5:
        raise StepError(
            f"tau·sigma·‖K‖² = {as_number(product):g} exceeds 1 (‖K‖ ≤ {as_number(norm):g} for "
            "these weights): the iteration need not converge. Take smaller steps, or leave both "
            "None."
        )
