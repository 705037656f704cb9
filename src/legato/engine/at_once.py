"""Functions of tensors alone, replayed as one CUDA graph.

A step is recorded in every call, because it may find tensors that nobody handed to it. What takes
all that it uses as arguments hides nothing: its graph serves all calls with tensors of that kind.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support.forking import renew_after_fork
from legato.engine.machine import CaptureError, Graph, captures

KEPT = 64
"""Functions and kinds of arguments that are remembered."""

LARGEST = 2**22
"""Entries of all arguments up to which there is a graph: it keeps memory for them, and beyond that
the work takes longer than to launch it."""

Pure = Callable[..., tuple[Tensor, ...]]


class _Replay:
    """The graph of one function for one kind of arguments; the function where there is none."""

    def __init__(self, function: Pure, plain: int) -> None:
        self._function = function
        self._plain = plain
        self._graph: Graph | None = None
        self._fails = False
        self._lock = threading.Lock()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        with self._lock:
            if self._plain > 0:
                self._plain -= 1
            elif self._graph is None and not self._fails:
                try:
                    self._graph = Graph(self._function, tensors)
                except CaptureError:  # a library that waits for the device, or takes memory
                    self._fails = True
            if self._graph is not None:
                return self._graph.copied(*tensors)
        return self._function(*tensors)


class _Replays:
    """Those of the last calls; a forked child begins with none."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, _Replay] = OrderedDict()
        self._lock = threading.Lock()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept.clear()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def of(self, function: Pure, tensors: tuple[Tensor, ...], plain: int) -> _Replay:
        kinds = tuple([(t.shape, t.stride(), t.dtype, t.device) for t in tensors])
        key = function, kinds, torch.get_default_dtype()
        with self._lock:
            found = self._kept.setdefault(key, _Replay(function, plain))
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


replays = _Replays()


@torch.no_grad()
def at_once(
    engine: object | None, function: Pure, *tensors: Tensor, plain: int = 0
) -> tuple[Tensor, ...]:
    """function(*tensors), as one graph where an engine runs on a GPU.

    So many calls of a kind are ``plain`` before one is recorded: most shapes that are seen once are
    never seen again.

    ``function`` belongs to a module, computes with its arguments alone, reads no values, and makes
    results of the same shapes from arguments of the same shapes.
    """
    if engine is None or sum(map(Tensor.numel, tensors)) > LARGEST or not captures(tensors):
        return function(*tensors)
    return replays.of(function, tensors, plain)(*tensors)
