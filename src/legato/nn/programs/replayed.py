"""Parts of a solve as CUDA graphs: where programs are small, launches take longer than the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Parts = tuple[Tensor, ...]
_TENSOR = "tensor"


def replayed(function: Callable[..., Parts], *args: Any) -> Parts:
    """function(*args), from the second call with such arguments on as one graph on a GPU.

    ``function`` belongs to a module, computes with its arguments alone, reads no values, and
    returns tensors, whose shapes follow from those of the arguments: tensors, dataclasses of them,
    and what can be hashed.
    """
    tensors: list[Tensor] = []
    spec = tuple([_taken_apart(value, tensors) for value in args])
    if not tensors or not _on_a_gpu(tensors[0]):
        return function(*args)
    from legato.engine import Replayed
    from legato.engine.at_once import at_once

    return at_once(Replayed(), _pure(function, spec), *tensors, plain=1)


def _on_a_gpu(some: Tensor) -> bool:
    return some.is_cuda


@lru_cache(256)
def _pure(function: Callable[..., Parts], spec: tuple[Any, ...]) -> Callable[..., Parts]:
    def pure(*tensors: Tensor) -> Parts:
        source = iter(tensors)
        return function(*[_put_together(part, source) for part in spec])

    return pure


def _taken_apart(value: Any, tensors: list[Tensor]) -> Any:
    """What is left of an argument without its tensors."""
    if isinstance(value, Tensor):
        if value.numel() == 0:  # a shape, which needs no copy
            return torch.empty, (value.shape, value.dtype, value.device)
        tensors.append(value)
        return _TENSOR
    if is_dataclass(value):
        inner = [_taken_apart(getattr(value, f.name), tensors) for f in fields(value)]
        return type(value), tuple(inner)
    return value


def _put_together(part: Any, tensors: Iterator[Tensor]) -> Any:
    if part is _TENSOR:
        return next(tensors)
    if isinstance(part, tuple):
        made, inner = part
        if made is torch.empty:
            shape, dtype, device = inner
            return torch.empty(shape, dtype=dtype, device=device)
        return made(*[_put_together(p, tensors) for p in inner])
    return part
