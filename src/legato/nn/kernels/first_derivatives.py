"""What a reverse sweep written by hand cannot do, said aloud instead of computed wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from legato._support.checks import inside_functional_transform
from legato.errors import GradientError


def refuse(kernel: str, what: str) -> NoReturn:
    """Raise for a derivative that the kernel, named in words, has no formula for."""
    raise GradientError(
        f"The {kernel} has no autograd formula for {what}: its reverse sweep is written by hand, "
        'for first derivatives alone. Take kernel="reference", which torch differentiates in every '
        "way, or torch.autograd.grad without create_graph."
    )


def ordinary(kernel: str, tensors: Sequence[Tensor | None], keep: bool) -> bool:
    """Whether nobody looks over the shoulder of this call but autograd in reverse mode."""
    transformed = inside_functional_transform()
    if transformed and keep:
        refuse(kernel, "torch.func's transforms of it")
    # Else a tangent would be lost without a word.
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        refuse(kernel, "derivatives in forward mode")
    plain = type(tensors[0]) in (Tensor, torch.nn.Parameter)
    return plain and not transformed and torch._C._len_torch_dispatch_stack() == 0
