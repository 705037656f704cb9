"""Solvers never run in reduced precision."""

from __future__ import annotations

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
