"""Turns a pair of Potts kernels, forward and reverse, into an operator that torch understands.

Autograd, torch.compile and fake tensors see two opaque operators, `legato::potts_<name>` and
`legato::potts_<name>_reverse`; the kernels see plain tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_iterates import PottsIterates, canonical_weights


@dataclass(frozen=True)
class PottsSettings:
    """The part of a Potts solve that is not a tensor.

    `checkpoint` is zero where the whole tape is kept, else the number of iterations between marks.
    """

    iterations: int
    epsilon: float
    neighbours: int
    average: bool
    checkpoint: int


class PottsCotangents(NamedTuple):
    """What arrives at the last iterates from the loss; None where nothing does."""

    mirror: Tensor | None
    dual: Tensor | None
    probabilities: Tensor | None
    mean: Tensor | None


class PottsKernel(Protocol):
    """What a kernel supplies."""

    def tape_shapes(
        self, cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Shapes of the primal tape and of the marked mirror and dual variables."""

    def forward(
        self,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
        settings: PottsSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(a, b, u, mean, tape, marked a, marked b); what is absent has no elements."""

    def reverse(
        self,
        bars: PottsCotangents,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final: tuple[Tensor, Tensor, Tensor],
        tape: Tensor,
        marked: tuple[Tensor, Tensor],
        settings: PottsSettings,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of cost, weights, τ, σ, and where asked a⁰ and b⁰ (else without elements).

        `final` is (a, b, u) of the last iterate, `marked` the (a, b) of the checkpoints.
        """


class PottsFunction(Protocol):
    """The signature that every kernel's `potts` has."""

    def __call__(
        self,
        cost: Tensor,
        weights: Tensor | None,
        tau: Tensor,
        sigma: Tensor,
        *,
        iterations: int,
        epsilon: float = 0.0,
        neighbours: int = 4,
        mirror: Tensor | None = None,
        dual: Tensor | None = None,
        average: bool = False,
        checkpoint: int | None = None,
    ) -> PottsIterates: ...


def make_operator(name: str, kernel: PottsKernel) -> PottsFunction:
    """Register a kernel with torch and return the function that users call."""

    @torch.library.custom_op(f"legato::potts_{name}", mutates_args=())
    def forward(
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
        iterations: int,
        epsilon: float,
        neighbours: int,
        average: bool,
        checkpoint: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = PottsSettings(iterations, epsilon, neighbours, average, checkpoint)
        return kernel.forward(cost, weights, tau, sigma, mirror, dual, settings, keep)

    @forward.register_fake
    def _(
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
        iterations: int,
        epsilon: float,
        neighbours: int,
        average: bool,
        checkpoint: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = PottsSettings(iterations, epsilon, neighbours, average, checkpoint)
        directions = len(offsets(cost.dim() - 2, neighbours))
        a = cost.new_empty(cost.shape)
        b = cost.new_empty((*cost.shape[:2], directions, *cost.shape[2:]))
        mean = cost.new_empty(cost.shape if average else (0,))
        shapes = kernel.tape_shapes(cost, directions, settings) if keep else ((0,),) * 3
        tape, marked_a, marked_b = (cost.new_empty(tuple(shape)) for shape in shapes)
        return a, b, cost.new_empty(cost.shape), mean, tape, marked_a, marked_b

    @torch.library.custom_op(f"legato::potts_{name}_reverse", mutates_args=())
    def reverse(
        mirror_bar: Tensor | None,
        dual_bar: Tensor | None,
        u_bar: Tensor | None,
        mean_bar: Tensor | None,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final_mirror: Tensor,
        final_dual: Tensor,
        final_u: Tensor,
        tape: Tensor,
        marked_mirror: Tensor,
        marked_dual: Tensor,
        iterations: int,
        epsilon: float,
        neighbours: int,
        average: bool,
        checkpoint: int,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = PottsSettings(iterations, epsilon, neighbours, average, checkpoint)
        return kernel.reverse(
            PottsCotangents(mirror_bar, dual_bar, u_bar, mean_bar), cost, weights, tau, sigma,
            (final_mirror, final_dual, final_u), tape, (marked_mirror, marked_dual), settings,
            to_mirror, to_dual,
        )  # fmt: skip

    @reverse.register_fake
    def _(
        mirror_bar: Tensor | None,
        dual_bar: Tensor | None,
        u_bar: Tensor | None,
        mean_bar: Tensor | None,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final_mirror: Tensor,
        final_dual: Tensor,
        final_u: Tensor,
        tape: Tensor,
        marked_mirror: Tensor,
        marked_dual: Tensor,
        iterations: int,
        epsilon: float,
        neighbours: int,
        average: bool,
        checkpoint: int,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return (
            cost.new_empty(cost.shape),
            weights.new_empty(weights.shape),
            tau.new_empty(tau.shape),
            sigma.new_empty(sigma.shape),
            cost.new_empty(cost.shape if to_mirror else (0,)),
            cost.new_empty(final_dual.shape if to_dual else (0,)),
        )

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        cost, weights, tau, sigma, _, _, *settings, keep = inputs
        a, b, u, _, tape, marked_a, marked_b = output
        # Zeros for the tape's own (absent) gradient would be as large as the tape.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cost, weights, tau, sigma, a, b, u, tape, marked_a, marked_b)
        ctx.settings, ctx.kept = settings, keep

    def differentiate(ctx: Any, *bars: Tensor | None) -> tuple[Any, ...]:
        if not ctx.kept:
            raise RuntimeError("the Potts kernel ran without a tape: gradients were not asked for")
        cost, weights, tau, sigma, a, b, u, tape, marked_a, marked_b = ctx.saved_tensors
        to_mirror, to_dual = ctx.needs_input_grad[4:6]
        gradients = reverse(
            *bars[:4], cost, weights, tau, sigma, a, b, u, tape, marked_a, marked_b,
            *ctx.settings, to_mirror, to_dual,
        )  # fmt: skip
        return (
            *gradients[:4],
            gradients[4] if to_mirror else None,
            gradients[5] if to_dual else None,
            *(None,) * 6,
        )

    forward.register_autograd(differentiate, setup_context=remember)

    def potts(
        cost: Tensor,
        weights: Tensor | None,
        tau: Tensor,
        sigma: Tensor,
        *,
        iterations: int,
        epsilon: float = 0.0,
        neighbours: int = 4,
        mirror: Tensor | None = None,
        dual: Tensor | None = None,
        average: bool = False,
        checkpoint: int | None = None,
    ) -> PottsIterates:
        directions = len(offsets(cost.dim() - 2, neighbours))
        w = canonical_weights(weights, cost, directions)
        differentiable = (cost, w, tau, sigma, mirror, dual)
        keep = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in differentiable
        )
        a, b, u, mean, *_ = forward(
            cost, w, tau, sigma, mirror, dual, iterations, epsilon, neighbours, average,
            checkpoint or 0, keep,
        )  # fmt: skip
        return PottsIterates(a, b, u, mean if average else None)

    return potts
