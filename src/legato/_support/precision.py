"""Solvers never run in reduced precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor


def _autocasting() -> list[str]:
    return [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]


def out_of_autocast(value: Any) -> Any:
    """What autocast has left in half precision, in float32, as softmax takes it; else as it is."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.float16, torch.bfloat16):
        return value
    return value.float() if _autocasting() else value


def full_precision() -> AbstractContextManager[Any]:
    """A context without autocast: its rounding would add up over the iterations."""
    active = _autocasting()
    if not active:
        return nullcontext()
    stack = ExitStack()
    for kind in active:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
