"""Steps that are found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, holds
from legato._support.tree import Var, tree_map
from legato.errors import InputError, StepError
from legato.functions import Function
from legato.geometry import Burg, Entropy, Geometry, Interval, Polyhedral
from legato.problems import Composite

_DOUBLINGS = 60
"""Trials that a step has to find its unit."""

_TURNS = 20
"""Products after which a direction is steep enough: a step may be twice as long as it should."""


@dataclass(frozen=True, eq=False)
class Backtracking:
    r"""A step found by halving until the descent inequality holds.

    .. math:: f(x⁺) ≤ f(x) + ⟨∇f(x), x⁺ − x⟩ + \tfrac1α D_ψ(x⁺, x)

    The search is detached from the graph: the step counts as a constant. Each iteration first tries
    the last step times ``grow`` while x still moves; close to a solution steps only get shorter,
    for the small moves there tell nothing about the directions in which f is steep, and a step too
    long for those would make the derivative of the iteration explode.
    Each element of a batch has a step of its own.
    Defaults: ``initial=1.0``, ``shrink=0.5``, ``grow=1.0``, ``most=100``, ``unit=1.0``.
    Reference: Beck and Teboulle (2009).

    Args:
        initial: the first step to try, a number or a tensor that broadcasts against x with one
            number for each element of a batch.
        shrink: the factor by which a refused step is shortened, in (0, 1).
        grow: the factor by which the next iteration's first trial is longer, at least 1.
        most: trials after which the search gives up.
        unit: what counts as large for f, in the shapes of ``initial``: smaller values are told
            apart by gradients, for their differences may be rounding.
        steady: grow no further than f allows in every direction, whether x moves along it or not,
            at the price of some gradients. Strategies that differentiate iterations ask for it
            where something is to be differentiated; ask for it yourself to take the same steps
            in a solve where nothing is.

    >>> f = lg.Smooth(lambda x: torch.cosh(x - 1))  # ∇f has no Lipschitz constant
    >>> algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    >>> lg.solve(lg.Composite(f), algorithm, torch.tensor([6.0])).x.round(decimals=3)
    tensor([1.])
    """

    initial: Tensor | float = 1.0
    shrink: float = 0.5
    grow: float = 1.0
    most: int = 100
    unit: Tensor | float = 1.0
    steady: bool = False

    def __post_init__(self) -> None:
        positive = holds(self.initial > 0) and holds(self.unit > 0)
        if not (positive and 0 < self.shrink < 1 and self.grow >= 1 and self.most >= 1):
            raise InputError(
                "Backtracking needs initial, unit > 0, 0 < shrink < 1, grow ≥ 1 and most ≥ 1, not "
                f"{self!r}."
            )

    def first(self, ones: Tensor) -> Tensor:
        """The first step to try, in the shape of ``ones``: one for each element of a batch."""
        return self._for_each(self.initial, ones, "initial step")

    @torch.no_grad()
    def scaled(
        self,
        problem: Composite,
        geometry: Geometry,
        y: Var,
        x: Var,
        ones: Tensor,
        move: Callable[[Var, Any], Var],
    ) -> Tensor:
        """The step that an iteration from x begins with: grown from the first as far as it may.

        How far a first step is from fitting is a matter of units, and not of how far x moves: a
        move that is lost in rounding may be one of a step that is far too short. Where none of them
        is seen, x is a solution already, and the step is one that would not leave it.
        """
        first = step = self.first(ones)
        gradient, batch = problem.smooth.grad(x), _batch_of(ones)
        trial = partial(move, gradient)
        for _ in range(_DOUBLINGS if self.grow > 1 else 0):
            before = step
            step = self.search(problem, geometry, y, x, gradient, before, trial, anew=True)
            if not bool((step > before).any()):
                break
        change = tree_map(torch.sub, geometry.unmirror(trial(step)), x)
        unseen = _is_rounding(change, x, batch).reshape(step.shape)
        # Shortening the first step is the first iteration's task.
        step = torch.maximum(step, first)
        if not bool(unseen.any()):
            return step
        return torch.where(unseen, _bounded(first, problem.smooth, geometry, y, x, gradient), step)

    @torch.no_grad()
    def at_rest(
        self, problem: Composite, geometry: Geometry, y: Var, x: Var, step: Tensor
    ) -> Tensor:
        """The last step, shortened where f is too steep for it in directions that x did not take.

        Moves along a flat direction make steps grow, as far as the next one that is not.
        """
        return _bounded(step, problem.smooth, geometry, y, x, problem.smooth.grad(x))

    def _for_each(self, number: Tensor | float, like: Tensor, name: str) -> Tensor:
        number = torch.as_tensor(number, dtype=like.dtype).detach().to(like)
        if number.numel() != 1 and number.shape != like.shape:
            raise InputError(
                f"Backtracking's {name} has shape {tuple(number.shape)}: give a number, or one for "
                f"each element of the batch, of shape {tuple(like.shape)}."
            )
        return number * torch.ones_like(like)

    @torch.no_grad()
    def search(
        self,
        problem: Composite,
        geometry: Geometry,
        y: Var,
        x: Var,
        gradient: Var,
        last: Tensor,
        move: Callable[[Any], Var],
        *,
        anew: bool = False,
    ) -> Tensor:
        """The step for the point x with mirror coordinates y and gradient ∇f(x).

        ``move`` gives the mirror coordinates that a step leads to; ``last`` is the step before, in
        the shape that the new one has. It grows where x still moves, or if steps begin ``anew``.
        """
        f, y, x, gradient = problem.smooth, *map(tree.detach, (y, x, gradient))
        batch = _batch_of(last)
        value = f.values(x, batch)
        visible = _visible(value, self._for_each(self.unit, last, "unit").reshape(value.shape))
        digits = _digits(geometry, x, batch)
        alpha = last * self.grow
        found = torch.zeros_like(value, dtype=torch.bool)
        for attempt in range(self.most):
            moved = move(alpha)
            trial = geometry.unmirror(moved)
            change = tree_map(torch.sub, trial, x)
            if attempt == 0 and self.grow > 1 and not anew:
                rests = _rests(change, x, batch)
                if bool(rests.any()):
                    alpha = torch.where(rests.reshape(alpha.shape), last, alpha)
                    continue
            step = alpha.reshape(value.shape)
            allowed = geometry.distances(trial, x, batch) / step
            excess = f.values(trial, batch) - value - tree.inner(gradient, change, batch)
            readable = (visible < allowed) & (allowed < torch.inf)
            if not bool(readable.all()):
                # The decrease is below rounding error, so compare gradients instead (exact for
                # quadratics): ⟨∇f(x⁺) − ∇f(x), d⟩ ≤ ⟨y⁺ − y, d⟩/α with the move d normalised to
                # avoid over- and underflow.
                size = _largest(change, batch)
                unit = tree_map(lambda t, size=size: t / _lifted(size, t), change)
                turn = tree_map(torch.sub, f.grad(trial), gradient)
                room = tree.inner(tree_map(torch.sub, moved, y), unit, batch) / step
                room = torch.minimum(room, 2 * visible / size)
                # No step is shortened by what rounding of f, seen through its slope, may be.
                blur = 8 * torch.finfo(value.dtype).eps * value.abs()
                blur = blur / torch.maximum(size, _largest(x, batch))
                # While x moves, by no more than keeps α < 2/L.
                blur = torch.where(_rests(change, x, batch), blur, torch.minimum(blur, 0.9 * room))
                room = room + torch.where(step <= last.reshape(step.shape), blur, 0.0)
                excess = torch.where(readable, excess, tree.inner(turn, unit, batch))
                allowed = torch.where(readable, allowed, room)
            found = found | ((excess <= allowed) & (allowed < torch.inf))
            found = found | (_largest(change, batch) <= digits)  # it says nothing about the step
            found = found & ~value.isnan()  # momentum may lead out of the domain of f
            if self.grow > 1 and bool(found.all()):
                # Where f is linear nothing holds steps back, until they leave all numbers behind.
                found = found & _is_inside(geometry, moved, found)
                found = found & _stays_mobile(geometry, trial, x, batch)
            if bool(found.all()):
                if self.steady and bool((alpha > last).any()):
                    bounded = _bounded(alpha, f, geometry, y, x, gradient)
                    return torch.where(alpha > last, bounded, alpha)
                return alpha
            shorter = alpha * self.shrink
            shorter = torch.where(alpha > last, torch.maximum(last, shorter), shorter)
            alpha = torch.where(found.reshape(alpha.shape), alpha, shorter)
        raise StepError(
            f"Backtracking found no step in {self.most} trials (last tried "
            f"{as_number(alpha.amin()):g}): the smooth term is NaN or infinite around the current "
            "point, or not smooth there. Check its data, start elsewhere, or take inertia=0.0, for "
            "momentum may lead out of its domain."
        )


def _bounded(
    step: Tensor, f: Function, geometry: Geometry, y: Var, x: Var, gradient: Var
) -> Tensor:
    r"""The step, shortened to what the curvature of f at x allows.

    .. math:: α ≤ \frac{⟨v, d⟩}{⟨∇f(x + d) − ∇f(x), d⟩}, \qquad x + d = ∇ψ^*(y + v)

    for small v that turn into the direction in which f is steepest, as in power iteration.
    """
    batch = _batch_of(step)
    eps = torch.finfo(tree.leaves(y)[0].dtype).eps
    reach = _reach(geometry, y, x, eps ** (1 / 3), batch)
    # One direction for every element of a batch, which is to take the step that it takes alone;
    # vmap asks torch's own random numbers what to do with them.
    chance = np.random.default_rng(0)

    def drawn(t: Tensor) -> Tensor:
        real = 2 if t.is_complex() else 1
        numbers = torch.from_numpy(chance.standard_normal((*t.shape[batch:], real)))
        one = torch.view_as_complex(numbers) if t.is_complex() else numbers[..., 0]
        return one.to(t).expand_as(t)

    v = tree_map(drawn, y)
    for _ in range(_TURNS):
        share = tree_map(lambda t, most: t / most, v, reach)
        unit = 1 / _largest(share, batch)
        v = tree_map(lambda t, unit=unit: t * _lifted(unit, t), v)
        beside = tree_map(torch.add, y, v)
        if not bool(geometry.mirror_interior(beside).all()):
            break
        there = geometry.unmirror(beside)
        change, turn = tree_map(torch.sub, there, x), tree_map(torch.sub, f.grad(there), gradient)
        bend, room = (tree.inner(t, change, batch).reshape(step.shape) for t in (turn, v))
        step = torch.where(step * bend > room, room / bend, step)
        turns = _largest(turn, batch) > 0
        v = tree_map(lambda t, old, on=turns: torch.where(_lifted(on, t), t, old), turn, v)
    return step.detach()  # of tangents, too: it counts as a constant in both modes


def _reach(geometry: Geometry, y: Var, x: Var, share: float, batch: int) -> Var:
    """How far mirror coordinates go with a ``share`` of the largest entry of x, in any unit."""
    if isinstance(geometry, Entropy | Burg):
        top = _largest(x, batch)
        top = share * torch.where(top > 0, top, 1.0)
        ahead = tree_map(lambda t: t + _lifted(top, t), x)
        return tree_map(lambda a, b: (a - b).abs(), geometry.mirror(ahead), y)
    size = _largest(y, batch)
    size = share * torch.where(size > 0, size, 1.0)
    return tree_map(lambda t: _lifted(size, t).expand_as(t), y)


def _batch_of(step: Tensor) -> int:
    """How many leading axes are a batch: the step has size one along those that belong together."""
    return max((axis + 1 for axis, size in enumerate(step.shape) if size > 1), default=0)


def _is_inside(geometry: Geometry, y: Var, like: Tensor) -> Tensor:
    """Whether mirror coordinates belong to a point, for each element of a batch."""
    inside = geometry.mirror_interior(y)
    if inside.shape[: like.ndim] != like.shape:
        return inside.all()
    return inside.reshape(*like.shape, -1).all(-1)


def _stays_mobile(geometry: Geometry, trial: Var, x: Var, batch: int) -> Tensor | bool:
    """Whether no entry comes so much closer to a barrier that its way back is lost in rounding.

    Where −1/x is 10¹⁵ it moves in steps of 10⁸ in float32. A step that is far too long for the
    small entries of x is seen neither by f nor by x.
    """
    if not isinstance(geometry, Burg):
        return True
    eps = torch.finfo(tree.leaves(x)[0].dtype).eps
    shortest = _largest(tree_map(torch.div, x, trial), batch)
    return shortest <= eps**-0.5


def _visible(value: Tensor, unit: Tensor) -> Tensor:
    """The size from which a difference of values can be told from rounding."""
    return torch.finfo(value.dtype).eps ** 0.5 * (unit + value.abs())


def _digits(geometry: Geometry, x: Var, batch: int) -> Tensor:
    """The change of x that rounding makes.

    Points near 0 in a polyhedron or interval are known to the digits that its sides leave.
    """
    eps = torch.finfo(tree.leaves(x)[0].dtype).eps
    size = _largest(x, batch)
    if isinstance(geometry, Polyhedral) and isinstance(x, Tensor):
        lengths = torch.linalg.vector_norm(geometry.A.detach(), dim=-1).to(x)
        away = geometry.slack(x) / torch.where(lengths > 0, lengths, 1.0)
        size = torch.maximum(size, _largest(away, batch))
    if isinstance(geometry, Interval) and isinstance(x, Tensor):
        size = torch.maximum(size, _largest((geometry.hi - geometry.lo) + 0 * x, batch))
    return 8 * eps * size


def _is_rounding(change: Var, x: Var, batch: int) -> Tensor:
    eps = torch.finfo(tree.leaves(x)[0].dtype).eps
    return _largest(change, batch) <= 8 * eps * _largest(x, batch)


def _rests(change: Var, x: Var, batch: int) -> Tensor:
    """Whether the move is so small that it shows the curvature of few directions only."""
    eps = torch.finfo(tree.leaves(x)[0].dtype).eps
    return _largest(change, batch) <= eps**0.5 * _largest(x, batch)


def _largest(x: Var, batch: int) -> Tensor:
    """max |x_i| of each element of a batch."""
    tops = [tree.largest_over(t.abs(), t.ndim - batch) for t in tree.leaves(x)]
    return tops[0] if len(tops) == 1 else torch.stack(tops).amax(0)


def _lifted(per_element: Tensor, t: Tensor) -> Tensor:
    """One number for each element of a batch, against t."""
    return per_element.reshape((*per_element.shape, *(1,) * (t.ndim - per_element.ndim)))
