"""How many problems of the Maros–Mészáros collection the layer solves: residuals and seconds.

    python benchmarks/maros.py --data FOLDER

FOLDER holds the problems as .mat files: minimise ½xᵀPx + qᵀx + r subject to l ≤ Ax ≤ u, the last n
rows of A being the identity. Residuals are absolute and computed here, in numpy, from x and the
multipliers: the largest violation of a constraint, the largest entry of the Lagrangian's gradient,
and the duality gap. Published rates of other solvers refer to the same three.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.io
import torch
from record import record

from legato.nn import ProgramStatus, QuadraticProgram

RESULTS = Path(__file__).parent / "results" / "maros_cpu.json"
INFINITE = 1e19


def read(path):
    """A problem in the layer's form, in numpy."""
    held = scipy.io.loadmat(path)
    P, rows = (held[k].toarray().astype(float) for k in ("P", "A"))
    q, lower, upper = (held[k].ravel().astype(float) for k in ("q", "l", "u"))
    lower[lower < -INFINITE], upper[upper > INFINITE] = -np.inf, np.inf
    n = len(q)
    if not np.array_equal(rows[-n:], np.eye(n)):
        raise ValueError(f"{path.name}: the last rows of A are not the bounds.")
    if not np.allclose(P, P.T):
        raise ValueError(f"{path.name}: P is not symmetric.")
    lo, hi, rows, lower, upper = lower[-n:], upper[-n:], rows[:-n], lower[:-n], upper[:-n]
    equal = lower == upper
    above, below = np.isfinite(upper) & ~equal, np.isfinite(lower) & ~equal
    return {
        "Q": (P + P.T) / 2,
        "c": q,
        "A": rows[equal],
        "b": lower[equal],
        "G": np.vstack([rows[above], -rows[below]]),
        "h": np.concatenate([upper[above], -lower[below]]),
        "lo": lo,
        "hi": hi,
    }


def residuals(one, x, y, z, z_lo, z_hi):
    """Primal, dual and gap, absolute."""
    Q, c, A, b, G, h = (one[k] for k in ("Q", "c", "A", "b", "G", "h"))
    z, z_lo, z_hi = (np.maximum(v, 0) for v in (z, z_lo, z_hi))
    over = [np.abs(A @ x - b), G @ x - h, one["lo"] - x, x - one["hi"]]
    primal = float(np.max([0.0, *(v.max() for v in over if v.size)]))
    dual = float(np.abs(Q @ x + c + A.T @ y + G.T @ z - z_lo + z_hi).max())
    lo, hi = (np.where(np.isfinite(one[k]), one[k], 0.0) for k in ("lo", "hi"))
    gap = abs(float(x @ Q @ x + c @ x + b @ y + h @ z - lo @ z_lo + hi @ z_hi))
    return {"primal": primal, "dual": dual, "gap": gap}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the .mat files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    problems = {}
    for path in sorted(options.data.glob("*.mat"), key=lambda p: p.stat().st_size):
        one = read(path)
        given = {k: torch.tensor(v) for k, v in one.items()}
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            begin = time.perf_counter()
            found = QuadraticProgram().solve(**given)
            seconds = time.perf_counter() - begin
        point = [getattr(found, k).numpy() for k in ("x", "y", "z", "z_lo", "z_hi")]
        row = residuals(one, *point) | {
            "n": len(one["c"]),
            "equations": len(one["b"]),
            "rows": len(one["h"]),
            "iterations": int(found.iterations),
            "status": ProgramStatus(int(found.status)).name,
            "seconds": round(seconds, 3),
        }
        problems[path.stem] = row
        print(path.stem, row, flush=True)
    # np.max: NaN, where there is no point, stays NaN and counts as not solved.
    worst = [np.max([row["primal"], row["dual"], row["gap"]]) for row in problems.values()]
    rates = {
        f"{tol:.0e}": sum(bool(w <= tol) for w in worst) / len(worst) for tol in (1e-3, 1e-6, 1e-9)
    }
    print(rates)
    record(options.out, {"dtype": "float64", "solved": rates, "problems": problems})


if __name__ == "__main__":
    main()
