"""Linear programs as a layer, and what to use in place of a derivative that is zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from legato._support.checks import require_iterations, require_positive
from legato._support.precision import full_precision, out_of_autocast
from legato._support.telling import tell
from legato.errors import InexactGradientWarning, InputError
from legato.nn.programs.data import NAMES
from legato.nn.programs.entropic import solve_entropic
from legato.nn.programs.intervals import batch_of, solve_between
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.quadratic import QuadraticProgram
from legato.nn.programs.sparse_data import identity, is_sparse, understood
from legato.nn.programs.words import tell_choice
from legato.operators import Sparse

_NO_START = (
    "{0}(…) has no use for a start: it begins at a point inside, or solves many programs. Leave "
    "start out."
)


_LITTLE, _SAME = 1e-5, 1e-4
"""By how much a cost is moved to see whether x is unique, and what is the same x."""


class LinearGradient:
    """What a :class:`LinearProgram` does about its derivative.

    One of :class:`Ridge`, :class:`Entropic`, :class:`LPGD` and :class:`Perturbed`.
    """


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

    Where multipliers of active inequalities are zero, two more solves find out whether x is unique;
    where it is not, a warning says so, and the difference starts from one choice.

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


@dataclass(frozen=True)
class Entropic(LinearGradient):
    r"""Solve a smooth neighbour of the program, inside of all inequalities, and differentiate that.

    .. math:: x_w = \arg\min_x\; c^⊤x + w Φ(x), \quad Φ(x) = \sum_i s_i \log s_i

    s are the slacks of all inequalities, h − Gx, x − lo and hi − x. The bias comes first: x_w is
    not the solution x* of the linear program, but its objective is too large by at most
    w (Φ(x*) − Φ(x_w)), w log n on a simplex, where x_w is softmax(−c/w). It leaves every vertex,
    however small w is, by slacks of about exp(−1 − z/w) for a multiplier z: the derivative in c is
    never quite zero, and useful where w is about as large as differences of costs.

    Reference: Fang (1992); Cuturi (2013).

    >>> c = torch.tensor([1.0, 1.2], requires_grad=True)
    >>> x = LinearProgram(Entropic(0.2))(c, A=torch.ones(1, 2), b=torch.ones(1), lo=0.0)
    >>> x
    tensor([0.7311, 0.2689], grad_fn=<...>)
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self.weight, "weight")


@dataclass(frozen=True)
class Perturbed(LinearGradient):
    r"""The mean of the solutions for costs with noise, and the derivative of its expectation.

    .. math:: x_σ = E\, x^*(c + σZ), \quad
              ∂_c x_σ = \frac{1}{σ} E\, x^*(c + σZ) Z^⊤, \quad Z ∼ N(0, I)

    The bias comes first: x_σ is no vertex, and its objective is too large by at most
    σ E max_x (−Zᵀx), which grows in proportion to σ. Of the smoothed program's derivative the
    estimate has no bias, but noise: about 1/√samples, relative, times the root of the number of
    variables. Other data get the mean of the exact derivatives of the samples.

    Args:
        sigma (float): the size of the noise, in units of the cost. Default: 1.0
        samples (int): programs solved for each one, at least 2. Default: 64
        generator (torch.Generator, optional): on the CPU, to repeat the noise. Default: torch's own

    Reference: Berthet et al. (2020).

    >>> c = torch.tensor([1.0, 1.2], requires_grad=True)
    >>> noise = Perturbed(0.5, samples=100, generator=torch.Generator().manual_seed(0))
    >>> x = LinearProgram(noise)(c, A=torch.ones(1, 2), b=torch.ones(1), lo=0.0)
    >>> bool(x.detach()[0] > x.detach()[1] > 0)
    True
    """

    sigma: float = 1.0
    samples: int = 64
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require_positive(self.sigma, "sigma")
        require_iterations(self.samples, "Perturbed")
        if self.samples < 2:
            raise InputError("Perturbed needs at least 2 samples, to take their mean away.")

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Noise of unit variance for each sample."""
        size = (self.samples, *shape)
        Z = torch.randn(size, generator=self.generator, dtype=like.dtype, device="cpu")
        return Z.to(like.device)

    def mean(self, x: Tensor, Z: Tensor, cost: Tensor) -> Tensor:
        """The mean of solutions for costs with the noise Z, in the graph of the cost."""
        mean = x.mean(0)
        if not (torch.is_grad_enabled() and cost.requires_grad):
            return mean
        # Zero in value. Less their mean, samples say the same with less noise.
        away = (x - mean).detach() * (self.samples / (self.samples - 1) / self.sigma)
        along = (Z * (cost - cost.detach())).sum(-1, keepdim=True)
        return mean + (away * along).mean(0)


class LinearProgram(nn.Module):
    r"""The solution of a linear program.

    .. math:: x = \arg\min_x\; c^⊤x \quad \text{s.t.}\quad Ax = b,\; Gx ≤ h,\; lo ≤ x ≤ hi

    A vertex does not move with c: the derivative in c is zero almost everywhere, and a warning says
    so once. ``gradient`` is what to use instead. In the constraints' data the derivative is exact.
    A and G may be sparse, as for :class:`QuadraticProgram`.

    Defaults: ``iterations=100``, ``tol=1e-8``.

    Args:
        gradient (LinearGradient, optional): :class:`Ridge`, :class:`Entropic`, :class:`LPGD` or
            :class:`Perturbed`. Default: None, the exact derivative
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
        if gradient is not None and not isinstance(gradient, Ridge | Entropic | LPGD | Perturbed):
            raise InputError(
                "gradient must be Ridge(…), Entropic(…), LPGD(…), Perturbed(…) or None, not "
                f"{gradient!r}."
            )
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
        start: ProgramOutput | None = None,
    ) -> ProgramOutput:
        """The full record, as of :meth:`QuadraticProgram.solve`, and with a start as there.

        :class:`Entropic` and :class:`Perturbed` take no start.
        """
        if not isinstance(c, Tensor) or c.ndim == 0:
            raise InputError("LinearProgram needs the cost c, a tensor (…, n).")
        given = dict(zip(NAMES, (None, c, A, b, G, h, lo, hi), strict=True))
        given = understood(given, "LinearProgram")
        if isinstance(self.gradient, Perturbed):
            if start is not None:
                raise InputError(_NO_START.format("Perturbed"))
            return _mean(self._solver[0], self.gradient, given, (lower, upper))
        return solve_between(self._solve, given, (lower, upper), start, "LinearProgram")

    def _solve(
        self, given: dict[str, Any], absent: Tensor | None, start: ProgramOutput | None
    ) -> ProgramOutput:
        (solver,), c = self._solver, given["c"]
        if isinstance(self.gradient, Ridge):
            Q = _multiple_of_identity(self.gradient.weight, c, given)
            return solver._solve(given | {"Q": Q}, absent, start)
        if isinstance(self.gradient, Entropic):
            if start is not None:
                raise InputError(_NO_START.format("Entropic"))
            limits = solver.iterations, solver.tol
            with full_precision():
                return solve_entropic(given, absent, self.gradient.weight, limits)
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
                told = any(t is not None and t.requires_grad for t in data[1:])
                many = _many(solver, given, absent, record)
                tell_choice(record, many, "LinearProgram", told)
                again = partial(_again, solver, fixed, absent, record)
                x = _Envelope.apply(  # type: ignore[no-untyped-call]
                    again, self.gradient.tau, record, *data
                )
                record = replace(record, x=x)
            return record
        if torch.is_grad_enabled() and c.requires_grad and not self._said:
            self._said = True
            tell(
                "LinearProgram: a vertex does not move with its cost, so the gradient in c is zero "
                "almost everywhere. To learn costs use LinearProgram(Ridge(…)) or Entropic(…), "
                "which solve a smooth neighbour, LinearProgram(LPGD(…)), which takes a difference "
                "of two solves, or LinearProgram(Perturbed(…)), a mean over noise. This is said "
                "once for each layer.",
                InexactGradientWarning,
            )
        return solver._solve(given, absent, start)


class _Quiet(QuadraticProgram):
    """The solver behind the layer, which speaks in its name."""


_Quiet.__name__ = "LinearProgram"


def _mean(
    solver: QuadraticProgram,
    noise: Perturbed,
    given: dict[str, Any],
    ends: tuple[Tensor | float | None, Tensor | float | None],
) -> ProgramOutput:
    """The mean over costs with noise, in the graph of the cost by the noise alone."""
    if is_sparse(given):
        raise InputError(
            "Perturbed solves a batch of programs, and sparse ones are solved one at a time: give "
            "dense matrices, or use LPGD(…)."
        )
    c = out_of_autocast(given["c"])
    if not c.is_floating_point():
        raise InputError(f"c is {c.dtype}, but LinearProgram takes float32 or float64.")
    # Where shapes do not fit one another it is that of the cost, and the solver names them.
    batch = batch_of(given | dict(zip(("lower", "upper"), ends, strict=True)), c)
    cost = c.expand(*batch, c.shape[-1])
    Z = noise.draw(tuple(cost.shape), c)
    # With an axis of samples before the ends are put together: each has multipliers of its own.
    noisy = given | {"c": cost.detach() + noise.sigma * Z}
    record = solve_between(solver._solve, noisy, ends, None, "LinearProgram")
    mean = noise.mean(record.x, Z, cost)
    kept: dict[str, Tensor] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name in ("primal", "dual", "gap", "status", "iterations"):
            kept[field.name] = value.amax(0)
        elif value.dtype == torch.bool:
            kept[field.name] = value.any(0)
        else:
            kept[field.name] = value.amin(0) if field.name == "margin" else value.mean(0)
    return ProgramOutput(**kept | {"x": mean})


def _many(
    solver: QuadraticProgram, given: dict[str, Any], absent: Tensor | None, record: ProgramOutput
) -> Tensor:
    """Where x is not unique: costs moved a little, one way and the other, show another one.

    A multiplier of zero alone does not say so: where more constraints meet in a vertex than need
    be, as in assignments, multipliers are not unique, and x may well be.
    """
    many = (record.tied | record.loose) & record.solved
    if not bool(many.any()):
        return many
    c = given["c"].detach()
    chance = torch.Generator().manual_seed(0)
    g = torch.rand(c.shape[-1:], generator=chance, dtype=torch.float64, device="cpu")
    step = _LITTLE * (0.5 + g.to(c)) * c.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    size = record.x.abs().amax(-1, keepdim=True)
    same = torch.ones_like(many)
    with torch.no_grad():
        for moved in (c + step, c - step):
            x = solver._solve(given | {"c": moved}, absent, record, silent=True).x
            same &= ((x - record.x).abs() <= _SAME * size).all(-1)
    return many & ~same


def _again(
    solver: QuadraticProgram,
    fixed: dict[str, Sparse],
    absent: Tensor | None,
    start: ProgramOutput,
    given: dict[str, Any],
) -> ProgramOutput:
    return solver._solve(given | fixed, absent, start)


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
        # What nothing depends on has no gradient, whichever solution the second solve chose; an
        # instance without a solution has multipliers that prove it, and say nothing else.
        there = torch.isfinite(at.x).all(-1) & torch.isfinite(moved.x).all(-1)
        asked = (xi != 0).any(-1)

        def known(change: Tensor) -> Tensor:
            shape = (*there.shape, *(1,) * (change.ndim - there.ndim))
            blank = torch.where(there.reshape(shape), change, torch.nan)
            return torch.where(asked.reshape(shape), blank, 0.0)

        wanted = ctx.needs_input_grad[3:]
        grads = [
            (known(change) / ctx.tau).sum_to_size(given.shape)
            if need and given is not None
            else None
            for change, given, need in zip(changes, ctx.given, wanted, strict=True)
        ]
        return None, None, None, *grads
