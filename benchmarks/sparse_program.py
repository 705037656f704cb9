"""One large program with sparse matrices: seconds forward and with the gradient, and errors.

    python benchmarks/sparse_program.py

2000 variables, 2000 inequalities with three entries a row, Q = LLᵀ + 0.1 with one entry a row of
L, once without and once with 300 equations; float64, one thread. The gradient is that of wᵀx in all
data, in the stored values of matrices. ``dense`` are the same layers given dense matrices, called
once. Peers take part where they are installed: Clarabel and ProxQP for the solution alone, ProxQP's
layer, which is dense, with its gradient. Errors: of x, the largest KKT residual; of the gradient in
c, against a sparse solve of the KKT equations with complementarity as an equation. Moreau is called
by its two solvers; ``off`` is the distance of its answers from legato's, x and gradient in c.
Seconds are those of the processor: another load on the machine does not count.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import record
from scipy import sparse
from scipy.sparse.linalg import spsolve
from torch import Tensor

import legato as lg
from legato.nn import QuadraticProgram

RESULTS = Path(__file__).parent / "results" / "sparse_program_cpu.json"
N, M, ROUNDS = 2000, 2000, 5


def make(n: int, m: int, p: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def thin(rows: int, per_row: int) -> Any:
        columns = [np.sort(rng.choice(n, per_row, replace=False)) for _ in range(rows)]
        parts = rng.standard_normal(rows * per_row), np.concatenate([[], *columns]).astype(int)
        return sparse.csr_array((*parts, per_row * np.arange(rows + 1)), shape=(rows, n))

    G, A, L = thin(m, 3), thin(p, 3), thin(n, 1)
    Q = (L @ L.T + 0.1 * sparse.eye_array(n)).tocsr()
    inside, c = rng.standard_normal(n), 2 * rng.standard_normal(n)
    data = {"Q": Q, "c": c, "G": G, "h": G @ inside + rng.random(m)}
    return data | ({"A": A, "b": A @ inside} if p else {})


def solve(data: dict[str, Any], gradient: bool, dense: bool) -> tuple[Any, Tensor | None]:
    given: dict[str, Any] = {}
    leaves = {}
    for name, value in data.items():
        if isinstance(value, np.ndarray):
            given[name] = leaves[name] = torch.tensor(value)
        elif dense:
            given[name] = leaves[name] = torch.tensor(value.toarray())
        else:
            given[name] = lg.Sparse(value)
            leaves[name] = given[name].values
        leaves[name].requires_grad_(gradient)
    done = QuadraticProgram().solve(**given)
    if not gradient:
        return done, None
    w = torch.linspace(-1, 1, len(data["c"]), dtype=torch.float64)
    found = torch.autograd.grad((done.x * w).sum(), list(leaves.values()))
    return done, found[list(leaves).index("c")]


def errors(data: dict[str, Any], done: Any, in_c: Tensor) -> dict[str, float]:
    Q, c, G, h = (data[k] for k in ("Q", "c", "G", "h"))
    x, z, n = done.x.detach().numpy(), done.z.numpy(), len(c)
    A, b = data.get("A", sparse.csr_array((0, n))), data.get("b", np.zeros(0))
    slack = h - G @ x
    force = Q @ x + c + A.T @ done.y.numpy() + G.T @ z
    kkt = [
        np.abs(force).max(),
        np.abs(np.minimum(slack, z)).max(),
        np.abs(A @ x - b).max(initial=0),
    ]
    J = sparse.block_array(
        [
            [Q, A.T, G.T],
            [A, None, None],
            [sparse.diags_array(z) @ G, None, sparse.diags_array(-slack)],
        ]
    ).tocsc()
    right = np.zeros(J.shape[0])
    right[:n] = np.linspace(-1, 1, n)
    v = spsolve(J.T.tocsc(), right)[:n]
    wrong = np.linalg.norm(in_c.numpy() + v) / np.linalg.norm(v)
    return {"kkt": float(max(kkt)), "gradient": float(wrong)}


def peers(data: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What is installed; absent pieces are empty."""
    Q, c, G, h = (data[k] for k in ("Q", "c", "G", "h"))
    n, m = len(c), len(h)
    A, b = data.get("A", sparse.csr_array((0, n))), data.get("b", np.zeros(0))
    found: dict[str, Callable[[], Any]] = {}
    try:
        import clarabel

        def by_clarabel() -> Any:
            rows = sparse.vstack([A, G]).tocsc()
            cones = [clarabel.ZeroConeT(len(b)), clarabel.NonnegativeConeT(m)]
            settings = clarabel.DefaultSettings()
            settings.verbose = False
            sides = np.concatenate([b, h])
            upper = sparse.csc_matrix(sparse.triu(Q))
            rows = sparse.csc_matrix(rows)
            return clarabel.DefaultSolver(upper, c, rows, sides, cones, settings).solve()

        found["clarabel forward"] = by_clarabel
    except ImportError:
        pass
    try:
        import proxsuite
        from proxsuite.torch.qplayer import QPFunction

        low = np.full(m, -1e20)
        plain = [sparse.csc_matrix(v) for v in (Q, A, G)]

        def by_proxqp() -> Any:
            qp = proxsuite.proxqp.sparse.QP(n, len(b), m)
            qp.settings.eps_abs = 1e-9
            qp.init(plain[0], c, plain[1], b, plain[2], low, h)
            qp.solve()
            return qp.results.info.status

        def by_layer() -> Any:
            rows = [torch.tensor(v.toarray()) for v in (Q, A, G)]
            given = [rows[0], torch.tensor(c), rows[1], torch.tensor(b), rows[2], torch.tensor(h)]
            given = [t.requires_grad_() for t in given]
            x = QPFunction()(*given[:5], torch.tensor(low), given[5])[0]
            return torch.autograd.grad(x.sum(), [t for t in given if t.numel()])

        found |= {"proxqp forward": by_proxqp, "proxqp layer both": by_layer}
    except ImportError:
        pass
    return found


def by_moreau(data: dict[str, Any], which: str, gradient: bool) -> Callable[[], Any]:
    import moreau
    from moreau.torch import Solver

    Q, c, G, h = (data[k] for k in ("Q", "c", "G", "h"))
    n = len(c)
    A, b = data.get("A", sparse.csr_array((0, n))), data.get("b", np.zeros(0))
    matrices = [sparse.csr_array(Q), sparse.csr_array(sparse.vstack([A, G]))]
    patterns = []
    for matrix in matrices:
        matrix.sort_indices()
        patterns += [torch.tensor(v, dtype=torch.long) for v in (matrix.indptr, matrix.indices)]
    cones = moreau.Cones(num_zero_cones=len(b), num_nonneg_cones=len(h))
    settings = moreau.Settings(solver=which, device="cpu", batch_size=1, enable_grad=gradient)
    solver = Solver(n, len(b) + len(h), *patterns, cones, settings)
    numbers = [matrices[0].data, matrices[1].data, c, np.concatenate([b, h])]
    w = torch.linspace(-1, 1, n, dtype=torch.float64)

    def task() -> Any:
        given = [torch.tensor(v)[None].requires_grad_(gradient) for v in numbers]
        x = solver.solve(*given).x
        if not gradient:
            return x[0], None
        return x[0].detach(), torch.autograd.grad((x * w).sum(), given)[2][0]

    return task


def moreau_tasks(data: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    if importlib.util.find_spec("moreau") is None:
        return {}
    kinds = (("active_set", False), ("ipm", False), ("ipm", True))
    return {
        f"moreau {which} {'both' if gradient else 'forward'}": by_moreau(data, which, gradient)
        for which, gradient in kinds
    }


def timed(task: Callable[[], Any], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        task()
        seconds.append(time.process_time() - begin)
        if seconds[0] > 5:  # once will do
            break
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    n, m = (40, 40) if options.quick else (N, M)
    rows = []
    for p in (0, 300 * n // N):
        data = make(n, m, p)
        row: dict[str, Any] = {"variables": n, "rows": m, "equations": len(data.get("b", ()))}
        row["entries"] = {k: int(v.nnz) for k, v in data.items() if not isinstance(v, np.ndarray)}
        done, in_c = solve(data, True, False)
        assert in_c is not None
        row |= errors(data, done, in_c)
        tasks: dict[str, tuple[Callable[[], Any], int]] = {
            "legato forward": (lambda d=data: solve(d, False, False), ROUNDS),
            "legato both": (lambda d=data: solve(d, True, False), ROUNDS),
            "legato dense both": (lambda d=data: solve(d, True, True), 1),
        }
        tasks |= {name: (task, ROUNDS) for name, task in peers(data).items()}
        for name, (task, rounds) in tasks.items():
            seconds = timed(task, rounds)
            row[name] = {"seconds": min(seconds), "calls": len(seconds)}
            print(name, row[name], flush=True)
        for name, task in moreau_tasks(data).items():
            seconds, (x, gradient) = timed(task, ROUNDS), task()
            off = {"x off": float((x - done.x.detach()).abs().max())}
            if gradient is not None:
                off["gradient off"] = float((gradient - in_c).norm() / in_c.norm())
            row[name] = {"seconds": min(seconds), "calls": len(seconds)} | off
            print(name, row[name], flush=True)
        print(row, flush=True)
        rows.append(row)
    record(options.out, {"dtype": "float64", "threads": 1, "rows": rows})


if __name__ == "__main__":
    main()
