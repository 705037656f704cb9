"""The Potts model as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from legato._support.checks import (
    CONVERT,
    RANGE,
    as_number,
    cheap_to_read,
    require_finite,
    require_image,
    require_iterations,
    require_like,
    require_nonnegative,
    require_range,
)
from legato._support.compiling import constant_when_compiled
from legato._support.lazy import lazy
from legato._support.precision import full_precision, out_of_autocast
from legato.errors import GradientError, InputError, StepError
from legato.gradients import GradientStrategy, Unroll
from legato.nn.fused.choice import KernelRegistry, require_known
from legato.nn.fused.unrolling import require_strategy, schedule
from legato.nn.neighbourhood import Neighbours, Offset, offsets
from legato.nn.potts.model import (
    PottsFunction,
    PottsIterates,
    PottsSettings,
    canonical_weights,
    dual_shape,
    model,
)
from legato.problems import Saddle

LONG_SOLVE = 200
"""Iterations beyond which a learned balance with entropy is left to the reference kernel."""


class PottsState(NamedTuple):
    """Mirror variables to start another solve from.

    Attributes:
        mirror: a (B, L, *spatial); u = softmax(a) over the labels.
        dual: b (B, L, E, *spatial), for E directions; p = tanh(b).

    >>> state = Potts(iterations=20).solve(torch.randn(1, 3, 8, 8)).state
    >>> state.mirror.shape, state.dual.shape
    (torch.Size([1, 3, 8, 8]), torch.Size([1, 3, 2, 8, 8]))
    """

    mirror: Tensor
    dual: Tensor


@dataclass
class PottsOutput:
    """What :meth:`Potts.solve` returns; everything is attached to the graph but the gap.

    What not everybody needs is computed when it is asked for.

    Attributes:
        x: u (B, L, *spatial), probabilities: the last iterate, or the mean of all.
        state: starts another solve.
        kernel: the implementation that ran.
        cost, weights, directions, epsilon: the data of the ``problem`` that was solved.
        averaged: the number of iterates in the mean, if there was one.

    >>> output = Potts(iterations=20).solve(torch.randn(1, 3, 8, 8), 0.5)
    >>> output.x.shape, output.gap.shape
    (torch.Size([1, 3, 8, 8]), torch.Size([1]))
    """

    x: Tensor
    state: PottsState
    kernel: str
    cost: Tensor
    weights: Tensor
    directions: tuple[Offset, ...]
    epsilon: float
    averaged: int | None = None  # over how many iterates, if at all

    # Not cached: torch.compile does not see through cached properties.
    @property
    def log_probabilities(self) -> Tensor:
        """log x, always finite: from the mirror variable where x itself has rounded to 0."""
        last = torch.log_softmax(self.state.mirror, 1)
        return last if self.averaged is None else _log_of_mean(self.x, last, self.averaged)

    @property
    def y(self) -> Tensor:
        """p = tanh b, the dual variable, in [−1, 1]."""
        return torch.tanh(self.state.dual)

    @lazy
    def problem(self) -> Saddle:
        """The saddle-point problem that was solved."""
        return model(self.cost, self.weights, self.directions, self.epsilon)

    @lazy
    def gap(self) -> Tensor:
        """The primal–dual gap of each image (B,): by at most this its energy is too large."""
        with torch.no_grad():
            return self.problem.gap(self.x, self.y)

    @lazy
    def energy(self) -> Tensor:
        """⟨c, u⟩ + ‖W∇u‖₁ (+ ε Σ u log u) of each image (B,)."""
        return self.problem.objective(self.x)


def _log_of_mean(mean: Tensor, last: Tensor, count: int) -> Tensor:
    """log((u¹ + … + uᴺ)/N) as a logsumexp of two: the last iterate, whose logarithm is known, and
    the others, whose sum may have rounded to 0."""
    last = last - math.log(count)
    others = mean - last.exp()
    # Below this the kernels have flushed iterates to 0, and their logarithms are not known.
    known = others > 1e8 * torch.finfo(mean.dtype).tiny
    logarithm = torch.where(known, others, 1).log().where(known, -math.inf)
    return torch.logaddexp(logarithm, last)


class Potts(nn.Module):
    r"""Multi-label segmentation with a length penalty, after any network.

    .. math:: \min_{u ∈ Δ}\; ⟨c, u⟩ + ‖W∇u‖₁ \;(+\, ε \textstyle\sum u \log u)

    It is a log-softmax that knows its neighbours: :class:`torch.nn.NLLLoss` follows it. A cost c is
    a *negative* score: the cheapest label wins unless its neighbours disagree. Weights W say what
    it costs that neighbours differ; with weights of zero (ε = 0, the last iterate) the layer is
    log_softmax(−Nτc).

    The steps are τ = r/‖K‖ and σ = 1/(r‖K‖). ‖K‖ follows from the largest weight of each image, and
    the derivative in W knows that; with ε > 0 it follows from the largest weight of the batch. Give
    ``max_weight`` where the weights have a bound: then the steps depend on no image at all.

    Defaults: ``iterations=100``, ``balance=1.0``, ``neighbours=4``, ``epsilon=0.0``.

    Args:
        iterations (int): N, of the Bregman primal–dual method. Default: 100
        balance (float): r > 0, the ratio of primal to dual steps. Default: 1
        learn_balance (bool): make r a parameter. Default: False
        max_weight (float, optional): a bound of all weights, from which the steps follow. Default:
            None, they follow from the weights
        tau (float, optional): a fixed primal step; with ``sigma``, instead of ``balance``
        sigma (float, optional): a fixed dual step
        neighbours (int or offsets): 4 couples pixels along the axes, 8 along the diagonals of the
            plane as well; offsets (down, right) couple pixels at any distance, ((1, 0), (0, 1),
            (9, 0), (0, 9)) for one. Default: 4
        average (bool): return the mean of all iterates instead of the last. Default: False
        epsilon (float): ε ≥ 0, the weight of the entropy. Default: 0
        gradient (GradientStrategy, optional): ``Unroll()`` (``last``, ``checkpoint``) or, with
            ε > 0, any of the fixed-point family. Default: ``Unroll()``
        kernel (str, optional): "triton", "numba" or "reference". Default: None, the fastest that
            there is for the device; all compute the same, and "reference", plain torch, is slow

    Shape:
        - cost: (B, L, H, W) or (B, L, D, H, W) for L labels, float32 or float64. Its largest entry
          lies between 1e-9 and 1e9 (float64: 1e-75 and 1e75), or is zero. On a GPU, where
          reading it would make the host wait, this is not checked.
        - weights: a number, or a tensor that broadcasts to (B, L, E, H, W): each axis has its full
          size or size one. E counts the directions: 2 in the plane (down, right), 3 in space, 4 for
          ``neighbours=8``, otherwise one an offset. Default: 1.
        - output: like the cost.

    Reference: Section 8 of Ochs et al. (2016).

    >>> scores, labels = torch.randn(2, 3, 8, 9), torch.zeros(2, 8, 9, dtype=torch.long)
    >>> log_probabilities = Potts(iterations=20)(-scores, 0.5)  # cost = −score
    >>> loss = torch.nn.functional.nll_loss(log_probabilities, labels)
    >>> log_probabilities.shape
    torch.Size([2, 3, 8, 9])
    """

    log_balance: Tensor

    def __init__(
        self,
        iterations: int = 100,
        *,
        balance: float = 1.0,
        learn_balance: bool = False,
        max_weight: float | None = None,
        tau: float | None = None,
        sigma: float | None = None,
        neighbours: Neighbours = 4,
        average: bool = False,
        epsilon: float = 0.0,
        gradient: GradientStrategy | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__()
        require_iterations(iterations, "Potts")
        if (tau is None) != (sigma is None):
            raise StepError("Give both tau and sigma, or neither.")
        sizes = {"balance": balance, "max_weight": max_weight, "tau": tau, "sigma": sigma}
        for name, value in sizes.items():
            if value is not None and not 0 < value < math.inf:
                raise StepError(f"{name} must be positive and finite, not {value!r}.")
        if max_weight is not None and tau is not None:
            raise StepError("tau and sigma need no max_weight: give one or the other.")
        if not 0 <= epsilon < math.inf:
            raise InputError(f"epsilon must be non-negative, not {epsilon!r}.")
        if learn_balance and tau is not None:
            raise StepError("tau and sigma leave no balance to learn: give one or the other.")
        require_known(kernel)
        self.iterations = iterations
        self.max_weight = max_weight
        self.tau, self.sigma = tau, sigma
        self.neighbours = _checked(neighbours)
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
        require_strategy(self.gradient, "Potts")
        if isinstance(self.gradient, Unroll):
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

    def forward(self, cost: Tensor, weights: Tensor | float | None = None) -> Tensor:
        """Segment: costs of labels to log-probabilities.

        Args:
            cost (Tensor): c (B, L, *spatial), negative scores.
            weights (Tensor or float, optional): W ≥ 0, one number or (B, L, E, *spatial) with axes
                of size one where it does not vary. Default: 1

        Returns:
            Tensor: log u, like the cost; its exponentials sum to one over the labels.
        """
        output = self.solve(cost, weights)
        with full_precision():
            return output.log_probabilities

    def solve(
        self, cost: Tensor, weights: Tensor | float | None = None, state: PottsState | None = None
    ) -> PottsOutput:
        """The full record of a solve.

        Args:
            cost (Tensor): as of :meth:`forward`.
            weights (Tensor or float, optional): as of :meth:`forward`.
            state (PottsState, optional): where to start, the state of an earlier solve. Default:
                zero, where all labels are equally probable

        Returns:
            PottsOutput: x (u), y (p), log_probabilities, state, gap, energy, problem, kernel.
        """
        cost, weights = out_of_autocast(cost), out_of_autocast(weights)
        with full_precision():
            _require_cost(cost, self.neighbours)
            directions = offsets(cost.ndim - 2, self.neighbours)
            w = _require_weights(weights, cost, len(directions))
            state = _require_state(state, cost, len(directions))
            start = (None, None) if state is None else (state.mirror, state.dual)
            name, done = self._iterate(*self._with_steps(cost, w, len(directions)), *start)
        return PottsOutput(
            x=done.probabilities if done.mean is None else done.mean,
            state=PottsState(done.mirror, done.dual),
            kernel=name,
            cost=cost,
            weights=w,
            directions=directions,
            epsilon=self.epsilon,
            averaged=None if done.mean is None else self.iterations,
        )

    def _with_steps(
        self, cost: Tensor, w: Tensor, directions: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""c, W, τ and σ of the iteration, in units in which one pair of steps fits every image.

        .. math:: τc = \frac{r}{κ}\,\frac{c}{m}, \quad τW = \frac{r}{κ}\,\frac{W}{m}, \quad
                  σW = \frac{1}{rκ}\,\frac{W}{m}, \qquad κ = 2\sqrt{E}, \; m = \max W

        The iteration sees nothing else of them. With entropy it sees τε too: then τ = r/(κm) with
        the largest m of the batch.
        """
        unit = 2 * math.sqrt(directions)  # ‖K‖ for weights of 1
        if self.tau is not None and self.sigma is not None:
            tau, sigma = cost.new_full((), self.tau), cost.new_full((), self.sigma)
            _require_stable(tau, sigma, unit * torch.linalg.vector_norm(w.detach(), math.inf))
            return cost, w, tau, sigma
        r = self.log_balance.exp().to(cost)
        if self.max_weight is not None:
            _require_bounded(w, self.max_weight)
            norm = unit * self.max_weight
            return cost, w, r / norm, (r * norm).reciprocal()
        apart = self.epsilon == 0
        largest = w.amax((1, 2, *range(3, w.ndim)), keepdim=True) if apart else w.amax()
        # Without coupling any step is stable: then those of unit weights, which Scale assumes too.
        largest = torch.where(largest > 1 / RANGE[w.dtype], largest, torch.ones_like(largest))
        if apart:
            return cost / largest[..., 0], w / largest, r / unit, (r * unit).reciprocal()
        if not isinstance(self.gradient, Unroll):
            largest = largest.detach()  # at a solution steps do not matter
        return cost, w, r / (unit * largest), (r * unit * largest).reciprocal()

    def _iterate(
        self,
        cost: Tensor,
        w: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
    ) -> tuple[str, PottsIterates]:
        if not isinstance(self.gradient, Unroll):
            from legato.nn.potts.reference import iterate

            directions = offsets(cost.ndim - 2, self.neighbours)
            settings = PottsSettings(self.iterations, directions, epsilon=self.epsilon)
            tensors = (cost, w, tau, sigma, mirror, dual)
            return "reference", iterate(tensors, settings, self.gradient)
        # ∂τ with entropy is ill-conditioned over long solves: fused kernels lose up to ten times
        # more of it than the engine does, 1e-4 at 500 iterations.
        long = self.iterations > LONG_SOLVE and self.epsilon > 0 and tau.requires_grad
        name, kernel = choose_kernel(cost, self.kernel or ("reference" if long else None))
        same = {"epsilon": self.epsilon, "neighbours": self.neighbours}
        skipped, attached, checkpoint = schedule(self.gradient, self.iterations)
        if skipped:
            if self.average:
                raise GradientError("Unroll(last=K) and average=True cannot be combined.")
            with torch.no_grad():
                start = {"mirror": mirror, "dual": dual}
                early = kernel(cost, w, tau, sigma, iterations=skipped, **start, **same)
            mirror, dual = early.mirror, early.dual
        return name, kernel(
            cost, w, tau, sigma, mirror=mirror, dual=dual, iterations=attached,
            average=self.average, checkpoint=checkpoint, **same,
        )  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------


def _load(name: str) -> PottsFunction:
    if name == "triton":
        from legato.nn.potts.triton.host import potts
    elif name == "numba":
        from legato.nn.potts.numba import potts
    else:
        from legato.nn.potts.reference import potts
    return potts


KERNELS = KernelRegistry(
    title="the Potts layer",
    data="cost",
    triton_limit=64,
    triton_limit_of="labels",
    load=_load,
)


def choose_kernel(cost: Tensor, override: str | None = None) -> tuple[str, PottsFunction]:
    """The name and function of the kernel for this cost."""
    name = _choose(cost.device.type, int(cost.shape[1]), override)
    return name, KERNELS.loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@constant_when_compiled
def _choose(device: str, labels: int, override: str | None) -> str:
    return KERNELS.choose(device, labels, override)


# --- bad input ------------------------------------------------------------------------------------


def _checked(neighbours: Neighbours) -> int | tuple[Offset, ...]:
    if not isinstance(neighbours, int):
        return offsets(2, neighbours)
    if neighbours not in (4, 8):
        raise InputError(f"neighbours must be 4, 8 or offsets, not {neighbours!r}.")
    return neighbours


def _require_cost(cost: Tensor, neighbours: Neighbours) -> None:
    if isinstance(cost, Tensor) and cost.ndim in (4, 5) and cost.shape[1] < 2:
        raise InputError(
            f"cost has {cost.shape[1]} label(s) on axis 1; a segmentation needs at least 2. For a "
            "binary problem use the costs (0, c)."
        )
    require_image(cost, name="cost", axis="L")
    if neighbours != 4 and cost.ndim == 5:
        raise InputError(
            "8 neighbours and offsets exist in the plane only; use neighbours=4 for volumes."
        )
    size = tuple(cost.shape[2:])
    for offset in offsets(len(size), neighbours):
        if any(abs(step) > extent for step, extent in zip(offset, size, strict=True)):
            raise InputError(f"The neighbour at {offset} lies beyond an image of size {size}.")
    require_range(cost, "cost")


def _require_weights(weights: Tensor | float | None, cost: Tensor, directions: int) -> Tensor:
    if isinstance(weights, (int, float)):
        weights = cost.new_full((), float(weights))  # a GPU would wait for new_tensor
    if weights is not None:
        if not isinstance(weights, Tensor):
            what = f"a number or a tensor, not {type(weights).__name__}"
            raise InputError(f"weights must be {what}.{CONVERT}")
        require_like(weights, cost, "weights", "cost")
    w = canonical_weights(weights, cost, directions)
    require_finite(w, "weights")
    if cheap_to_read(w):
        require_nonnegative(w, "weights")
    require_range(w, "weights", lower=False)
    return w


def _require_state(state: PottsState | None, cost: Tensor, directions: int) -> PottsState | None:
    if state is None:
        return None
    parts = tuple(state) if isinstance(state, tuple) else ()
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        raise InputError("state must be a PottsState, such as the state of an earlier output.")
    expected = (tuple(cost.shape), dual_shape(cost, directions))
    for name, tensor, shape in zip(("mirror", "dual"), parts, expected, strict=True):
        found = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if found != (shape, cost.dtype, cost.device):
            raise InputError(
                f"The state's {name} variable has shape {found[0]}, {found[1]} on {found[2]}, but "
                f"this cost needs {shape}, {cost.dtype} on {cost.device}."
            )
        require_finite(tensor, f"The state's {name} variable")
    return PottsState(*parts)


def _require_bounded(w: Tensor, most: float) -> None:
    """W ≤ max_weight, checked on the device itself where reading would make it wait."""
    largest = torch.linalg.vector_norm(w.detach(), math.inf)
    if largest.is_cuda:
        torch._assert_async(largest <= most * (1 + 1e-5), "Potts: a weight exceeds max_weight")
    elif cheap_to_read(largest) and as_number(largest) > most * (1 + 1e-5):
        raise StepError(
            f"The weights reach {as_number(largest):g}, more than max_weight = {most:g}, from "
            "which the steps are derived: the iteration need not converge. Give a larger "
            "max_weight, or none."
        )


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
