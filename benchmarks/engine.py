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
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import Task, Times, arguments, record, relative_errors, warm_up
from torch import Tensor

import legato as lg

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

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
        lambda: jax_potts(c, bar, tau),
        implicit=lg.Implicit(lg.MINRES(tol=1e-4)),
    )  # fmt: skip
    return found


# --- the same loops in JAX -----------------------------------------------------------------------


def jax_fista(A: Tensor, b: Tensor, theta: Any, step: Any, bar: Tensor, kind: str) -> Any:
    import jax
    import jax.numpy as jnp

    def array(t: Any) -> Any:
        return jnp.asarray(t.numpy() if isinstance(t, Tensor) else t, jnp.float32)

    A, bar, step, theta, data = array(A), array(bar), array(step), array(theta), array(b)

    def prox(h: Any, w: Any) -> Any:
        if kind == "lasso":
            return jnp.sign(h) * jnp.maximum(jnp.abs(h) - step * w, 0)
        return jnp.maximum(h, 0) if kind == "nnls" else _onto_simplex(jnp, h)

    def x(w: Any) -> Any:
        y = data if kind == "lasso" else w

        def body(state: Any, _: None) -> Any:
            x, before, t = state
            following = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            ahead = x + (t - 1) / following * (x - before)
            r = jnp.einsum("...mk,...k->...m", A, ahead) - y
            h = ahead - step * jnp.einsum("...mk,...m->...k", A, r)
            return (prox(h, w), x, following), None

        start = jnp.full_like(bar, 1 / bar.shape[-1] if kind == "simplex" else 0.0)
        return jax.lax.scan(body, (start, start, jnp.float32(1)), None, 200)[0][0]

    forward = jax.jit(x)
    both = jax.jit(jax.grad(lambda w: (x(w) * bar).sum()))
    return (
        lambda: jax.block_until_ready(forward(theta)),
        lambda: jax.block_until_ready(both(theta)),
    )


def jax_potts(cost: Tensor, bar: Tensor, tau: float) -> Any:
    import jax
    import jax.numpy as jnp

    c, cotangent = jnp.asarray(cost.numpy(), jnp.float32), jnp.asarray(bar.numpy(), jnp.float32)
    theta = jnp.array([0.5, 1.0], jnp.float32)

    def gradient(u: Any) -> Any:
        down = jnp.pad(u[:, 1:] - u[:, :-1], ((0, 0), (0, 1), (0, 0)))
        return jnp.stack((down, jnp.pad(u[..., 1:] - u[..., :-1], ((0, 0), (0, 0), (0, 1)))), 0)

    def x(w: Any) -> Any:
        def body(state: Any, _: None) -> Any:
            u, p = state
            (pull,) = jax.linear_transpose(gradient, u)(p)
            h = (u - tau * (pull + w[1] * c)) / (1 + tau)
            new = jnp.moveaxis(_onto_simplex(jnp, jnp.moveaxis(h, 0, -1)), -1, 0)
            p = jnp.clip(p + tau * gradient(2 * new - u), -w[0], w[0])
            return (new, p), None

        start = jnp.full_like(c, 1 / 3)
        return jax.lax.scan(body, (start, jnp.zeros_like(gradient(start))), None, 100)[0][0]

    forward, both = jax.jit(x), jax.jit(jax.grad(lambda w: (x(w) * cotangent).sum()))
    return (
        lambda: jax.block_until_ready(forward(theta)),
        lambda: jax.block_until_ready(both(theta)),
    )


def _onto_simplex(jnp: Any, h: Any) -> Any:
    ordered = jnp.flip(jnp.sort(h, -1), -1)
    counts = jnp.arange(1, h.shape[-1] + 1)
    thresholds = (jnp.cumsum(ordered, -1) - 1) / counts
    last = (ordered > thresholds).sum(-1, keepdims=True) - 1
    return jnp.maximum(h - jnp.take_along_axis(thresholds, last, -1), 0)


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
