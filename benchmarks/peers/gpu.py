"""Race legato against its peers on a GPU: every problem in a process, all calls in turns.

    LEGATO_COMMIT=… python benchmarks/peers/gpu.py --device cuda --peers FOLDER

The problems and contestants of the race, in float32, and the quadratic programs of
``benchmarks/programs.py`` in float64; the rows are in ``rows.py``. Peers that are not installed are
looked for in FOLDER, where ``pip install --no-deps --target`` put them. All processes draw, compile
and compare with the truth at once; then one after another is let loose to be timed, alone on the
GPU. Nothing is lost where a contestant fails or takes too long: its row says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
for _folder in (ROOT / "src", ROOT / "benchmarks"):
    sys.path.insert(1, str(_folder))

import numpy as np  # noqa: E402
import programs  # noqa: E402
import rows  # noqa: E402
import torch  # noqa: E402
from child import relative_error, tidy  # noqa: E402
from contract import Contestant, flat  # noqa: E402
from harness import Times, take_turns  # noqa: E402
from program_peers import CUDA as PROGRAM_PEERS  # noqa: E402
from record import record  # noqa: E402
from stand_ins import with_stand_ins  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "peers_h200.json"
PROBLEMS = ROOT / "out" / "peers" / "problems"
IN_JAX = ("jax_scan", "jaxopt", "qpax")
DISTRIBUTIONS = {"jax_scan": "jax"}
"""Where a library is not called like what is installed."""
PREPARING, SHARE = 0.55, 0.35
"""Parts of the time: until all must be ready, and for one contestant."""
ROUNDS, TASK_SECONDS = 9, 0.25

Judge = Callable[[Any], dict[str, float]]


@dataclass
class Entry:
    """A row to be: how the contestant is made, and how its answer is compared with the truth."""

    library: str
    method: str
    build: Callable[[], Contestant]
    judge: Judge


@dataclass(frozen=True)
class Setting:
    """One process of the race: its problem, the device, and the clock when it must be ready."""

    problem: str
    device: str
    ready_by: float
    seconds: float
    quick: bool


# --- contestants ----------------------------------------------------------------------------------


def entries(setting: Setting) -> tuple[dict[str, Any], list[Entry]]:
    """What is known about the problem, and its contestants."""
    if setting.problem.startswith("programs"):
        return _programs(setting)
    import instances

    problem = instances.PROBLEMS[setting.problem]
    with np.load(instances.ensure(setting.problem, PROBLEMS)) as file:
        exact = {name: file[name] for name in file.files}
    # Copies: jax would look at the host's memory where it can.
    single = {name: value.astype(np.float32) for name, value in exact.items()}
    tensors = {name: torch.from_numpy(v).to(setting.device) for name, v in single.items()}

    def judge(found: Any) -> dict[str, float]:
        x, gradient = found
        return {
            "gradient_error": relative_error(gradient, exact["gradient"]),
            "solution_error": relative_error(x, exact["x"]),
            "gradient_is_zero": bool(np.all(flat(gradient) == 0)),
        }

    def build(library: str, method: str) -> Contestant:
        if library in IN_JAX:
            _jax_on(setting.device)
        if library == "deepinv":
            with_stand_ins()
        made = importlib.import_module(f"contestants.{library}").METHODS[setting.problem][method]
        return made(single if library in IN_JAX else tensors)

    about = {
        "title": problem.title, "energy": problem.energy, "loss": problem.loss,
        "parameters": list(problem.parameters), "truth": problem.truth, "precision": "float32",
        "uncertainty": float(exact["uncertainty"]),
    }  # fmt: skip
    return about, [
        Entry(library, method, partial(build, library, method), judge)
        for library, methods in rows.GPU[setting.problem].items()
        for method in methods
    ]


def _jax_on(device: str) -> None:
    import jax

    found = jax.devices()[0].platform
    if device == "cuda" and found != "gpu":
        raise RuntimeError(f"JAX runs on {found} here; it would not race on the GPU.")


def _programs(setting: Setting) -> tuple[dict[str, Any], list[Entry]]:
    """Quadratic programs: errors are those of the worst one, the gradient's the one in c."""
    B, n, m = (int(v) for v in "".join(c if c.isdigit() else " " for c in setting.problem).split())
    data = programs.make(*(programs.QUICK[0] if setting.quick else (B, n, m)), setting.device)
    z = programs.legato(data, True)[0].z
    x, exact_z, in_c = programs.exact(data, z > 0)
    kkt = programs.kkt(data, x, exact_z)
    if not kkt < 1e-8:
        raise ArithmeticError(f"The active rows solve the KKT equations to {kkt:.1e} only.")

    def judge(read: Callable[[Any], tuple[Any, Any]], found: Any) -> dict[str, float]:
        their_x, gradient = read(found)
        distance = (their_x.detach() - x).norm(dim=-1) / x.norm(dim=-1)
        return {
            "gradient_error": programs.worst(gradient, in_c, data[4]),
            "solution_error": float(distance.nan_to_num(float("inf")).max()),
        }

    def of_legato() -> Contestant:
        return Contestant(
            partial(programs.legato, data, False), partial(programs.legato, data, True)
        )

    def read_legato(found: Any) -> tuple[Any, Any]:
        return found[0].x, found[1][1]

    def of_peer(name: str) -> Contestant:
        if name in IN_JAX:
            _jax_on(setting.device)
        return Contestant(PROGRAM_PEERS[name](data, False), PROGRAM_PEERS[name](data, True))

    def read_qpax(found: Any) -> tuple[Any, Any]:
        (_, their_x), gradients = found
        return tuple(
            torch.tensor(np.asarray(v), device=setting.device) for v in (their_x, gradients[1])
        )

    reads = {"legato": read_legato, "qpax": read_qpax, "qpth": lambda found: found}
    about = {
        "title": f"Quadratic {setting.problem}", "energy": "½xᵀQx + cᵀx, Gx ≤ h", "loss": "wᵀx",
        "parameters": ["Q", "c", "G", "h"], "precision": "float64", "uncertainty": kkt,
        "truth": "the KKT equations on the active rows, solved densely; errors are those of the "
        "worst program, of x and of the gradient in c",
    }  # fmt: skip
    return about, [
        Entry(
            library, method, of_legato if library == "legato" else partial(of_peer, library),
            partial(judge, reads[library]),
        )
        for library, methods in rows.GPU[setting.problem].items()
        for method in methods
    ]  # fmt: skip


# --- one problem, in a process of its own ---------------------------------------------------------


def say(**news: Any) -> None:
    """A line for the process that started this one."""
    print(json.dumps(news), flush=True)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TimeoutError after some seconds, as soon as Python has the word again."""

    def over(*_: Any) -> None:
        raise TimeoutError(f"no result within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def failure(error: Exception) -> str:
    return tidy(f"{type(error).__name__}: {error}")


def prepare(entry: Entry, setting: Setting) -> tuple[dict[str, Any], Contestant | None]:
    """The row with errors and the time of the first call; no contestant where it failed."""
    row: dict[str, Any] = {
        "problem": setting.problem, "library": entry.library, "method": entry.method, "note": "",
    }  # fmt: skip
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        name = DISTRIBUTIONS.get(entry.library, entry.library)
        row["version"] = importlib.metadata.version(name)
    left = setting.ready_by - time.time()
    try:
        if left <= 1:
            raise TimeoutError("not begun: all had to be ready")
        with (
            at_most(min(left, SHARE * setting.seconds)),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            begin = time.perf_counter()
            made = entry.build()
            assert made.gradient is not None
            found = made.gradient()
            if setting.device == "cuda":
                torch.cuda.synchronize()
            row["first_s"] = time.perf_counter() - begin
            row |= entry.judge(found)
            made.solve()  # compiled apart from the gradient, where there is a compiler
        row["warnings"] = [
            tidy(text)
            for text in dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught)
        ]
        if made.tells is not None:
            row["tells"] = made.tells()
    except Exception as error:
        return row | {"failed": failure(error)}, None
    return row, made


def time_all(
    raced: list[tuple[dict[str, Any], Contestant]], device: str, seconds: float = TASK_SECONDS
) -> None:
    """Medians of all contestants' calls in turns, written into their rows."""

    def guarded(row: dict[str, Any], call: Callable[[], Any]) -> None:
        if "failed" not in row:
            try:
                call()
            except Exception as error:
                row["failed"] = failure(error)

    tasks = {}
    for k, (row, made) in enumerate(raced):
        assert made.gradient is not None
        tasks[f"{k} forward"] = partial(guarded, row, made.solve)
        tasks[f"{k} both"] = partial(guarded, row, made.gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times: dict[str, Times] = take_turns(tasks, ROUNDS, device, seconds=seconds)
    for k, (row, _) in enumerate(raced):
        forward, both = (times[f"{k} {what}"] for what in ("forward", "both"))
        row |= {
            "forward_s": forward.median / 1e3, "both_s": both.median / 1e3,
            "backward_s": max(both.median - forward.median, 0.0) / 1e3, "runs": len(both.wall),
        }  # fmt: skip


def one_problem(setting: Setting) -> None:
    """Prepare, wait for the word, be timed; every row is told as soon as it is known."""
    with contextlib.redirect_stdout(sys.stderr):
        about, contestants = entries(setting)
    say(about=about)
    raced = []
    for entry in contestants:
        with contextlib.redirect_stdout(sys.stderr):
            row, made = prepare(entry, setting)
        say(row=row)
        if made is not None:
            raced.append((row, made))
    say(ready=True)
    sys.stdin.readline()
    with contextlib.redirect_stdout(sys.stderr):
        time_all(raced, setting.device)
    for row, _ in raced:
        say(row=row)


# --- all problems ---------------------------------------------------------------------------------


class Child:
    """The process of one problem, and what it has told."""

    def __init__(self, problem: str, given: argparse.Namespace, log: Path) -> None:
        self.problem = problem
        self.about: dict[str, Any] = {}
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        command = [
            sys.executable, __file__, "--problem", problem, "--device", given.device,
            "--seconds", str(given.seconds), "--began", str(given.began),
            *(["--peers", str(given.peers)] if given.peers else []),
            *(["--quick"] if given.quick else []),
        ]  # fmt: skip
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put(json.loads(line))
        self._news.put(None)

    def hear(self, until: float) -> bool:
        """Listen until it is ready (True), or has ended or the time is over (False)."""
        while True:
            try:
                news = self._news.get(timeout=max(until - time.time(), 0.01))
            except queue.Empty:
                return False
            if news is None:
                return False
            if "ready" in news:
                return True
            self.about |= news.get("about", {})
            row = news.get("row")
            if row is not None:
                self.rows[row["library"], row["method"]] = row

    def go(self, until: float) -> None:
        """Let it be timed, alone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        self.hear(until)
        self.stop()

    def lives(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()

    def result(self) -> list[dict[str, Any]]:
        """A row for each contestant; those that were never heard of or timed say that."""
        found = []
        for library, methods in rows.GPU[self.problem].items():
            for method in methods:
                row = self.rows.get((library, method))
                identity = {"problem": self.problem, "library": library, "method": method}
                row = identity if row is None else row
                if "failed" not in row and "both_s" not in row:
                    row = row | {"failed": "its process was stopped before it was timed"}
                found.append(row)
        return found


def race(given: argparse.Namespace) -> None:
    """All problems at once until they are ready, then one by one; who is late comes last."""
    given.out.parent.mkdir(parents=True, exist_ok=True)
    log = given.out.with_suffix(".log")
    log.unlink(missing_ok=True)
    names = [n for n in rows.GPU if not given.only or {n, n.split()[0]} & {*given.only}]
    children = [Child(name, given, log) for name in names]
    ready_by, end = given.began + PREPARING * given.seconds + 2, given.began + given.seconds
    ready = [child for child in children if child.hear(ready_by)]
    late = [child for child in children if child not in ready]
    beside = any(child.lives() for child in late)
    said = ", ".join(child.problem for child in late) or "nobody"
    print(f"ready after {time.time() - given.began:.0f} s; late: {said}", flush=True)
    for child in ready + late:
        if child in ready or child.hear(end):
            child.go(end)
        child.stop()
        for row in child.result():
            row |= {"beside_others": beside} if "both_s" in row else {}
            print(line(row), flush=True)
        save(given, children)


def save(given: argparse.Namespace, children: list[Child]) -> None:
    """After every problem: a machine that is lent may be taken back."""
    about = {
        "seconds": round(time.time() - given.began),
        "versions of peers": _versions(),
        "problems": {child.problem: child.about for child in children if child.about},
        "rows": [row for child in children for row in child.result()],
    }
    record(given.out, about, given.device)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("jax", "jaxlib", "jaxopt", "torchdeq", "deepinv", "qpax", "qpth"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def line(row: dict[str, Any]) -> str:
    name = f"{row['problem']:26s}{row['library']:10s}{row['method']:46s}"
    if "failed" in row:
        return f"{name} {row['failed'][:150]}"
    return (
        f"{name} gradient {row['gradient_error']:7.1e}  solution {row['solution_error']:7.1e}  "
        f"forward {1e3 * row['forward_s']:9.2f}  both {1e3 * row['both_s']:9.2f} ms  "
        f"first {row['first_s']:5.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=RESULTS, help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--peers", type=Path, help="a folder with peers that are not installed")
    parser.add_argument("--commit", help="of this source, where there is no history to ask")
    parser.add_argument("--seconds", type=float, default=300, help="for everything")
    parser.add_argument("--only", nargs="+", help="problems, or the first words of their names")
    parser.add_argument("--quick", action="store_true", help="tiny programs, to see that it runs")
    parser.add_argument("--problem", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=time.time(), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.commit:
        os.environ["LEGATO_COMMIT"] = given.commit
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if given.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    if given.peers:
        sys.path.append(str(given.peers))
    torch.set_num_threads(1)
    if given.problem:
        ready_by = given.began + PREPARING * given.seconds
        one_problem(Setting(given.problem, given.device, ready_by, given.seconds, given.quick))
        return
    race(given)


if __name__ == "__main__":
    main()
