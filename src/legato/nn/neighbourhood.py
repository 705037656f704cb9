"""The neighbours that the finite differences of a pixel grid compare."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from legato.errors import InputError

Offset = tuple[int, ...]
Neighbours = int | Sequence[Sequence[int]]
"""Of a pixel: how many of them, 4 or 8, or the offsets that lead to them."""


def offsets(axes: int, neighbours: Neighbours = 4) -> tuple[Offset, ...]:
    """The directions of ∇ on a grid: one unit step per axis, then the two diagonals of the plane,
    or whatever offsets are given.

    (∇u)_{e,i} = u_{i + offset_e} − u_i, zero where i + offset_e lies outside the grid.

    `neighbours=4` means the axis-parallel neighbours in any dimension (four of them in the plane).
    """
    unit = tuple(tuple(int(i == axis) for i in range(axes)) for axis in range(axes))
    if neighbours == 4:
        return unit
    if neighbours == 8 and axes == 2:
        return (*unit, (1, 1), (1, -1))
    if isinstance(neighbours, int):
        raise InputError(
            f"no neighbourhood of {neighbours} on a grid of {axes} axes: "
            "use 4 in any dimension, 8 or offsets in the plane"
        )
    return _further(axes, unit, neighbours)


def _further(
    axes: int, unit: tuple[Offset, ...], given: Sequence[Sequence[int]]
) -> tuple[Offset, ...]:
    """Offsets of the user's own: the unit steps, then others that point forward."""
    try:
        found = tuple(tuple(operator.index(step) for step in offset) for offset in given)
    except TypeError:
        found = ()
    if axes != 2 or not found or any(len(offset) != 2 for offset in found):
        raise InputError(
            "neighbours must be 4, 8 or, in the plane, offsets (down, right) of whole numbers such "
            f"as ((1, 0), (0, 1), (3, 0), (0, 3)), not {given!r}."
        )
    once = len(set(found)) == len(found)
    if found[:2] != unit or not once or any(offset <= (0, 0) for offset in found):
        raise InputError(
            "Offsets begin with (1, 0) and (0, 1), and then each of them leads down, or to the "
            f"right in its row, and is there once: an edge counts at both of its ends. Not {given}."
        )
    return found
