"""How much memory a computation needs at its worst moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class PeakMemory(TorchDispatchMode):
    r"""Counts the bytes of storages that come to life inside, and remembers their largest sum.

    .. math:: \max_t \sum \{\,\text{bytes of storages born inside and alive at } t\,\}

    ``with PeakMemory() as memory: …`` then ``memory.peak``. Views share their storage and count
    once; what existed before does not count. Reference: torch.utils._python_dispatch.

    >>> from legato.diagnostics import PeakMemory
    >>> with PeakMemory() as memory:
    ...     x = torch.ones(1000) + torch.ones(1000)
    >>> memory.peak
    12000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, Any] = {}  # a weak reference to each storage alive
        self._aliases: dict[Any, bool] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = self._aliases.get(func)
        if aliases is None:
            aliases = any(r.alias_info is not None for r in func._schema.returns)
            self._aliases[func] = aliases
        if not aliases:
            for out in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(out, Tensor):
                    self._count(out)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()

        def release(_: Any) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, release)
        self.live += size
        self.peak = max(self.peak, self.live)


def peak_bytes(compute: Callable[[], Any], device: torch.device) -> int:
    """The largest number of bytes that ``compute`` holds at once, on its own device.

    Reference: :class:`PeakMemory` on the CPU, torch's own counter on a GPU.

    >>> from legato.diagnostics import peak_bytes
    >>> peak_bytes(lambda: torch.zeros(256), torch.device("cpu"))
    1024
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        compute()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with PeakMemory() as memory:
        compute()
    return memory.peak
