"""Layers by others that solve min ½xᵀQx + cᵀx, Gx ≤ h, each in the form a user would write.

Each maker takes (Q, c, G, h, w) and whether a gradient of wᵀx is wanted, and returns a task that
gives (x, gradient in c or None); it is left out where its package is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Answer = tuple[Tensor, Tensor | None]
Maker = Callable[[tuple[Tensor, ...], bool], Callable[[], Answer]]


def qpth(data: tuple[Tensor, ...], gradient: bool) -> Callable[[], Answer]:
    for name in ("cvxpy", "ecos"):  # imported for a solver that is not used here
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    from qpth.qp import QPFunction

    *parts, w = data
    none = torch.empty(0, dtype=w.dtype, device=w.device)

    def task() -> Answer:
        given = [t.detach().requires_grad_(gradient) for t in parts]
        x = QPFunction(verbose=-1, check_Q_spd=False)(*given, none, none)
        return x, torch.autograd.grad((x * w).sum(), given)[1] if gradient else None

    return task


def qpax(data: tuple[Tensor, ...], gradient: bool) -> Callable[[], Answer]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np
    from qpax import solve_qp_primal

    Q, c, G, h, w = (jnp.asarray(t.cpu().numpy()) for t in data)
    n = Q.shape[-1]
    A, b = jnp.zeros((0, n), Q.dtype), jnp.zeros((0,), Q.dtype)
    tol = 1e-8 if data[0].dtype == torch.float64 else 1e-4

    def solved(Q: Any, c: Any, G: Any, h: Any) -> Any:
        def one(Q: Any, c: Any, G: Any, h: Any) -> Any:
            return solve_qp_primal(Q, c, A, b, G, h, solver_tol=tol, target_kappa=tol)

        return jax.vmap(one)(Q, c, G, h)

    forward = jax.jit(solved)
    backward = jax.jit(
        jax.value_and_grad(
            lambda *given: (lambda x: ((x * w).sum(), x))(solved(*given)),
            (0, 1, 2, 3),
            has_aux=True,
        )
    )

    def back(value: Any) -> Tensor:
        return torch.tensor(np.asarray(value), device=data[0].device)

    def task() -> Any:
        if gradient:
            return jax.block_until_ready(backward(Q, c, G, h))
        return jax.block_until_ready(forward(Q, c, G, h))

    def answer(found: Any) -> Answer:
        if not gradient:
            return back(found), None
        (_, x), grads = found
        return back(x), back(grads[1])

    task.answer = answer  # type: ignore[attr-defined]
    return task


def proxsuite(data: tuple[Tensor, ...], gradient: bool) -> Callable[[], Answer]:
    from proxsuite.torch.qplayer import QPFunction

    *parts, w = data
    B, n = w.shape
    A, b = w.new_zeros(0, n), w.new_zeros(B, 0)
    low = torch.full_like(parts[3], -1e20)

    def task() -> Answer:
        Q, c, G, h = (t.detach().requires_grad_(gradient) for t in parts)
        layer = QPFunction(structural_feasibility=True, omp_parallel=True)
        x = layer(Q, c, A, b, G, low, h)[0]
        return x, torch.autograd.grad((x * w).sum(), (Q, c, G, h))[1] if gradient else None

    return task


def moreau(data: tuple[Tensor, ...], gradient: bool) -> Callable[[], Answer]:
    import moreau as package
    from moreau.torch import Solver

    *parts, w = data
    B, n = w.shape
    m = parts[3].shape[-1]

    def pattern(rows: int) -> tuple[Tensor, Tensor]:
        return torch.arange(rows + 1) * n, torch.arange(n).repeat(rows)

    settings = package.Settings(
        solver="active_set", device="cpu", batch_size=B, enable_grad=gradient
    )
    solver = Solver(n, m, *pattern(n), *pattern(m), package.Cones(num_nonneg_cones=m), settings)

    def task() -> Answer:
        Q, c, G, h = (t.detach().requires_grad_(gradient) for t in parts)
        x = solver.solve(Q.flatten(1), G.flatten(1), c, h).x
        return x, torch.autograd.grad((x * w).sum(), (Q, c, G, h))[1] if gradient else None

    return task


CPU: dict[str, Maker] = {"qpth": qpth, "proxsuite": proxsuite, "moreau": moreau}
CUDA: dict[str, Maker] = {"qpth": qpth, "qpax": qpax}


def installed(device: str) -> dict[str, Maker]:
    """Those whose package can be imported here."""
    makers = CUDA if device == "cuda" else CPU
    return {name: make for name, make in makers.items() if importlib.util.find_spec(name)}
