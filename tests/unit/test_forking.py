"""A process forked while other threads are inside the layers can use them too."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import legato

SOURCES = Path(legato.__file__).parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

CHILD = """
def in_child(work, seconds=60):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "waits for ever"
"""


def run(script: str, allowed: float = 180) -> str:
    head = "import os, signal, sys, threading, time, torch\nimport legato as lg\n" + CHILD
    command = [sys.executable, "-W", "ignore", "-c", head + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=allowed, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_child_does_not_wait_for_a_lock_that_another_thread_held():
    pytest.importorskip("numba")
    script = """
        from legato.nn.fused import bands
        image = torch.rand(1, 1, 200, 200)
        layer = lg.nn.TotalVariation(2, kernel="numba")
        layer(image, 0.1)
        held, done = threading.Event(), threading.Event()

        def hold():
            with bands.pool._lock, bands.workers._lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        print(in_child(lambda: layer(image, 0.1), 20))
        done.set()
        thread.join()
    """
    assert run(script) == "0"


def test_a_child_does_not_wait_for_a_property_that_another_thread_computed():
    """functools.cached_property has one lock for all objects of a class on Python 3.11."""
    script = """
        from legato._support.lazy import lazy

        class Slow:
            @lazy
            def value(self):
                inside.set()
                done.wait(0.0 if os.getpid() != first else None)
                return 3

        first, inside, done = os.getpid(), threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: Slow().value)
        thread.start()
        inside.wait()
        print(in_child(lambda: Slow().value, 20))
        done.set()
        thread.join()
        slow = Slow()
        assert slow.value is slow.value and "value" in vars(slow)
        assert isinstance(Slow.value, lazy)
    """
    assert run(script) == "0"


def test_children_while_the_layer_is_in_use():
    pytest.importorskip("numba")
    script = """
        image = torch.rand(1, 1, 96, 96)
        layer = lg.nn.TotalVariation(3, kernel="numba")
        right = layer(image, 0.1)
        over = threading.Event()

        def use():
            while not over.is_set():
                layer(image, 0.1)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()

        def work():
            assert torch.equal(layer(image, 0.1), right)

        found = {in_child(work, 20) for _ in range(60)}
        over.set()
        for thread in threads:
            thread.join()
        print(found)
    """
    assert run(script) == "{0}"


def test_every_lock_of_ours_is_renewed():
    """A lock that is written anywhere stands in a class that renews it in a child."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if re.search(r"\b(R?Lock|Condition|Semaphore)\(", text):
            found[str(path.relative_to(SOURCES))] = "renew_after_fork(self._forget)" in text
        if path.name != "lazy.py":
            assert "cached_property" not in text, f"{path}: take legato._support.lazy"
    of_graphs = found.pop("engine/machine.py")  # which a child, that cannot use CUDA, never sees
    assert not of_graphs
    assert len(found) == 6
    assert all(found.values()), found
