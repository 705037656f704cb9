"""Steps of T on what moves: quadratic models of a composite energy on growing working sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.momentum import next_t
from legato._support.rows import Rows
from legato.algorithms.semismooth.facet import facet_of, mixed_axes
from legato.algorithms.semismooth.splitting import Splitting
from legato.functions import mirror_prox
from legato.functions.restricted import Columns
from legato.geometry import Euclidean
from legato.problems import Composite

LEAST = 100
"""Entries that a working set may always hold."""
LARGEST = 1000
"""Entries beyond which a model would cost more than it brings."""
_ROUNDS = 12
_SHARE = 0.5
"""The largest share of all entries for which a model is cheaper than steps of T."""


def is_known(splitting: Splitting, z: tuple[Tensor, ...], batch: int) -> bool:
    """Whether models on working sets are known here: one element, whose entries the prox parts."""
    if not isinstance(splitting.problem, Composite) or not isinstance(z[0], Tensor) or batch:
        return False
    x, tau = z[0], splitting.tau
    if x.ndim != 1 or len(x) < 2 * LEAST or (isinstance(tau, Tensor) and tau.numel() > 1):
        return False
    core = splitting.problem.nonsmooth.prox_parts(Euclidean()).core
    return not mixed_axes(core, x, 0)


@torch.no_grad()
def descended(splitting: Splitting, start: Tensor) -> tuple[Tensor, Tensor, bool]:
    r"""A lower point x, T(x), and whether it is the solution, by models on working sets W.

    .. math:: \min_d\; ⟨∇f(x)_W, d⟩ + \tfrac12 d^⊤ H_{WW} d + g(x + d_W)

    W holds what T moves most, twice as much as is active: a lasso with 40 of 2000 coefficients
    never sees a matrix larger than 500 × 200. Other entries stay. Ends where T moves nothing, where
    a model is no good, or where W would be no small part any more.
    Reference: Massias, Gramfort, Salmon (2018), *Celer*; Lee, Sun, Saunders (2014).
    """
    x, active = start, torch.zeros_like(start, dtype=torch.bool)
    eps = torch.finfo(x.dtype).eps
    halves = splitting.halves((x,))
    change = halves.x - x
    for _ in range(_ROUNDS):
        if bool(torch.linalg.vector_norm(change) <= 4 * eps * torch.linalg.vector_norm(x)):
            break
        room = max(LEAST, 2 * int(active.sum()))
        moved = torch.where(active, torch.inf, change.abs())
        chosen = moved.topk(min(room, len(x))).indices
        chosen = chosen[moved[chosen] > 0]
        if len(chosen) > min(LARGEST, _SHARE * len(x)):
            break
        slope = (x - halves.u) / splitting.tau
        new, free = _Model(splitting, x, slope, chosen).minimised()
        there = splitting.halves((new,))
        left = there.x - new
        # A model that is good brings its own entries to rest, whatever it does to the others.
        before, after = (torch.linalg.vector_norm(d[chosen]) for d in (change, left))
        if not bool(after <= 0.5 * before):
            break
        x, halves, change = new, there, left
        active = torch.zeros_like(active)
        active[chosen[free]] = True
    else:
        return x, halves.x, False
    rest = 4 * eps * torch.linalg.vector_norm(x)
    return x, halves.x, bool(torch.linalg.vector_norm(change) <= rest)


@dataclass
class _Model:
    """The quadratic model at x on the entries ``chosen``."""

    splitting: Splitting
    x: Tensor
    slope: Tensor
    chosen: Tensor

    def minimised(self) -> tuple[Tensor, Tensor]:
        """x with the model's minimiser in it, and which chosen entries are free there."""
        x, W, problem = self.x, self.chosen, self.splitting.problem
        index = W.unsqueeze(0)
        columns = Columns(Rows(x, 0), index, torch.ones_like(index, dtype=torch.bool))
        H = problem.smooth.hessian_on(x, columns)[0]
        c = H @ x[W] - self.slope[W]
        size = _largest(H)
        tau = 1 / torch.where(size > 0, size, 1.0)
        whole = x.clone()
        g = problem.nonsmooth

        def prox(half: Tensor) -> Tensor:
            whole[W] = half
            return mirror_prox(g, Euclidean(), whole, tau)[W]

        w = x[W]
        eps = torch.finfo(w.dtype).eps
        free = torch.ones_like(w, dtype=torch.bool)
        count = 10
        image = prox(w - tau * (H @ w - c))
        for _ in range(8):
            w = _accelerated(H, c, tau, prox, w, count)
            count *= 2
            for _ in range(5):
                half = w - tau * (H @ w - c)
                image = prox(half)
                change = image - w
                residual = torch.linalg.vector_norm(change)
                whole[W] = half
                p = facet_of(g, whole, tau, 0).p[0, W]
                free = p > 0
                if bool(residual <= 2 * eps * torch.linalg.vector_norm(w)):
                    break
                step = _newton(H, p, tau, change)
                trial = torch.where(free, w + step, image)
                left = prox(trial - tau * (H @ trial - c)) - trial
                if not bool(torch.linalg.vector_norm(left) <= 0.5 * residual):
                    break
                w = trial
            else:
                continue
            if bool(residual <= 2 * eps * torch.linalg.vector_norm(w)):
                break
        out = x.clone()
        out[W] = image
        return out, free


def _newton(H: Tensor, p: Tensor, tau: Tensor, change: Tensor) -> Tensor:
    """(I − P(I − τH))⁻¹·change on what is free, elsewhere the change itself."""
    A = (p > 0).nonzero().squeeze(-1)
    idle = change.clone()
    idle[A] = 0
    s = (p[A] * tau).sqrt()
    M = s.unsqueeze(-1) * H[A][:, A] * s
    M.diagonal().add_(1 - p[A] + torch.finfo(H.dtype).eps ** 0.8)
    right = change[A] / s - s * (H[A] @ idle)
    factor, _ = torch.linalg.cholesky_ex(M)
    found = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    out = change.clone()
    out[A] = s * found
    return out


def _accelerated(
    H: Tensor, c: Tensor, tau: Tensor, prox: Callable[[Tensor], Tensor], w: Tensor, count: int
) -> Tensor:
    """Nesterov's steps with restarts. Reference: O'Donoghue and Candès (2015)."""
    y, t = w, 1.0
    for _ in range(count):
        new = prox(torch.addmv(y + tau * c, H, y, alpha=-float(tau)))
        if float((y - new) @ (new - w)) > 0:
            t, y = 1.0, new
        else:
            later = next_t(t)
            y = torch.lerp(w, new, 1 + (t - 1) / later)
            t = later
        w = new
    return w


def _largest(H: Tensor) -> Tensor:
    """The largest eigenvalue by power iteration, with a margin."""
    v = H.abs().sum(1)
    for _ in range(12):
        v = H @ (v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(H.dtype).tiny))
    return 1.05 * torch.linalg.vector_norm(v)
