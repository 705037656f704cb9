"""A copy of the repository in which modules may be broken, and forked processes that test it."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WARM = ("numpy", "scipy.optimize", "scipy.sparse", "torch", "torch.func", "torch.nn.functional",
        "torch.autograd.forward_ad", "hypothesis", "hypothesis.strategies", "cvxpy", "sklearn",
        "sklearn.linear_model", "sklearn.utils.estimator_checks", "numba", "pytest",
        "_pytest.assertion.rewrite")  # fmt: skip
"""What tests import besides the library: once, in the process that all others are forked from."""

SOUND = ".sound"
"""The ending of a module's copy while the module is broken."""


def warm_up() -> None:
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MPLBACKEND="Agg", CI="true")
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed: tests that need it do not run")
    import torch

    torch.set_num_threads(1)
    assert "legato" not in sys.modules, "the library must be imported by the forked processes only"


class Tree:
    """The copy. Compiled modules of the sound state are kept; those of mutants not written."""

    def __init__(self, repository: Path, where: Path) -> None:
        self.root, self.repository = where, repository
        if not (where / "pyproject.toml").exists():
            self.renew(".")
        for sound in self.src.rglob(f"*{SOUND}"):  # a run was killed while the module was broken
            sound.replace(sound.with_suffix(".py"))

    def renew(self, folder: str) -> None:
        """Copy what git knows below a folder, where it differs."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", folder], cwd=self.repository, check=True, capture_output=True
        )
        self._note_commit(("src", "tests") if folder == "." else (folder,))
        for name in listed.stdout.decode().split("\0"):
            source, target = self.repository / name, self.root / name
            if not name or not source.is_file():
                continue
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def _note_commit(self, folders: tuple[str, ...]) -> None:
        """Which commit the copy is of: the repository may go on while the copy is used."""

        def git(*arguments: str) -> str:
            said = ["git", "-C", str(self.repository), *arguments]
            return subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()

        self.root.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            changed = " with changes" if git("status", "--porcelain", folder) else ""
            (self.root / f".{folder}.commit").write_text(git("rev-parse", "HEAD") + changed)

    @property
    def commit(self) -> str:
        src, tests = ((self.root / f".{f}.commit").read_text() for f in ("src", "tests"))
        return src if src == tests else f"{src}, tests of {tests}"

    def test_files(self, names: list[str]) -> list[str]:
        """The test files in folders, or files themselves, relative to the tree."""
        found: list[Path] = []
        for path in (self.root / name for name in names):
            found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        return [str(path.relative_to(self.root)) for path in found]

    @property
    def src(self) -> Path:
        return self.root / "src"

    @contextmanager
    def broken(self, module: str, source: bytes) -> Any:
        """The module replaced; its time tells compiled files and kernels that it changed."""
        path = self.src / module
        sound = path.with_suffix(SOUND)
        shutil.copy2(path, sound)
        try:
            path.write_bytes(source)
            later = path.stat().st_mtime + 1000
            os.utime(path, (later, later))
            yield
        finally:
            sound.replace(path)

    @contextmanager
    def kernels(self, fresh: bool) -> Any:
        """Compiled kernels from the cache of the sound state, or from an empty one."""
        usual = os.environ["NUMBA_CACHE_DIR"]
        with tempfile.TemporaryDirectory() as empty:
            os.environ["NUMBA_CACHE_DIR"] = empty if fresh else usual
            try:
                yield
            finally:
                os.environ["NUMBA_CACHE_DIR"] = usual

    def run(self, tests: list[str], report: Path, cpu: float, *options: str, **plugin: Any) -> int:
        """pytest in a forked process; its exit status, negative for a signal.

        The limit is processor time, which does not depend on who else uses the machine.
        """
        report.unlink(missing_ok=True)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 3))
                code = self._test(tests, report, options, plugin)
            except BaseException:
                report.with_suffix(".error").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        code = self._wait(child, 12 * cpu + 60)
        if code == 70:
            raise RuntimeError(report.with_suffix(".error").read_text())
        return code

    def _wait(self, child: int, longest: float) -> int:
        deadline = time.monotonic() + longest
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -signal.SIGXCPU

    def _test(self, tests: list[str], report: Path, options: Any, plugin: dict[str, Any]) -> int:
        import pytest

        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(self.root)
        os.environ["PYTHONPATH"] = str(self.src)
        sys.path[:0] = [str(self.src)]
        if "numba" in sys.modules:  # it has read the folder of its cache before the fork
            sys.modules["numba"].core.config.reload_config()
        sys.dont_write_bytecode = not plugin.get("trace", False)
        recorder = Recorder(report, str(self.src), [t for t in tests if "::" in t], **plugin)
        quiet = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        fixed = ["-q", "-W", quiet, "-p", "no:cacheprovider", "-p", "no:xdist"]
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        arguments = [*fixed, *options, *files]
        return int(pytest.main(arguments, plugins=[recorder]))


class Recorder:
    """A pytest plugin: a line for each test, with its time, and what it called if traced.

    Chosen tests run in their order. One that a mutant has renamed, as it may where a default stands
    in the name, is left out: named as an argument, it would keep all others from running.
    """

    def __init__(self, report: Path, src: str, chosen: list[str], trace: bool = False) -> None:
        self.report, self.src, self.trace = report, src, trace
        self.rank = {test: k for k, test in enumerate(chosen)}
        self.codes: set[Any] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.rank:
            items[:] = [item for item in items if item.nodeid in self.rank]
            items.sort(key=lambda item: self.rank[item.nodeid])

    def _called(self, frame: Any, event: str, arg: Any) -> None:
        self.codes.add(frame.f_code)

    def write(self, **entry: Any) -> None:
        with self.report.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.started = time.process_time()
        if self.trace:
            self.codes = set()
            threading.settrace(self._called)
            sys.settrace(self._called)

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        if not self.trace:
            return
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        called = sorted(
            {
                f"{code.co_filename.removeprefix(self.src + '/')}::{code.co_qualname}"
                for code in self.codes
                if code.co_filename.startswith(self.src)
            }
        )
        self.write(test=nodeid, seconds=time.process_time() - self.started, called=called)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.write(failed=report.nodeid, when=report.when)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.write(failed=report.nodeid, when="import")
