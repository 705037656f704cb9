"""How far the argument of a prox is from a kink, where complementarity would not be strict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.functions import Function, Separable
from legato.functions.prox import prox_argument
from legato.geometry import Euclidean


def nearest_kink(g: Function, u: Var, alpha: Any, batch: int) -> list[Tensor]:
    """How far u is from a kink of the prox, relative to its size, for each element; if known."""
    core, argument, step = prox_argument(g, Euclidean(), u, alpha)
    if isinstance(core, Separable) and isinstance(argument, tuple):
        steps = step if isinstance(step, tuple) else (step,) * len(argument)
        parts = zip(core.blocks, argument, steps, strict=True)
        return [d for block, t, s in parts for d in nearest_kink(block, t, s, batch)]
    if isinstance(argument, tuple):
        return []
    away = core.kinks(argument, step)
    if away is None or away.numel() == 0 or away.shape[:batch] != argument.shape[:batch]:
        return []
    size = argument.abs().reshape(*argument.shape[:batch], -1).amax(-1)
    nearest = away.reshape(*away.shape[:batch], -1).amin(-1)
    return [nearest / torch.where(size > 0, size, 1.0)]
