"""Saying that something is wrong: at the user's line, and not a thousand times.

Every warning carries numbers of its own, so that Python cannot fold what a training loop repeats.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

_INNER = ("legato", "torch", "contextlib", "functools")
"""Packages whose frames are not the user's."""

_said: Counter[tuple[str, int, type[Warning]]] = Counter()
_listening = threading.local()


def tell(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that led here.

    Under Python's default filter the first, tenth, hundredth … warning of a kind is printed for
    each line. Who asks for more ("always", "error", a recording) gets all of them, and
    :func:`listening` always does.
    """
    if torch.compiler.is_compiling():
        return
    for words in getattr(_listening, "lists", ()):
        words.append(message)
    frame = _users_frame()
    module = frame.f_globals.get("__name__", "<unknown>")
    file, line = frame.f_code.co_filename, frame.f_lineno
    if _action(message, category, module, line) == "default":
        _said[file, line, category] += 1
        count = _said[file, line, category]
        if str(count).strip("0") != "1":
            return
        if count > 1:
            message += f" (Warning {count} of this kind from this line; the next is {10 * count}.)"
    # Without a registry of what has been said before: that is counted here.
    warnings.warn_explicit(message, category, file, line, module, registry={})


@contextmanager
def listening() -> Iterator[list[str]]:
    """Everything that is said inside, in this thread, whether it is printed or not."""
    words: list[str] = []
    _listening.lists = (*getattr(_listening, "lists", ()), words)
    try:
        yield words
    finally:
        _listening.lists = tuple(kept for kept in _listening.lists if kept is not words)


def _users_frame() -> FrameType:
    """The innermost frame outside of legato and torch; the outermost of all where there is none.

    The backward pass of a GPU runs in a thread of torch's, which has no user in it.
    """
    frame = sys._getframe(1)
    outermost = frame
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _INNER:
            return frame
        outermost, frame = frame, frame.f_back  # type: ignore[assignment]
    return outermost


def _action(message: str, category: type[Warning], module: str, line: int) -> str:
    """What the first filter that matches asks for, as warnings.warn_explicit would find it."""
    for action, text, kind, where, at in warnings.filters:
        if (
            (text is None or text.match(message))
            and issubclass(category, kind)
            and (where is None or where.match(module))
            and at in (0, line)
        ):
            return str(action)
    return str(warnings.defaultaction)  # type: ignore[attr-defined]
