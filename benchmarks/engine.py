"""The engines beside each other: step by step, replayed, compiled, and the same loop as a JAX scan.

Four problems as users build them from terms, a fixed number of iterations, float32; milliseconds of
the solve, of the solve with `Unroll` and its backward pass, and with `Implicit`: directly where
systems can be written out, by MINRES to a tolerance of 1e-4 for the image.
Errors are relative to the eager run in float64.
Usage: python benchmarks/engine.py [OUT.json] --device cuda
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import Task, Times, arguments, record, relative_errors, warm_up
from torch import Tensor

import legato as lg

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.append(str(Path(__file__).with_name("peers")))  # whose loops in JAX are raced here, too

ENGINES = {"eager": lg.Eager(), "replayed": lg.Replayed(), "compiled": lg.Compiled()}


@dataclass
class Row:
    """A problem in θ, how it is solved, and the cotangent of its solution."""

    make: Callable[[Tensor], Any]
    algorithm: Any
    start: Tensor
    theta: Tensor
    bar: Tensor
    iterations: int
    rival: Callable[[], tuple[Task, Task]] | None = None
    implicit: Any = lg.Implicit(lg.Direct())

    def solve(self, theta: Tensor, engine: lg.Engine, gradient: Any = None) -> Tensor:
        stop = lg.Stop(self.iterations)
        problem = self.make(theta)
        return lg.solve(
            problem, self.algorithm, self.start, gradient=gradient, stop=stop, engine=engine
        ).x

    def forward(self, engine: lg.Engine) -> Tensor:
        with torch.no_grad():
            return self.solve(self.theta, engine)

    def both(self, engine: lg.Engine, gradient: Any) -> tuple[Tensor, Tensor]:
        theta = self.theta.detach().requires_grad_()
        x = self.solve(theta, engine, gradient)
        return x.detach(), torch.autograd.grad((x * self.bar).sum(), theta)[0]


def rows(device: str, dtype: torch.dtype, quick: bool) -> dict[str, Row]:
    """The same numbers for every precision."""

    def drawn(*shape: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def put(t: Tensor) -> Tensor:
        return t.to(device, dtype)

    shrink = 8 if quick else 1
    found = {}
    n, p = 500 // shrink, 2000 // shrink
    A, b, bar = drawn(n, p, seed=0) / math.sqrt(n), drawn(n, seed=1), drawn(p, seed=2)
    step = 1 / float(torch.linalg.matrix_norm(A, 2)) ** 2
    lasso = lg.LeastSquares(lg.Dense(put(A)), put(b))
    found["lasso"] = Row(
        lambda w: lg.Composite(lasso, lg.L1(w)),
        lg.ForwardBackward(step, inertia=lg.Nesterov()),
        put(torch.zeros(p)), put(torch.tensor(0.1)), put(bar), 200,
        lambda A=A, b=b, bar=bar: jax_fista(A, b, 0.1, step, bar, "lasso"),
    )  # fmt: skip
    for name, term, batch, m, k in (
        ("nnls", lg.NonNegative(), 256 // shrink, 50, 20),
        ("simplex", lg.Simplex(), 1024 // shrink, 75, 50),
    ):
        A, b, bar = drawn(batch, m, k, seed=3) / 8, drawn(batch, m, seed=4), drawn(batch, k, seed=5)
        steps = 1 / torch.linalg.matrix_norm(A, 2).square()[:, None]
        start = torch.full((batch, k), 1 / k if name == "simplex" else 0.0)
        found[name] = Row(
            lambda y, D=lg.Dense(put(A)), term=term: lg.Composite(lg.LeastSquares(D, y), term),
            lg.ForwardBackward(put(steps), inertia=lg.Nesterov()),
            put(start), put(b), put(bar), 200,
            lambda A=A, b=b, steps=steps, bar=bar, name=name: jax_fista(A, b, b, steps, bar, name),
        )  # fmt: skip
    size = 256 // shrink
    c, bar = drawn(3, size, size, seed=6), drawn(3, size, size, seed=7)
    cost, tau = put(c), 8**-0.5
    found["potts"] = Row(
        lambda w: lg.Saddle(
            lg.Differences(), lg.L1(w[0]),
            nonsmooth=lg.Simplex(-3) + lg.SquaredNorm() + lg.Linear(w[1] * cost),
        ),
        lg.PrimalDual(tau=tau, sigma=tau),
        put(torch.full_like(c, 1 / 3)), put(torch.tensor([0.5, 1.0])), put(bar), 100,
        lambda: jax_potts(c, bar),
        implicit=lg.Implicit(lg.MINRES(tol=1e-4)),
    )  # fmt: skip
    return found


# --- the same loops in JAX -----------------------------------------------------------------------


def jax_fista(A: Tensor, b: Tensor, theta: Any, step: Any, bar: Tensor, kind: str) -> Any:
    import jax.numpy as jnp
    from contestants import jax_side

    A, bar, step, theta, data = (_for_jax(t) for t in (A, bar, step, theta, b))
    start = jnp.full_like(bar, 1 / bar.shape[-1] if kind == "simplex" else 0.0)

    def x(w: Any) -> Any:
        y = data if kind == "lasso" else w
        return jax_side.fista(A, y, step, jax_side.prox(kind, step, w), start, 200)

    return _jax_tasks(x, theta, bar)


def jax_potts(cost: Tensor, bar: Tensor) -> Any:
    from contestants import jax_side

    step, start = jax_side.primal_dual("potts", {"cost": _for_jax(cost)})
    theta = _for_jax([0.5, 1.0])
    return _jax_tasks(lambda w: jax_side.iterated(step, start, w, 100), theta, _for_jax(bar))


def _for_jax(t: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(t.numpy() if isinstance(t, Tensor) else t, jnp.float32)


def _jax_tasks(x: Callable[[Any], Any], theta: Any, bar: Any) -> tuple[Task, Task]:
    import jax

    forward, both = jax.jit(x), jax.jit(jax.grad(lambda w: (x(w) * bar).sum()))
    return (
        lambda: jax.block_until_ready(forward(theta)),
        lambda: jax.block_until_ready(both(theta)),
    )


# --- the measurement -----------------------------------------------------------------------------


def measure(row: Row, truth: Row, rounds: int, device: str, names: list[str]) -> dict[str, Any]:
    gradients = {"unroll": lg.Unroll(), "implicit": row.implicit}
    true = {name: truth.both(lg.Eager(), gradient) for name, gradient in gradients.items()}
    tasks: dict[str, Task] = {}
    first: dict[str, float] = {}
    errors: dict[str, Any] = {}
    for name in names:
        engine = ENGINES[name]
        tasks[f"{name}_forward"] = lambda e=engine: row.forward(e)
        for kind, gradient in gradients.items():
            tasks[f"{name}_{kind}"] = lambda e=engine, g=gradient: row.both(e, g)
            began = time.perf_counter()
            got = row.both(engine, gradient)
            first[f"{name}_{kind}"] = round(time.perf_counter() - began, 2)
            errors[f"{name}_{kind}"] = relative_errors(("x", "gradient"), got, true[kind])
    rival = row.rival() if row.rival is not None and _has_jax() else None
    if rival is not None:
        tasks["jax_forward"], tasks["jax_unroll"] = rival
    times = {name: Times() for name in tasks}
    for name, task in tasks.items():  # each in a row, as a training loop calls it
        warm_up(task, device)
        for _ in range(rounds):
            times[name].measure(task, device)
    return {
        "implicit": repr(row.implicit),
        "milliseconds": {name: round(t.median, 3) for name, t in times.items()},
        "first_call_seconds": first,
        "errors": errors,
    }


def _has_jax() -> bool:
    try:
        import jax  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    parser = arguments(__doc__ or "", "benchmarks/results/engine_cpu.json")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--rows", nargs="*", default=["lasso", "nnls", "simplex", "potts"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", lg.errors.NotConvergedWarning)
    warnings.simplefilter("ignore", lg.errors.InexactGradientWarning)
    now = rows(options.device, torch.float32, options.quick)
    exact = rows(options.device, torch.float64, options.quick)
    results: dict[str, Any] = {}
    for name in options.rows:
        results[name] = measure(
            now[name], exact[name], options.rounds, options.device, options.engines
        )
        print(name, results[name]["milliseconds"], results[name]["errors"], flush=True)
        record(options.out, {"rows": results}, options.device)


if __name__ == "__main__":
    main()
