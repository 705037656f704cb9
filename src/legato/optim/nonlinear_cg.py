"""Nonlinear conjugate gradients for smooth losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from legato._support import tree
from legato.errors import InputError, NoStepError
from legato.functions import Zero
from legato.optim.base import DescentOptimizer, Vector
from legato.optim.conjugacy import Conjugacy, PolakRibiere
from legato.optim.evaluation import Closure, Evaluation
from legato.optim.groups import Group
from legato.optim.line_search import Ray, StrongWolfe


class NonlinearCG(DescentOptimizer):
    r"""Nonlinear conjugate gradients with a strong-Wolfe line search, for smooth losses (no prox).

    .. math:: x⁺ = x + td, \qquad d⁺ = −∇f(x⁺) + βd

    The direction restarts at −∇f where it does not descend. The line search finds every step, so
    groups have no ``lr``, and a scheduler is refused.
    Reference: Nocedal and Wright (2006), Section 5.2.

    Args:
        params: Tensors or parameter groups.
        conjugacy: The formula for β: PolakRibiere() (PR+, the default), FletcherReeves() or
            HagerZhang().
        line_search: The search for t; None is StrongWolfe().
        restart: The number of steps after which the direction restarts; None is never.
        orthogonality: It also restarts where successive gradients are far from orthogonal,
            |⟨g⁺, g⟩| > ``orthogonality`` · ‖g⁺‖² (Powell's test); None leaves this out.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> loss = lambda inner: (theta - 1).square().sum()
    >>> line_search = lg.optim.StrongWolfe(c2=0.1)
    >>> optimizer = lg.optim.NonlinearCG([theta], lg.optim.HagerZhang(), line_search)
    >>> result = lg.fit(loss, [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    def __init__(
        self,
        params: Iterable[Any],
        conjugacy: Conjugacy | None = None,
        line_search: StrongWolfe | None = None,
        *,
        restart: int | None = None,
        orthogonality: float | None = 0.2,
    ) -> None:
        self.conjugacy = PolakRibiere() if conjugacy is None else conjugacy
        self.line_search = StrongWolfe() if line_search is None else line_search
        self.restart, self.orthogonality = restart, orthogonality
        for name, kind in (("conjugacy", Conjugacy), ("line_search", StrongWolfe)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise InputError(f"{name} must be a {kind.__name__}, not {value!r}.")
        if restart is not None and restart < 1:
            raise InputError(f"restart must be a positive number of steps, not {restart!r}.")
        if orthogonality is not None and not orthogonality > 0:
            raise InputError(f"orthogonality must be positive, not {orthogonality!r}.")
        super().__init__(params)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if not isinstance(group["prox"], Zero):
            raise InputError(
                f"NonlinearCG minimises smooth losses and cannot take the prox of "
                f"{type(group['prox']).__name__}. Use IPiano or ProximalGradient."
            )

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """One line search; returns the loss at the point where it began."""
        x, here, undisturbed = self._begin(closure)
        if not undisturbed:
            self._restart()  # the first step, or somebody moved the parameters
        try:
            self._advance(closure, x, here)
        except BaseException:
            self._write(x)
            raise
        return here.loss

    def _restart(self) -> None:
        self._keep("direction", None)
        for name in ("t", "slope"):
            self._memory.pop(name, None)

    def _advance(self, closure: Closure | None, x: Vector, here: Evaluation) -> None:
        steepest = tree.tree_map(torch.neg, here.gradient)
        square = tree.dot(here.gradient, here.gradient)
        self._memory.update(decrease=0.0, decrease_error=here.error)
        if square == 0:
            return
        direction = self._recall("direction")
        slope = -square if direction is None else tree.dot(direction, here.gradient)
        chosen = None
        if direction is not None:
            chosen = self._search(closure, x, here, direction, slope)
        if direction is None or chosen is None:
            self._restart()
            direction, slope = steepest, -square
            chosen = self._search(closure, x, here, direction, slope)
        if chosen is None:
            self._give_up(x, here, square)
            return
        count = self._memory.get("count", 0) + 1
        beta = self._beta(here.gradient, direction, chosen.found.gradient, count)
        new_steepest = tree.tree_map(torch.neg, chosen.found.gradient)
        next_direction = _along(new_steepest, beta, direction)
        descent = -tree.dot(next_direction, new_steepest)
        if not descent <= -1e-2 * tree.dot(new_steepest, new_steepest):
            beta, next_direction = 0.0, new_steepest
        self._memory.update(
            made=True,
            count=0 if beta == 0 else count,
            beta=beta,
            t=chosen.t,
            slope=slope,
            decrease=here.loss - chosen.found.loss,
            decrease_error=here.error + chosen.found.error,
        )
        self._remember(_along(x, chosen.t, direction), chosen.found)
        self._keep("direction", next_direction)

    def _beta(self, g: Vector, d: Vector, new: Vector, count: int) -> float:
        if self.restart is not None and count >= self.restart:
            return 0.0
        if self.orthogonality is not None:
            overlap = abs(tree.dot(new, g))
            if overlap > self.orthogonality * tree.dot(new, new):
                return 0.0
        return self.conjugacy.beta(g, d, new)

    def _search(
        self,
        closure: Closure | None,
        x: Vector,
        here: Evaluation,
        direction: Vector,
        slope: float,
    ) -> Ray | None:
        def phi(t: float) -> Ray:
            self._write(_along(x, t, direction))
            found = self._evaluate(closure)
            rise = tree.dot(found.gradient, direction) if found.finite else float("nan")
            return Ray(t, found.loss, rise, found)

        t, before = self._memory.get("t"), self._memory.get("slope")
        if t is None or before is None:
            size = tree.length(direction)
            first = min(1.0, 1e-1 * max(1.0, tree.length(x)) / size)
        else:
            first = t * min(max(before / slope, 0.1), 10.0)
        return self.line_search.search(phi, Ray(0.0, here.loss, slope, here), first)

    def _give_up(self, x: Vector, here: Evaluation, square: float) -> None:
        """Stand still where the loss is flat to rounding; say so where it is not."""
        self._write(x)
        reach = max(1.0, tree.length(x))
        if square * reach**2 <= (1e4 * here.rounding) ** 2:
            return
        if self._memory.get("made"):
            raise NoStepError(
                f"No step lowers the loss {here.loss:.6g} any more: the line search tried "
                f"{self.line_search.trials} points along the negative gradient (norm "
                f"{square**0.5:.3g}), after steps that did. The fit ends here, at a kink of the "
                "loss or at the accuracy of its gradient. If it should go lower, tighten the lower "
                "level's tolerance, or use IPiano, which takes kinks."
            )
        raise NoStepError(
            f"No step works: the line search tried {self.line_search.trials} points along the "
            f"negative gradient (norm {square**0.5:.3g}) and found no decrease of the loss "
            f"{here.loss:.6g}. The gradient is wrong or too inexact, or the loss is NaN or not "
            "smooth around this point. Tighten the lower level's tolerance, check the gradient "
            "(torch.autograd.gradcheck), or use IPiano."
        )


def _along(x: Vector, t: float, direction: Vector) -> Vector:
    """x + t · direction."""
    point: Vector = tree.sub_scaled(x, -t, direction)
    return point
