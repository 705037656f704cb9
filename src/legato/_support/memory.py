"""Quantities that are costly to compute from a tensor, kept until the tensor changes.

A tensor is recognised by its entries, of which a copy is kept. Address and version say nothing:
changes of ``.data`` and swaps leave both alone, and a parametrisation makes a tensor anew in every
call, often at the address of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from legato._support.checks import is_concrete, is_recorded
from legato._support.later import taken_for_granted

_MOST_ENTRIES = 2**24
"""Entries above which a copy of a tensor would take more memory than a quantity is worth."""


class Known(NamedTuple):
    """A quantity, and what it was computed from."""

    source: Tensor
    key: Hashable
    value: Tensor

    def is_of(self, tensor: Tensor, key: Hashable) -> bool:
        alike = self.source.dtype == tensor.dtype and self.source.device == tensor.device
        if self.key != key or not alike or self.source.shape != tensor.shape:
            return False
        return taken_for_granted(self.source == tensor) or torch.equal(self.source, tensor)


Memory = dict[str, Known]
"""One quantity by name; a plain dictionary, for torch.compile makes no others."""


def recall(
    memory: Memory,
    name: str,
    tensor: Tensor,
    compute: Callable[[], Tensor],
    key: Hashable = None,
) -> Tensor:
    """What ``compute`` returned for these entries and this key; where it may not be known: anew.

    It is the caller's own: what is done to it in place does not change what is remembered. It
    belongs to no graph: one that is kept would keep all that led to it.
    """
    with torch.no_grad():
        return _recall(memory, name, tensor, compute, key)


def _recall(
    memory: Memory, name: str, tensor: Tensor, compute: Callable[[], Tensor], key: Hashable
) -> Tensor:
    if not _may_be_compared(tensor):
        return compute()
    known = memory.get(name)
    if known is not None and known.is_of(tensor.detach(), key):
        return known.value.clone()
    value = compute()
    if not torch.is_inference_mode_enabled():  # its tensors cannot be trained with later
        memory[name] = Known(tensor.detach().clone(), key, value.clone())
    return value


def _may_be_compared(tensor: Tensor) -> bool:
    if not is_concrete() or is_recorded() or tensor.is_meta:
        return False
    plain = type(tensor) in (Tensor, torch.nn.Parameter)  # others may be fake, or sharded
    return plain and tensor.numel() <= _MOST_ENTRIES
