"""Batches of quadratic programs: seconds forward and with the gradient, errors beside them.

    python benchmarks/programs.py benchmarks/results/programs_cpu.json
    python benchmarks/programs.py --device cuda benchmarks/results/programs_h200.json

Random strictly convex programs with m inequalities in n variables, float64; the gradient is that of
wᵀx in all data. Errors are taken per instance, and the worst counts: the KKT residual, and the
gradient in c against the KKT equations with complementarity as an equation, solved densely. Peers
take part where they are installed (program_peers.py). ``processor`` is the time that a process was
given on all its cores, in milliseconds: on a machine that others use too, compare that.
"""

from __future__ import annotations

import gc
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

import torch
from harness import Task, Times, arguments, record, take_turns
from program_peers import installed
from torch import Tensor

from legato.nn import QuadraticProgram

CPU = ((128, 50, 50), (1024, 20, 30), (16, 200, 200))
CUDA = ((4096, 50, 50), (1024, 20, 30), (512, 200, 200), (65536, 8, 8))
QUICK = ((4, 5, 6),)
_FLOOR = 1e-3
"""Gradients count as at least this large, beside w: where as many rows are active as there are
variables, x does not depend on c, and the gradient is rounding. programs_h200.json, the run beside
peers, was measured without it; its errors of 1 and more at 65 536 × (8, 8) are those of the one
such program, which program_errors.py looks at. programs_kernel_h200.json is of legato alone, with
active sets found by one kernel: faster on three rows, twice as slow on 1024 × (20, 30), where a
pivot of rounding sent an instance to the interior point; measured before that was repaired."""


def times(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x[..., None])[..., 0]


def version(package: str) -> str:
    """Of an installed package; one that is only on the path does not tell."""
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return "unknown"


def make(B: int, n: int, m: int, device: str) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    L = normal(B, n, n)
    Q = L @ L.mT / n + 0.1 * torch.eye(n, dtype=torch.float64)
    c, G, inside = normal(B, n), normal(B, m, n) / n**0.5, normal(B, n)
    h = times(G, inside) + torch.rand(B, m, generator=g, dtype=torch.float64)
    return tuple(t.to(device) for t in (Q, c, G, h, normal(B, n)))


def kkt(data: tuple[Tensor, ...], x: Tensor, z: Tensor) -> float:
    """The largest residual of the KKT equations over all instances."""
    Q, c, G, h, _ = data
    force = times(Q, x) + c + times(G.mT, z)
    slack = h - times(G, x)
    return float(torch.maximum(force.abs().amax(-1), torch.minimum(slack, z).abs().amax(-1)).max())


def worst(in_c: Tensor, truth: Tensor, w: Tensor) -> float:
    """The largest relative error of a gradient in c over all instances."""
    size = torch.maximum(truth.norm(dim=-1), _FLOOR * w.norm(dim=-1))
    return float(((in_c.double() - truth).norm(dim=-1) / size).max())


def errors(data: tuple[Tensor, ...], x: Tensor, z: Tensor, in_c: Tensor) -> dict[str, float]:
    """Largest KKT residual, and largest relative error of a gradient in c, over all instances."""
    Q, _, G, h, w = data
    n, m = G.shape[-1], G.shape[-2]
    J = torch.zeros(len(w), n + m, n + m, dtype=Q.dtype, device=Q.device)
    J[:, :n, :n], J[:, :n, n:] = Q, G.mT
    J[:, n:, :n], J[:, n:, n:] = z[..., None] * G, torch.diag_embed(times(G, x) - h)
    v = torch.linalg.solve(J.mT, torch.cat([w, torch.zeros_like(h)], -1))[:, :n]
    return {"kkt": kkt(data, x, z), "gradient": worst(in_c, -v, w)}


def exact(data: tuple[Tensor, ...], active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, z and the gradient of wᵀx in c by the equations of the KKT system on the active rows."""
    Q, c, G, h, w = data
    n, m = G.shape[-1], G.shape[-2]
    J = torch.zeros(len(w), n + m, n + m, dtype=Q.dtype, device=Q.device)
    J[:, :n, :n], J[:, :n, n:] = Q, G.mT
    J[:, n:, :n], J[:, n:, n:] = active[..., None] * G, torch.diag_embed((~active).to(Q.dtype))
    found = torch.linalg.solve(J, torch.cat([-c, active * h], -1))
    v = torch.linalg.solve(J.mT, torch.cat([w, torch.zeros_like(h)], -1))[:, :n]
    return found[:, :n], found[:, n:], -v


def legato(data: tuple[Tensor, ...], gradient: bool) -> Any:
    Q, c, G, h, w = data
    layer = QuadraticProgram()
    if not gradient:
        with torch.no_grad():
            return layer(Q, c, G=G, h=h)
    given = [t.detach().requires_grad_() for t in (Q, c, G, h)]
    done = layer.solve(given[0], given[1], G=given[2], h=given[3])
    return done, torch.autograd.grad((done.x * w).sum(), given)


def in_float32(data: tuple[Tensor, ...], truth: Tensor) -> dict[str, float]:
    """The largest relative error of a gradient in c from data in float32, and how many solved."""
    done, gradients = legato(tuple(t.float() for t in data), True)
    wrong = worst(gradients[1], truth, data[4])
    return {"gradient": wrong, "solved": float(done.solved.double().mean())}


def briefly(tasks: dict[str, Task], rounds: int, device: str) -> dict[str, Times]:
    """Fewer calls: one to compile, and what takes longer than a second is not called again."""
    times = {name: Times() for name in tasks}
    for name, task in tasks.items():
        times[name].measure(task, device)
        if times[name].least > 1000 and "qpth" in name:
            continue
        times[name] = Times()
        for _ in range(rounds):
            times[name].measure(task, device)
    return times


def main() -> None:
    parser = arguments(__doc__ or "", "benchmarks/results/programs_cpu.json")
    parser.add_argument("--brief", action="store_true", help="with the gradient only, few calls")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peers = installed(options.device)
    if "qpth" in peers:  # its first call waits for libraries
        peers["qpth"](make(2, 5, 6, options.device), True)()
    rows = []
    sizes = QUICK if options.quick else CUDA if options.device == "cuda" else CPU
    for B, n, m in sizes:
        data = make(B, n, m, options.device)
        tasks: dict[str, Task] = {}
        for what in ("both",) if options.brief else ("forward", "both"):
            tasks[f"legato {what}"] = partial(legato, data, what == "both")
            for name, maker in peers.items():
                tasks[f"{name} {what}"] = maker(data, what == "both")
        if options.brief:
            timed = briefly(tasks, options.rounds, options.device)
        else:
            timed = take_turns(tasks, options.rounds, options.device, rest=0.02)
        done, gradients = legato(data, True)
        x, z = done.x.detach(), done.z
        row: dict[str, Any] = {"programs": B, "variables": n, "rows": m}
        row |= {
            name: {"milliseconds": t.least, "median": t.median, "processor": min(t.processor)}
            for name, t in timed.items()
        }
        row["legato both"] |= errors(data, x, z, gradients[1])
        row["legato float32"] = in_float32(data, gradients[1])
        for name in peers:
            task = tasks[f"{name} both"]
            if name == "qpth" and options.brief:
                continue  # seconds a call
            answer = getattr(task, "answer", lambda found: found)(task())
            row[f"{name} both"] |= {"gradient": errors(data, x, z, answer[1])["gradient"]}
        tasks.clear()
        gc.collect()
        print(row, flush=True)
        rows.append(row)  # written at once: a machine that is lent may be taken back
        versions = {name: version(name) for name in peers}
        about = {"dtype": "float64", "threads": options.threads, "peers": versions}
        found = about | {"rows": rows}
        record(options.out, found, options.device)


if __name__ == "__main__":
    main()
