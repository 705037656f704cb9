"""How the steps of a primal–dual iteration follow from its problem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, holds, is_concrete
from legato._support.constants import held_constant
from legato._support.later import later
from legato._support.tree import Var, expand_over, tree_map
from legato.algorithms.ruiz import Ruiz
from legato.algorithms.start import as_bound, as_step, constant_where_coupled
from legato.errors import InputError, StepError
from legato.functions import Function, Separable
from legato.geometry import Geometry
from legato.operators import Stack
from legato.problems import Saddle


class Steps(NamedTuple):
    """τ and σ: numbers, tensors, or tuples of them for tuple variables."""

    tau: Any
    sigma: Any


class Units(NamedTuple):
    """What steps are made of besides the balance: 1/τ = coupling/r + smooth and σ = dual/r."""

    coupling: Any
    smooth: Any
    dual: Any

    def at(self, balance: Tensor, x: Var, y: Var) -> Steps:
        """τ and σ, with a balance for each element of the batch of x and y."""
        tau = tree.map_steps(lambda k: 1 / (k + self.smooth), over(self.coupling, balance, x))
        return Steps(tau, over(self.dual, balance, y))


@dataclass(frozen=True, eq=False)
class StepRule:
    r"""Steps with (m/τ − L_f)·(n/σ) ≥ ‖K‖², where they are not given.

    .. math:: τ_j = \frac{m}{k_j/r + L_f}, \qquad σ_i = \frac{n}{r\, l_i}

    k and l are ‖K‖, or sizes of the columns and rows of K where steps are diagonal; m and n are the
    moduli of ψ and φ. Entries that a prox couples share one step. The fields are those of
    :class:`PrimalDual`. Reference: Pock and Chambolle (2011).
    """

    geometry: Geometry
    dual_geometry: Geometry
    tau: Tensor | float | None
    sigma: Tensor | float | None
    balance: Tensor | float
    norm: Tensor | float | None
    precondition: bool
    scaling: Ruiz | None

    def steps(self, problem: Saddle, x: Var, image: Var) -> Steps:
        """Attached to what they follow from, so far as norms are (see ``Operator.norm``)."""
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        if self.is_diagonal:
            return self._diagonal_steps(problem, x, image, L)
        K = self._size(problem, x)
        if self.tau is not None and self.sigma is not None:
            later(partial(self._require_stable, problem, K, L))
            given = (self.tau, self.sigma)
            return Steps(*(as_step(s, like) for s in given))
        m, n = self._require_moduli(problem)
        K_x, K_y = self._for_primal(problem, K), self._for_dual(problem, K)
        dual = problem.conjugate
        if self.tau is not None:
            tau = as_bound(self.tau, like)
            room = m / tau - L
            if not holds(room > 0):
                raise StepError(
                    f"tau = {as_number(tau.amax()):g} must be below 1/L_f = "
                    f"{m / as_number(L.amax()):g}."
                )
            least = room.amin() if room.ndim else room
            return Steps(tau, tree_map(lambda k: n * least / k**2, K_y))
        if self.sigma is not None:
            sigma = as_bound(self.sigma, like)
            most = sigma.amax()
            bound = constant_where_coupled(most * K_x**2 / n + L, problem.nonsmooth, x)
            return Steps(m / bound, sigma)
        if isinstance(self.balance, Tensor) and self.balance.ndim:  # one for each of a batch
            L, K_x = (constant_where_coupled(t, problem.nonsmooth, x) for t in (L, K_x))
            units = Units(K_x / m, L / m, _dual_steps(dual, image, K_y, 1.0, n))
            return units.at(self._one_each(problem, x), x, image)
        bound = constant_where_coupled(K_x / self.balance + L, problem.nonsmooth, x)
        return Steps(m / bound, _dual_steps(dual, image, K_y, self.balance, n))

    def _one_each(self, problem: Saddle, x: Var) -> Tensor:
        """The balance, whose shape is that of the batch."""
        balance, batch = self.balance, tree.leaves(x)[0].shape[: problem.batch(x)]
        assert isinstance(balance, Tensor)
        if balance.shape != batch:
            raise InputError(
                f"A balance is a number, or one for each element of the batch {tuple(batch)}, not "
                f"a tensor of shape {tuple(balance.shape)}."
            )
        return balance

    def units(self, problem: Saddle, x: Var, image: Var) -> Units:
        """The same in parts, for a balance that adapts: m = n = 1."""
        held_constant(problem)  # the balance follows from iterates
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        L = constant_where_coupled(L, problem.nonsmooth, x)
        if self.is_diagonal:
            columns, rows = self._diagonal_sizes(problem, x, image)
            along = _diagonal(problem.nonsmooth, columns, 1.0, 0.0, 1.0)
            dual = _diagonal(problem.conjugate, rows, 1.0, 0.0, 1.0)
            return Units(tree_map(torch.reciprocal, along), L, dual)
        K = self._size(problem, x)
        coupling = constant_where_coupled(self._for_primal(problem, K), problem.nonsmooth, x)
        dual = _dual_steps(problem.conjugate, image, self._for_dual(problem, K), 1.0, 1.0)
        return Units(coupling, L, dual)

    @property
    def is_diagonal(self) -> bool:
        return self.precondition or self.scaling is not None

    def _size(self, problem: Saddle, x: Var) -> Tensor:
        """‖K‖, or 1 where K = 0 couples nothing and any step will do."""
        K = problem.operator.norm(x) if self.norm is None else self.norm
        K = as_bound(K, tree.leaves(x)[0])
        return torch.where(K > 0, K, torch.ones_like(K))

    def _for_primal(self, problem: Saddle, K: Tensor) -> Tensor:
        """‖K‖ such that it broadcasts against x: it has the shape of the batch."""
        axes = problem.operator.coupled
        return torch.as_tensor(expand_over(K, 0 if axes is None else axes[0]))

    def _for_dual(self, problem: Saddle, K: Tensor) -> Var:
        """‖K‖ such that it broadcasts against Kx, block by block of a stack."""
        if K.ndim == 0 or problem.operator.coupled is None:
            return K
        if isinstance(problem.operator, Stack):
            seen = problem.operator.coupled[0]
            parts = ((part, part.coupled or (seen, seen)) for part in problem.operator.operators)
            # A part that couples fewer axes than the stack keeps the others as axes of its image.
            return tuple(expand_over(K, out + seen - own) for _, (own, out) in parts)
        return torch.as_tensor(expand_over(K, problem.operator.coupled[1]))

    def _lipschitz(self, problem: Saddle, like: Tensor) -> Tensor:
        L = problem.smooth.lipschitz()
        if L is None:
            if self.tau is None or self.sigma is None:
                raise StepError(
                    f"No steps can be derived: the Lipschitz constant of "
                    f"{problem.smooth!r} is unknown. Give tau and sigma with (1/tau − L)/sigma ≥ "
                    "‖K‖², or the constant, as in Smooth(callable, constant=L)."
                )
            L = 0.0
        return as_bound(L, like)

    def _moduli(self, problem: Saddle) -> tuple[Any, Any]:
        return (
            self.geometry.modulus(problem.nonsmooth.bounds()),
            self.dual_geometry.modulus(problem.conjugate.bounds()),
        )

    def _require_moduli(self, problem: Saddle) -> tuple[Any, Any]:
        moduli = self._moduli(problem)
        if None in moduli:
            first = moduli[0] is None
            geometry = self.geometry if first else self.dual_geometry
            term = problem.nonsmooth if first else problem.conjugate
            raise StepError(
                f"No steps can be derived: how strongly convex {geometry!r} is on the domain of "
                f"{term!r} is unknown. Give both tau and sigma."
            )
        return moduli

    def _require_stable(self, problem: Saddle, K: Tensor, L: Tensor) -> None:
        """Refuse given steps that violate their condition, as far as it is known."""
        m, n = self._moduli(problem)
        if m is None or n is None or not is_concrete():
            return
        tau = torch.as_tensor(self.tau, dtype=K.dtype).detach().to(K)
        sigma = torch.as_tensor(self.sigma, dtype=K.dtype).detach().to(K)
        if sigma.numel() > 1:  # it broadcasts against y, the rest against x
            sigma = sigma.amin()
        K = self._for_primal(problem, K)
        room = (m / tau - L) * n / sigma
        if not holds(room >= K**2 * (1 - 1e-5)):
            raise StepError(
                f"tau = {as_number(tau.amax()):g} and sigma = {as_number(sigma):g} violate "
                f"(1/tau − L_f)/sigma ≥ ‖K‖²: the left side is {as_number(room.amin()):g}, the "
                f"right {as_number(K.amax()) ** 2:g} (L_f = {as_number(L.amax()):g}). Take smaller "
                "steps, or leave both None to have them derived; if another norm of K fits your "
                "geometries, pass norm=…"
            )

    def _diagonal_steps(self, problem: Saddle, x: Var, image: Var, L: Tensor) -> Steps:
        if isinstance(self.balance, Tensor) and self.balance.ndim:
            raise InputError("Diagonal steps need one number as balance, not one for each element.")
        m, n = self._require_moduli(problem)
        columns, rows = self._diagonal_sizes(problem, x, image)
        return Steps(
            _diagonal(problem.nonsmooth, columns, 1 / self.balance, L, m),
            _diagonal(problem.conjugate, rows, self.balance, 0.0, n),
        )

    def _diagonal_sizes(self, problem: Saddle, x: Var, image: Var) -> tuple[Var, Var]:
        """k_j and l_i: sums of |K_ij| over columns and rows, or what a scaling has instead."""
        if self.scaling is not None:
            held_constant(problem)
            return self.scaling.sizes(problem.operator, x, image)
        absolute = problem.operator.absolute()
        columns = tree_map(torch.abs, absolute.adjoint(tree_map(torch.ones_like, image)))
        rows = tree_map(torch.abs, absolute(tree_map(torch.ones_like, x)))
        return columns, rows


def _dual_steps(dual: Function, image: Var, K: Var, balance: Any, modulus: Any) -> Var:
    """σ = n/(r‖K‖), constant where the prox of h* couples entries."""
    if isinstance(K, tuple):
        blocks = dual.blocks if isinstance(dual, Separable) else (dual,) * len(K)
        parts = zip(blocks, image, K, strict=True)
        return tuple(_dual_steps(b, part, k, balance, modulus) for b, part, k in parts)
    return modulus / (balance * constant_where_coupled(K, dual, image))


def _diagonal(term: Function, sums: Var, scale: Any, extra: Any, modulus: Any) -> Var:
    """m/(scale·sums + extra), made constant along axes that the prox of ``term`` couples."""
    if isinstance(sums, tuple):
        blocks = term.blocks if isinstance(term, Separable) else (term,) * len(sums)
        parts = zip(blocks, sums, strict=True)
        return tuple(_diagonal(block, part, scale, extra, modulus) for block, part in parts)
    total = constant_where_coupled(sums * scale + extra, term, sums)
    return modulus / torch.where(total > 0, total, torch.ones_like(total))


def over(size: Any, balance: Tensor, like: Var) -> Any:
    """size/r for a variable; one for each of its parts where r differs along a batch."""
    if isinstance(size, tuple) or (isinstance(like, tuple) and balance.ndim):
        sizes = size if isinstance(size, tuple) else (size,) * len(like)
        pairs = zip(sizes, like, strict=True)
        return tuple(over(part, balance, t) for part, t in pairs)
    axes = 0 if isinstance(like, tuple) else like.ndim - balance.ndim
    return size / expand_over(balance, axes)
