"""Which gradient strategies to try, and what to call them."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from legato.algorithms import Algorithm, PrimalDual
from legato.diagnostics.adjoint import LARGEST_DENSE
from legato.gradients import (
    CG,
    GMRES,
    BiCGStab,
    Direct,
    FixedPoint,
    Forward,
    GradientStrategy,
    Implicit,
    OneStep,
    Piggyback,
    Unroll,
)

CHEAP_FORWARD = 16, 1000
"""Entries of θ and iterations up to which forward mode is tried."""


def candidates(
    algorithm: Algorithm, params: list[Tensor], iterations: int, size: int
) -> list[GradientStrategy]:
    """All strategies that may apply, in order of preference where two cost the same."""
    found: list[GradientStrategy] = [
        OneStep(),
        Implicit(GMRES()),
        Implicit(CG()),
        Implicit(BiCGStab()),
        FixedPoint(10),
        FixedPoint(100),
    ]
    if isinstance(algorithm, PrimalDual):
        found.append(Piggyback())
    found += [Unroll(last=k) for k in (10, 30, 100) if k < iterations]
    found += [Unroll(), Unroll(checkpoint="sqrt")]
    if sum(p.numel() for p in params) <= CHEAP_FORWARD[0] and iterations <= CHEAP_FORWARD[1]:
        found.append(Forward(params))
    if size <= LARGEST_DENSE:
        found.append(Implicit(Direct()))
    return found


def label(gradient: Any) -> str:
    """The call that makes a strategy or solver, with the arguments that are not defaults."""
    name = type(gradient).__name__
    if not dataclasses.is_dataclass(gradient):
        return f"{name}(θ)" if isinstance(gradient, Forward) else f"{name}()"
    given = []
    for field in dataclasses.fields(gradient):
        value = getattr(gradient, field.name)
        if name == "Implicit":
            given.append(label(value))
        elif value != field.default or field.name == "terms":
            given.append(f"{field.name}={value!r}")
    return f"{name}({', '.join(given)})"
