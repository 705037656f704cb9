"""A picture from what was measured, by total variation."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from legato.errors import NotConvergedWarning
from legato.nn import TV, Reconstruction
from legato.studies.reconstruct.measured import Measured

AT_ONCE = 25
"""Iterations between two looks at the progress."""
CLOSE = 1e-4
"""The change of an iteration, relative to the picture, at which a solve ends."""


@torch.no_grad()
def solve(
    measured: Measured, weight: float, iterations: int, advance: Callable[[int], None]
) -> tuple[Tensor, bool]:
    r"""Total variation with one weight, and whether it came to rest.

    .. math:: \min_x\; \tfrac12‖Ax − y‖^2 + λ \sum_i |(∇x)_i|

    ``advance`` is told after every few how many iterations were made.
    """
    layer = Reconstruction(
        measured.operator, TV(weight), first=lambda y: measured.before, iterations=AT_ONCE
    ).to(measured.y.device)
    x, state, done = measured.before, None, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # said in the end
        while done < iterations:
            record = layer.solve(measured.y, x0=state)
            x, state, done = record.x, record.solution.state, done + AT_ONCE
            advance(AT_ONCE)
            if bool((record.solution.residual <= CLOSE).all()):
                return x, True
    return x, False
