"""Nonlinear conjugate gradients for smooth losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from legato.errors import InputError, NoStepError
from legato.functions import Zero
from legato.optim import vectors
from legato.optim.base import Closure, DescentOptimizer, Evaluation
from legato.optim.conjugacy import Conjugacy, PolakRibiere
from legato.optim.line_search import Ray, StrongWolfe


class NonlinearCG(DescentOptimizer):
    r"""Nonlinear conjugate gradients with a strong-Wolfe line search, for smooth losses (no prox).

    .. math:: x⁺ = x + td, \qquad d⁺ = −∇f(x⁺) + βd

    ``conjugacy`` is PolakRibiere() (PR+), FletcherReeves() or HagerZhang(). The direction restarts
    at −∇f where it does not descend, where successive gradients are far from orthogonal
    (|⟨g⁺, g⟩| > ``orthogonality`` · ‖g⁺‖², Powell's test), and after ``restart`` steps if given.
    Reference: Nocedal and Wright (2006), Section 5.2.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> loss = lambda level: (theta - 1).square().sum()
    >>> result = lg.fit(loss, [theta], lg.optim.NonlinearCG, steps=50)
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

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if not isinstance(group["prox"], Zero):
            raise InputError(
                f"NonlinearCG minimises smooth losses and cannot take the prox of "
                f"{type(group['prox']).__name__}. Use IPiano or ProximalGradient."
            )

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """One line search; returns the loss at the point where it began."""
        untouched = self._recall("point")
        here = self._here(closure)
        x = self._recall("point")
        assert x is not None
        if untouched is None or not vectors.same(untouched, x):
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

    def _advance(self, closure: Closure | None, x: list[Tensor], here: Evaluation) -> None:
        steepest = [-g for g in here.gradient]
        square = vectors.dot(here.gradient, here.gradient)
        self._memory.update(decrease=0.0, doubt=here.error)
        if square == 0:
            return
        direction = self._recall("direction")
        slope = -square if direction is None else vectors.dot(direction, here.gradient)
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
        next_direction = vectors.combine([-g for g in chosen.found.gradient], beta, direction)
        descent = vectors.dot(next_direction, chosen.found.gradient)
        size = vectors.dot(chosen.found.gradient, chosen.found.gradient)
        if not descent <= -1e-2 * size:
            beta = 0.0
            next_direction = [-g for g in chosen.found.gradient]
        self._memory.update(
            count=0 if beta == 0 else count,
            beta=beta,
            t=chosen.t,
            slope=slope,
            decrease=here.loss - chosen.found.loss,
            doubt=here.error + chosen.found.error,
        )
        self._remember(vectors.combine(x, chosen.t, direction), chosen.found)
        self._keep("direction", next_direction)

    def _beta(self, g: list[Tensor], d: list[Tensor], new: list[Tensor], count: int) -> float:
        if self.restart is not None and count >= self.restart:
            return 0.0
        if self.orthogonality is not None:
            overlap = abs(vectors.dot(new, g))
            if overlap > self.orthogonality * vectors.dot(new, new):
                return 0.0
        return self.conjugacy.beta(g, d, new)

    def _search(
        self,
        closure: Closure | None,
        x: list[Tensor],
        here: Evaluation,
        direction: list[Tensor],
        slope: float,
    ) -> Ray | None:
        def phi(t: float) -> Ray:
            self._write(vectors.combine(x, t, direction))
            found = self._evaluate(closure)
            rise = vectors.dot(found.gradient, direction) if found.finite else float("nan")
            return Ray(t, found.loss, rise, found)

        t, before = self._memory.get("t"), self._memory.get("slope")
        if t is None or before is None:
            size = vectors.norm(direction)
            first = min(1.0, 1e-1 * max(1.0, vectors.norm(x)) / size)
        else:
            first = t * min(max(before / slope, 0.1), 10.0)
        return self.line_search.search(phi, Ray(0.0, here.loss, slope, here), first)

    def _give_up(self, x: list[Tensor], here: Evaluation, square: float) -> None:
        """Stand still where the loss is flat to rounding; say so where it is not."""
        self._write(x)
        reach = max(1.0, vectors.norm(x))
        if square * reach**2 <= (1e4 * here.rounding) ** 2:
            return
        raise NoStepError(
            f"No step works: the line search tried {self.line_search.trials} points along the "
            f"negative gradient (norm {square**0.5:.3g}) and found no decrease of the loss "
            f"{here.loss:.6g}. The gradient is wrong or too inexact, or the loss is NaN or not "
            "smooth around this point. Tighten the lower level's tolerance, check the gradient "
            "(torch.autograd.gradcheck), or use IPiano."
        )
