"""Turns a pair of sweeps, forward and reverse, into a function that torch differentiates.

torch.compile and fake tensors see two opaque operators, `legato::<name>` and
`legato::<name>_reverse`, with one schema for every layer. Plain tensors take a short cut around
them, an autograd function: on a GPU the way through the operators takes longer than the kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from legato._support.checks import inside_functional_transform, is_watched
from legato.errors import GradientError

Tensors = Sequence[Any]
"""Tensors, or None for those that are absent."""
Like = tuple[Sequence[int], torch.dtype]
"""Shape and dtype of a tensor that does not exist yet."""
FORWARD = "(Tensor[] tensors, SymInt[] sizes, float[] numbers, bool keep) -> Tensor[]"
REVERSE = (
    "(Tensor[] bars, Tensor[] tensors, Tensor[] outputs, Tensor[] tape, SymInt[] sizes, "
    "float[] numbers, bool[] wanted) -> Tensor[]"
)
ABSENT = (0,)
"""The shape of what stands for None among the operators' tensors."""
S = TypeVar("S", bound=tuple[Any, ...])


class Record(NamedTuple):
    """What a reverse sweep knows of its solve: what was given, what it needs of the outputs."""

    tensors: Tensors
    outputs: Tensors
    tape: Tensors
    settings: Any


class FusedKernel(ABC, Generic[S]):
    """A layer's solve on one device and its reverse sweep, both written by hand.

    Subclasses name the operator (``name``), call themselves something in errors (``title``), and
    say what a solve is made of: the NamedTuple ``settings`` of whole numbers, then floats; how many
    ``outputs`` there are, and how many of them, the first, the reverse sweep needs (``needed``).
    The first tensor of a solve has the dtype and device of all.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    settings: ClassVar[type[Any]]
    outputs: ClassVar[int]
    needed: ClassVar[int]

    def packed(self, settings: S) -> tuple[list[int], list[float]]:
        """The settings as the operators take them."""
        sizes = [int(x) for x in settings if not isinstance(x, float)]
        return sizes, [x for x in settings if isinstance(x, float)]

    def unpacked(self, sizes: Sequence[int], numbers: Sequence[float]) -> S:
        """The settings that were packed."""
        found: S = self.settings(*sizes, *numbers)
        return found

    @abstractmethod
    def like(self, tensors: Tensors, settings: S, keep: bool) -> list[Like]:
        """What ``forward`` returns, outputs and tape, with the shape ABSENT for None."""

    @abstractmethod
    def forward(self, tensors: Tensors, settings: S, keep: bool) -> tuple[Tensors, Tensors]:
        """The outputs, and the tape that the reverse sweep reads, empty unless ``keep``."""

    @abstractmethod
    def reverse(self, bars: Tensors, record: Record, wanted: Sequence[bool]) -> Tensors:
        """The gradients of the tensors, where wanted, from the cotangents of the outputs."""


def register(kernel: FusedKernel[S]) -> Callable[[Tensors, S], Tensors]:
    """Make the kernel known to torch, and return the function (tensors, settings) → outputs."""

    @torch.library.custom_op(f"legato::{kernel.name}", mutates_args=(), schema=FORWARD)
    def forward(tensors: Any, sizes: Any, numbers: Any, keep: bool) -> list[Tensor]:
        settings = kernel.unpacked(sizes, numbers)
        outputs, tape = kernel.forward(_present(tensors), settings, keep)
        return _without_none((*outputs, *tape), tensors[0])

    @forward.register_fake
    def _(tensors: Any, sizes: Any, numbers: Any, keep: bool) -> list[Tensor]:
        like = kernel.like(_present(tensors), kernel.unpacked(sizes, numbers), keep)
        return [tensors[0].new_empty(tuple(shape), dtype=dtype) for shape, dtype in like]

    @forward.register_vmap
    def _(info: Any, dims: Any, tensors: Any, *settings: Any) -> tuple[list[Tensor], list[int]]:
        # One solve after the other: kernels know batches of images, not of settings.
        elements = [
            forward(
                [t if d is None else t.select(d, i) for t, d in zip(tensors, dims[0], strict=True)],
                *settings,
            )
            for i in range(info.batch_size)
        ]
        stacked = [torch.stack(parts) for parts in zip(*elements, strict=True)]
        return stacked, [0] * len(stacked)

    @torch.library.custom_op(f"legato::{kernel.name}_reverse", mutates_args=(), schema=REVERSE)
    def reverse(
        bars: Any, tensors: Any, outputs: Any, tape: Any, sizes: Any, numbers: Any, wanted: Any
    ) -> list[Tensor]:
        settings = kernel.unpacked(sizes, numbers)
        record = Record(_present(tensors), _present(outputs), _present(tape), settings)
        return _without_none(_reverse(kernel, _present(bars), record, wanted), tensors[0])

    @reverse.register_fake
    def _(
        bars: Any, tensors: Any, outputs: Any, tape: Any, sizes: Any, numbers: Any, wanted: Any
    ) -> list[Tensor]:
        pairs = zip(tensors, wanted, strict=True)
        return [t.new_empty(t.shape if yes else ABSENT) for t, yes in pairs]

    def remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        tensors, ctx.sizes, ctx.numbers, ctx.keep = inputs
        _save(ctx, kernel, tensors, output[: kernel.outputs], output[kernel.outputs :])

    def differentiate(ctx: Any, bars: Sequence[Tensor | None]) -> tuple[Any, ...]:
        if not ctx.keep:
            raise RuntimeError("The kernel ran without a tape: no gradients were asked for.")
        tensors, outputs, tape = _saved(ctx, kernel)
        arrived = _without_none(bars[: kernel.outputs], tensors[0])
        wanted = list(ctx.needs_input_grad[0])
        found = reverse(arrived, tensors, outputs, tape, ctx.sizes, ctx.numbers, wanted)
        gradients = [g if yes else None for g, yes in zip(found, wanted, strict=True)]
        # torch takes an empty list for one of tensors.
        return gradients, None, None if ctx.numbers else [], None

    def no_second(ctx: Any, *bars: Any) -> NoReturn:
        refuse(kernel.title, "second derivatives")

    forward.register_autograd(differentiate, setup_context=remember)
    reverse.register_autograd(no_second, setup_context=lambda ctx, inputs, output: None)

    def solve(tensors: Tensors, settings: S) -> Tensors:
        keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if not torch.compiler.is_compiling() and is_plain_eager_call(kernel.title, tensors, keep):
            if keep:
                return tuple(_Solve.apply(kernel, settings, *tensors))  # type: ignore[no-untyped-call]
            return kernel.forward(tensors, settings, False)[0]
        packed = kernel.packed(settings)
        found: list[Tensor] = forward(_without_none(tensors, tensors[0]), *packed, keep)
        return found[: kernel.outputs]

    return solve


class _Solve(torch.autograd.Function):
    """A kernel for plain tensors."""

    @staticmethod
    def forward(ctx: Any, kernel: FusedKernel[Any], settings: Any, *tensors: Any) -> Any:
        outputs, tape = kernel.forward(tensors, settings, True)
        # On a GPU the kernels run from here on, and the host has time.
        _save(ctx, kernel, tensors, outputs, tape)
        ctx.kernel, ctx.settings = kernel, settings
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *bars: Any) -> Any:
        record = Record(*_saved(ctx, ctx.kernel), ctx.settings)
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            # Handed over once more for autograd to see what second derivatives would go through.
            seen = [*bars, *record.tensors, *record.outputs, *record.tape]
            gradients = _Reverse.apply(ctx.kernel, bars, record, wanted, *seen)  # type: ignore[no-untyped-call]
        else:
            gradients = _reverse(ctx.kernel, bars, record, wanted)
        return None, None, *gradients


class _Reverse(torch.autograd.Function):
    """The reverse sweep where it is itself recorded: create_graph=True."""

    @staticmethod
    def forward(ctx: Any, kernel: Any, bars: Any, record: Any, wanted: Any, *seen: Any) -> Any:
        ctx.title = kernel.title
        return tuple(_reverse(kernel, bars, record, wanted))

    @staticmethod
    def backward(ctx: Any, *bars: Any) -> NoReturn:
        refuse(ctx.title, "second derivatives")


def _reverse(
    kernel: FusedKernel[Any], bars: Tensors, record: Record, wanted: Sequence[bool]
) -> list[Tensor | None]:
    gradients = kernel.reverse(bars, record, wanted)
    return [g if yes else None for g, yes in zip(gradients, wanted, strict=True)]


def _save(
    ctx: Any, kernel: FusedKernel[Any], tensors: Tensors, outputs: Tensors, tape: Tensors
) -> None:
    # Zeros for the tape's own (absent) gradient would be as large as the tape.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *outputs[: kernel.needed], *tape)
    ctx.tensors = len(tensors)


def _saved(ctx: Any, kernel: FusedKernel[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    saved, first = list(ctx.saved_tensors), ctx.tensors
    second = first + kernel.needed
    return saved[:first], saved[first:second], saved[second:]


def _present(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    return [t if t.numel() else None for t in tensors]


def _without_none(tensors: Tensors, like: Tensor) -> list[Tensor]:
    # Operators differentiate lists of tensors only where no entry is None.
    return [like.new_empty(ABSENT) if t is None else t for t in tensors]


def refuse(kernel: str, what: str) -> NoReturn:
    """Raise for a derivative that the kernel, named in words, has no formula for."""
    raise GradientError(
        f"The {kernel} has no autograd formula for {what}: its reverse sweep is written by hand, "
        'for first derivatives alone. Take kernel="reference", which torch differentiates in every '
        "way, or torch.autograd.grad without create_graph."
    )


def is_plain_eager_call(kernel: str, tensors: Tensors, keep: bool) -> bool:
    """True if only reverse-mode autograd observes this call.

    That is, no torch.func transform, tensor subclass, dispatch mode or tracer is active; refuses
    tangents of forward mode, which would be lost, and transforms that differentiate.
    """
    transformed = inside_functional_transform()
    if transformed and keep:
        refuse(kernel, "torch.func's transforms of it")
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        refuse(kernel, "derivatives in forward mode")
    plain = type(tensors[0]) in (Tensor, torch.nn.Parameter)
    return plain and not transformed and not is_watched()
