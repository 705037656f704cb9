"""Gradients held against differences of the loss, inside the domains of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from legato._support import tree
from legato._support.holding import held_intervals, held_weights
from legato.diagnostics.setting import Setting, flat
from legato.gradients.base import pull_back

if TYPE_CHECKING:
    from legato.diagnostics.reference import Path


_CONTAINERS = frozenset((tuple, list, dict))


class _Substitute(TorchFunctionMode):
    """Sees tensors that record gradients enter operations, and passes others in their place.

    A problem may hold θ itself, or tensors computed from θ before the solve, in dataclasses,
    modules or closures: wherever they are kept, they must enter an operation to matter.
    """

    def __init__(self, instead: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.instead = instead  # by id
        self.seen: dict[int, Tensor] = {}  # holding them, so that no id is used twice

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self.instead:
            self._watch(args)
            self._watch((kwargs or {}).values())
            return func(*args, **(kwargs or {}))
        return func(*self._replace(args), **self._replace(kwargs or {}))

    def _watch(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                if value.requires_grad:
                    self.seen[id(value)] = value
            elif type(value) in (tuple, list):
                self._watch(value)
            elif type(value) is dict:
                self._watch(value.values())

    def _replace(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            # Nearly all arguments are no containers: no call for each, there are thousands a solve.
            swap = self.instead.get
            return type(value)(
                [swap(id(p), p) if type(p) not in _CONTAINERS else self._replace(p) for p in value]
            )
        if type(value) is dict:
            return {name: self._replace(part) for name, part in value.items()}
        return self.instead.get(id(value), value)


@torch.no_grad()
def _held_tensors(setting: Setting) -> list[Tensor]:
    """θ and tensors computed from it that the problem holds: those that two runs have in common.

    What a run computes on its way records no gradient here, or belongs to that run alone.
    """
    runs = []
    for _ in range(2):
        with _Substitute({}) as watch:
            setting.two_steps()
        runs.append(watch.seen)
    return [t for key, t in runs[0].items() if key in runs[1]]


def _pushed(held: list[Tensor], theta: list[Tensor], along: list[Tensor]) -> list[Tensor]:
    """Directions of ``held`` for a direction in θ: c ↦ Jᵀc is linear, and its own transpose is J.

    Parameters that reach no held tensor are moved by nothing: their direction is set to zero.
    """
    dummies = [torch.zeros_like(t).requires_grad_() for t in held]
    with torch.enable_grad():
        pulled = torch.autograd.grad(
            held, theta, dummies, retain_graph=True, create_graph=True, allow_unused=True
        )
    for p, d in zip(pulled, along, strict=True):
        if p is None:
            d.zero_()
    return pull_back(pulled, dummies, along)


def disagreement(setting: Setting, path: Path, gradient: Tensor, directions: int) -> float | None:
    r"""The largest relative distance of ⟨∇L, d⟩ from differences, over random directions d.

    .. math:: \frac{|⟨∇L, d⟩ − (L(θ + hd) − L(θ − hd))/2h|}{\max(σ, |⟨∇L, d⟩|)}, \quad
              σ² = \mathrm{Var}⟨∇L, d⟩

    Both sides differentiate the same number of iterations with the same derived steps, so that what
    is left is a kink, an error, or rounding. The step h = ε^{1/3} balances the truncation h² with
    the rounding ε/h; differences of less than ten times that rounding count as equal. Where θ is at
    the end of its domain, as a weight that is zero, d points inside and differences are one-sided:
    beyond it there is no problem whose loss could confirm a derivative. None if no d is possible.
    Reference: Griewank and Walther (2008), Section 2.1.
    """
    generator = torch.Generator().manual_seed(0)
    theta = setting.theta
    held = _held_tensors(setting)
    if not held:
        return None
    eps = torch.finfo(path.dtype).eps
    h = eps ** (1 / 3)
    sizes = flat([torch.full_like(p, _size(p)).detach() for p in theta])
    spread = float(torch.linalg.vector_norm(gradient * sizes.to(gradient)))
    errors = []
    for _ in range(directions):
        along = [_direction(p, generator) for p in theta]
        try:
            moves = _pushed(held, theta, along)
            if not any(_stays_inside(setting, held, moves, sign * 2 * h) for sign in (1, -1)):
                along = _turned_inside(setting, theta, along)
                moves = _pushed(held, theta, along)
        except (RuntimeError, NotImplementedError):  # an operation without second derivatives
            return None
        found = _slope(setting, path, held, moves, h)
        if found is None:
            continue
        slope, size = found
        expected = float(gradient @ flat(along).to(gradient))
        rounding = 10 * eps / h * (1 + size)
        errors.append(abs(slope - expected) / max(spread, abs(slope), abs(expected), rounding))
    return max(errors, default=None)


def _slope(
    setting: Setting, path: Path, held: list[Tensor], moves: Sequence[Tensor], h: float
) -> tuple[float, float] | None:
    """A difference quotient of second order and the size of the loss; None: no step is allowed."""

    def loss(amount: float) -> float:
        return _moved_loss(setting, path, held, moves, amount)

    up, down = (_stays_inside(setting, held, moves, sign * 2 * h) for sign in (1, -1))
    if up and down:
        ends = loss(h), loss(-h)
        return (ends[0] - ends[1]) / (2 * h), abs(ends[0])
    if not up and not down:
        return None
    h = h if up else -h
    here, near, far = loss(0.0), loss(h), loss(2 * h)
    return (4 * near - 3 * here - far) / (2 * h), abs(here)


def _stays_inside(
    setting: Setting, held: list[Tensor], moves: Sequence[Tensor], amount: float
) -> bool:
    """Whether the moved problem has no negative weight, and no interval whose ends have crossed."""
    moved = {id(t): (t + amount * m).detach() for t, m in zip(held, moves, strict=True)}
    with torch.no_grad(), _Substitute(moved):
        # Operations see what is passed in place of a tensor; the tensor itself does not change.
        weights = [(weight.tensor * 1 < 0).any() for weight in held_weights(setting.problem)]
        crossed = [(lo * 1 > hi * 1).any() for lo, hi in held_intervals(setting.problem)]
        return not any(map(bool, (*weights, *crossed)))


def _turned_inside(
    setting: Setting, theta: Sequence[Tensor], along: Sequence[Tensor]
) -> list[Tensor]:
    """Directions of larger parameters and smaller lower ends; their opposites are tried, too."""
    intervals = list(held_intervals(setting.problem))
    falling = {id(lo) for lo, _ in intervals} - {id(hi) for _, hi in intervals}
    pairs = zip(theta, along, strict=True)
    return [-d.abs() if id(p) in falling else d.abs() for p, d in pairs]


def _size(p: Tensor) -> float:
    root_mean_square = float(p.detach().square().mean().sqrt())
    return root_mean_square if root_mean_square > 0 else 1.0


def _direction(p: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu")
    return noise.to(p.detach()) * _size(p)


def _moved_loss(
    setting: Setting, path: Path, held: list[Tensor], moves: Sequence[Tensor], h: float
) -> float:
    """L after the same number of iterations, with what the problem holds moved by h."""
    with torch.enable_grad():
        depends = any(t.requires_grad for t in tree.leaves(setting.start()))
    moved = {id(t): (t + h * m).detach() for t, m in zip(held, moves, strict=True)}
    with torch.no_grad(), _Substitute(moved):
        # The unmoved start, unless it depends on θ: derived steps are constants for autograd.
        state = setting.start() if depends else path.start
        for _ in range(path.iterations):
            state = setting.algorithm.step(setting.problem, state)
        return float(setting.loss(setting.algorithm.solution(state)))
