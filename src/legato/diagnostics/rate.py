"""How fast residuals fall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A factor per iteration, and whether it still creeps towards 1.

    ``sublinear`` says that the residual falls like a power of n as far as can be seen: the factor
    of the last quarter of log n is closer to 1 than that of the quarter before.
    """

    factor: float | None
    sublinear: bool


def rate(residuals: Sequence[float], floor: float) -> Rate:
    r"""The geometric mean of the factors over the last half, before rounding takes over.

    .. math:: q = (r_N / r_{N/2})^{2/N}

    A power law r_n = n^{-p} has log q inversely proportional to n, a linear rate has it constant.
    """
    usable = list(residuals)
    for i, r in enumerate(usable):
        if not r > floor:
            usable = usable[:i]
            break
    n = len(usable)
    if n < 4:
        return Rate(0.0 if n < len(residuals) else None, False)
    late = math.log(usable[-1] / usable[n // 2]) / (n - 1 - n // 2)
    early = math.log(usable[n // 2] / usable[n // 4]) / (n // 2 - n // 4)
    ended = n == len(residuals)  # above the floor to the end
    slow = n >= 50 and -late * n < 2 * math.log(2) * 5 and -late < 0.75 * -early
    return Rate(math.exp(late), ended and slow)
