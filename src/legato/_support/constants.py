"""What counts as a constant although it depends on what is learned: noted, so that results say so.

The derivative of N iterations goes through their steps. Where these follow from a norm in closed
form it does; a norm that was found by iteration, or a step by a line search, has no derivative
that is worth its price.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from legato._support.holding import held_tensors

_here = threading.local()


class Noted:
    """Whether anything was held constant."""

    found = False


@contextmanager
def noting() -> Iterator[Noted]:
    """What :func:`held_constant` notes inside, in this thread."""
    noted = Noted()
    if torch.compiler.is_compiling():  # which follows no threads
        yield noted
        return
    before = getattr(_here, "open", None)
    _here.open = noted
    try:
        yield noted
    finally:
        _here.open = before


def held_constant(*sources: Any) -> None:
    """Note that a number made from these tensors, or their holders, is kept out of the graph."""
    if torch.compiler.is_compiling():
        return
    noted: Noted | None = getattr(_here, "open", None)
    if noted is None or noted.found or not torch.is_grad_enabled():
        return
    noted.found = any(held.tensor.requires_grad for held in held_tensors(sources))
