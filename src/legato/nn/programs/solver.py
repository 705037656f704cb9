"""Interior point until the active set shows, then the active set, for all instances at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from legato.nn.programs.active_set import Candidate, judge, polish
from legato.nn.programs.certificates import descent_ray, farkas, least_violation, steepest_ray
from legato.nn.programs.interior_point import LIGHT, PROXIMAL, Point, start, step
from legato.nn.programs.program import Program, largest

_TRIALS = (1e-1, 1e-3, 1e-6, 1e-8, 1e-10)
"""Distances of the interior point at which its active set is tried."""
_EXACT = 1e-12
"""KKT residual, relative and in scaled units, below which a point counts as the solution."""
_STEPS = 10
"""Active sets that a trial follows."""
_PATIENCE = 15
"""Steps without coming nearer, after which the nearest point is kept."""
_FLOOR = 1e-14
_FAR = 1e6
"""A point as large as this, in scaled units, may be on its way to infinity."""
_PROOFS = 5
"""Every so many steps it is asked whether there is a solution at all."""
_STALLED = 1e-8
"""A step shorter than this leads nowhere."""


class ProgramStatus(IntEnum):
    """How a solve of one instance ended."""

    SOLVED = 0
    LIMIT = 1
    INFEASIBLE = 2
    UNBOUNDED = 3


@dataclass
class Found:
    """What the solver found for every instance, in the units it was given."""

    x: Tensor
    y: Tensor
    z: Tensor
    active: Tensor
    residual: Tensor
    status: Tensor
    iterations: Tensor


def solve(P: Program, limit: int, begin: Tensor | None = None) -> Found:
    """The solutions of a folded and scaled program; its instances leave as they are done.

    ``begin`` are inequalities that may be active: where they lead to a solution, that is all.
    """
    B, device = P.size, P.c.device
    inequalities = P.sides[0].shape[-1]
    best = Found(
        torch.full_like(P.c, torch.nan),
        torch.full_like(P.b, torch.nan),
        P.c.new_full((B, inequalities), torch.nan),
        torch.zeros(B, inequalities, dtype=torch.bool, device=device),
        P.c.new_full((B,), torch.inf),
        torch.full((B,), int(ProgramStatus.LIMIT), device=device),
        torch.zeros(B, dtype=torch.long, device=device),
    )
    left = torch.arange(B, device=device)
    part = P
    if begin is not None:
        candidate = polish(P, begin & P.sides[1], _STEPS, _EXACT)
        arrived = candidate.residual <= _EXACT
        _keep(best, candidate, left)
        best.iterations += 1
        left = (~arrived).nonzero().squeeze(-1)
        if left.shape[0] == 0:
            _settle(P, best)
            return best
        part = P.take(left)
    at = start(part)
    # A trial costs factors for each set that it follows: dear where matrices are large and sparse.
    trials = torch.full((part.size,), 0 if isinstance(P.Q, Tensor) else 1, device=device)
    since, closest, nearest = (
        torch.zeros_like(trials),
        torch.full_like(part.c[:, 0], torch.inf),
        at,
    )
    weight = torch.full_like(closest, PROXIMAL)
    levels = P.c.new_tensor([*_TRIALS, -1.0, -1.0])
    for iteration in range(limit):
        before = at
        at, progress = step(part, before, weight)
        nearer = progress.distance < closest
        closest = torch.where(nearer, progress.distance, closest)
        nearest = _chosen(before, nearest, nearer)
        since = torch.where(nearer, 0, since + 1)
        weight = torch.where(nearer, weight, LIGHT)
        stalled = (progress.step < _STALLED) | (since >= _PATIENCE) | (closest <= _FLOOR)
        last = stalled if iteration < limit - 1 else torch.ones_like(stalled)
        ready = (progress.distance <= levels[trials]) | last
        done = last
        ready_at = ready.nonzero().squeeze(-1)
        if ready_at.shape[0]:
            some = nearest.take(ready_at)
            sub = part.take(ready_at)
            _, on = sub.sides
            candidate = polish(sub, (some.z > some.s) & on, _STEPS, _EXACT)
            _keep(best, candidate, left[ready_at])
            trials[ready_at] += 1
            arrived = torch.zeros_like(done)
            arrived[ready_at] = candidate.residual <= _EXACT
            done = done | arrived
        best.iterations[left] = iteration + (1 if begin is None else 2)
        ended = done
        no_point = no_bottom = torch.zeros_like(done)
        if iteration % _PROOFS == _PROOFS - 1 or bool(last.any()):
            # Iterates grow along a proof, and so do their differences, often cleaner.
            moved = Point(at.x - before.x, at.y - before.y, at.s, at.z - before.z)
            proof = _chosen(moved, at, farkas(part, moved.y, moved.z, at.x))
            ray = _chosen(moved, at, descent_ray(part, moved.x, at.y, at.z))
            no_point = farkas(part, proof.y, proof.z, at.x)
            no_bottom = descent_ray(part, ray.x, at.y, at.z) & ~no_point
            ended = done | ((no_point | no_bottom) & ~ready)
        if bool(ended.any()):
            open_still = ended & ~(best.residual[left] <= _EXACT)
            no_point, no_bottom = no_point & open_still, no_bottom & open_still
            if bool((no_point | no_bottom).any()):
                _note_infeasible(best, left, no_point, proof)
                _note_unbounded(best, left, no_bottom, ray)
            _fall_back(best, part, nearest, left, ended & ~no_point & ~no_bottom)
            stay = (~ended).nonzero().squeeze(-1)
            if stay.shape[0] == 0:
                break
            left, part, at, trials = left[stay], part.take(stay), at.take(stay), trials[stay]
            since, closest, nearest = since[stay], closest[stay], nearest.take(stay)
            weight = weight[stay]
    _settle(P, best)
    return best


def _keep(best: Found, candidate: Candidate, where: Tensor) -> None:
    better = candidate.residual < best.residual[where]
    w = where[better]
    best.x[w], best.y[w], best.z[w] = candidate.x[better], candidate.y[better], candidate.z[better]
    best.active[w], best.residual[w] = candidate.active[better], candidate.residual[better]


def _fall_back(best: Found, part: Program, at: Point, left: Tensor, which: Tensor) -> None:
    """Where no active set was right, the interior point itself, if it is nearer."""
    chosen = which.nonzero().squeeze(-1)
    if chosen.shape[0] == 0:
        return
    sub, point = part.take(chosen), at.take(chosen)
    _, on = sub.sides
    product = largest(point.s * point.z * on) if on.shape[-1] else point.x.new_zeros(len(chosen))
    residual = torch.maximum(judge(sub, point.x, point.y, point.z), product)
    active = (point.z > point.s) & on
    _keep(best, Candidate(point.x, point.y, point.z, active, residual), left[chosen])


def _settle(P: Program, best: Found) -> None:
    """Ask of those that have not arrived whether there is anywhere to arrive at."""
    astray = ~(best.residual <= _EXACT) | (largest(best.x) > _FAR)
    lost = (best.status == int(ProgramStatus.LIMIT)) & astray
    which = lost.nonzero().squeeze(-1)
    if which.shape[0] == 0:
        return
    part = P.take(which)
    x, u, v = least_violation(part, torch.nan_to_num(best.x[which]))
    no_point = farkas(part, u, v, x)
    _note_infeasible(best, which, no_point, Point(x, u, v, v))
    ray = steepest_ray(part)
    no_bottom = descent_ray(part, ray, torch.zeros_like(u), torch.zeros_like(v)) & ~no_point
    _note_unbounded(best, which, no_bottom, Point(ray, u, v, v))


def _note_infeasible(best: Found, left: Tensor, which: Tensor, proof: Point) -> None:
    w = left[which]
    size = torch.maximum(largest(proof.y), largest(proof.z))[which].unsqueeze(-1)
    best.status[w] = int(ProgramStatus.INFEASIBLE)
    best.y[w], best.z[w] = proof.y[which] / size, proof.z[which].clamp(min=0) / size


def _note_unbounded(best: Found, left: Tensor, which: Tensor, ray: Point) -> None:
    w = left[which]
    best.status[w] = int(ProgramStatus.UNBOUNDED)
    best.x[w] = ray.x[which] / largest(ray.x)[which].unsqueeze(-1)


def _chosen(new: Point, old: Point, which: Tensor) -> Point:
    w = which.unsqueeze(-1)
    return Point(*(torch.where(w, getattr(new, k), getattr(old, k)) for k in ("x", "y", "s", "z")))
