"""Quadratic programs as a layer."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.checks import require_iterations, require_positive
from legato._support.precision import full_precision
from legato.errors import InputError
from legato.nn.programs.active_set import ActiveSystem, active_system, margin
from legato.nn.programs.data import (
    NAMES,
    Shapes,
    as_tensors,
    batched,
    require_convex,
    require_numbers,
    shapes_of,
)
from legato.nn.programs.derivative import Adjoint, Differentiable, Parts, System
from legato.nn.programs.intervals import EVEN, solve_between
from legato.nn.programs.output import ProgramOutput, residuals
from legato.nn.programs.program import Program, is_finite, times
from legato.nn.programs.replayed import replayed
from legato.nn.programs.scaling import Scaling, norms, scaled
from legato.nn.programs.solver import Found, ProgramStatus, solve
from legato.nn.programs.sparse_data import (
    is_sparse,
    patterns_of,
    program_of,
    read,
    understood,
)
from legato.nn.programs.strict import solve_strictly
from legato.nn.programs.words import tell_degenerate, tell_empty, tell_unsolved
from legato.operators import Sparse

_TIE = {torch.float32: 1e-6, torch.float64: 1e-8}
"""Slacks and multipliers below this, relative and in scaled units, are both zero."""


class QuadraticProgram(nn.Module):
    r"""The solution of a convex quadratic program, differentiable in all of its data.

    .. math:: x = \arg\min_x\; \tfrac12 x^⊤Qx + c^⊤x \quad
              \text{s.t.}\quad Ax = b,\; Gx ≤ h,\; lo ≤ x ≤ hi

    Every piece may be absent. Leading axes are batches and broadcast: a matrix without them is
    shared. Where Q is definite the active set is found in the multipliers, by a few factorisations
    for each instance (compiled on a CPU where Numba is installed); an interior point and Newton
    steps on the active set solve what is left: a semi-definite Q, ties, dependent constraints. One
    transposed solve of the same factored system gives the gradient. All of it is done in float64
    whatever the data's dtype, for such systems are too ill-conditioned for less.

    Q, A and G may be sparse, torch's or SciPy's or ``lg.Sparse``: one program at a time is then
    solved on a CPU by sparse factors, where SciPy is installed, and the gradient is that in the
    stored values; otherwise they are written out, with a warning. An ``Operator`` along the last
    axis is always written out, and the gradient reaches its parameters.

    Where there is no solution x is NaN, with a warning that names the instances; ``solve`` returns
    the proof. Where x is no differentiable function of its data (an active constraint without a
    multiplier, an x that is not unique) a warning says so when a gradient is asked for.

    Each constraint is judged by the size of its own terms. Sides far larger than others are left
    out at first, and looked at again; where one of them binds all the same, float64 may see too
    little of the others, and a warning says that the solve did not arrive: scale such data.

    Defaults: ``iterations=100``, ``tol=1e-8``.

    Args:
        iterations (int): guesses of the active set, or steps of the interior point, at most.
            Default: 100
        tol (float): relative residual (primal, dual, gap) up to which an instance counts as
            solved; mostly 1e-15 is reached. Default: 1e-8

    Shape:
        - Q: (…, n, n), symmetric and positive semi-definite. c: (…, n)
        - A: (…, p, n), b: (…, p). G: (…, m, n), h: (…, m)
        - lower, upper: (…, m) or numbers, in place of h, for lower ≤ Gx ≤ upper
        - lo, hi: (…, n) or numbers; infinite where there is no bound
        - Ends that are equal are an equation; its gradient goes to the end that holds x back, in
          halves to both where none does

    Returns:
        Tensor: x (…, n).

    Reference: Goldfarb and Idnani (1983); Júdice and Pires (1992); Mehrotra (1992); Hintermüller,
    Ito and Kunisch (2003); Amos and Kolter (2017).

    >>> c = torch.tensor([-1.0, -1.5], requires_grad=True)
    >>> total, one = torch.ones(1, 2), torch.ones(1)
    >>> x = QuadraticProgram()(torch.eye(2), c, G=total, h=one, lo=0.0)
    >>> x
    tensor([0.2500, 0.7500], grad_fn=<...>)
    """

    def __init__(self, iterations: int = 100, *, tol: float = 1e-8) -> None:
        super().__init__()
        require_iterations(iterations, type(self).__name__)
        require_positive(tol, "tol")
        self.iterations, self.tol = iterations, tol

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, tol={self.tol}"

    def forward(
        self,
        Q: Tensor | None = None,
        c: Tensor | None = None,
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
            Q (Tensor, optional): (…, n, n), symmetric and positive semi-definite.
            c (Tensor, optional): (…, n).
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
        return self.solve(Q, c, A, b, G, h, lo, hi, lower=lower, upper=upper).x

    def solve(
        self,
        Q: Tensor | None = None,
        c: Tensor | None = None,
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
        """The full record: x, multipliers, residuals, status and degeneracy, per instance.

        ``start`` is the record of a similar program: where its active constraints are nearly the
        right ones, a solve takes a step or two. The solution is the same.
        """
        given = dict(zip(NAMES, (Q, c, A, b, G, h, lo, hi), strict=True))
        name = type(self).__name__
        return solve_between(self._solve, understood(given, name), (lower, upper), start, name)

    def _solve(
        self,
        given: dict[str, Any],
        absent: Tensor | None,
        start: ProgramOutput | None,
        silent: bool = False,
    ) -> ProgramOutput:
        name = type(self).__name__
        Q: Tensor | None = None
        matrices: dict[str, Sparse] = {}
        if is_sparse(given):
            tensors, shapes, matrices = read(given, name)
            P = program_of(tensors, matrices, shapes.n, absent)
        else:
            tensors = as_tensors(given, name)
            shapes = shapes_of(tensors)
            require_numbers(tensors)
            P, Q = batched(tensors, shapes, absent), tensors.get("Q")
        differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
        like = next(iter(tensors.values()))
        with full_precision(), torch.no_grad():
            begin = None if start is None else active_of(start, P, shapes.batch)
            record, adjoint = solve_programs(P, Q, shapes, like, begin, self.iterations, self.tol)
        if not silent:
            tell_unsolved(record, name)
        if differentiated:
            about = any(k in tensors and tensors[k].requires_grad for k in NAMES[2:])
            tell_degenerate(record, name, about)
            if "G" in tensors and tensors["G"].requires_grad:
                tell_empty(_empty_rows(P, tensors["h"], shapes), name)
            data = [tensors.get(k) for k in NAMES]
            record.x = Differentiable.apply(  # type: ignore[no-untyped-call]
                adjoint, shapes.batch, patterns_of(matrices), record.x, *data
            )
        return record


def solve_programs(
    P: Program,
    Q: Tensor | None,
    shapes: Shapes,
    like: Tensor,
    begin: Tensor | None,
    iterations: int,
    tol: float,
) -> tuple[ProgramOutput, Adjoint]:
    """Solve a batch; its record has the dtype of the data.

    Args:
        P (Program): the batch, in float64.
        Q (Tensor, optional): its Q as it was given, if that is dense and not known to be convex.
        shapes (Shapes): the leading axes of the answer.
        like (Tensor): one of the data.
        begin (Tensor, optional): inequalities that may be active.
        iterations (int): as for the layer.
        tol (float): as for the layer.
    """
    pinned = P.pinned() if P.bounded else None
    if pinned is not None and not bool(pinned.any()):
        pinned = None
    folded = P if pinned is None else P.folded(pinned)
    inner, scaling, left = scaled(folded, pinned=pinned)
    measure, turn = scaling, torch.zeros_like(left)
    even, least = EVEN[like.dtype], _TIE[like.dtype]
    while True:
        first = None if begin is None else begin & inner.sides[1]
        found, system, (loose, dependent) = _solved(inner, iterations, least, Q, first)
        x, y, z, z_lo, z_hi, shown, ray, *numbers, again, any_again = replayed(
            _outcome, P, inner, pinned, scaling, measure, found, left, turn, tol, least
        )
        if not bool(any_again):
            break
        turn = torch.where(again, left, turn)
        inner, scaling, left = scaled(folded, turn, pinned)
    primal, dual, gap, status, there, nearest, tied = numbers
    _, lower, upper = inner.split(found.active)

    def out(value: Tensor) -> Tensor:
        kept = value.to(like.dtype) if value.is_floating_point() else value
        return kept.reshape((*shapes.batch, *value.shape[1:]))

    record = ProgramOutput(
        x=out(shown),
        y=out(y),
        z=out(z),
        z_lo=out(z_lo),
        z_hi=out(z_hi),
        ray=out(ray),
        primal=out(primal),
        dual=out(dual),
        gap=out(gap),
        status=out(status),
        iterations=out(found.iterations),
        margin=out(nearest),
        tied=out(tied),
        loose=out(loose & there),
        dependent=out(dependent & there),
    )
    adjoint = Adjoint(P, scaling, pinned, system, lower, upper, x, y, z, z_lo, z_hi, there, even)
    return record, adjoint


def _outcome(
    P: Program,
    inner: Program,
    pinned: Tensor | None,
    scaling: Scaling,
    measure: Scaling,
    found: Found,
    left: Tensor,
    turn: Tensor,
    tol: float,
    tie: float,
) -> tuple[Tensor, ...]:
    """The point in the given units, what it is, and where another turn is due."""
    x, y, z, z_lo, z_hi = _unfolded(P, pinned, scaling, found)
    primal, dual, gap, relative = residuals(P, measure, x, y, z, z_lo, z_hi)
    there = found.status == int(ProgramStatus.LIMIT)
    solved = there & (relative <= tol)
    status = found.status.masked_fill(solved, int(ProgramStatus.SOLVED))
    again = ~solved & (left > turn)
    # Without some of its constraints there is no point either: that is a proof.
    again &= (status != int(ProgramStatus.INFEASIBLE)) | (left == 1)
    nearest = margin(inner, found.x, found.z)
    tied = (nearest <= relative.clamp(min=tie)) & there
    shown = x.masked_fill(~there.unsqueeze(-1), torch.nan)
    ray = x.masked_fill((status != int(ProgramStatus.UNBOUNDED)).unsqueeze(-1), torch.nan)
    numbers = primal, dual, gap, status, there, nearest, tied
    return x, y, z, z_lo, z_hi, shown, ray, *numbers, again, again.any()


def _solved(
    P: Program, iterations: int, tie: float, Q: Tensor | None, begin: Tensor | None
) -> tuple[Found, System, tuple[Tensor, Tensor]]:
    """The points; their systems; where they are not unique, and where constraints depend.

    What is plain is read off the active set of the dual; the interior point takes the rest.
    """
    strict = None if Q is None else solve_strictly(P, iterations, tie, begin)
    if strict is None:
        if Q is not None:
            require_convex(Q.detach())
        found = solve(P, iterations, begin)
        system = active_system(P, found.active)
        return found, system, system.singular()
    plain, steps, fast = strict
    done = is_finite(plain.residual)
    status = torch.full_like(steps, int(ProgramStatus.LIMIT))
    found = Found(plain.x, plain.y, plain.z, plain.active, plain.residual, status, steps)
    loose, dependent = torch.zeros_like(done), torch.zeros_like(done)
    if bool(done.all()):
        return found, fast, (loose, dependent)
    assert Q is not None
    require_convex(Q.detach())
    rest = (~done).nonzero().squeeze(-1)
    slow = solve(P.take(rest), iterations, None if begin is None else begin[rest])
    for field in fields(Found):
        getattr(found, field.name)[rest] = getattr(slow, field.name)
    system = ActiveSystem(P.take(rest), slow.active)
    loose[rest], dependent[rest] = system.singular()
    kept = done.nonzero().squeeze(-1)
    return found, Parts([(kept, fast.take(kept)), (rest, system)]), (loose, dependent)


def _empty_rows(P: Program, h: Tensor, shapes: Shapes) -> Tensor:
    """Where a row of G is zero, and h as well: 0 ≤ 0 holds, and is lost where either moves."""
    if h.shape[-1] == 0:
        return torch.zeros(shapes.batch, dtype=torch.bool, device=h.device)
    empty = (norms(P.G, -1) == 0).reshape(*shapes.batch, -1)
    return (empty & (h.detach() == 0)).any(-1)


def active_of(start: ProgramOutput, P: Program, batch: tuple[int, ...]) -> Tensor:
    """The inequalities that push in another solution, in the order of this program."""
    if not isinstance(start, ProgramOutput):
        raise InputError(
            f"start must be the record that solve returned, not {type(start).__name__}."
        )
    parts = [start.z, start.z_lo, start.z_hi] if P.bounded else [start.z]
    sizes = [P.h.shape[-1], P.n, P.n]
    flat = []
    for part, size in zip(parts, sizes, strict=False):
        if part.shape[-1] != size:
            raise InputError(
                f"start has multipliers of {part.shape[-1]} constraints of a kind of which this "
                f"program has {size}: start from the record of a program of the same form."
            )
        pushing = (part.detach() > 0).to(P.c.device)
        try:
            flat.append(pushing.expand(*batch, size).reshape(P.size, size))
        except RuntimeError:
            raise InputError(
                f"start has a batch of shape {tuple(part.shape[:-1])}, the program {batch}."
            ) from None
    return torch.cat(flat, -1)


def _unfolded(
    P: Program, pinned: Tensor | None, scaling: Scaling, found: Found
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The point in the given units, with pinned variables at their values."""
    y, every = scaling.duals(found.y, found.z, P.bounded)
    z, z_lo, z_hi = P.split(every)
    x = scaling.D * found.x
    if pinned is not None:
        x = torch.where(pinned, P.lo, x)
        force = -(times(P.Q, x) + P.c + times(P.A.mT, y) + times(P.G.mT, z))
        z_hi = torch.where(pinned, force.clamp(min=0), z_hi)
        z_lo = torch.where(pinned, (-force).clamp(min=0), z_lo)
    return x, y, z, z_lo, z_hi
