"""Turns a pair of total-variation kernels, forward and reverse, into a function for torch.

torch.compile and fake tensors see two opaque operators, `legato::tv_<name>` and
`legato::tv_<name>_reverse`; plain tensors take a short cut around them, an autograd function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from legato.nn.kernels.first_derivatives import ordinary, refuse
from legato.nn.kernels.tv_growth import warn_if_grown
from legato.nn.kernels.tv_iterates import Coupling, TVIterates, canonical_weight, require_edges


class TVSettings(NamedTuple):
    """The part of a solve that is not a tensor; `checkpoint` is zero where the tape is kept."""

    iterations: int
    first: int
    directions: bool
    channels: bool
    checkpoint: int

    @property
    def coupling(self) -> Coupling:
        return Coupling(self.directions, self.channels)


class TVKernel(Protocol):
    """What a kernel supplies."""

    def tape_like(
        self, image: Tensor, settings: TVSettings
    ) -> tuple[tuple[Sequence[int], torch.dtype], Sequence[int]]:
        """Shape and dtype of the tape, shape of the marked p and p₋."""

    def forward(
        self,
        image: Tensor,
        weight: Tensor,
        dual: Tensor | None,
        previous: Tensor | None,
        settings: TVSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(u, p, p₋, tape, marks); what is absent has no elements."""

    def reverse(
        self,
        bars: tuple[Tensor | None, Tensor | None, Tensor | None],
        image: Tensor,
        weight: Tensor,
        tape: Tensor,
        marks: Tensor,
        settings: TVSettings,
        to_weight: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of image, λ (if asked for), and of the p and p₋ at the start."""


class TVFunction(Protocol):
    """The signature that every kernel's `tv` has."""

    def __call__(
        self,
        image: Tensor,
        weight: Tensor,
        *,
        iterations: int,
        coupling: Coupling,
        dual: Tensor | None = None,
        previous: Tensor | None = None,
        first: int = 0,
        checkpoint: int | None = None,
    ) -> TVIterates: ...


def make_operator(name: str, kernel: TVKernel) -> TVFunction:
    """Register a kernel with torch and return the function that users call."""
    words = f"{name} kernel of total variation"

    @torch.library.custom_op(f"legato::tv_{name}", mutates_args=())
    def forward(
        image: Tensor,
        weight: Tensor,
        dual: Tensor | None,
        previous: Tensor | None,
        iterations: int,
        first: int,
        directions: bool,
        channels: bool,
        checkpoint: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = TVSettings(iterations, first, directions, channels, checkpoint)
        return kernel.forward(image, weight, dual, previous, settings, keep)

    @forward.register_fake
    def _(
        image: Tensor,
        weight: Tensor,
        dual: Tensor | None,
        previous: Tensor | None,
        iterations: int,
        first: int,
        directions: bool,
        channels: bool,
        checkpoint: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        settings = TVSettings(iterations, first, directions, channels, checkpoint)
        field = (*image.shape[:2], image.dim() - 2, *image.shape[2:])
        (shape, dtype), marks = kernel.tape_like(image, settings)
        return (
            image.new_empty(image.shape),
            image.new_empty(field),
            image.new_empty(field),
            image.new_empty(tuple(shape) if keep else (0,), dtype=dtype),
            image.new_empty(tuple(marks) if keep else (0,)),
        )

    @torch.library.custom_op(f"legato::tv_{name}_reverse", mutates_args=())
    def reverse(
        u_bar: Tensor | None,
        dual_bar: Tensor | None,
        previous_bar: Tensor | None,
        image: Tensor,
        weight: Tensor,
        tape: Tensor,
        marks: Tensor,
        iterations: int,
        first: int,
        directions: bool,
        channels: bool,
        checkpoint: int,
        to_weight: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        settings = TVSettings(iterations, first, directions, channels, checkpoint)
        bars = (u_bar, dual_bar, previous_bar)
        return kernel.reverse(bars, image, weight, tape, marks, settings, to_weight)

    @reverse.register_fake
    def _(
        u_bar: Tensor | None,
        dual_bar: Tensor | None,
        previous_bar: Tensor | None,
        image: Tensor,
        weight: Tensor,
        tape: Tensor,
        marks: Tensor,
        iterations: int,
        first: int,
        directions: bool,
        channels: bool,
        checkpoint: int,
        to_weight: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        field = (*image.shape[:2], image.dim() - 2, *image.shape[2:])
        return (
            image.new_empty(image.shape),
            weight.new_empty(weight.shape),
            image.new_empty(field),
            image.new_empty(field),
        )

    def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        image, weight, _, _, *settings, keep = inputs
        # Zeros for the tape's own (absent) gradient would be as large as the tape.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(image, weight, *output[3:])
        ctx.settings, ctx.kept = settings, keep

    def differentiate(ctx: Any, *bars: Tensor | None) -> tuple[Any, ...]:
        if not ctx.kept:
            raise RuntimeError("the kernel ran without a tape: gradients were not asked for")
        wanted = ctx.needs_input_grad[:4]
        gradients = reverse(*bars[:3], *ctx.saved_tensors, *ctx.settings, wanted[1])
        warn_if_grown(bars[:3], gradients[0], TVSettings(*ctx.settings).iterations)
        return (*_asked(gradients, wanted), *(None,) * 6)

    def no_second(ctx: Any, *bars: Tensor | None) -> None:
        refuse(words, "second derivatives")

    forward.register_autograd(differentiate, setup_context=remember)
    reverse.register_autograd(no_second, setup_context=lambda ctx, inputs, output: None)

    def run_reverse(*arguments: Any) -> Any:
        u_bar, dual_bar, previous_bar, image, weight, tape, marks, settings, to_weight = arguments
        bars = (u_bar, dual_bar, previous_bar)
        return kernel.reverse(bars, image, weight, tape, marks, settings, to_weight)

    class Reverse(torch.autograd.Function):
        """The reverse sweep where it is itself recorded: create_graph=True."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            return run_reverse(*arguments)

        @staticmethod
        def backward(ctx: Any, *bars: Any) -> None:
            refuse(words, "second derivatives")

    class Solve(torch.autograd.Function):
        """The kernel for plain tensors."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            image, weight, dual, previous, settings = arguments
            u, p, before, tape, marks = kernel.forward(
                image, weight, dual, previous, settings, True
            )
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(image, weight, tape, marks)
            ctx.settings = settings
            return u, p, before

        @staticmethod
        def backward(ctx: Any, *bars: Any) -> Any:
            wanted = ctx.needs_input_grad[:4]
            run = Reverse.apply if torch.is_grad_enabled() else run_reverse
            gradients = run(*bars, *ctx.saved_tensors, ctx.settings, wanted[1])
            warn_if_grown(bars, gradients[0], ctx.settings.iterations)
            return (*_asked(gradients, wanted), None)

    solve: Callable[..., tuple[Tensor, Tensor, Tensor]] = Solve.apply

    def tv(
        image: Tensor,
        weight: Tensor,
        *,
        iterations: int,
        coupling: Coupling,
        dual: Tensor | None = None,
        previous: Tensor | None = None,
        first: int = 0,
        checkpoint: int | None = None,
    ) -> TVIterates:
        w = canonical_weight(weight, image, coupling)
        start = require_edges(dual, image)
        before = start if previous is None else require_edges(previous, image)
        tensors = (image, w, start, before)
        settings = TVSettings(iterations, first, *coupling, checkpoint or 0)
        keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if torch.compiler.is_compiling() or not ordinary(words, tensors, keep):
            u, p, p_before, *_ = forward(*tensors, *settings, keep)
        elif keep:
            u, p, p_before = solve(*tensors, settings)
        else:
            u, p, p_before, *_ = kernel.forward(*tensors, settings, False)
        return TVIterates(u, p, p_before)

    return tv


def _asked(gradients: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    return tuple(g if yes else None for g, yes in zip(gradients, wanted, strict=True))
