"""Race legato against its peers: one machine, one thread, each row alone in its own process.

    python benchmarks/peers/race.py --all                 every row; finished ones are kept
    python benchmarks/peers/race.py --only lasso/jaxopt   the rows of one library on one problem
    python benchmarks/peers/race.py --all --fresh         every row again

Problems come from a seed (``instances.py``), truth from ``truth.py``, environments from
``requirements/*.txt``; the rows are in ``rows.py``. Writes benchmarks/results/peers_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environments
import instances
import numpy as np
import rows

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from record import provenance  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "peers_cpu.json"
SCRATCH = ROOT / "out" / "peers"
CAP_GIB = 14
PATIENCE = 5
"""A row's limit is CPU time; on a busy machine the clock may show this many times as much."""
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


def one_thread() -> dict[str, str]:
    """The environment of a child: everything on one thread, XLA too."""
    settings = dict.fromkeys(THREADS, "1")
    settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    settings["JAX_PLATFORMS"] = "cpu"
    settings["PYTHONWARNINGS"] = "default"
    return os.environ | settings


def limits(seconds: float) -> Callable[[], None]:
    """One core, CPU time and memory, set in the child before it starts.

    XLA computes on all cores that it sees, whatever its flags say. RLIMIT_DATA bounds what is
    allocated; address space alone is cheap, and XLA takes much of it.
    """
    core = max(os.sched_getaffinity(0))

    def apply() -> None:
        os.sched_setaffinity(0, {core})
        resource.setrlimit(resource.RLIMIT_DATA, (CAP_GIB * 2**30,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)

    return apply


def run_row(row: rows.Row, seconds: float) -> dict[str, Any]:
    """What came of a row: numbers, or the reason in words."""
    try:
        python = environments.python_of(row.library)
    except environments.NotInstalledError as error:
        return {"failed": f"not installed: {error}"}
    data = instances.ensure(row.problem, SCRATCH / "problems")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            str(python), str(Path(__file__).with_name("child.py")), row.problem, row.library,
            row.method, str(data), str(result), "--seconds", str(seconds),
        ]  # fmt: skip
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE * row.limit,
                check=False, env=one_thread(), preexec_fn=limits(row.limit),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"no result within {PATIENCE * row.limit:.0f} s"}
        if not result.exists() and -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
            return {"failed": f"no result within {row.limit:.0f} s of CPU time"}
        if not result.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
            outcome: dict[str, Any] = {"failed": f"ended with {done.returncode}: {last[0][:300]}"}
        else:
            outcome = json.loads(result.read_text())
        outcome["wall_s"] = time.perf_counter() - begin
        return outcome


def key(row: rows.Row) -> tuple[str, str, str]:
    return row.problem, row.library, row.method


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def save(path: Path, found: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """In the order of the table; rows that no longer exist are dropped."""
    ordered = [found[key(row)] for row in rows.ROWS if key(row) in found]
    kinds = {
        name: {
            "title": p.title, "energy": p.energy, "loss": p.loss,
            "parameters": list(p.parameters), "truth": p.truth, **known(name),
        }
        for name, p in instances.PROBLEMS.items()
    }  # fmt: skip
    result = provenance() | {
        "threads": 1, "seed": instances.SEED, "memory_cap_GiB": CAP_GIB, "problems": kinds,
        "rows": ordered,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    partial.replace(path)


def known(name: str) -> dict[str, float]:
    """How well the truth itself is known, where it has been computed."""
    path = SCRATCH / "problems" / f"{name}-{instances.source_hash()}.npz"
    if not path.exists():
        return {}
    with np.load(path) as file:
        return {"uncertainty": float(file["uncertainty"])}


def wanted(row: rows.Row, only: list[str]) -> bool:
    return not only or any(
        "/".join(key(row)).startswith(prefix) or f"/{row.library}" == prefix for prefix in only
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row that has no result yet")
    parser.add_argument("--only", nargs="+", default=[], help="problem, problem/library, /library")
    parser.add_argument("--fresh", action="store_true", help="forget the results there are")
    parser.add_argument("--retry", action="store_true", help="run failed rows again, too")
    parser.add_argument("--seconds", type=float, default=2.0, help="of repetitions for each row")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not (given.all or given.only):
        parser.error("say --all, or --only problem/library")
    old = {(r["problem"], r["library"], r["method"]): r for r in load(given.output)["rows"]}
    found = {} if given.fresh and not given.only else dict(old)
    for row in rows.ROWS:
        if not wanted(row, given.only):
            continue
        done = found.get(key(row))
        again = given.fresh or bool(given.only) or (given.retry and "failed" in (done or {}))
        if done is not None and not again:
            continue
        identity = {"problem": row.problem, "library": row.library, "method": row.method}
        found[key(row)] = identity | {"load": os.getloadavg()[0]} | run_row(row, given.seconds)
        print(line(found[key(row)]), flush=True)
        save(given.output, found)


def line(row: dict[str, Any]) -> str:
    name = f"{row['problem']:22s}{row['library']:12s}{row['method']:44s}"
    if "failed" in row:
        return f"{name} {row['failed'][:150]}"
    error = row.get("gradient_error")
    told = "      —" if error is None else f"{error:7.1e}"
    both = row.get("both_s", float("nan"))
    cpu = row.get("both_cpu_s", row["forward_cpu_s"])
    return (
        f"{name} gradient {told}  solution {row['solution_error']:7.1e}  forward "
        f"{row['forward_s']:8.4f}  both {both:8.4f} (cpu {cpu:8.4f})  first {row['first_s']:7.3f}"
        f"  {row['peak_MiB']:6.0f} MiB  {row['wall_s']:5.1f} s"
    )


if __name__ == "__main__":
    main()
