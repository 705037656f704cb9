"""The Potts iteration as a jitted JAX scan, and its gradient: a rival of the kernels.

    PYTHON benchmarks/jax_potts.py    answers to benchmarks/potts.py from another environment

It imports JAX and NumPy only. From its input it reads "load PATH ITERATIONS", "forward" and "both",
and answers with milliseconds; after loading it leaves its results in the same file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


@partial(jax.jit, static_argnums=4)
def potts(c: Array, w: Array, tau: Array, sigma: Array, iterations: int) -> Array:
    """u after some iterations from a cold start."""

    def body(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, ...], None]:
        a, b, u = state
        y = w * jnp.tanh(b)
        force = c - y[:, :, 0] - y[:, :, 1]
        force = force.at[:, :, 1:].add(y[:, :, 0, :-1]).at[..., 1:].add(y[:, :, 1, :, :-1])
        a = a - tau * force
        a = a - a.max(1, keepdims=True)
        new = jax.nn.softmax(a, 1)
        v = 2 * new - u
        down = jnp.pad(v[:, :, 1:] - v[:, :, :-1], ((0, 0), (0, 0), (0, 1), (0, 0)))
        right = jnp.pad(v[..., 1:] - v[..., :-1], ((0, 0), (0, 0), (0, 0), (0, 1)))
        return (a, b + sigma * w * jnp.stack((down, right), 2), new), None

    a, u = jnp.zeros_like(c), jnp.full_like(c, 1 / c.shape[1])
    b = jnp.zeros((*c.shape[:2], 2, *c.shape[2:]), c.dtype)
    return jax.lax.scan(body, (a, b, u), None, iterations)[0][2]


def _loss(c: Array, w: Array, tau: Array, sigma: Array, bar: Array, iterations: int) -> Array:
    return (potts(c, w, tau, sigma, iterations) * bar).sum()


_gradient = jax.jit(jax.grad(_loss, (0, 1)), static_argnums=5)


class JaxPotts:
    """One problem: cost, weights, tau, sigma, and a cotangent bar; calls return when done."""

    def __init__(self, data: Mapping[str, np.ndarray], iterations: int) -> None:
        given = {name: jnp.asarray(data[name]) for name in data}
        self.tensors = [given[name] for name in ("cost", "weights", "tau", "sigma")]
        self.bar = given["bar"]
        self.iterations = iterations

    def forward(self) -> Array:
        return jax.block_until_ready(potts(*self.tensors, self.iterations))

    def both(self) -> Array:
        """The gradients of cost and weights."""
        return jax.block_until_ready(_gradient(*self.tensors, self.bar, self.iterations))


def serve() -> None:
    print(jax.__version__, flush=True)
    calls: dict[str, Callable[[], Array]] = {}
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "load":
            with np.load(rest[0]) as data:
                problem = JaxPotts(data, int(rest[1]))
            calls = {"forward": problem.forward, "both": problem.both}
            u, (of_cost, of_weights) = problem.forward(), problem.both()
            np.savez(rest[0], u=u, cost=of_cost, weights=of_weights)
            print("loaded", flush=True)
        else:
            began = time.perf_counter()
            calls[what]()
            print((time.perf_counter() - began) * 1e3, flush=True)


if __name__ == "__main__":
    serve()
