"""A warm start with fresh steps, until ``Algorithm.resume`` gives them; then this file goes."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from legato.algorithms import Algorithm
from legato.algorithms.forward_backward import ForwardBackwardState, InertialState
from legato.algorithms.primal_dual import PrimalDualState


@singledispatch
def carry(fresh: Any, last: Any, algorithm: Algorithm) -> Any:
    """``fresh``, with the variables of ``last``: steps are new, momentum and averages restart."""
    return algorithm.solution(last)


@carry.register
def _(fresh: ForwardBackwardState, last: Any, algorithm: Algorithm) -> Any:
    return fresh._replace(mirror=last.mirror, point=last.point)


@carry.register
def _(fresh: InertialState, last: Any, algorithm: Algorithm) -> Any:
    return fresh._replace(mirror=last.mirror, point=last.point, previous=last.mirror)


@carry.register
def _(fresh: PrimalDualState, last: Any, algorithm: Algorithm) -> Any:
    return fresh._replace(primal=last.primal, dual=last.dual, x=last.x, y=last.y)
