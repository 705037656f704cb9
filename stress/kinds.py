"""The kinds of long tests: where each lives, how many chunks make a run, its share of the time.

A kind is a module with ``chunk(number, tally)``: the same number does the same work anywhere. One
with a fixed list of things to do says how many chunks that is in ``CHUNKS``; others go on for ever.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """``chunks`` of a whole run, ``share`` of the time until then, ``block`` of one process."""

    module: str
    chunks: int
    share: float
    block: int = 5

    @property
    def present(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False


KINDS = {
    "oracle": Kind("oracle.chunks", chunks=400, share=0.5, block=4),
    "strategies": Kind("strategies", chunks=60, share=0.15, block=4),
    "metamorphic": Kind("metamorphic.chunks", chunks=1000, share=0.3, block=4),
    "kills": Kind("kills", chunks=25, share=0.2, block=1),
    "extremes": Kind("extremes", chunks=10**6, share=0.1, block=8),
    "memory": Kind("memory", chunks=10**6, share=0.1, block=1),
    "threads and forks": Kind("threads_and_forks", chunks=10**6, share=0.05, block=1),
}
