"""Checks on the values of tensors, made only where reading a value is possible and harmless."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.autograd import forward_ad

from legato._support.compiling import is_being_recorded
from legato._support.later import taken_for_granted
from legato.errors import InputError

RANGE = {torch.float32: 1e9, torch.float64: 1e75}
"""Data are at most this large and, unless zero, at least its inverse: products of four such numbers
are numbers, as least squares and steps form them."""
_HIDDEN = ("vmap: It looks like", "Cannot access data pointer of Tensor that doesn't have storage")
"""How torch's errors begin where vmap hides values: for bool() and item(), and for tolist()."""
_ONE_THREAD_UP_TO = 32768
"""Entries up to which torch works on one thread."""


CONVERT = (
    " Convert it with torch.as_tensor; data from NumPy are mostly float64, and everything must "
    "share one dtype."
)
"""What to do with what is no tensor."""


def is_concrete() -> bool:
    """Whether the host may look at tensor values now.

    Not while torch.compile traces, operations are recorded or captured in a CUDA graph, or a
    torch.func transform is active.
    """
    if torch.compiler.is_compiling() or is_being_recorded() or inside_functional_transform():
        return False
    # Asked of a process that has begun to use CUDA only: a forked child must not touch it.
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def is_watched() -> bool:
    """Whether torch.jit.trace or a dispatch mode sees what is done to tensors."""
    return is_recorded() or torch._C._len_torch_dispatch_stack() > 0


def is_recorded() -> bool:
    """Whether torch.jit.trace notes operations, or fake tensors stand for others.

    Under both, what is computed now must not be kept for later. Modes that only look on, as those
    that count memory, are none of them.
    """
    return torch._C._get_tracing_state() is not None or active_fake_mode() is not None


def wide_norm(tensor: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """The Euclidean norm in float64, where the device has it.

    In float32 the norm of numbers above 1e19 is infinite, and what is divided by it zero.
    """
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    mps = tensor.device.type == "mps"
    return torch.linalg.vector_norm(tensor, dim=dims, dtype=None if mps else wide)


def may_be_differentiated(tensor: Tensor) -> bool:
    """Whether a derivative of what is computed from a tensor may be asked for, in any mode.

    Inside a torch.func transform, and for the duals of forward mode, requires_grad says nothing;
    what torch.jit.trace records may be differentiated later.
    """
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    observed = inside_functional_transform() or torch._C._get_tracing_state() is not None
    return recorded or observed or forward_ad._current_level >= 0


def inside_functional_transform() -> bool:
    """Whether torch.func (grad, jacrev, vmap, …) is transforming the caller."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def inside_reverse_transform() -> bool:
    """Whether torch.func (grad, vjp, jacrev, …) is differentiating the caller in reverse mode."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Grad for level in stack)


def outside_transforms() -> AbstractContextManager[Any]:
    """Where tensors are read that torch.func does not transform: it knows no sparse ones."""
    return torch._C._DisableFuncTorch() if inside_functional_transform() else nullcontext()


def hidden_values_in_words(who: str) -> AbstractContextManager[None]:
    """A context that says so where ``who`` would decide by values that torch.func.vmap hides."""
    if torch.compiler.is_compiling() or not inside_functional_transform():
        return nullcontext()
    return _vmap_in_words(who)


@contextmanager
def _vmap_in_words(who: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_HIDDEN):
            raise
        raise InputError(
            f"{who} decides by values, which torch.func.vmap hides: for a tolerance, a line search "
            "(Backtracking, Newton), the norm of an operator, or in a callable. Give it the whole "
            "batch instead: leading axes of the data are batches. Or give steps as numbers, and "
            "Stop without tol."
        ) from error


def as_number(value: Any) -> float:
    """A Python number or one-element tensor as a float."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def holds(condition: Tensor | bool) -> bool:
    """Whether ``condition`` is true everywhere; true where values cannot be read, or not yet."""
    if isinstance(condition, bool):
        return condition
    return not is_concrete() or taken_for_granted(condition) or bool(condition.all())


def numbers_are_cheap(like: Tensor) -> bool:
    """Whether 0-dim tensors beside ``like`` may be read in every step, and nobody looks on.

    On a CPU a number costs less than the operations that a tensor of one entry takes. What is
    recorded, transformed or differentiated forwards needs the tensor.
    """
    return (
        like.device.type == "cpu"
        and is_concrete()
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
        and not (torch._C._len_torch_dispatch_stack() and is_recorded())
    )


def require_tensor(value: Any, name: str, kind: str = "a tensor") -> None:
    """Refuse arrays, lists and sparse tensors, with the call that makes a tensor of them."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise InputError(
                f"{name} is a {value.layout} tensor, but must be a dense one: call .to_dense()."
            )
    else:
        raise InputError(f"{name} must be {kind}, not {type(value).__name__}.{CONVERT}")


def require_floating(value: Any, name: str) -> None:
    """As :func:`require_tensor`; refuse whole numbers and masks, which no solver computes with."""
    require_tensor(value, name)
    if not (value.is_floating_point() or value.is_complex()):
        raise InputError(
            f"{name} is {value.dtype}, but solvers compute in float32 or float64. Call .float() on "
            "it, and divide the integers of a picture by their range, e.g. 255."
        )


def require_tensor_or_number(value: Any, name: str) -> None:
    """As :func:`require_tensor`, where a number will do, too."""
    if not isinstance(value, int | float):
        require_tensor(value, name, "a number or a tensor")


def require_nonnegative(value: Tensor | float, name: str) -> None:
    """Refuse negative (or NaN) weights."""
    require_tensor_or_number(value, name)
    if isinstance(value, Tensor):
        _require_ordered(value, name)
        if is_concrete() and not value.is_meta and not bool((value.detach() >= 0).all()):
            worst = float(value.detach().min())
            raise InputError(
                f"{name} must be non-negative, but its smallest entry is {worst:g}: the problem "
                "would not be convex. To learn a weight, parametrise it, e.g. by softplus."
            )
    elif not value >= 0:
        raise InputError(f"{name} must be non-negative, not {value!r}.")


def _require_ordered(value: Any, name: str) -> None:
    """Refuse complex numbers where one is to be larger than another."""
    if isinstance(value, Tensor) and value.is_complex():
        raise InputError(f"{name} must be real, not {value.dtype}: complex numbers have no order.")


def cheap_to_read(tensor: Tensor) -> bool:
    """Not on a GPU, which would wait in every training step: there NaN shows in the loss."""
    return not tensor.is_cuda and not tensor.is_meta and is_concrete()


def largest_entry(tensor: Tensor) -> float:
    """max |t_i|, NaN if there is one, 0 without entries.

    In parts that one thread handles: after work on many numbers torch's threads spin for
    milliseconds, on cores that a kernel needs next.
    """
    if tensor.numel() == 0:
        return 0.0
    ends = [
        torch.stack(part.aminmax()) for part in tensor.detach().flatten().split(_ONE_THREAD_UP_TO)
    ]
    return float(torch.stack(ends).abs().amax())


def require_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity, where that does not make a GPU wait."""
    if cheap_to_read(tensor) and not math.isfinite(largest_entry(tensor)):
        count = int((~torch.isfinite(tensor.detach())).sum())
        raise InputError(
            f"{name} holds {count} NaN or infinite values of {tensor.numel()}. Look for an "
            "overflow in what computed it, or clean it with torch.nan_to_num."
        )


def require_range(tensor: Tensor, name: str, *, lower: bool = True) -> None:
    """Refuse NaN, infinity, and data whose largest entry lies outside of RANGE; zero is fine.

    Without ``lower`` anything small is, too: a weight that is small against the data.
    """
    require_finite(tensor, name)
    if not cheap_to_read(tensor) or tensor.dtype not in RANGE:
        return
    largest, limit = largest_entry(tensor), RANGE[tensor.dtype]
    if largest > limit or (lower and 0 < largest < 1 / limit):
        raise InputError(out_of_range(name, largest, tensor.dtype))


def require_whole(value: Any, name: str, least: int = 1) -> None:
    """Refuse what is not a whole number, or is too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number, at least {least}, not {value!r}.")


def require_positive(value: float, name: str) -> None:
    """Refuse numbers that are not positive and finite."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} must be positive and finite, not {value!r}.")


def require_iterations(iterations: int, layer: str) -> None:
    """Refuse what is not a positive whole number."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise InputError(f"{layer} needs a positive number of iterations, not {iterations!r}.")


def require_image(
    image: Tensor, *, volumes: bool = True, name: str = "image", axis: str = "C"
) -> None:
    """Refuse what is not a finite, non-empty batch of images (or volumes) in full precision."""
    shapes = f"(B, {axis}, H, W) or (B, {axis}, D, H, W)" if volumes else f"(B, {axis}, H, W)"
    if not isinstance(image, Tensor) or image.ndim not in ((4, 5) if volumes else (4,)):
        hint = CONVERT
        if isinstance(image, Tensor):
            hint = " An axis of size one comes by [None]." if 1 < image.ndim < 4 else ""
        raise InputError(f"{name} must have shape {shapes}, not {describe(image)}.{hint}")
    if image.is_complex():
        raise InputError(
            f"{name} is {image.dtype}, but this layer takes real numbers: give real and imaginary "
            "parts as axes of their own, or write an energy, whose terms may be complex."
        )
    if image.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} is {image.dtype}; the solver computes in float32 or float64. Call .float() on "
            "it (and divide integers by their range, e.g. 255)."
        )
    if image.is_meta:
        raise InputError(f"{name} is on the meta device: it has a shape, but nothing to solve for.")
    if image.numel() == 0:
        raise InputError(f"{name} of shape {tuple(image.shape)} is empty: nothing to solve for.")
    require_finite(image, name)


def describe(value: Any) -> str:
    """A tensor's shape, or what else was given, for a message."""
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def require_like(tensor: Tensor, data: Tensor, name: str, of: str = "image") -> None:
    """Refuse another device or dtype than the data's."""
    if tensor.device != data.device:
        raise InputError(
            f"{name} and {of} must be on one device, but are on {tensor.device} and {data.device}."
        )
    if tensor.dtype != data.dtype:
        raise InputError(
            f"{name} and {of} must share a dtype, but are {tensor.dtype} and {data.dtype}. Convert "
            "one of them."
        )


def require_below(lo: Tensor | float, hi: Tensor | float, *, strict: bool, name: str) -> None:
    """Refuse empty intervals (and, if strict, single points)."""
    require_tensor_or_number(lo, f"The lower end of {name}")
    require_tensor_or_number(hi, f"The upper end of {name}")
    _require_ordered(lo, f"The lower end of {name}")
    _require_ordered(hi, f"The upper end of {name}")
    ok = (lo < hi) if strict else (lo <= hi)
    if not holds(ok):
        relation = "below" if strict else "at most"
        raise InputError(f"{name}: every lower end must be {relation} its upper end.")


def out_of_range(name: str, largest: float, dtype: torch.dtype) -> str:
    """Words for data whose largest entry lies outside of RANGE."""
    limit = RANGE[dtype]
    return (
        f"{name} has a largest entry of {largest:.3g} in absolute value; in {dtype} the solver is "
        f"right between {1 / limit:g} and {limit:g}. Scale the data to the size of 1"
        + (", or use float64." if dtype == torch.float32 else ".")
    )
