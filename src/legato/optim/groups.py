"""Parameter groups: their numbers are read in every step, so that schedulers are obeyed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from legato._support.given import given, meant
from legato.errors import InputError, ProxError, StepError
from legato.functions import Function, prox
from legato.geometry import Euclidean


class Group(dict[str, Any]):
    """A parameter group that says why it has no ``lr`` where the method finds its own steps.

    A learning-rate scheduler asks for it first, and would end with a bare KeyError.
    """

    def __missing__(self, key: str) -> Any:
        if key in ("lr", "momentum"):
            raise InputError(
                f"This optimiser has no {key}: it searches for its own steps, so there is nothing "
                "that a group or a learning-rate scheduler could set. Leave the scheduler out, or "
                "use an optimiser with given steps: HeavyBall(lr), ProximalGradient(lr) or IPiano "
                "with rule=legato.optim.ConstantStep(lr)."
            )
        raise KeyError(key)


def learning_rate(group: Mapping[str, Any]) -> float:
    """The ``lr`` of a group; 0, where some schedules end, leaves its parameters where they are."""
    lr = float(group["lr"])
    if not 0 <= lr < math.inf:
        raise StepError(f"lr must be a positive, finite step, not {lr!r}.")
    return lr


def momentum(group: Mapping[str, Any], below: float = 1.0, why: str = "") -> float:
    """The ``momentum`` of a group, which has to lie in [0, below)."""
    found = float(group["momentum"])
    if not 0 <= found < below:
        raise InputError(f"momentum must lie in [0, {below:g}){why}, not {found!r}.")
    return found


def require_sound(group: Mapping[str, Any], known: Mapping[str, Any], who: str) -> None:
    """Refuse numbers that would be ignored, and functions and parameters that cannot work."""
    for name, value in group.items():
        ours = name in known or name in ("params", "param_names", "initial_lr")
        if not ours and isinstance(value, (int, float, tuple, Tensor)):
            raise InputError(
                f"A group has {name}={value!r}, which {who} would ignore: it knows "
                f"{', '.join(known)}. Where lr is missing, the steps are searched for; "
                "rule=legato.optim.ConstantStep(lr) takes given ones."
            )
    if "lr" in group and not learning_rate(group) > 0:
        raise StepError(f"{who} needs a positive, finite lr, not {group['lr']!r}.")
    if "momentum" in group:
        momentum(group)
    g = group["prox"]
    if not isinstance(g, Function):
        raise InputError(
            f"prox must be a legato function such as legato.L1(0.1), not {given(g)}.{meant(g)}"
        )
    for p in group["params"]:
        if not p.is_floating_point():
            raise InputError(f"Parameters must be real floating-point tensors, not {p.dtype}.")
        if not p.requires_grad:
            raise InputError(
                "A parameter has requires_grad=False and would never move. Call "
                "requires_grad_() on it, or leave it out."
            )
        with torch.no_grad():
            g.value(checked_prox(g, p.detach(), 1.0))


def checked_prox(g: Function, y: Tensor, step: float) -> Tensor:
    """prox_{αg}(y), which must stay what y is: same dtype, device and shape."""
    try:
        found = prox(g, Euclidean(), y, step)
    except RuntimeError as error:
        raise ProxError(
            f"The prox of {_kind(g)} failed on a parameter of shape {tuple(y.shape)}, {y.dtype}, "
            f"on {y.device}: {error}. Its own data (a weight, an end of a box) must have the same "
            "dtype and device and a shape that broadcasts: convert them with .to(parameter)."
        ) from error
    if not isinstance(found, Tensor):
        raise ProxError(f"The prox of {_kind(g)} returned {_kind(found)}, not a tensor.")
    for what in ("dtype", "device", "shape"):
        before, after = getattr(y, what), getattr(found, what)
        if before != after:
            if what == "shape":
                before, after = tuple(before), tuple(after)
            raise ProxError(
                f"The prox of {_kind(g)} changed the {what} of a parameter from {before} to "
                f"{after}. Its own data (a weight, an end of a box) must match the parameter: "
                "convert them with .to(parameter), or give plain numbers."
            )
    return found.detach()


def _kind(obj: object) -> str:
    return type(obj).__name__
