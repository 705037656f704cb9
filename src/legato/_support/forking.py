"""Locks and pools after a fork, as data loaders fork while other threads are inside the layers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def renew_after_fork(renew: Callable[[], None]) -> None:
    """Call the method ``renew`` in every child, as long as its object lives.

    A fork copies one thread only: a lock that another one held would never be released in the
    child, and what it guards may be half changed. On systems without forks nothing is needed.
    """
    if not hasattr(os, "register_at_fork"):
        return
    method = weakref.WeakMethod(renew)

    def in_child() -> None:
        alive = method()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=in_child)
