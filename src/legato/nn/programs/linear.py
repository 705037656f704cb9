"""Linear programs as a layer, and what to use in place of a derivative that is zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from legato._support.checks import require_positive
from legato._support.telling import tell
from legato.errors import InexactGradientWarning, InputError
from legato.nn.programs.data import NAMES
from legato.nn.programs.intervals import solve_between
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.quadratic import QuadraticProgram
from legato.nn.programs.sparse_data import identity, understood
from legato.operators import Sparse


class LinearGradient:
    """What a :class:`LinearProgram` does about its derivative: :class:`Ridge`, :class:`LPGD`."""


@dataclass(frozen=True)
class Ridge(LinearGradient):
    r"""Solve a strictly convex neighbour of the program, and differentiate that exactly.

    .. math:: x_w = \arg\min_x\; c^⊤x + \tfrac{w}{2}‖x‖²

    The bias comes first: x_w is not the solution x* of the linear program. Its objective is too
    large by at most w/2·(‖x*‖² − ‖x_w‖²). For w small enough x_w is the vertex of least norm, and
    the derivative in c is zero again (Mangasarian and Meyer, 1979): w has to be large enough to
    leave the vertex.

    >>> c = torch.tensor([1.0, 1.2], requires_grad=True)
    >>> x = LinearProgram(Ridge(0.5))(c, A=torch.ones(1, 2), b=torch.ones(1), lo=0.0)
    >>> x
    tensor([0.7000, 0.3000], grad_fn=<...>)
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self.weight, "weight")


@dataclass(frozen=True)
class LPGD(LinearGradient):
    r"""The exact solution forward, and backward the difference of two solves.

    .. math:: ∂_c ≈ (x_τ − x^*)/τ, \quad
              x_τ = \arg\min_x\; (c + τξ)^⊤x

    ξ is the gradient of the loss in x, and other data get the difference of the Lagrangian's
    derivatives. It is no derivative of the solution, which is zero, but of an envelope of the loss
    that bends over distances of τ: large τ see far, small ones nothing. Choose τ·|ξ| about as large
    as differences of costs.

    Reference: Vlastelica et al. (2020); Paulus, Martius and Musil (2024).

    >>> c = torch.tensor([1.0, 1.2], requires_grad=True)
    >>> x = LinearProgram(LPGD(1.0))(c, A=torch.ones(1, 2), b=torch.ones(1), lo=0.0)
    >>> x.detach()
    tensor([1., 0.])
    >>> x[0].backward()  # less of x₁: make it dearer, and the other one cheaper
    >>> c.grad
    tensor([-1.,  1.])
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self.tau, "tau")


class LinearProgram(nn.Module):
    r"""The solution of a linear program.

    .. math:: x = \arg\min_x\; c^⊤x \quad \text{s.t.}\quad Ax = b,\; Gx ≤ h,\; lo ≤ x ≤ hi

    A vertex does not move with c: the derivative in c is zero almost everywhere, and a warning says
    so once. ``gradient`` is what to use instead. In the constraints' data the derivative is exact.
    A and G may be sparse, as for :class:`QuadraticProgram`.

    Defaults: ``iterations=100``, ``tol=1e-8``.

    Args:
        gradient (LinearGradient, optional): :class:`Ridge` or :class:`LPGD`. Default: None, the
            exact derivative
        iterations (int): as for :class:`QuadraticProgram`. Default: 100
        tol (float): as for :class:`QuadraticProgram`. Default: 1e-8

    Shape:
        - c: (…, n). A: (…, p, n), b: (…, p). G: (…, m, n), h: (…, m). lo, hi: (…, n) or numbers
        - lower, upper: (…, m) or numbers, in place of h, for lower ≤ Gx ≤ upper

    Returns:
        Tensor: x (…, n).

    >>> c = torch.tensor([2.0, 1.0, 3.0])
    >>> LinearProgram()(c, A=torch.ones(1, 3), b=torch.ones(1), lo=0.0)
    tensor([0., 1., 0.])
    """

    def __init__(
        self, gradient: LinearGradient | None = None, *, iterations: int = 100, tol: float = 1e-8
    ) -> None:
        super().__init__()
        if gradient is not None and not isinstance(gradient, Ridge | LPGD):
            raise InputError(f"gradient must be Ridge(…), LPGD(…) or None, not {gradient!r}.")
        self.gradient = gradient
        self._solver = [_Quiet(iterations, tol=tol)]  # in a list: no submodule of its own
        self._said = False

    def extra_repr(self) -> str:
        return f"gradient={self.gradient!r}, {self._solver[0].extra_repr()}"

    def forward(
        self,
        c: Tensor,
        A: Tensor | None = None,
        b: Tensor | None = None,
        G: Tensor | None = None,
        h: Tensor | None = None,
        lo: Tensor | float | None = None,
        hi: Tensor | float | None = None,
        *,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
    ) -> Tensor:
        """Solve the programs.

        Args:
            c (Tensor): (…, n).
            A (Tensor, optional): (…, p, n), with b.
            b (Tensor, optional): (…, p).
            G (Tensor, optional): (…, m, n), with h.
            h (Tensor, optional): (…, m), +∞ where a row does not count.
            lo (Tensor or float, optional): (…, n), −∞ where there is no bound.
            hi (Tensor or float, optional): (…, n), +∞ where there is no bound.
            lower (Tensor or float, optional): (…, m), in place of h: lower ≤ Gx.
            upper (Tensor or float, optional): (…, m), in place of h: Gx ≤ upper.

        Returns:
            Tensor: x (…, n).
        """
        return self.solve(c, A, b, G, h, lo, hi, lower=lower, upper=upper).x

    def solve(
        self,
        c: Tensor,
        A: Tensor | None = None,
        b: Tensor | None = None,
        G: Tensor | None = None,
        h: Tensor | None = None,
        lo: Tensor | float | None = None,
        hi: Tensor | float | None = None,
        *,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
    ) -> ProgramOutput:
        """The full record, as of :meth:`QuadraticProgram.solve`."""
        if not isinstance(c, Tensor) or c.ndim == 0:
            raise InputError("LinearProgram needs the cost c, a tensor (…, n).")
        given = dict(zip(NAMES, (None, c, A, b, G, h, lo, hi), strict=True))
        given = understood(given, "LinearProgram")
        return solve_between(self._solve, given, (lower, upper), None, "LinearProgram")

    def _solve(
        self, given: dict[str, Any], absent: Tensor | None, start: ProgramOutput | None
    ) -> ProgramOutput:
        (solver,), c = self._solver, given["c"]
        if isinstance(self.gradient, Ridge):
            Q = _multiple_of_identity(self.gradient.weight, c, given)
            return solver._solve(given | {"Q": Q}, absent, start)
        if isinstance(self.gradient, LPGD):
            given = {name: _as_tensor(value, c) for name, value in given.items()}
            with torch.no_grad():
                record = solver._solve(given, absent, start)
            fixed = {name: value for name, value in given.items() if isinstance(value, Sparse)}
            data = [None if name in fixed else given[name] for name in NAMES[1:]]
            if torch.is_grad_enabled() and any(S.values.requires_grad for S in fixed.values()):
                raise InputError(
                    "LPGD has no gradient in the values of a sparse matrix: detach them, or give a "
                    "dense matrix."
                )
            if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in data):
                again = partial(_again, solver, fixed, absent)
                x = _Envelope.apply(  # type: ignore[no-untyped-call]
                    again, self.gradient.tau, record, *data
                )
                record = replace(record, x=x)
            return record
        if torch.is_grad_enabled() and c.requires_grad and not self._said:
            self._said = True
            tell(
                "LinearProgram: a vertex does not move with its cost, so the gradient in c is zero "
                "almost everywhere. To learn costs use LinearProgram(Ridge(…)), which solves a "
                "smooth neighbour, or LinearProgram(LPGD(…)), which takes a difference of two "
                "solves. This is said once for each layer.",
                InexactGradientWarning,
            )
        return solver._solve(given, absent, start)


class _Quiet(QuadraticProgram):
    """The solver behind the layer, which speaks in its name."""


_Quiet.__name__ = "LinearProgram"


def _again(
    solver: QuadraticProgram, fixed: dict[str, Sparse], absent: Tensor | None, given: dict[str, Any]
) -> ProgramOutput:
    return solver._solve(given | fixed, absent, None)


def _multiple_of_identity(weight: float, c: Tensor, given: dict[str, Any]) -> Tensor | Sparse:
    sparse = next((v for v in given.values() if isinstance(v, Sparse)), None)
    if sparse is not None:
        return identity(c.shape[-1], weight, sparse)
    return weight * torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)


def _as_tensor(value: Any, c: Tensor) -> Any:
    """A bound that was given as a number, as a tensor."""
    if isinstance(value, int | float):
        return torch.full(c.shape[-1:], float(value), dtype=c.dtype, device=c.device)
    return value


class _Envelope(torch.autograd.Function):
    """x forward; backward the difference quotient of the Lagrangian's derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        again: Callable[[dict[str, Any]], ProgramOutput],
        tau: float,
        record: ProgramOutput,
        *given: Tensor | None,
    ) -> Tensor:
        ctx.again, ctx.tau, ctx.record = again, tau, replace(record, x=record.x.clone())
        ctx.given = [None if t is None else t.detach().clone() for t in given]
        return record.x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, xi: Tensor) -> Any:
        c, *rest = ctx.given
        moved = ctx.again(dict(zip(NAMES, (None, c + ctx.tau * xi, *rest), strict=True)))
        at = ctx.record

        def outer(multiplier: str) -> Tensor:
            ends = [getattr(r, multiplier).unsqueeze(-1) * r.x.unsqueeze(-2) for r in (moved, at)]
            return ends[0] - ends[1]

        changes = [
            moved.x - at.x,
            outer("y"),
            at.y - moved.y,
            outer("z"),
            at.z - moved.z,
            moved.z_lo - at.z_lo,
            at.z_hi - moved.z_hi,
        ]
        wanted = ctx.needs_input_grad[3:]
        grads = [
            (change / ctx.tau).sum_to_size(given.shape) if need and given is not None else None
            for change, given, need in zip(changes, ctx.given, wanted, strict=True)
        ]
        return None, None, None, *grads
