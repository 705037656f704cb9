"""Linear programs with an entropy of their slacks: smooth, and inside of all inequalities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn.programs.data import Shapes, as_tensors, batched, require_numbers, shapes_of
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.program import Program, largest, times
from legato.nn.programs.quadratic import solve_programs
from legato.nn.programs.solver import ProgramStatus
from legato.nn.programs.sparse_data import is_sparse
from legato.nn.programs.words import tell_degenerate, tell_unsolved

_FIRST, _SHARE, _NEAR = 1.0, 0.3, 1e-2
"""The first weight, in units of the cost; its share in the next one; when that is taken."""
_FALL, _DEEP, _SMALL, _TINY = 2.0, 50.0, 1e-4, 1e-100
"""By how much the logarithm of a slack may fall in a step: of one that counts, and of any."""
_ARRIVED = 1e-13
_SHIFT = 1e-13
"""On the diagonal of the scaled system: dependent equations do no harm."""
_SINGULAR, _PROBES = 1e-2 / _SHIFT, 4
"""A response of this size to a unit right-hand side comes from the shift alone."""


@dataclass
class _Point:
    """x, multipliers y of the equations, slacks s > 0 and multipliers z of the inequalities."""

    x: Tensor
    y: Tensor
    s: Tensor
    z: Tensor


class _System:
    """(0 Aᵀ Cᵀ; A 0 0; C 0 −s/w), factored in units of size one.

    The multipliers of C are unknowns of their own: where a slack is nearly zero, w/s is huge, and
    would drown all else if they were eliminated.
    """

    def __init__(self, P: Program, s: Tensor, w: Tensor) -> None:
        _, on = P.sides
        n, p = P.n, P.b.shape[-1]
        eye = torch.eye(n, dtype=s.dtype, device=s.device).expand(P.size, n, n)
        C = torch.cat([P.G, -eye, eye], -2) if P.bounded else P.G
        C = torch.cat([P.A, C * on.unsqueeze(-1)], -2)
        loose = torch.cat([torch.zeros_like(P.b), torch.where(on, s / w, 1.0)], -1)
        rows = torch.maximum(torch.linalg.vector_norm(C, dim=-1), loose.sqrt())
        self.n, self.p = n, p
        self.unit = 1 / torch.where(rows > 0, rows, 1.0)
        K = s.new_zeros(P.size, n + rows.shape[-1], n + rows.shape[-1])
        C = C * self.unit.unsqueeze(-1)
        K[:, n:, :n], K[:, :n, n:] = C, C.mT
        diagonal = K.diagonal(dim1=-2, dim2=-1)
        diagonal[:, :n] += _SHIFT
        diagonal[:, n:] -= loose * self.unit**2 + _SHIFT
        self.LU, self.pivots, _ = torch.linalg.lu_factor_ex(K)

    def solve(self, r: Tensor, q: Tensor, of_rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = torch.cat([r, torch.cat([q, of_rows], -1) * self.unit], -1).unsqueeze(-1)
        found = torch.linalg.lu_solve(self.LU, self.pivots, right).squeeze(-1)
        x, rest = found[:, : self.n], found[:, self.n :] * self.unit
        return x, rest[:, : self.p], rest[:, self.p :]

    def singular(self) -> tuple[Tensor, Tensor]:
        """Where x is not unique, and where equations depend on one another."""
        kept = torch.Generator().manual_seed(0)
        size = self.LU.shape[-1]
        drawn = torch.randn(size, _PROBES, generator=kept, dtype=self.LU.dtype, device="cpu")
        probes = drawn.to(self.LU.device)
        probes = (probes / probes.norm(dim=0)).expand(self.LU.shape[0], -1, -1)
        found = torch.linalg.lu_solve(self.LU, self.pivots, probes).abs().amax(-1)
        loose = found[:, : self.n].amax(-1) > _SINGULAR
        if self.p == 0:
            return loose, torch.zeros_like(loose)
        return loose, found[:, self.n : self.n + self.p].amax(-1) > _SINGULAR


def _found(P: Program, weight: Tensor, limit: int) -> tuple[_Point, Tensor, Tensor]:
    """Newton's method from anywhere; what each instance misses, and the steps that it took.

    The conditions are c + Cᵀz + Aᵀy = 0, z = −w(1 + log s), Cx + s = d and Ax = b.
    """
    d, on = P.sides
    x, y, s = torch.zeros_like(P.c), torch.zeros_like(P.b), torch.ones_like(d)
    z = torch.zeros_like(d)
    aim = weight.clamp(min=_FIRST)
    steps = torch.zeros(P.size, dtype=torch.long, device=d.device)
    best = _Point(x, y, s, z)
    least = torch.full_like(weight, torch.inf)
    for _ in range(limit):
        w = aim.unsqueeze(-1)
        force = P.c + times(P.A.mT, y) + P.pull(z)
        bend = torch.where(on, w * (1 + s.log()) + z, 0.0)
        miss = torch.where(on, P.rows(x) + s - d, 0.0)
        left = times(P.A, x) - P.b
        error = torch.stack(
            [
                largest(force) / (1 + largest(P.c)),
                largest(bend * s) / (1 + aim),
                torch.maximum(largest(miss), largest(left)) / (1 + largest(x)),
            ]
        ).amax(0)
        nearer = (error < least) & (aim == weight)
        least = torch.where(nearer, error, least)
        kept = nearer.unsqueeze(-1)
        now = (x, y, s, z)
        best = _Point(
            *(torch.where(kept, a, b) for a, b in zip(now, vars(best).values(), strict=True))
        )
        going = least > _ARRIVED
        if not bool(going.any()):
            break
        steps += going
        smaller = torch.where(error < _NEAR, aim * _SHARE, aim)
        aim = torch.maximum(smaller, weight)
        w = aim.unsqueeze(-1)
        bend = torch.where(on, w * (1 + s.log()) + z, 0.0)
        # dz = −bend − (w/s)ds and ds = −miss − C dx; ds is a share of s, however small that is.
        right = torch.where(on, bend * s / w - miss, 0.0)
        dx, dy, dz = (torch.nan_to_num(v) for v in _System(P, s, w).solve(-force, -left, right))
        dz = torch.where(on, dz, 0.0)
        ds = -(bend + dz) * s / w
        # Slacks fall as an exponential: one that is nearly zero does not hold up the others.
        ratio = ds / s
        far = torch.where((ratio < 0) & (s > _SMALL), -_FALL / ratio, torch.inf)
        t = far.amin(-1).clamp(max=1.0).unsqueeze(-1) if d.shape[-1] else torch.ones_like(w)
        fallen = s * (t * ratio).clamp(-_DEEP, 0.0).exp()
        x, y, z = x + t * dx, y + t * dy, z + t * dz
        s = torch.where(ratio < 0, fallen, s + t * ds).clamp(min=_TINY)
    return best, least, steps


def solve_entropic(
    given: dict[str, Any],
    absent: Tensor | None,
    weight: float,
    limits: tuple[int, float],
) -> ProgramOutput:
    """The record of a batch of linear programs with the term, in the graph of its data.

    Args:
        given (dict): the data by name.
        absent (Tensor, optional): equations that an instance does not have.
        weight (float): of the entropy.
        limits (tuple): iterations, and the tolerance of a solved program.
    """
    if is_sparse(given):
        raise InputError("Entropic takes dense matrices: call .to_dense(), or use LPGD(…).")
    tensors = as_tensors(given, "LinearProgram")
    shapes = shapes_of(tensors)
    require_numbers(tensors)
    P = batched(tensors, shapes, absent)
    if P.bounded and bool(P.pinned().any()):
        raise InputError(
            "lo = hi leaves no interior for an entropy: make such variables constants, or "
            "write them as equations."
        )
    # In units of the cost: its size is no part of the problem.
    size = largest(P.c).clamp(min=torch.finfo(torch.float64).tiny)
    size = torch.where(largest(P.c) > 0, size, 1.0)
    with torch.no_grad():
        inner = replace(P, c=P.c / size.unsqueeze(-1))
        at, missing, steps = _found(inner, weight / size, limits[0])
    at.y, at.z = at.y * size.unsqueeze(-1), at.z * size.unsqueeze(-1)
    done = missing <= limits[1]
    x = at.x
    with torch.no_grad():
        system = _System(P, at.s, torch.full_like(P.c[:, :1], weight))
        loose, dependent = (flag & done for flag in system.singular())
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    if differentiated:
        x = _attached(P, tensors, shapes, at, system)
    like = next(iter(tensors.values()))
    record = _record(P, at, x, done, (loose, dependent), steps, shapes, like)
    if not bool(done.all()):
        with torch.no_grad():
            still = replace(P, c=torch.zeros_like(P.c))
            plain, _ = solve_programs(still, None, shapes, at.x, None, *limits)
        record = _explained(record, plain)
    tell_unsolved(record, "LinearProgram")
    if differentiated:
        about = any(t.requires_grad for name, t in tensors.items() if name != "c")
        tell_degenerate(record, "LinearProgram", about)
    return record


def _attached(
    P: Program, tensors: dict[str, Tensor], shapes: Shapes, at: _Point, system: _System
) -> Tensor:
    """One more step of Newton's method, whose right-hand side is a function of the data.

    At a solution its derivative is that of the solution.
    """

    def data(name: str, tail: int) -> Tensor:
        value = tensors[name].double()
        value = value.expand(*shapes.batch, *value.shape[-tail:])
        return value.reshape(shapes.size, *value.shape[-tail:])

    _, on = P.sides
    x = at.x
    force = data("c", 1) if "c" in tensors else P.c
    left = torch.zeros_like(P.b)
    if "A" in tensors:
        A = data("A", 2)
        force, left = force + times(A.mT, at.y), times(A, x) - data("b", 1)
    G = data("G", 2) if "G" in tensors else P.G
    h = data("h", 1) if "h" in tensors else P.h
    lo, hi = (data(k, 1) if k in tensors else getattr(P, k) for k in ("lo", "hi"))
    z_G, z_lo, z_hi = P.split(at.z)
    force = force + times(G.mT, z_G)
    slack = h - times(G, x)
    if P.bounded:
        force = force - z_lo + z_hi
        slack = torch.cat([slack, x - lo, hi - x], -1)
    # In value all three are zero, but for rounding: what counts is their graph.
    slack = torch.where(on, slack, 0.0)
    parts = (v - v.detach() for v in (force, left, -slack))
    return x - system.solve(*parts)[0]


def _record(
    P: Program,
    at: _Point,
    x: Tensor,
    done: Tensor,
    singular: tuple[Tensor, Tensor],
    steps: Tensor,
    shapes: Shapes,
    like: Tensor,
) -> ProgramOutput:
    def out(value: Tensor) -> Tensor:
        kept = value.to(like.dtype) if value.is_floating_point() else value
        return kept.reshape((*shapes.batch, *value.shape[1:]))

    d, on = P.sides
    z, z_lo, z_hi = P.split(at.z)
    over = torch.where(on, P.rows(at.x) - d, 0.0).clamp(min=0)
    return ProgramOutput(
        x=out(x),
        y=out(at.y),
        z=out(z),
        z_lo=out(z_lo),
        z_hi=out(z_hi),
        ray=out(torch.full_like(at.x, torch.nan)),
        primal=out(torch.maximum(largest(over), largest(times(P.A, at.x) - P.b))),
        dual=out(largest(P.c + times(P.A.mT, at.y) + P.pull(at.z))),
        gap=out(torch.zeros_like(at.x[:, 0])),
        status=out(torch.where(done, int(ProgramStatus.SOLVED), int(ProgramStatus.LIMIT))),
        iterations=out(steps),
        margin=out(torch.full_like(at.x[:, 0], torch.inf)),
        tied=out(torch.zeros_like(done)),
        loose=out(singular[0]),
        dependent=out(singular[1]),
    )


def _explained(record: ProgramOutput, plain: ProgramOutput) -> ProgramOutput:
    """Of what did not arrive, that no point satisfies the constraints, if that is why."""
    none = ~record.solved & (plain.status == int(ProgramStatus.INFEASIBLE))
    record.status = torch.where(none, plain.status, record.status)
    for name in ("y", "z", "z_lo", "z_hi"):
        proof = getattr(plain, name).to(record.x.dtype)
        setattr(record, name, torch.where(none.unsqueeze(-1), proof, getattr(record, name)))
    record.x = torch.where(none.unsqueeze(-1), torch.nan, record.x)
    return record
