"""Calls under the same conditions every time: the same random numbers, nothing left behind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def same_random_numbers(seed: int, wanted: bool = True) -> Iterator[None]:
    """Every global generator starts at ``seed`` inside, and is where it was afterwards."""
    if not wanted:
        yield
        return
    python, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)


def draws(call: Callable[[], object]) -> bool:
    """Whether a call takes random numbers from a global generator, or sets one."""

    def states() -> list[bytes]:
        gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        known = [torch.get_rng_state(), *gpu]
        found = [t.numpy().tobytes() for t in known]
        numpy_state: Any = np.random.get_state()
        return [
            *found,
            repr((*numpy_state[2:], random.getstate())).encode(),
            numpy_state[1].tobytes(),
        ]

    before = states()
    call()
    return before != states()


def said(error: BaseException, most: int = 160) -> str:
    """The first line of an error, with its kind."""
    text = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
    return text if len(text) <= most else f"{text[: most - 1]}…"
