"""What torch.compile is told about functions, without importing the compiler to say it.

``torch.compiler.disable`` and ``assume_constant_result`` import ``torch._dynamo``, which takes
longer than all of legato; most programs never compile. The marks below are those that the two set
themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def never_compiled(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As ``torch.compiler.disable(reason=reason)``, applied when it first matters."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        disabled: list[Callable[P, R]] = []

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if "torch._dynamo" not in sys.modules:  # then nothing is being compiled
                return function(*args, **kwargs)
            if not disabled:
                disabled.append(torch.compiler.disable(function, reason=reason))
            return disabled[0](*args, **kwargs)

        # The compiler does not look into a function that is marked so. If it did, it would stop at
        # the disabled one.
        _mark(call, _torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
        return call

    return decorate


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """As ``torch.compiler.assume_constant_result``: evaluated once, by the compiler."""
    _mark(function, _dynamo_marked_constant=True)
    return function


def _mark(function: Any, **marks: Any) -> None:
    for name, value in marks.items():
        setattr(function, name, value)


# --- recording -----------------------------------------------------------------------------------

_recording = threading.local()


class UnrecordableError(Exception):
    """Why something cannot be done again from a recording."""


@contextmanager
def recorded() -> Iterator[None]:
    """Here operations are written down to be done again: values must not be read."""
    before = is_being_recorded()
    _recording.active = True
    try:
        yield
    finally:
        _recording.active = before


def is_being_recorded() -> bool:
    return getattr(_recording, "active", False)
