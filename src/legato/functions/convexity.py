"""Whether a function is known to be convex."""

from __future__ import annotations

from typing import Any

from legato.functions.base import Function


def is_convex(function: Function) -> bool:
    """Whether no function in it, a sum or another combination, says ``convex = False``."""
    fields = [part for value in vars(function).values() for part in _as_tuple(value)]
    parts = [part for part in fields if isinstance(part, Function)]
    return bool(getattr(function, "convex", True)) and all(map(is_convex, parts))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
