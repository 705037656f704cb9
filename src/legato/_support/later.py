"""Checks that are made later, while a GPU works, and whose values are read together.

Reading a value makes the host wait for the device; a solve that asks ten things before its first
step waits ten times. Where checks are put off, whoever asks whether something holds is told that it
does. If one of the conditions turns out not to hold, all that was done in the meantime is thrown
away and done again by somebody who reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_here = threading.local()


class PutOff:
    """Conditions that were taken for granted."""

    def __init__(self) -> None:
        self._conditions: list[Tensor] = []
        self._checks: list[Callable[[], None]] = []

    def add(self, condition: Tensor) -> None:
        condition = condition.detach()
        self._conditions.append(condition.all() if condition.ndim else condition)

    def add_check(self, check: Callable[[], None]) -> None:
        self._checks.append(check)

    def hold(self) -> bool:
        """Whether all of them do: one read for each device. A check that fails raises its error."""
        for check in self._checks:
            check()
        found: dict[torch.device, list[Tensor]] = {}
        for condition in self._conditions:
            found.setdefault(condition.device, []).append(condition)
        return all(bool(torch.stack(several).all()) for several in found.values())


@contextmanager
def put_off() -> Iterator[PutOff]:
    """What :func:`taken_for_granted` notes inside, in this thread."""
    before = getattr(_here, "open", None)
    _here.open = noted = PutOff()
    try:
        yield noted
    finally:
        _here.open = before


def later(check: Callable[[], None]) -> None:
    """Make a check: now, or after the solve where that is put off."""
    noted: PutOff | None = getattr(_here, "open", None)
    if noted is None:
        check()
    else:
        noted.add_check(check)


def taken_for_granted(condition: Tensor) -> bool:
    """True where reading is put off, which notes the condition."""
    noted: PutOff | None = getattr(_here, "open", None)
    if noted is None:
        return False
    noted.add(condition)
    return True
