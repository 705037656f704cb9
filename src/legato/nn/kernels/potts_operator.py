"""Turns a pair of Potts kernels, forward and reverse, into a function that torch understands.

torch.compile and fake tensors see two opaque operators, `legato::potts_<name>` and
`legato::potts_<name>_reverse`. Plain tensors take a short cut around them, an autograd function:
on a GPU the way through the operators takes longer than the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from legato.nn.kernels.first_derivatives import ordinary, refuse
from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_iterates import PottsIterates, canonical_weights


class PottsSettings(NamedTuple):
    """The part of a Potts solve that is not a tensor.

    `checkpoint` is zero where the whole tape is kept, else the number of iterations between marks.
    Without `to_steps` nobody looks at the gradients of τ and σ.
    """

    iterations: int
    epsilon: float
    neighbours: int
    average: bool
    checkpoint: int
    to_steps: bool = True


class PottsCotangents(NamedTuple):
    """What arrives at the last iterates from the loss; None where nothing does."""

    mirror: Tensor | None
    dual: Tensor | None
    probabilities: Tensor | None
    mean: Tensor | None


PottsResult = tuple[
    Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None
]
PottsGradients = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


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
    ) -> PottsResult:
        """(a, b, u, mean, tape, marked a, marked b); what is absent is None or has no elements."""

    def reverse(
        self,
        bars: PottsCotangents,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final: tuple[Tensor, Tensor, Tensor],
        tape: Tensor,
        marked: tuple[Any, Any],
        settings: PottsSettings,
        to_mirror: bool,
        to_dual: bool,
    ) -> PottsGradients:
        """Gradients of cost and weights, and where asked of τ, σ, a⁰ and b⁰.

        `final` is (a, b, u) of the last iterate, `marked` what forward marked of (a, b); where it
        marked nothing, that of the start, None for zero.
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
    words = f"{name} kernel of the Potts layer"
    shortcut = _make_function(words, kernel)

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
        result = kernel.forward(cost, weights, tau, sigma, mirror, dual, settings, keep)
        return tuple(cost.new_empty(0) if t is None else t for t in result)  # type: ignore[return-value]

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
        to_steps: bool,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = PottsSettings(iterations, epsilon, neighbours, average, checkpoint, to_steps)
        gradients = kernel.reverse(
            PottsCotangents(mirror_bar, dual_bar, u_bar, mean_bar), cost, weights, tau, sigma,
            (final_mirror, final_dual, final_u), tape,
            (_present(marked_mirror), _present(marked_dual)), settings, to_mirror, to_dual,
        )  # fmt: skip
        shapes = (cost.shape, weights.shape, tau.shape, sigma.shape, (0,), (0,))
        return tuple(  # type: ignore[return-value]
            cost.new_empty(shape) if g is None else g
            for g, shape in zip(gradients, shapes, strict=True)
        )

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
        to_steps: bool,
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
        cost, weights, tau, sigma, mirror, dual, *settings, keep = inputs
        a, b, u, _, tape, marked_a, marked_b = output
        # Zeros for the tape's own (absent) gradient would be as large as the tape.
        ctx.set_materialize_grads(False)
        marked_a = marked_a if mirror is None or marked_a.numel() else mirror
        marked_b = marked_b if dual is None or marked_b.numel() else dual
        ctx.save_for_backward(cost, weights, tau, sigma, a, b, u, tape, marked_a, marked_b)
        ctx.settings, ctx.kept = settings, keep

    def differentiate(ctx: Any, *bars: Tensor | None) -> tuple[Any, ...]:
        if not ctx.kept:
            raise RuntimeError("the Potts kernel ran without a tape: gradients were not asked for")
        wanted = _Wanted.of(ctx)
        gradients = reverse(*bars[:4], *ctx.saved_tensors, *ctx.settings, *wanted)
        return (*wanted.of_all(gradients), *(None,) * 6)

    def no_second(ctx: Any, *bars: Tensor | None) -> None:
        refuse(words, "second derivatives")

    forward.register_autograd(differentiate, setup_context=remember)
    reverse.register_autograd(no_second, setup_context=lambda ctx, inputs, output: None)

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
        tensors = (cost, w, tau, sigma, mirror, dual)
        settings = (iterations, epsilon, neighbours, average, checkpoint or 0)
        keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        mean: Tensor | None
        if torch.compiler.is_compiling() or not ordinary(words, tensors, keep):
            a, b, u, mean, *_ = forward(*tensors, *settings, keep)
        elif keep:
            a, b, u, mean = shortcut(*tensors, PottsSettings(*settings))
        else:
            a, b, u, mean, *_ = kernel.forward(*tensors, PottsSettings(*settings), False)
        return PottsIterates(a, b, u, mean if average else None)

    return potts


class _Wanted(NamedTuple):
    """Which gradients are asked for besides those of cost and weights."""

    to_steps: bool
    to_mirror: bool
    to_dual: bool

    @classmethod
    def of(cls, ctx: Any) -> _Wanted:
        _, _, tau, sigma, mirror, dual, *_ = ctx.needs_input_grad
        return cls(tau or sigma, mirror, dual)

    def of_all(self, gradients: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Those of the six tensors, None where nobody asked."""
        asked = (True, True, self.to_steps, self.to_steps, self.to_mirror, self.to_dual)
        return tuple(g if yes else None for g, yes in zip(gradients, asked, strict=True))


def _present(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None or tensor.numel() == 0 else tensor


def _make_function(words: str, kernel: PottsKernel) -> Callable[..., tuple[Tensor, ...]]:
    """The kernel for plain tensors: (cost, w, τ, σ, a⁰, b⁰, settings) to (a, b, u, mean)."""

    def run_reverse(settings: PottsSettings, wanted: _Wanted, *tensors: Any) -> Any:
        bars, (cost, w, tau, sigma, a, b, u, tape, *marked) = tensors[:4], tensors[4:]
        return kernel.reverse(
            PottsCotangents(*bars), cost, w, tau, sigma, (a, b, u), tape, (marked[0], marked[1]),
            settings, wanted.to_mirror, wanted.to_dual,
        )  # fmt: skip

    class Reverse(torch.autograd.Function):
        """The reverse sweep where it is itself recorded: create_graph=True."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            return run_reverse(*arguments)

        @staticmethod
        def backward(ctx: Any, *bars: Any) -> None:
            refuse(words, "second derivatives")

    class Solve(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            cost, w, tau, sigma, mirror, dual, settings = arguments
            a, b, u, mean, tape, marked_a, marked_b = kernel.forward(
                cost, w, tau, sigma, mirror, dual, settings, True
            )
            # From here on the GPU is busy, and the host has time.
            ctx.set_materialize_grads(False)
            marked_a, marked_b = _present(marked_a), _present(marked_b)
            ctx.save_for_backward(
                cost, w, tau, sigma, a, b, u, tape,
                mirror if marked_a is None else marked_a, dual if marked_b is None else marked_b,
            )  # fmt: skip
            ctx.wanted = _Wanted.of(ctx)
            ctx.settings = settings._replace(to_steps=ctx.wanted.to_steps)
            return a, b, u, mean

        @staticmethod
        def backward(ctx: Any, *bars: Any) -> Any:
            run = Reverse.apply if torch.is_grad_enabled() else run_reverse
            gradients = run(ctx.settings, ctx.wanted, *bars, *ctx.saved_tensors)
            return (*ctx.wanted.of_all(gradients), None)

    return Solve.apply
