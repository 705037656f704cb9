"""A bound that the derivative of total variation denoising keeps, and what breaking it means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from legato._support.checks import is_concrete, wide_norm
from legato._support.telling import tell
from legato.errors import InexactGradientWarning

TRUSTED_ITERATIONS = 200
"""Iterations up to which derivatives have not been seen to grow."""


def warn_if_grown(bars: Sequence[Tensor | None], to_image: Tensor, iterations: int) -> None:
    """Say where the derivative of many accelerated iterations cannot be that of the solution.

    The solution is the prox of y, so that its Jacobian J is symmetric with 0 ≤ J ≤ I, and
    ‖Jᵀξ‖ ≤ ‖ξ‖. Constraints that rounding switches on and off, with momentum, break this bound by
    any factor. ``bars`` are the cotangents of u, p and p₋. Few iterations keep the bound; they are
    not looked at, so that no GPU waits for them. Reference: Moreau (1965).
    """
    xi = bars[0]
    alone = xi is not None and not any(bar is not None for bar in bars[1:])
    if xi is None or not alone or iterations <= TRUSTED_ITERATIONS or not is_concrete():
        return
    axes = tuple(range(1, xi.dim()))
    grown, arrived = (wide_norm(t, axes) for t in (to_image, xi))
    wrong = ~(grown <= 1.1 * arrived)  # NaN is wrong, too
    if not bool(wrong.any()):
        return
    factor = float((grown / arrived)[wrong].max())
    times = f"{factor:.3g} times" if math.isfinite(factor) else "not finite, and not at most"
    tell(
        f"The gradient through {iterations} iterations of TotalVariation is not that of its "
        f"solution: |dL/dimage| is {times} |dL/du|, where the solution has at most 1 times. After "
        "many accelerated iterations rounding in the constraint |p| ≤ λ is amplified. Use "
        "gradient=Implicit(CG()), or fewer iterations.",
        InexactGradientWarning,
    )


def watched(image: Tensor, iterations: int) -> tuple[Tensor, list[Tensor | None]]:
    """The image for a solve that autograd records, and where to leave the cotangents of u, p, p₋.

    Its gradient is the last to arrive, and is then held against theirs.
    """
    bars: list[Tensor | None] = [None, None, None]
    if iterations <= TRUSTED_ITERATIONS or not torch.is_grad_enabled() or not is_concrete():
        return image, bars
    seen = image if image.requires_grad else image.detach().requires_grad_()
    seen = seen.view_as(seen)

    def judge(grad: Tensor) -> None:
        warn_if_grown(bars, grad, iterations)
        bars[:] = [None, None, None]  # a graph that is kept may be gone through again

    seen.register_hook(judge)
    return seen, bars


def watch(outputs: Sequence[Tensor], bars: list[Tensor | None]) -> None:
    """Leave the cotangents of the outputs in ``bars`` when they arrive."""
    for k, output in enumerate(outputs):
        if output.requires_grad:
            output.register_hook(lambda grad, k=k: bars.__setitem__(k, grad))
