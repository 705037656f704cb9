"""How many linear programs of the NETLIB collection the layer solves: objectives against HiGHS.

    python benchmarks/netlib.py --data FOLDER
    python benchmarks/netlib.py --data FOLDER --sparse

FOLDER holds the problems as gzipped MPS files, which HiGHS (highspy) reads; its optimum is the
truth. An answer counts at a tolerance if its objective, the violation of its rows and that of its
bounds all are within it, relative to 1 + the optimum, the right-hand sides and the bounds; all of
it is computed here, in NumPy, from x alone. Rates are of all files: what has not been tried counts
as not solved. Problems that a record holds already are not solved again. The layer is given dense
matrices, or sparse ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import highspy
import numpy as np
import torch
from record import record
from scipy import sparse

from legato.nn import LinearProgram, ProgramStatus

DENSE = Path(__file__).parent / "results" / "netlib_cpu.json"
SPARSE = DENSE.with_name("netlib_sparse_cpu.json")


def read(path):
    """A problem in the layer's form, in NumPy, and HiGHS's optimum."""
    solver = highspy.Highs()
    solver.silent()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "problem.mps"
        with gzip.open(path) as packed, plain.open("wb") as out:
            shutil.copyfileobj(packed, out)
        if solver.readModel(str(plain)) != highspy.HighsStatus.kOk:
            raise ValueError(f"{path.name}: HiGHS cannot read it.")
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ValueError(f"{path.name}: HiGHS finds no optimum.")
    lp = solver.getLp()
    n, m = lp.num_col_, lp.num_row_
    rows = np.zeros((m, n))
    starts, index, value = lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_
    for j in range(n):
        for k in range(starts[j], starts[j + 1]):
            rows[index[k], j] = value[k]
    lower, upper = np.array(lp.row_lower_), np.array(lp.row_upper_)
    equal = lower == upper
    above, below = np.isfinite(upper) & ~equal, np.isfinite(lower) & ~equal
    problem = {
        "c": np.array(lp.col_cost_),
        "A": rows[equal],
        "b": lower[equal],
        "G": np.vstack([rows[above], -rows[below]]),
        "h": np.concatenate([upper[above], -lower[below]]),
        "lo": np.array(lp.col_lower_),
        "hi": np.array(lp.col_upper_),
    }
    return problem, solver.getInfo().objective_function_value - lp.offset_


def errors(problem, optimum, x):
    """Of the objective, the rows and the bounds, relative."""
    c, A, b, G, h, lo, hi = (problem[k] for k in ("c", "A", "b", "G", "h", "lo", "hi"))
    over = np.concatenate([[0.0], np.abs(A @ x - b), G @ x - h])
    outside = np.concatenate([[0.0], lo - x, x - hi])
    sides, bounds = np.concatenate([b, h]), np.concatenate([lo, hi])
    sizes = [1 + np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in (sides, bounds)]
    return {
        "objective": float(abs(c @ x - optimum) / (1 + abs(optimum))),
        "rows": float(over.max() / sizes[0]),
        "bounds": float(outside.max() / sizes[1]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the .mps.gz files")
    parser.add_argument("--out", type=Path, help="default: a file of results")
    parser.add_argument("--sparse", action="store_true", help="sparse matrices")
    options = parser.parse_args()
    options.out = options.out or (SPARSE if options.sparse else DENSE)
    paths = sorted(options.data.glob("*.mps.gz"), key=lambda p: p.stat().st_size)
    problems = json.loads(options.out.read_text())["problems"] if options.out.exists() else {}
    for path in paths:
        if path.name.split(".")[0] in problems:
            continue
        problem, optimum = read(path)
        given = {
            k: sparse.csr_array(v) if options.sparse and v.ndim == 2 else torch.tensor(v)
            for k, v in problem.items()
        }
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            begin = time.perf_counter()
            found = LinearProgram().solve(**given)
            seconds = time.perf_counter() - begin
        row = errors(problem, optimum, found.x.numpy()) | {
            "n": len(problem["c"]),
            "equations": len(problem["b"]),
            "rows of G": len(problem["h"]),
            "iterations": int(found.iterations),
            "status": ProgramStatus(int(found.status)).name,
            "seconds": round(seconds, 3),
        }
        problems[path.name.split(".")[0]] = row
        print(path.name, row, flush=True)
        # np.max: NaN, where there is no point, stays NaN and counts as not solved.
        worst = [np.max([r["objective"], r["rows"], r["bounds"]]) for r in problems.values()]
        rates = {
            f"{tol:.0e}": sum(bool(w <= tol) for w in worst) / len(paths)
            for tol in (1e-4, 1e-6, 1e-8)
        }
        tried = {"files": len(paths), "tried": len(problems)}
        record(options.out, {"dtype": "float64"} | tried | {"solved": rates, "problems": problems})
        print(rates)


if __name__ == "__main__":
    main()
