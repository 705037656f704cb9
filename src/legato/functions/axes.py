"""Terms whose prox couples the entries along one axis, or those of matrices."""

from __future__ import annotations

from legato.functions.base import Function


def coupled_along(dim: int) -> int | None:
    """Trailing axes that belong together where one axis is coupled; None (all) from the front."""
    return -dim if dim < 0 else None


class AlongAxis(Function):
    """A term of the entries along ``dim``."""

    dim: int

    @property
    def coupled(self) -> int | None:
        return coupled_along(self.dim)

    def prox_couples(self) -> tuple[int, ...]:
        return (self.dim,)


class OfMatrices(Function):
    """A term of matrices, the last two axes of x."""

    @property
    def coupled(self) -> int:
        return 2

    def prox_couples(self) -> tuple[int, ...]:
        return (-2, -1)
