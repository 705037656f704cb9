"""Large scratch memory that is handed back instead of being given to the system and asked again.

A fresh tape costs more in page faults than the sweep that writes it.
"""

from __future__ import annotations

import math
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from legato._support.forking import renew_after_fork

CACHE_LINE_BYTES = 64
POOLED_FROM_BYTES = 1 << 16
"""Bytes below which the system's allocator does as well."""
MOST_FREE_BUFFERS = 64
"""Free buffers beyond which looking for one takes too long."""


class BufferPool:
    """Keeps the last few released buffers, up to `limit` bytes, for the next request that fits."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._forget()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        """Another thread may have held the lock, or been about to change the list."""
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.RLock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """An uninitialised array; its memory returns to the pool when the array is collected."""
        size = math.prod(shape) * dtype.itemsize
        buffer = self._find(size + CACHE_LINE_BYTES) if size >= POOLED_FROM_BYTES else None
        if buffer is None:
            buffer = np.empty(size + CACHE_LINE_BYTES, np.uint8)
        start = -buffer.ctypes.data % CACHE_LINE_BYTES
        array = buffer[start : start + size].view(dtype).reshape(shape)
        if size < POOLED_FROM_BYTES:
            return array
        # `array` views `buffer`, so the finaliser, which holds the buffer, outlives every view.
        weakref.finalize(array, self._give, buffer).atexit = False
        return array

    def _find(self, size: int) -> NDArray[np.uint8] | None:
        with self._lock:
            for i, buffer in enumerate(self._free):
                if size <= buffer.nbytes <= 2 * size:
                    return self._free.pop(i)
        return None

    def _give(self, buffer: NDArray[np.uint8]) -> None:
        with self._lock:
            self._free.append(buffer)
            while (
                len(self._free) > MOST_FREE_BUFFERS
                or sum(b.nbytes for b in self._free) > self.limit
            ):
                self._free.pop(0)

    def clear(self) -> None:
        """Give all free memory back to the system."""
        with self._lock:
            self._free.clear()
