"""Solvers never run in reduced precision, and not at the ends of its range."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch


def full_precision() -> AbstractContextManager[Any]:
    """A context without autocast: its rounding would add up over the iterations."""
    active = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not active:
        return nullcontext()
    stack = ExitStack()
    for kind in active:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def power_of_two_near(size: float) -> float:
    """A unit for numbers of this size that leaves their digits as they are; float32 holds it."""
    return 2.0 ** min(max(math.frexp(size)[1], -120), 120)
