"""Forked processes that end at a moment of our choosing, and files that cannot be written.

A child is forked from a process that has everything imported, so that a kill costs what the work up
to it costs. Moments are drawn from the clock, or lie right before, in or after what matters to a
file: opening, writing, fsync, replace, unlink.
"""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

PATIENCE = 120.0
"""Seconds after which a child that does not end counts as hung."""


@dataclass(frozen=True)
class Plan:
    """What is done to a child: nothing."""

    kills: ClassVar[bool] = False
    fails: ClassVar[bool] = False
    delay: float | None = None

    def arrange(self) -> None:
        """In the child, before its work begins."""


@dataclass(frozen=True)
class AtMoment(Plan):
    """Killed from outside after ``delay`` seconds."""

    kills: ClassVar[bool] = True


@dataclass(frozen=True)
class AtEvent(Plan):
    """Kills itself before, in or after the ``count``-th call of a function that files depend on."""

    kills: ClassVar[bool] = True
    event: str = "replace"
    when: str = "before"
    count: int = 1

    def arrange(self) -> None:
        seen = 0

        def around(call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
            nonlocal seen
            seen += 1
            if seen != self.count:
                return call()
            if self.when == "in" and half is not None:
                half()
            elif self.when == "after":
                call()
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # until the signal arrives
            return None

        _intercept(self.event, around)


@dataclass(frozen=True)
class WriteFails(Plan):
    """The ``count``-th call and the ``more`` calls after it raise OSError."""

    fails: ClassVar[bool] = True
    event: str = "replace"
    count: int = 1
    more: int = 0
    code: int = errno.ENOSPC

    def arrange(self) -> None:
        seen = 0

        def around(call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
            nonlocal seen
            seen += 1
            if self.count <= seen <= self.count + self.more:
                if half is not None:
                    half()
                raise OSError(self.code, os.strerror(self.code))
            return call()

        _intercept(self.event, around)


@dataclass(frozen=True)
class DiskFull(Plan):
    """The system itself refuses to write more than so many bytes to a file."""

    fails: ClassVar[bool] = True
    size: int = 1000

    def arrange(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead of the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))


EVENTS = ("replace", "fsync", "chmod", "unlink", "torch.save", "open")


def _intercept(event: str, around: Callable[..., Any]) -> None:
    """Put ``around`` between a function and its callers, in this process."""
    if event in ("replace", "fsync", "chmod"):
        original = getattr(os, event)
        setattr(os, event, lambda *a, **k: around(lambda: original(*a, **k)))
    elif event == "unlink":
        unlink = Path.unlink
        Path.unlink = lambda *a, **k: around(lambda: unlink(*a, **k))  # type: ignore[method-assign]
    elif event == "torch.save":
        save = torch.save

        def saving(obj: Any, file: Any, *a: Any, **k: Any) -> Any:
            if isinstance(file, io.BytesIO):
                return save(obj, file, *a, **k)  # memory does not fail
            return around(
                lambda: save(obj, file, *a, **k), lambda: _half(lambda b: save(obj, b), file)
            )

        torch.save = saving
    else:
        opened = io.open

        def opening(file: Any, mode: str = "r", *a: Any, **k: Any) -> Any:
            writes = "w" in mode and str(file).endswith(".part")
            if not writes:
                return opened(file, mode, *a, **k)
            return around(
                lambda: opened(file, mode, *a, **k), lambda: opened(file, "wb").write(b"half")
            )

        import builtins

        io.open = opening  # what pathlib calls
        builtins.open = opening


def _half(save: Callable[[Any], None], file: Any) -> None:
    """The first half of what would have been written."""
    buffer = io.BytesIO()
    save(buffer)
    with open(file, "wb") as target:
        target.write(buffer.getvalue()[: buffer.tell() // 2])


# --- children -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a child ended: "killed", "finished", "failed" or "hung", and what it said."""

    how: str
    said: str = ""


def run_child(work: Callable[[Path], None], folder: Path, plan: Plan) -> End:
    """Fork, let the child work in the folder according to the plan, and wait for its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of torch at a fork: what is tried here
        child = os.fork()
    if child == 0:
        os.close(read)
        _be_a_child(work, folder, plan, write)
    os.close(write)
    with os.fdopen(read, errors="replace") as words:
        how, what = _wait(child, plan)
        return End(how, words.read() or what)


def _wait(child: int, plan: Plan) -> tuple[str, str]:
    begun = time.monotonic()
    hung = begun + PATIENCE
    deadline = hung if plan.delay is None else begun + plan.delay
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if now >= deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return ("killed" if plan.delay is not None and now < hung else "hung"), ""
        time.sleep(min(0.001, deadline - now))
    if os.WIFSIGNALED(status):
        how = "killed" if os.WTERMSIG(status) == signal.SIGKILL and plan.kills else "failed"
        return how, f"signal {os.WTERMSIG(status)}"
    return "finished" if os.WEXITSTATUS(status) == 0 else "failed", ""


def _be_a_child(work: Callable[[Path], None], folder: Path, plan: Plan, words: int) -> None:
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        plan.arrange()
        work(folder)
        code = 0
    except BaseException:
        # A pipe, which holds this much: a full disk would not take it.
        os.write(words, traceback.format_exc()[-20_000:].encode())
    finally:
        os._exit(code)


def draw_plan(numbers: random.Random, longest: float, writes: int) -> Plan:
    """Half of the plans kill around a file, a third at any time, the others let writes fail."""
    kind = numbers.random()
    count = 1 + int(numbers.random() ** 2 * 3 * writes)  # early ones more often: work gets shorter
    if kind < 0.5:
        when = numbers.choice(("before", "in", "after"))
        return AtEvent(event=numbers.choice(EVENTS), when=when, count=count)
    if kind < 0.85:
        return AtMoment(delay=numbers.uniform(0.0, longest))
    if kind < 0.95:
        code = numbers.choice((errno.ENOSPC, errno.EIO, errno.EDQUOT))
        more = numbers.choice((0, 2, 1000))
        return WriteFails(event=numbers.choice(EVENTS), count=count, more=more, code=code)
    return DiskFull(size=numbers.choice((0, 100, 3000)))
