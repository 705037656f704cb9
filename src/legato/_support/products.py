"""Products of a tensor with what is no tensor: weight * term, weight * operator, term @ matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TIMES = (Tensor.mul, Tensor.__mul__, Tensor.__rmul__)


def times_tensor(
    cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """``__torch_function__`` of a class with products of its own.

    Python asks the right operand after the tensor has declined. torch.compile does not: it writes
    the product into its graph, unless the operand takes part in torch's own protocol.
    """
    if len(args) == 2 and isinstance(args[0], Tensor):
        tensor, other = args
        if func in _TIMES:
            return other.__rmul__(tensor)
        if func is Tensor.__rmatmul__:
            return other.__matmul__(tensor)
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))
