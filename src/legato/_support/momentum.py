"""FISTA's momentum as plain numbers, for loops that know their iterations beforehand."""

from __future__ import annotations

import math


def next_t(t: float) -> float:
    """t_{k+1} = (1 + √(1 + 4 t_k²))/2. Reference: Beck and Teboulle (2009)."""
    return (1 + math.sqrt(1 + 4 * t * t)) / 2


def t_after(iterations: int) -> float:
    """t_k from t_0 = 1."""
    t = 1.0
    for _ in range(iterations):
        t = next_t(t)
    return t


def momentum(iterations: int, first: int, restart: int) -> list[float]:
    """β_k = (t_k − 1)/t_{k+1} for k = first, …, with t = 1 again after every ``restart`` steps."""
    t, betas = 1.0, []
    for _ in range(min(restart, first + iterations)):
        following = next_t(t)
        betas.append((t - 1) / following)
        t = following
    return [betas[k % restart] for k in range(first, first + iterations)]
