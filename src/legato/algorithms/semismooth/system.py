"""Newton's system (I − J)d = r and its transpose, restricted to what is active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.lazy import lazy
from legato._support.rows import Rows
from legato._support.tree import Var
from legato.algorithms.semismooth.facet import Facet, facet_of
from legato.algorithms.semismooth.minres import minres
from legato.algorithms.semismooth.splitting import Halves, Splitting
from legato.functions.restricted import Columns, flatten, hessian_product, unflatten
from legato.operators import Dense
from legato.problems import Saddle

DENSE_UP_TO = 1536
"""Unknowns up to which a system is written out and factorised."""
_MOST_ENTRIES = 2**26
"""Entries of all matrices of a batch up to which that is done."""
_REFINEMENTS = 6


class System:
    r"""The derivative of I − T at a point, as a symmetric system in what is active.

    .. math:: \begin{pmatrix} D + H & K^* \\ K & −E \end{pmatrix}_{𝒜}, \qquad
              D = \frac{1 − p}{τp}, \quad E = \frac{1 − q}{σq}

    p and q are the eigenvalues of the derivatives of both proxes. Where they are 0 an entry moves
    as T moves it, whatever the others do, and leaves the system: a lasso with 40 coefficients that
    are not zero solves 40 equations. Scaled by √(τp) and √(σq) on both sides, its entries are of
    size 1. Duals that are not unique make it singular: it is shifted by a little, which refinement
    takes back, so that right-hand sides in its range are solved, and others leave a residual.
    Reference: Li, Sun, Toh (2018), *A highly efficient semismooth Newton augmented Lagrangian
    method for solving lasso problems*; Xiao, Li, Wen, Zhang (2018), *A regularized semi-smooth
    Newton method with projection steps*.
    """

    def __init__(
        self, splitting: Splitting, z: tuple[Var, ...], halves: Halves, batch: int,
        patience: int = 20_000,
    ) -> None:  # fmt: skip
        self.patience = patience
        self._last: tuple[Any, Any] | None = None
        self.problem = splitting.problem
        self.x = tree.detach(z[0])
        step = splitting.detached
        self.X = facet_of(self.problem.nonsmooth, tree.detach(halves.u), step.tau, batch)
        self.tau = _spread(step.tau, self.x, self.X.rows)
        self.Y: Facet | None = None
        if isinstance(self.problem, Saddle):
            self.Y = facet_of(splitting.conjugate, tree.detach(halves.v), step.sigma, batch)
            self.sigma = _spread(step.sigma, halves.v, self.Y.rows)
            if bool(self.Y.rows.count) != bool(self.X.rows.count):
                # Only what has the batch in both variables falls into separate systems.
                self.X = facet_of(self.problem.nonsmooth, tree.detach(halves.u), step.tau, 0)
                self.Y = facet_of(splitting.conjugate, tree.detach(halves.v), step.sigma, 0)
                self.tau = _spread(step.tau, self.x, self.X.rows)
                self.sigma = _spread(step.sigma, halves.v, self.Y.rows)
        self.A = _chosen(self.X)
        self.B = None if self.Y is None else _chosen(self.Y)
        self.s = self.A.gather((self.X.p.clamp(min=0) * self.tau).sqrt())
        self.t = self.s.new_zeros(len(self.s), 0)
        if self.Y is not None and self.B is not None:
            self.t = self.B.gather((self.Y.p.clamp(min=0) * self.sigma).sqrt())
        self.k = self.A.count

    @property
    def active(self) -> Tensor:
        """A number for each element that tells its active set from another."""
        parts = [self._hash(self.X.p)]
        if self.Y is not None:
            parts.append(self._hash(self.Y.p))
        return torch.stack(parts).sum(0)

    @staticmethod
    def _hash(p: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(p.shape[-1])
        keys = torch.randn(p.shape[-1], generator=generator, dtype=torch.float64, device="cpu")
        return (p > 0).double() @ keys.to(p.device)

    # --- products ---------------------------------------------------------------------------------

    @lazy
    def _curvature(self) -> Callable[[Tensor], Tensor] | None:
        return hessian_product(self.problem.smooth.grad, self.x, self.X.rows)

    def _H(self, v: Tensor) -> Tensor:
        if self._curvature is None or not bool(v.any()):
            return torch.zeros_like(v)
        return self.X.into(self._curvature(self.X.out(v)))

    def _K(self, v: Tensor) -> Tensor:
        assert self.Y is not None
        assert isinstance(self.problem, Saddle)
        image = self.problem.operator(unflatten(self.X.rows, self.X.out(v)))
        return self.Y.into(flatten(self.Y.rows, tree.detach(image)))

    def _Kt(self, w: Tensor) -> Tensor:
        assert self.Y is not None
        assert isinstance(self.problem, Saddle)
        back = self.problem.operator.adjoint(unflatten(self.Y.rows, self.Y.out(w)))
        return self.X.into(flatten(self.X.rows, tree.detach(back)))

    def _product(self, c: Tensor) -> Tensor:
        """The scaled system times a row."""
        first, second = c[:, : self.k], c[:, self.k :]
        p = self.A.gather(self.X.p)
        dx = self.A.scatter(self.s * first, self.X.p.shape[-1])
        top = (1 - p) * first + self.s * self.A.gather(self._H(dx))
        if self.Y is None or self.B is None:
            return torch.where(self.A.valid, top, first)
        q = self.B.gather(self.Y.p)
        dy = self.B.scatter(self.t * second, self.Y.p.shape[-1])
        top = top + self.s * self.A.gather(self._Kt(dy))
        bottom = self.t * self.B.gather(self._K(dx)) - (1 - q) * second
        top, bottom = (
            torch.where(self.A.valid, top, first),
            torch.where(self.B.valid, bottom, -second),
        )
        return torch.cat([top, bottom], -1)

    # --- the matrix -------------------------------------------------------------------------------

    @lazy
    def _dense(self) -> bool:
        size = self.s.shape[-1] + self.t.shape[-1]
        return size <= DENSE_UP_TO and size * size * len(self.s) <= _MOST_ENTRIES

    @lazy
    def _matrix(self) -> Tensor:
        p = self.A.gather(self.X.p)
        H = self.problem.smooth.hessian_on(self.x, self.A)
        top = self.s.unsqueeze(-1) * H * self.s.unsqueeze(-2)
        top = top + torch.diag_embed(torch.where(self.A.valid, 1 - p, 1.0))
        if self.Y is None or self.B is None:
            return top
        q = self.B.gather(self.Y.p)
        K = self.t.unsqueeze(-1) * self._coupling() * self.s.unsqueeze(-2)
        bottom = -torch.diag_embed(torch.where(self.B.valid, 1 - q, 1.0))
        return torch.cat([torch.cat([top, K.mT], -1), torch.cat([K, bottom], -1)], -2)

    def _coupling(self) -> Tensor:
        """K between what is active, (elements, k_y, k_x)."""
        assert self.Y is not None
        assert self.B is not None
        assert isinstance(self.problem, Saddle)
        K = self.problem.operator
        if type(K) is Dense and not self.Y.turns:
            part = self.A.of(K.matrix.detach())
            if part is not None and self.Y.p.shape[-1] == part.shape[-2]:
                index = self.B.index.unsqueeze(-1).expand(-1, -1, part.shape[-1])
                return part.gather(-2, index) * self.B.valid.unsqueeze(-1)
        n, m = self.X.p.shape[-1], self.Y.p.shape[-1]
        if self.A.count <= self.B.count:
            units = _units(self.A, n)
            columns = [self.B.gather(self._K(unit)) for unit in units]
            return torch.stack(columns, -1) if columns else self.s.new_zeros(*self.t.shape, 0)
        rows = [self.A.gather(self._Kt(unit)) for unit in _units(self.B, m)]
        return torch.stack(rows, -2) if rows else self.s.new_zeros(len(self.s), 0, self.k)

    @lazy
    def _factor(self) -> Callable[[Tensor], Tensor]:
        """Solves with the matrix, shifted by a little."""
        M = self._matrix
        shift = torch.full_like(M[:, 0, :] if M.shape[-1] else self.s, _shift(M.dtype))
        shift[:, self.k :].neg_()
        lifted = M + torch.diag_embed(shift)
        if self.Y is None:
            factor, info = torch.linalg.cholesky_ex(lifted)
            if not bool(info.any()):
                return lambda b: torch.cholesky_solve(b.unsqueeze(-1), factor).squeeze(-1)
        LU, pivots, _ = torch.linalg.lu_factor_ex(lifted)
        return lambda b: torch.linalg.lu_solve(LU, pivots, b.unsqueeze(-1)).squeeze(-1)

    def _solve(self, right: Tensor) -> Tensor:
        """Rows w with Gw = b for the scaled system."""
        if right.shape[-1] == 0 or not bool(right.any()):
            return torch.zeros_like(right)
        if not self._dense:
            tol = 10 * torch.finfo(right.dtype).eps
            most = min(20 * right.shape[-1], self.patience)
            found = minres(self._product, right, tol, most)
            return found + minres(self._product, right - self._product(found), 1e-3, most)
        M, w = self._matrix, self._factor(right)
        size = torch.linalg.vector_norm(right, dim=-1, keepdim=True)
        error = torch.full_like(size, torch.inf)
        for _ in range(_REFINEMENTS):
            missing = right - (M @ w.unsqueeze(-1)).squeeze(-1)
            before, error = error, torch.linalg.vector_norm(missing, dim=-1, keepdim=True)
            going = (error > torch.finfo(right.dtype).eps * size) & (error < 0.5 * before)
            if not bool(going.any()):
                break
            w = w + torch.where(going, self._factor(missing), 0.0)
        return w

    # --- both directions --------------------------------------------------------------------------

    def solve(self, r: tuple[Var, ...]) -> tuple[Var, ...]:
        """d with (I − J)d = r, for r and d like z."""
        a = self.X.into(flatten(self.X.rows, r[0]))
        idle = torch.where(_moves(self.X), 0.0, a)
        first = self.A.gather(a) / _safe(self.s) - self.s * self.A.gather(self._H(idle))
        if self.Y is None or self.B is None:
            found = self._solve(first)
            return (self._joined(self.A, self.s * found, idle, self.X),)
        b = self.Y.into(flatten(self.Y.rows, r[1]))
        b = b - 2 * self.sigma * self.Y.p * self._K(a)
        still = torch.where(_moves(self.Y), 0.0, b)
        first = first - self.s * self.A.gather(self._Kt(still))
        second = -self.B.gather(b) / _safe(self.t) - self.t * self.B.gather(self._K(idle))
        found = self._solve(torch.cat([first, second], -1))
        return (
            self._joined(self.A, self.s * found[:, : self.k], idle, self.X),
            self._joined(self.B, self.t * found[:, self.k :], still, self.Y),
        )

    def _joined(self, columns: Columns, part: Tensor, idle: Tensor, facet: Facet) -> Var:
        whole = columns.scatter(part, idle.shape[-1]) + idle
        return unflatten(facet.rows, facet.out(whole))

    def solve_transposed(self, xi: tuple[Var, ...]) -> tuple[Var, ...]:
        """u with (I − J)ᵀu = ξ, for ξ and u like z; the last one is remembered."""
        if self._last is None or not tree.equal(self._last[0], xi):
            self._last = tree.copy(xi), self._transposed(xi)
        return self._last[1]

    def _transposed(self, xi: tuple[Var, ...]) -> tuple[Var, ...]:
        a = self.X.into(flatten(self.X.rows, xi[0]))
        right = self.s * self.A.gather(a)
        if self.Y is None or self.B is None:
            c = self._solve(right)
            moved = self.A.scatter(self.s * c, a.shape[-1])
            idle = torch.where(_moves(self.X), 0.0, a - self._H(moved))
            return (self._joined(self.A, c / _safe(self.s), idle, self.X),)
        b = self.Y.into(flatten(self.Y.rows, xi[1]))
        c = self._solve(torch.cat([right, self.t * self.B.gather(b)], -1))
        first, second = c[:, : self.k], c[:, self.k :]
        moved = self.A.scatter(self.s * first, a.shape[-1])
        turned = self.B.scatter(self.t * second, b.shape[-1])
        pulled = self._Kt(turned)
        idle = torch.where(_moves(self.X), 0.0, a - self._H(moved) - pulled)
        still = torch.where(_moves(self.Y), 0.0, b - self._K(moved))
        v = self.A.scatter(first / _safe(self.s), a.shape[-1]) + idle
        w = self.B.scatter(-second / _safe(self.t), b.shape[-1]) + still
        v = v - 2 * self._Kt(self.sigma * self.Y.p * w)
        return (
            unflatten(self.X.rows, self.X.out(v)),
            unflatten(self.Y.rows, self.Y.out(w)),
        )


def _spread(step: Any, like: Var, rows: Rows) -> Tensor:
    """A step as rows that broadcast against those of a variable."""
    if isinstance(step, Tensor) and step.ndim == 0:
        return step.reshape(1, 1).to(tree.leaves(like)[0])
    if not isinstance(step, Tensor | tuple):
        return torch.full((1, 1), float(step)).to(tree.leaves(like)[0])
    steps = step if isinstance(step, tuple) else tree.tree_map(lambda _: step, like)
    spread = tree.tree_map(lambda t, s: torch.as_tensor(s).to(t).expand(t.shape), like, steps)
    return flatten(rows, spread)


def _shift(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps ** 0.7)


def _least(facet: Facet) -> float:
    """Eigenvalues up to which a direction does not move: eigenvectors bring rounding."""
    return float(torch.finfo(facet.p.dtype).eps ** 0.6) if facet.turns else 0.0


def _moves(facet: Facet) -> Tensor:
    return facet.p > _least(facet)


def _chosen(facet: Facet) -> Columns:
    """The coordinates that move, padded to the largest number in the batch."""
    mask = _moves(facet)
    turn = facet.out if facet.turns else None
    if len(mask) == 1:
        index = mask[0].nonzero().reshape(1, -1)
        return Columns(facet.rows, index, torch.ones_like(index, dtype=torch.bool), turn)
    count = int(mask.sum(-1).amax()) if mask.numel() else 0
    index = mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :count]
    return Columns(facet.rows, index, mask.gather(-1, index), turn)


def _units(columns: Columns, size: int) -> list[Tensor]:
    """The chosen unit vectors, as rows for all elements."""
    out = []
    for j in range(columns.count):
        unit = torch.zeros(*columns.index.shape[:1], columns.count, device=columns.index.device)
        unit[:, j] = 1
        out.append(columns.scatter(unit.to(tree.leaves(columns.rows.like)[0]), size))
    return out


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)
