"""Pictures drawn by legato itself, for trying things out where there are no photographs."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def draw_picture(seed: int, height: int = 96, width: int = 128) -> Tensor:
    """A grey picture (H, W) in [0, 1]: shaded discs and half-planes, some of them with stripes."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    rows = torch.linspace(0, height / width, height)[:, None].expand(height, width)
    columns = torch.linspace(0, 1, width)[None].expand(height, width)
    picture = torch.full((height, width), uniform(0.3, 0.7))
    for _ in range(7):
        angle, grey = uniform(0, 2 * math.pi), uniform(0.05, 0.95)
        along = math.cos(angle) * columns + math.sin(angle) * rows
        inside = (columns - uniform(0, 1)).square() + (rows - uniform(0, 0.8)).square()
        if uniform(0, 1) < 0.7:
            mask = inside < uniform(0.05, 0.35) ** 2
        else:
            mask = along > uniform(0.2, 0.9)
        surface = grey + uniform(-0.4, 0.4) * (along - along.mean())
        if uniform(0, 1) < 0.4:
            surface = surface + uniform(0.03, 0.15) * (uniform(60, 160) * along).sin()
        picture = torch.where(mask, surface, picture)
    return picture.clamp(0, 1)
