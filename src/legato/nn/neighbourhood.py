"""The neighbours that the finite differences of a pixel grid compare."""

from __future__ import annotations

from legato.errors import InputError

Offset = tuple[int, ...]


def offsets(axes: int, neighbours: int = 4) -> tuple[Offset, ...]:
    """The directions of ∇ on a grid: one unit step per axis, then the two diagonals of the plane.

    (∇u)_{e,i} = u_{i + offset_e} − u_i, zero where i + offset_e lies outside the grid.

    `neighbours=4` means the axis-parallel neighbours in any dimension (four of them in the plane).
    """
    unit = tuple(tuple(int(i == axis) for i in range(axes)) for axis in range(axes))
    if neighbours == 4:
        return unit
    if neighbours == 8 and axes == 2:
        return (*unit, (1, 1), (1, -1))
    raise InputError(
        f"no neighbourhood of {neighbours} on a grid of {axes} axes: "
        "use 4 in any dimension, or 8 in the plane"
    )
