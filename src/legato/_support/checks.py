"""Checks on the values of tensors, made only where reading a value is possible and harmless."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from legato.errors import InputError


def is_concrete() -> bool:
    """Whether the host may look at tensor values now.

    Not while torch.compile traces, a CUDA graph is captured, or a torch.func transform is active.
    """
    if torch.compiler.is_compiling() or inside_functional_transform():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def wide_norm(tensor: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """The Euclidean norm in float64, where the device has it.

    In float32 the norm of numbers above 1e19 is infinite, and what is divided by it zero.
    """
    wide = None if tensor.device.type == "mps" else torch.float64
    return torch.linalg.vector_norm(tensor, dim=dims, dtype=wide)


def may_be_differentiated(tensor: Tensor) -> bool:
    """Whether a derivative of what is computed from a tensor may be asked for, in any mode.

    Inside a torch.func transform, and for the duals of forward mode, requires_grad says nothing.
    """
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    return recorded or inside_functional_transform() or forward_ad._current_level >= 0


def inside_functional_transform() -> bool:
    """Whether torch.func (grad, jacrev, vmap, …) is transforming the caller."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def as_number(value: Any) -> float:
    """A Python number or one-element tensor as a float."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def holds(condition: Tensor | bool) -> bool:
    """Whether ``condition`` is true everywhere; true where values cannot be read."""
    if isinstance(condition, bool):
        return condition
    return not is_concrete() or bool(condition.all())


def require_nonnegative(value: Tensor | float, name: str) -> None:
    """Refuse negative (or NaN) weights."""
    if isinstance(value, Tensor):
        if is_concrete() and not value.is_meta and not bool((value.detach() >= 0).all()):
            worst = float(value.detach().min())
            raise InputError(
                f"{name} must be non-negative, but its smallest entry is {worst:g}: the problem "
                "would not be convex. To learn a weight, parametrise it, e.g. by softplus."
            )
    elif not value >= 0:
        raise InputError(f"{name} must be non-negative, not {value!r}.")


def require_below(lo: Tensor | float, hi: Tensor | float, *, strict: bool, name: str) -> None:
    """Refuse empty intervals (and, if strict, single points)."""
    ok = (lo < hi) if strict else (lo <= hi)
    if not holds(ok):
        relation = "below" if strict else "at most"
        raise InputError(f"{name}: every lower end must be {relation} its upper end.")


def tensors_in(obj: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors reachable through dataclass fields, modules and containers, with their paths."""
    if isinstance(obj, Tensor):
        yield path, obj
    elif obj is None or isinstance(obj, (bool, int, float, str)):
        return  # most fields; torch.compile cannot ask these types for their module
    elif isinstance(obj, nn.Module):
        for name, tensor in (*obj.named_parameters(), *obj.named_buffers()):
            yield f"{path}.{name}", tensor
    elif type(obj).__module__.startswith("legato.") or dataclasses.is_dataclass(obj):
        for name, value in getattr(obj, "__dict__", {}).items():
            if not name.startswith("_"):
                yield from tensors_in(value, f"{path}.{name}" if path else name)
    elif isinstance(obj, (tuple, list)):
        for i, part in enumerate(obj):
            yield from tensors_in(part, f"{path}[{i}]")


def require_sound_data(obj: Any, what: str) -> None:
    """Refuse NaN, infinity, half precision, mixed devices and mixed floating dtypes."""
    if torch.compiler.is_compiling():
        return  # there are no values yet, and some compilers cannot look into a dataclass
    found = [(p, t) for p, t in tensors_in(obj) if t.is_floating_point()]
    devices = {t.device for _, t in found if t.ndim > 0}
    if len(devices) > 1:
        places = ", ".join(f"{p} on {t.device}" for p, t in found)
        raise InputError(f"{what} mixes devices ({places}). Move everything to one with .to(…).")
    dtypes = {t.dtype for _, t in found if t.ndim > 0}
    if len(dtypes) > 1:
        kinds = ", ".join(f"{p} is {t.dtype}" for p, t in found)
        raise InputError(
            f"{what} mixes floating dtypes ({kinds}). Convert everything to one, e.g. .double()."
        )
    if dtypes - {torch.float32, torch.float64}:
        raise InputError(
            f"{what} is in {', '.join(map(str, dtypes))}, but solvers compute in float32 or "
            "float64: rounding would add up over the iterations. Call .float() on its data, e.g. "
            "on the output of a network under autocast."
        )
    if not is_concrete() or not found:
        return
    # 0·t sums to 0 unless t holds NaN or infinity: two cheap passes, one read for all tensors.
    probes = [(t.detach() * 0).sum() for p, t in found if not _may_be_infinite(p)]
    probes += [torch.isnan(t.detach()).any() for p, t in found if _may_be_infinite(p)]
    total = probes[0] + 0.0
    for probe in probes[1:]:
        total = total + probe.to(total)
    if float(total) != 0:
        raise InputError(_describe_unsound(found, what))


def _may_be_infinite(path: str) -> bool:
    return path.endswith((".lo", ".hi"))


def _unsound(path: str, tensor: Tensor) -> Tensor:
    """Entries that no problem may hold: NaN anywhere, infinity except as an end of an interval."""
    if _may_be_infinite(path):
        return torch.isnan(tensor.detach())
    return ~torch.isfinite(tensor.detach())


def _describe_unsound(found: list[tuple[str, Tensor]], what: str) -> str:
    lines = []
    for path, tensor in found:
        bad = _unsound(path, tensor)
        count = int(bad.sum())
        if count:
            index = tuple(int(i) for i in bad.nonzero()[0])
            lines.append(f"{path or what} has {count} of {tensor.numel()} (first at {index})")
    return (
        f"{what} holds NaN or infinite values: {'; '.join(lines)}. Clean the data first, e.g. with "
        "torch.nan_to_num, or find where it became non-finite."
    )


RANGE = {torch.float32: 1e15, torch.float64: 1e140}
"""Data are at most this large and, unless zero, at least its inverse: squares fit with room."""


def require_range(tensor: Tensor, name: str, *, lower: bool = True) -> None:
    """Refuse data whose largest entry is outside the range in which squares and steps are numbers.

    What is zero everywhere is fine; without ``lower`` anything small is. Values are not looked at
    where that would make a GPU wait, or where there are none yet.
    """
    if tensor.is_cuda or not is_concrete():
        return
    # By NumPy: after an operation on many numbers torch's threads spin for milliseconds, on cores
    # that a kernel needs next.
    known = tensor.detach().numpy(force=True)
    largest = max(float(known.max()), -float(known.min())) if known.size else 0.0
    limit = RANGE[tensor.dtype]
    if largest > limit or (lower and 0 < largest < 1 / limit):
        raise InputError(
            f"The largest entry of {name} is {largest:.3g} in absolute value; in {tensor.dtype} "
            f"the solver is right between {1 / limit:g} and {limit:g}. Scale the data to the size "
            "of 1" + (", or use float64." if tensor.dtype == torch.float32 else ".")
        )
