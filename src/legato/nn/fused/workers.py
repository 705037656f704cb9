"""A pool of Python threads for compiled loops that release the interpreter lock.

Numba's own parallel back ends are not safe here: one aborts when two Python threads enter it, the
other when a process that used it forks, as data loaders do. Threads of our own survive both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from legato._support.forking import renew_after_fork


class Workers:
    """Threads, the caller's among them, that share out numbered tasks."""

    def __init__(self) -> None:
        self._forget()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        """A fork copies the pool without its threads."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def _executor(self, size: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._size < size:
                self._pool = ThreadPoolExecutor(size, thread_name_prefix="legato")
                self._size = size
            return self._pool

    def __call__(self, task: Callable[[int, int], object], count: int, threads: int) -> None:
        """Call task(i, lane) for i < count; calls that share a lane never overlap."""
        lanes = min(threads, count)

        def run(lane: int) -> None:
            for i in range(lane, count, lanes):
                task(i, lane)

        executor = self._executor(lanes - 1) if lanes > 1 else None
        futures = [executor.submit(run, lane) for lane in range(1, lanes)] if executor else []
        try:
            run(0)
        finally:
            for future in futures:
                future.result()
