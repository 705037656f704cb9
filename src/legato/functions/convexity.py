"""Whether a function is known to be convex, and whether there is one."""

from __future__ import annotations

from typing import Any

from legato.functions.base import Function


def is_convex(function: Function) -> bool:
    """Whether no function in it, a sum or another combination, says ``convex = False``."""
    return _nowhere_denied(function, "convex")


def has_potential(function: Function) -> bool:
    """Whether gradients and proxes belong to a function, so that their Jacobians are symmetric.

    A network in their place says ``potential = False``.
    """
    return _nowhere_denied(function, "potential")


def _nowhere_denied(function: Function, name: str) -> bool:
    fields = [part for value in vars(function).values() for part in _as_tuple(value)]
    parts = [part for part in fields if isinstance(part, Function)]
    return bool(getattr(function, name, True)) and all(_nowhere_denied(p, name) for p in parts)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
