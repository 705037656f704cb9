"""What all optimisers share: groups with a prox, closures, and a memory of the last evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from legato._support import tree
from legato._support.graph import leaves_behind
from legato.errors import ClosureError, InputError
from legato.functions import Function, Zero
from legato.optim.evaluation import Closure, Evaluation, as_float, no_influence, require_finite
from legato.optim.groups import Group, checked_prox, require_sound

Vector = tuple[Tensor, ...]
"""One tensor for each parameter, in the order of the groups."""


class DescentOptimizer(Optimizer):
    r"""A descent method for h = f + g with closures that evaluate f and ∇f.

    .. math:: \min_θ\, h(θ) = f(θ) + g(θ)

    The loss and gradient at the accepted point are remembered, so that a step costs one evaluation
    where possible; this supposes a deterministic loss. Call :meth:`forget` when the loss changed
    (another batch, another tolerance). ``uncertainty`` says how far the values of the closure may
    be off; :func:`~legato.fit` sets it where the lower level is solved inexactly.
    All state is in ``state``: scalars with the first parameter, vectors with each.
    Reference: Ochs, Chen, Brox, Pock (2014).

    Args:
        params: Tensors, named tensors or parameter groups, as for every torch optimiser.
        prox: The function g whose prox is taken; a group may have its own.
        defaults: The numbers that each group may have of its own, with their defaults.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.ProximalGradient([theta], lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = 0.5 * (theta - 1).square().sum()
    ...     loss.backward()
    ...     return loss
    >>> [round(float(optimizer.step(closure)), 3) for _ in range(3)]
    [2.0, 0.5, 0.125]
    """

    uncertainty: float = 0.0
    descends: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        prox: Function | None = None,
        defaults: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(params, {**(defaults or {}), "prox": Zero() if prox is None else prox})
        if not self._params():
            raise InputError("The optimiser got no parameters.")

    # --- groups -----------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = Group(self.param_groups.pop())
        group["prox"] = Zero() if group["prox"] is None else group["prox"]
        self._check_group(group)
        self.param_groups.append(group)

    def _check_group(self, group: Group) -> None:
        require_sound(group, self.defaults, type(self).__name__)

    def _params(self) -> Vector:
        return tuple(p for group in self.param_groups for p in group["params"])

    def _by_group(self, point: Vector) -> list[Vector]:
        """The part of a vector that belongs to each group."""
        remaining = iter(point)
        return [tuple(next(remaining) for _ in group["params"]) for group in self.param_groups]

    def _inertial_step(
        self,
        x: Vector,
        gradient: Vector,
        last_move: Vector | None,
        numbers: Sequence[tuple[float, float]],
    ) -> Vector:
        """prox_{αg}(x − α∇f(x) + β(x − x⁻)), with (α, β) and g of each group."""
        point: list[Tensor] = []
        moves = x if last_move is None else last_move
        parts = zip(*map(self._by_group, (x, gradient, moves)), strict=True)
        for group, (lr, momentum), part in zip(self.param_groups, numbers, parts, strict=True):
            for p, slope, move in zip(*part, strict=True):
                half = torch.add(p, slope, alpha=-lr)  # in one operation, as torch's SGD
                if momentum != 0 and last_move is not None:
                    half = torch.add(half, move, alpha=momentum)
                point.append(checked_prox(group["prox"], half, lr))
        return tuple(point)

    def _penalty(self, point: Vector) -> float:
        """g(x)."""
        parts = zip(self.param_groups, self._by_group(point), strict=True)
        return sum(float(group["prox"].value(t)) for group, part in parts for t in part)

    # --- evaluation -------------------------------------------------------------------------------

    def _evaluate(self, closure: Closure | None) -> Evaluation:
        """Call the closure at the current parameters, and check that it did its work."""
        if closure is None:
            raise ClosureError(
                f"{type(self).__name__}.step needs a closure that computes the loss, calls "
                "backward() on it and returns it: it compares losses at several points."
            )
        params = self._params()
        for p in params:
            p.grad = None
        with torch.enable_grad():
            returned = closure()
        loss = as_float(returned)
        if not math.isfinite(loss):
            return Evaluation(loss, (), self.uncertainty)
        gradient = tree.copy(self._gradients(returned))
        like = returned if isinstance(returned, Tensor) else params[0]
        eps = torch.finfo(like.dtype).eps if like.is_floating_point() else Evaluation.eps
        return Evaluation(loss, gradient, self.uncertainty, eps)

    def _gradients(self, returned: Any) -> Vector:
        """What backward left in the parameters, or why it is not there."""
        params = self._params()
        found = tuple(p.grad for p in params if p.grad is not None)
        if len(found) == len(params):
            if any(g.is_sparse for g in found):
                raise InputError("Sparse gradients are not supported: make the layers dense.")
            return found
        missing = [i for i, p in enumerate(params) if p.grad is None]
        tensor = isinstance(returned, Tensor)
        reached = {id(t) for t in (returned, *leaves_behind([returned], []))} if tensor else set()
        if any(id(params[i]) in reached for i in missing):
            raise ClosureError(
                "The closure returned a loss but left no gradient: it must call loss.backward() "
                "before it returns."
            )
        if not tensor and not found:
            raise ClosureError(
                "No parameter has a gradient: call loss.backward() before step(), or in the "
                "closure before it returns, with a loss that depends on the parameters."
            )
        names = [
            name
            for group in self.param_groups
            for name in group.get("param_names", [None] * len(group["params"]))
        ]
        raise no_influence(
            [f"{names[i] or f'parameter {i}'} of shape {tuple(params[i].shape)}" for i in missing]
        )

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _memory(self) -> dict[str, Any]:
        """Scalars: kept with the first parameter, as torch's L-BFGS does."""
        memory: dict[str, Any] = self.state[self._params()[0]]
        return memory

    def _recall(self, name: str) -> Vector | None:
        found = tuple(self.state[p].get(name) for p in self._params())
        return None if any(v is None for v in found) else found

    def _keep(self, name: str, value: Vector | None) -> None:
        for i, p in enumerate(self._params()):
            if value is None:
                self.state[p].pop(name, None)
            else:
                self.state[p][name] = value[i]

    def _write(self, point: Vector) -> None:
        tree.write(self._params(), point)

    def forget(self) -> None:
        """Drop the remembered loss and gradient: the next step evaluates the closure anew."""
        self._keep("gradient", None)

    def remembered(self) -> Evaluation | None:
        """The loss and gradient at the current parameters, if they are known."""
        gradient, point = self._recall("gradient"), self._recall("point")
        if gradient is None or point is None or not tree.equal(point, self._params()):
            return None
        memory = self._memory
        return Evaluation(memory["loss"], gradient, memory["error"], memory["eps"])

    def _remember(self, point: Vector, found: Evaluation) -> None:
        self._keep("point", point)
        self._keep("gradient", found.gradient)
        self._memory.update(loss=found.loss, error=found.error, eps=found.eps)

    def _begin(self, closure: Closure | None) -> tuple[Vector, Evaluation, bool]:
        """The current point, f and ∇f there (refuses NaN), and whether the last step led to it."""
        here, last = self.remembered(), self._recall("point")
        if here is not None and last is not None:
            return last, here, True
        here = self._evaluate(closure)
        require_finite(here)
        x: Vector = tree.copy(self._params())
        self._remember(x, here)
        return x, here, last is not None and tree.equal(last, x)

    @property
    def decrease(self) -> float | None:
        """By how much the last step lowered what the method decreases, or None for nothing."""
        return self._memory.get("decrease")

    @property
    def decrease_error(self) -> float:
        """How far ``decrease`` may be off, because of ``uncertainty``."""
        return float(self._memory.get("decrease_error", 0.0))

    # --- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As in torch; the functions of ``prox`` are code, not state, and stay with the object."""
        found = super().state_dict()
        found["param_groups"] = [
            {k: v for k, v in group.items() if k != "prox"} for group in found["param_groups"]
        ]
        found["state"] = {k: dict(v) for k, v in found["state"].items()}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        functions = [group["prox"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        self.param_groups = [
            Group({**group, "prox": g})
            for group, g in zip(self.param_groups, functions, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler wraps `step` in the instance; a copy has its own.
        own = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "step"}
        return {**own, **super().__getstate__()}
