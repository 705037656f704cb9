"""What contestants written in torch share: losses, and one step of the primal–dual algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from contract import REGRESSIONS, Contestant, Data, parameters
from torch import Tensor

Solver = Callable[..., Tensor]


def tensors(data: Data) -> dict[str, Tensor]:
    """Where the data lie: arrays become tensors of the host, tensors stay on their device."""
    return {name: torch.as_tensor(array).clone() for name, array in data.items()}


def loss(problem: str, t: dict[str, Tensor], x: Tensor) -> Tensor:
    if problem in REGRESSIONS:
        return 0.5 * (t["V"] @ x - t["v"]).square().sum()
    return 0.5 * (x.reshape(t["target"].shape) - t["target"]).square().sum()


def contestant(
    problem: str,
    data: Data,
    prepare: Callable[[dict[str, Tensor]], Solver],
    note: str = "",
    tells: Callable[[], str] | None = None,
) -> Contestant:
    """From a function that turns data into ``solve(*parameters) → x``."""
    t = tensors(data)
    names = parameters(problem)
    solve = prepare(t)

    def solution() -> Any:
        with torch.no_grad():
            return solve(*(t[name] for name in names))

    def gradient() -> tuple[Any, Any]:
        leaves = [t[name].clone().requires_grad_() for name in names]
        x = solve(*leaves)
        loss(problem, t, x).backward()
        return x.detach(), [leaf.grad for leaf in leaves]

    return Contestant(solution, gradient, note, tells)


# --- images ---------------------------------------------------------------------------------------


def differences(u: Tensor) -> Tensor:
    """∇u: (…, H, W) → (…, 2, H, W), zero behind the last row and column."""
    pad = torch.nn.functional.pad
    down = pad(u[..., 1:, :] - u[..., :-1, :], (0, 0, 0, 1))
    across = pad(u[..., 1:] - u[..., :-1], (0, 1))
    return torch.stack((down, across), -3)


def spread(p: Tensor) -> Tensor:
    """∇ᵀp."""
    pad = torch.nn.functional.pad
    down, across = p[..., 0, :-1, :], p[..., 1, :, :-1]
    return (
        pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
        + pad(across, (1, 0)) - pad(across, (0, 1))
    )  # fmt: skip


def project_simplex(v: Tensor, dim: int) -> Tensor:
    """Projection onto the unit simplex along ``dim``, by sorting."""
    ordered = v.sort(dim, descending=True).values
    excess = ordered.cumsum(dim) - 1
    shape = [1] * v.ndim
    shape[dim] = -1
    rank = torch.arange(1, v.shape[dim] + 1, dtype=v.dtype, device=v.device).reshape(shape)
    size = (ordered * rank > excess).sum(dim, keepdim=True)
    return (v - excess.gather(dim, size - 1) / size).clamp(min=0)


def as_image(array: Tensor) -> Tensor:
    """(1, L, H, W), whatever the problem stores."""
    return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))


def primal_dual(problem: str, t: dict[str, Tensor], theta: Tensor) -> tuple[Any, Any]:
    """One step of the primal–dual algorithm (Chambolle and Pock, 2011) and where it starts."""
    weight = theta[0]
    start = as_image(t["cost"] if problem.startswith("potts") else t["y"])
    tau = sigma = 1 / math.sqrt(8 if min(start.shape[-2:]) > 1 else 4)

    def step(u: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        if problem.startswith("potts"):
            half = (u - tau * (spread(p) + theta[1] * start)) / (1 + tau)
            new = project_simplex(half, 1)
        else:
            new = (u - tau * (spread(p) - start)) / (1 + tau)
        dual = p + sigma * differences(2 * new - u)
        if problem == "tv2d_isotropic":
            size = dual.square().sum(-3, keepdim=True).clamp(min=1e-30).sqrt()
            return new, dual * (weight / size).clamp(max=1)
        return new, torch.clamp(dual, -weight, weight)

    first = torch.full_like(start, 1 / 3) if problem.startswith("potts") else start.clone()
    return step, (first, torch.zeros_like(differences(start)))
