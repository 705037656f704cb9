"""How an iteration contracts: the rate of its residuals, and the adjoint system at one state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato.diagnostics.setting import Setting, flat
from legato.gradients import GMRES, Linearisation, spectral_radius
from legato.gradients.base import pull_back

# --- rate -----------------------------------------------------------------------------------------

STANDS_STILL = 0.1
"""Relative change of n(1 − ρ) up to which it is said to be a constant, as for a power law."""


def rate(
    residuals: Sequence[float], floor: float, radii: Callable[[], dict[int, float] | None]
) -> tuple[float | None, bool]:
    r"""The factor per iteration by which residuals fall, and whether they fall as a power of n.

    .. math:: q = (r_N / r_{N/2})^{2/N}

    is a mean over the last half before rounding takes over (None: too few). For a power law
    r_n = n^{-p}, log q is inversely proportional to n; for a linear rate it is constant: a run may
    be sublinear if q creeps towards 1 and little has been gained in the last half. But a slow
    linear rate looks the same while faster components die out. There ρ, the spectral radius of A_x,
    decides: that of a power law goes on towards 1 with n(1 − ρ) constant, whereas that of a linear
    run settles below 1, and n(1 − ρ) grows with n. Where ρ is not known, no power is claimed.

    Args:
        residuals: of all iterations.
        floor: the size of rounding; what follows the first residual below it is left out.
        radii: computes ρ at two iterates, by n; it is asked only where the residuals creep.
    """
    end = next((i for i, r in enumerate(residuals) if not r > floor), len(residuals))
    if end < 4:
        return 0.0 if end < len(residuals) else None, False
    half, quarter = end // 2, end // 4
    late = math.log(residuals[end - 1] / residuals[half]) / (end - 1 - half)
    early = math.log(residuals[half] / residuals[quarter]) / (half - quarter)
    little = -late * end < 10 * math.log(2)  # a factor of 32 over the last half
    creeps = end == len(residuals) and end >= 50 and little and -late < 0.75 * -early
    known = radii() if creeps else None
    if known is None:
        return math.exp(late), False
    first, last = (n * (1 - rho) for n, rho in sorted(known.items()))
    return math.exp(late), abs(last - first) <= STANDS_STILL * abs(first)


def radius_of_matrix(setting: Setting, state: Any) -> float:
    """ρ from A_x written out: power iteration cannot tell 1 − ρ from one over its own length."""
    return float(torch.linalg.eigvals(_matrix(_System(setting, state)).double().cpu()).abs().max())


# --- the adjoint system ---------------------------------------------------------------------------

LARGEST_DENSE = 256
"""State entries up to which matrices are written out, and bounds certified."""
LARGEST_TABLE = 10_000_000
"""Entries of the matrix from cotangents of the state to gradients that may be written out."""
PROBES = 3
"""Random solves from which norms of matrices that are not written out are estimated."""
MISSED_SHARE = 0.1
"""Share of its typical size, 1/√n, that a probe's component along the worst direction may have."""


@dataclass(frozen=True, eq=False)
class Adjoint:
    r"""What (I − A_x)ᵀw = ξ and ∇L = A_θᵀw look like at one state.

    .. math:: ‖∇L(w) − ∇L(w^*)‖ ≤ ‖A_θ^⊤(I − A_x^⊤)^{-1}‖\,‖r‖

    for every w with residual r, A_x being normal or not. ``influence`` is that norm, and
    ``amplification`` is ‖(I − A_x)⁻¹‖, in the mirror coordinates in which residuals are measured.
    They are exact (``certified``) where the matrices are small, else upper bounds that hold except
    with probability (0.8·0.1)³ ≈ 5e-4, infinite where the system is singular. ``xi`` is ξ and
    ``gradient`` is ∇L(w*). ``idle`` marks entries that no step moves and the loss does not see,
    such as the last differences of :class:`~legato.Differences`: A_x is the identity there, and
    they are left out of everything.
    Reference: Dixon (1983).
    """

    radius: float
    certified: bool
    xi: Tensor
    idle: Tensor
    amplification: float = math.inf
    influence: float = math.inf
    gradient: Tensor | None = None

    def bound(self, residual: float, eps: float) -> float:
        """A bound on ‖∇L(w) − ∇L(w*)‖, for ‖r‖ = ``residual``·‖ξ‖ computed with precision eps.

        A residual is only known up to the rounding of the product (I − A_x)ᵀw, which grows with
        ‖w‖ ≤ ‖(I − A_x)⁻¹‖(1 + residual)‖ξ‖ and, entry by entry, with √n.
        """
        size = float(torch.linalg.vector_norm(self.xi))
        if size == 0:
            return 0.0
        root = math.sqrt(self.xi.numel())
        rounding = 20 * eps * root * (1 + self.amplification * (1 + residual))
        return self.influence * (residual + rounding) * size


class _System:
    """Products with A_xᵀ, and from cotangents of the state to gradients in θ."""

    def __init__(self, setting: Setting, state: Any) -> None:
        algorithm, self.theta = setting.algorithm, setting.theta
        state = tree.detach(state)
        plain, variables = algorithm.fixed_point_map(algorithm.at_rest(setting.problem, state))
        variables = tree.detach(variables)
        self.linearisation = Linearisation(setting.problem, plain, variables)
        with torch.enable_grad():
            points = [t.detach().requires_grad_() for t in tree.leaves(variables)]
            merged = algorithm.with_variables(state, tree.rebuild(variables, points))
            value = setting.value(algorithm.solution(merged))
            grads = pull_back([value], [*points, *self.theta], [torch.ones_like(value)])
        self.xi, self.direct = flat(grads[: len(points)]), flat(grads[len(points) :])
        self.idle = self._find_idle()

    def _find_idle(self) -> Tensor:
        """Entries where A_xᵀw = w for random w and ξ = 0: then w = 0 there solves the system."""
        generator = torch.Generator().manual_seed(3)
        idle = self.xi == 0
        for _ in range(2):
            w = torch.randn(idle.shape, generator=generator, dtype=torch.float64, device="cpu").to(
                self.xi
            )
            idle &= self.linearisation.transposed(w) == w
        return idle

    def product(self, w: Tensor) -> Tensor:
        moving = self.linearisation.transposed(torch.where(self.idle, 0, w))
        return torch.where(self.idle, 0, moving)

    def pull(self, w: Tensor) -> Tensor:
        after = tree.leaves(self.linearisation.after)
        cotangent = self.linearisation.transport(tree.unflatten(self.linearisation.state, w))
        return flat(pull_back(after, self.theta, tree.leaves(cotangent)))


def adjoint(setting: Setting, state: Any) -> Adjoint:
    """Study the adjoint system at ``state``; raises GradientError where there is no fixed point."""
    system = _System(setting, state)
    n = system.xi.numel()
    small = n <= LARGEST_DENSE and n * system.direct.numel() <= LARGEST_TABLE
    return _dense(system) if small else _probed(system)


def _matrix(system: _System) -> Tensor:
    """A_xᵀ, column by column."""
    identity = torch.eye(system.xi.numel(), dtype=system.xi.dtype, device=system.xi.device)
    return torch.stack([system.product(e) for e in identity], dim=1)


def _dense(system: _System) -> Adjoint:
    """Everything from the matrices themselves."""
    xi = system.xi
    n = xi.numel()
    identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
    M = _matrix(system)
    P = torch.stack([system.pull(e) for e in identity])  # rows: the gradient of each cotangent
    B, P = (identity - M).double().cpu(), P.double().cpu()
    radius = float(torch.linalg.eigvals(M.double().cpu()).abs().max())
    smallest = float(torch.linalg.svdvals(B)[-1])
    # The entries of B carry errors of about ε‖B‖, which move singular values by up to n times that:
    # a smaller one cannot be told from zero, and B from a singular matrix.
    uncertain = 10 * n * torch.finfo(xi.dtype).eps * float(torch.linalg.matrix_norm(B, 2))
    if not smallest > uncertain:
        return Adjoint(radius, True, xi, system.idle)
    influence = float(torch.linalg.matrix_norm(torch.linalg.solve(B.T, P), 2))
    w = torch.linalg.solve(B, xi.double().cpu())
    gradient = system.direct.double().cpu() + P.T @ w
    return Adjoint(radius, True, xi, system.idle, 1 / smallest, influence, gradient)


def _probed(system: _System) -> Adjoint:
    """Norms from random solves, where the matrices would be too large.

    For a unit vector u, uniform on the sphere, ‖Bu‖ ≥ ‖B‖·|⟨u, v⟩| with the first right singular
    vector v, and |⟨u, v⟩| < t/√n has a probability of at most 0.8t (√(2/π) ≈ 0.8). So ‖Bu‖·√n/t
    is an upper bound of ‖B‖, except with that probability; the largest of three independent probes
    fails only if all of them do.
    """
    xi = system.xi
    n = xi.numel()
    solver = GMRES(tol=max(1e-10, 100 * torch.finfo(xi.dtype).eps), iterations=1000)
    radius = spectral_radius(system.product, xi, 200)
    if radius > 1:  # powers of a non-normal map may grow for a while
        radius = spectral_radius(system.product, xi, 2000)
    generator = torch.Generator().manual_seed(2)
    amplification = influence = 0.0
    for _ in range(PROBES):
        u = torch.randn(n, generator=generator, dtype=torch.float64, device="cpu").to(xi)
        found = solver.solve(system.product, u / torch.linalg.vector_norm(u))
        if not found.converged:
            return Adjoint(radius, False, xi, system.idle)
        amplification = max(amplification, float(torch.linalg.vector_norm(found.solution)))
        influence = max(influence, float(torch.linalg.vector_norm(system.pull(found.solution))))
    missed = math.sqrt(n) / MISSED_SHARE
    exact = solver.solve(system.product, xi)
    gradient = (system.direct + system.pull(exact.solution)).double().cpu()
    known = gradient if exact.converged else None
    norms = amplification * missed, influence * missed
    return Adjoint(radius, False, xi, system.idle, *norms, known)
