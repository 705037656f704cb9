"""Minimal residuals by short recurrences, for systems that are symmetric in disguise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from legato.algorithms import Algorithm
from legato.algorithms.semismooth.minres import Minres
from legato.engine import Engine
from legato.engine.stepping import Stepping
from legato.engine.switch import loop, recorded_step, uncompiled
from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    SaddleFactors,
    attainable,
    engine_behind,
    norm,
    require_settings,
    residual_of,
)
from legato.gradients.linear.cg import multiple_of_projection, require_symmetric
from legato.gradients.linear.judging import judged

LOOK = 24
"""Steps until what is left is looked at."""
SELDOM = 96
"""Steps until that is looked at again: what needs more than a few needs many."""


@dataclass(frozen=True)
class MINRES(LinearSolver):
    r"""Minimal residuals by short recurrences, where the step is a primal–dual one.

    .. math:: \begin{pmatrix} τ(P^{-1} − I) + τ^2H & −τσK^* \\ −τσK & −σ(Q^{-1} − I) \end{pmatrix}
              \begin{pmatrix} s \\ t \end{pmatrix} = \begin{pmatrix} τξ_x \\ −σξ_y \end{pmatrix}

    on the ranges of P and Q, the derivatives of both proxes: symmetric and indefinite, with s =
    P(w_x + 2σK^*t), t = Qw_y. Only products with P and Q are taken, by the inner product that they
    make. It keeps seven vectors whatever the number of steps, where GMRES keeps one for each: for
    images. Of any other step the derivative itself has to be symmetric, which is checked.
    Defaults: ``tol=1e-6``, ``iterations=2000``.
    Reference: Paige and Saunders (1975); Elman, Silvester, Wathen (2014), Section 4.1.

    >>> weight = torch.tensor(0.25, requires_grad=True)
    >>> data = lg.SquaredDistance(torch.tensor([0.0, 1.0]))
    >>> problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(weight), nonsmooth=data)
    >>> implicit = lg.Implicit(lg.MINRES())
    >>> x = lg.solve(problem, lg.PrimalDual(), gradient=implicit, stop=lg.Stop(500)).x
    >>> x[1].backward()
    >>> weight.grad.round(decimals=3)  # x = (weight, 1 − weight)
    tensor(-1.)
    """

    takes_saddle: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True

    tol: float = 1e-6
    iterations: int = 2000

    def __post_init__(self) -> None:
        require_settings(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        tol = attainable(self.tol, xi)
        system: _Symmetric = (
            _Saddle(product, xi) if isinstance(product, SaddleFactors) else _Plain(product, xi)
        )
        recurrence = _Recurrence(0.8 * tol * system.scale * norm(xi))
        like = recurrence.init(system, xi)
        step = recorded_step(_engine(product), system, recurrence, like)
        w, r, count = torch.zeros_like(xi), xi, 0
        previous = torch.ones_like(norm(xi))
        while count < self.iterations:
            update, steps = _run(system, recurrence, r, self.iterations - count, step)
            w, count = w + torch.where(r.any(-1, keepdim=True), update, 0.0), count + steps
            r, residual = residual_of(product, w, xi)
            # The residual of the recurrence is that of the symmetric system, and drifts.
            open_ = (residual > tol) & (residual < 0.9 * previous)
            if steps == 0 or not bool(open_.any()):
                break
            r, previous = torch.where(open_, r, 0.0), residual
        return judged(product, w, xi, count, tol)


# --- the symmetric system -------------------------------------------------------------------------


class _Symmetric(Protocol):
    """Gs = b with C ≥ 0, made of a system (I − M)w = ξ whose M is ``product``."""

    @property
    def product(self) -> Product: ...

    @property
    def scale(self) -> Any:
        """‖b − Gs‖_C of a w whose residual is 1, at the least."""

    def right(self, xi: Tensor) -> Tensor:
        """b."""

    def image(self, v: Tensor, z: Tensor) -> Tensor:
        """Gz for z = Cv."""

    def prepared(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """p, up to what C does not see, and Cp."""

    def found(self, s: Tensor, xi: Tensor) -> Tensor:
        """w."""


class _Plain:
    """(I − M)w = ξ with a symmetric M, as it is."""

    def __init__(self, product: Product, xi: Tensor) -> None:
        require_symmetric(product, xi, "MINRES")
        self.product: Product = product

    @property
    def scale(self) -> Any:
        return 1.0

    def right(self, xi: Tensor) -> Tensor:
        return xi

    def image(self, v: Tensor, z: Tensor) -> Tensor:
        return z - self.product(z)

    def prepared(self, p: Tensor) -> tuple[Tensor, Tensor]:
        return p, p

    def found(self, s: Tensor, xi: Tensor) -> Tensor:
        return s


class _Saddle:
    r"""The system of a primal–dual step, with C = diag(P/τ, Q/σ).

    P⁺s is known as what s was made of. Where P = cΠ for a projection Π, and Q is one too, what lies
    outside of their ranges is left out of v; else it stays, unseen.
    """

    def __init__(self, product: SaddleFactors, xi: Tensor) -> None:
        self.product = product
        first, second = product.parted(xi)
        if product.tau.ndim or product.sigma.ndim:  # else both are, by Moreau's theorem
            require_symmetric(product.P, first, "MINRES")
            require_symmetric(product.Q, second, "MINRES")
        self._inverse: tuple[Tensor, Tensor] | None = None
        c, d = multiple_of_projection(product.P, first), multiple_of_projection(product.Q, second)
        if c is not None and d is not None:
            self._inverse = product.tau / c, product.sigma / d

    @property
    def scale(self) -> Any:
        return torch.minimum(self.product.tau, self.product.sigma).sqrt()

    def right(self, xi: Tensor) -> Tensor:
        first, second = self.product.parted(xi)
        return torch.cat([self.product.tau * first, -self.product.sigma * second], -1)

    def image(self, v: Tensor, z: Tensor) -> Tensor:
        parts = self.product
        (v1, v2), (s, t), tau, sigma = parts.parted(v), parts.parted(z), parts.tau, parts.sigma
        top = v1 - tau * (s + sigma * parts.back(t))
        if parts.H is not None:
            top = top + tau * tau * parts.H(s)
        return torch.cat([top, sigma * (t - tau * parts.K(s)) - v2], -1)

    def prepared(self, p: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.product
        first, second = parts.parted(p)
        s, t = parts.P(first) / parts.tau, parts.Q(second) / parts.sigma
        if self._inverse is not None:
            p = torch.cat([self._inverse[0] * s, self._inverse[1] * t], -1)
        return p, torch.cat([s, t], -1)

    def found(self, s: Tensor, xi: Tensor) -> Tensor:
        return xi + self.product.pulled(*self.product.parted(s))


# --- its recurrences ------------------------------------------------------------------------------


class _Recurrence(Algorithm[_Symmetric, Minres]):
    """One step of MINRES as a map, many of which an engine runs before the host looks."""

    def __init__(self, least: Tensor) -> None:
        self.least = least

    def init(self, problem: _Symmetric, x0: Any) -> Minres:
        return Minres.begin(*problem.prepared(problem.right(x0)))

    def step(self, problem: _Symmetric, state: Minres) -> Minres:
        return state.advanced(problem.image(state.v, state.z), problem.prepared, self.least)

    def solution(self, state: Minres) -> Tensor:
        return state.w


def _engine(product: Product) -> Engine | None:
    """Compiled on a GPU, where memory is what a step waits for; on a CPU a compiler loses here."""
    engine = engine_behind(product)
    on_gpu = isinstance(product, SaddleFactors) and product.tau.is_cuda
    return engine if on_gpu else uncompiled(engine)


def _run(
    system: _Symmetric, recurrence: _Recurrence, xi: Tensor, most: int, step: Stepping | None
) -> tuple[Tensor, int]:
    """w for one ξ, and the number of steps."""
    engine = _engine(system.product)
    now = recurrence.init(system, xi)
    done = 0
    while done < most:
        count = min(SELDOM if done else LOOK, most - done)
        if step is None or engine is None:
            for _ in range(count):
                now = recurrence.step(system, now)
        else:
            now = loop(engine, step, now, count)[1]
        done += count
        if not bool(now.running.any()):
            break
    return system.found(now.w, xi), int(now.steps.amax())
