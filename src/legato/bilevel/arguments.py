"""Reading the arguments of a fit, and what its loss returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from legato.errors import InputError

Parameters = Tensor | Iterable[Tensor] | Mapping[str, Tensor]
Maker = Callable[[list[Tensor]], Optimizer]


def named_parameters(params: Parameters) -> tuple[list[str], list[Tensor]]:
    """Descriptions of the parameters, and the parameters."""
    if isinstance(params, Mapping):
        names, tensors = list(params), list(params.values())
    else:
        tensors = [params] if isinstance(params, Tensor) else list(params)
        names = [f"parameter {i}" for i in range(len(tensors))]
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise InputError(
            "params must be a tensor, a list of tensors or a dictionary of names and tensors, and "
            "must not be empty. (A generator that was used before is empty: make it a list.)"
        )
    for name, p in zip(names, tensors, strict=True):
        if not (p.is_leaf and p.requires_grad and p.is_floating_point()):
            raise InputError(
                f"{name} must be a floating-point leaf tensor with requires_grad=True, so that it "
                "can be learned."
            )
    return [f"{n} of shape {tuple(p.shape)}" for n, p in zip(names, tensors, strict=True)], tensors


def build_optimizer(optimizer: Optimizer | Maker, params: list[Tensor]) -> Optimizer:
    """The optimiser itself, made if need be, and known to hold the parameters."""
    found = optimizer if isinstance(optimizer, Optimizer) else optimizer(params)
    if not isinstance(found, Optimizer):
        raise InputError(f"optimizer must be a torch optimiser or make one, not {optimizer!r}.")
    held = {id(p) for group in found.param_groups for p in group["params"]}
    if held != {id(p) for p in params}:
        raise InputError(
            "The optimiser was made for other parameters than those given as params. Pass the "
            "same tensors to both."
        )
    return found


def as_scalar(value: Any) -> Tensor:
    """A loss as a tensor without axes."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"The loss must return one floating-point number as a tensor, not {what}. Sum or "
            "average over samples, and end it with `return`."
        )
    return value.reshape(())
