"""What all optimisers share: groups with a prox, closures, and a memory of the last evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from legato.errors import ClosureError, InputError, NoInfluenceError, NonFiniteLossError, ProxError
from legato.functions import Function, Sum, Zero, prox
from legato.geometry import Euclidean
from legato.optim import vectors
from legato.optim.vectors import Vector

Closure = Callable[[], Any]
"""Computes the loss, calls ``backward()`` on it and returns it."""


@dataclass(frozen=True)
class Evaluation:
    """f(x) and ∇f(x); ``error`` bounds how far the loss may be off, ``eps`` is its precision."""

    loss: float
    gradient: list[Tensor]
    error: float = 0.0
    eps: float = torch.finfo(torch.float64).eps

    @cached_property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and vectors.finite(self.gradient)

    @property
    def rounding(self) -> float:
        """What a comparison of losses may overlook: rounding, and ``error`` up to 0.1 %."""
        return 4 * self.eps * abs(self.loss) + min(self.error, 1e-3 * abs(self.loss))


def is_convex(g: Function) -> bool:
    """Whether a function is convex; those that are not say so by ``convex = False``."""
    if isinstance(g, Sum):
        return all(is_convex(term) for term in g.terms)
    return bool(getattr(g, "convex", True))


class DescentOptimizer(Optimizer):
    r"""A deterministic descent method for h = f + g with closures that evaluate f and ∇f.

    .. math:: \min_θ\, h(θ) = f(θ) + g(θ)

    The loss and gradient at the accepted point are remembered, so that a step costs one evaluation
    where possible; this supposes a deterministic loss. Call :meth:`forget` when the loss changed
    (another batch, another tolerance). ``uncertainty`` says how far the values of the closure may
    be off; :func:`~legato.fit` sets it where the lower level is solved inexactly.
    All state is in ``state``: scalars with the first parameter, vectors with each.
    Reference: Ochs, Chen, Brox, Pock (2014).

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.ProximalGradient([theta], alpha=0.5)
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

    def __init__(self, params: Iterable[Any], prox: Function | None = None) -> None:
        super().__init__(params, {"prox": Zero() if prox is None else prox})
        if not self._params():
            raise InputError("The optimiser got no parameters.")

    # --- groups -----------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["prox"] = Zero() if group["prox"] is None else group["prox"]
        try:
            self._check_group(group)
        except Exception:
            self.param_groups.pop()
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        g = group["prox"]
        if not isinstance(g, Function):
            hint = f" Did you mean {g.__name__}()?" if isinstance(g, type) else ""
            raise InputError(
                f"prox must be a legato function such as legato.L1(0.1), not {_kind(g)}.{hint}"
            )
        for p in group["params"]:
            if not p.is_floating_point():
                raise InputError(f"Parameters must be real floating-point tensors, not {p.dtype}.")
            if not p.requires_grad:
                raise InputError(
                    "A parameter has requires_grad=False and would never move. Call "
                    "requires_grad_() on it, or leave it out."
                )
            with torch.no_grad():
                g.value(_prox(g, p.detach(), 1.0))

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _prox(self, point: Vector, alpha: float) -> list[Tensor]:
        """prox_{αg}, each parameter with the function of its group."""
        remaining = iter(point)
        return [
            _prox(group["prox"], next(remaining), alpha)
            for group in self.param_groups
            for _ in group["params"]
        ]

    def _penalty(self, point: Vector) -> float:
        """g(x)."""
        remaining = iter(point)
        return sum(
            float(group["prox"].value(next(remaining)))
            for group in self.param_groups
            for _ in group["params"]
        )

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
        loss = _as_float(returned)
        if not math.isfinite(loss):
            return Evaluation(loss, [], self.uncertainty)
        self._require_gradients(returned)
        gradient = [p.grad.detach().clone() for p in params]  # type: ignore[union-attr]
        like = returned if isinstance(returned, Tensor) else params[0]
        eps = torch.finfo(like.dtype).eps if like.is_floating_point() else Evaluation.eps
        return Evaluation(loss, gradient, self.uncertainty, eps)

    def _require_gradients(self, returned: Any) -> None:
        params = self._params()
        missing = [i for i, p in enumerate(params) if p.grad is None]
        if not missing:
            if any(p.grad.is_sparse for p in params):  # type: ignore[union-attr]
                raise InputError("Sparse gradients are not supported: make the layers dense.")
            return
        reached = leaves_of(returned) if isinstance(returned, Tensor) else set()
        if any(id(params[i]) in reached for i in missing):
            raise ClosureError(
                "The closure returned a loss but left no gradient: it must call loss.backward() "
                "before it returns."
            )
        if not isinstance(returned, Tensor) and len(missing) == len(params):
            raise ClosureError(
                "No parameter has a gradient: call loss.backward() before step(), or in the "
                "closure before it returns, with a loss that depends on the parameters."
            )
        raise no_influence([self._describe(i) for i in missing])

    def _describe(self, index: int) -> str:
        names = [
            group.get("param_names", [None] * len(group["params"]))[j]
            for group in self.param_groups
            for j in range(len(group["params"]))
        ]
        shape = tuple(self._params()[index].shape)
        return f"{names[index] or f'parameter {index}'} of shape {shape}"

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _memory(self) -> dict[str, Any]:
        """Scalars: kept with the first parameter, as torch's L-BFGS does."""
        memory: dict[str, Any] = self.state[self._params()[0]]
        return memory

    def _recall(self, name: str) -> list[Tensor] | None:
        found = [self.state[p].get(name) for p in self._params()]
        return None if any(v is None for v in found) else found

    def _keep(self, name: str, value: Vector | None) -> None:
        for i, p in enumerate(self._params()):
            if value is None:
                self.state[p].pop(name, None)
            else:
                self.state[p][name] = value[i]

    def _write(self, point: Vector) -> None:
        vectors.write(self._params(), point)

    def forget(self) -> None:
        """Drop the remembered loss and gradient: the next step evaluates the closure anew."""
        self._keep("gradient", None)

    def remembered(self) -> Evaluation | None:
        """The loss and gradient at the current parameters, if they are known."""
        gradient, point = self._recall("gradient"), self._recall("point")
        if gradient is None or point is None or not vectors.same(point, self._params()):
            return None
        memory = self._memory
        return Evaluation(memory["loss"], gradient, memory["error"], memory["eps"])

    def _remember(self, point: Vector, found: Evaluation) -> None:
        self._keep("point", point)
        self._keep("gradient", found.gradient)
        self._memory.update(loss=found.loss, error=found.error, eps=found.eps)

    def _here(self, closure: Closure | None) -> Evaluation:
        """f and ∇f at the current parameters, remembered or new; refuses NaN."""
        known = self.remembered()
        if known is not None:
            return known
        found = self._evaluate(closure)
        require_finite(found)
        self._remember(vectors.copy(self._params()), found)
        return found

    @property
    def decrease(self) -> float | None:
        """By how much the last step lowered what the method decreases, or None for nothing."""
        return self._memory.get("decrease")

    @property
    def doubt(self) -> float:
        """How far ``decrease`` may be off, because of ``uncertainty``."""
        return float(self._memory.get("doubt", 0.0))

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
        for group, g in zip(self.param_groups, functions, strict=True):
            group["prox"] = g

    def __getstate__(self) -> dict[str, Any]:
        own = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        return {**own, **super().__getstate__()}


def require_finite(found: Evaluation) -> None:
    """Refuse to start from a loss or gradient that is not a number."""
    if not math.isfinite(found.loss):
        what = f"The loss is {found.loss:g} at the current parameters"
    elif not found.finite:
        what = "The gradient of the loss is not finite at the current parameters"
    else:
        return
    raise NonFiniteLossError(
        f"{what}: there is nothing to descend from. Check the data and the loss at this point "
        "(torch.autograd.set_detect_anomaly finds where NaN begins), or start elsewhere."
    )


def _prox(g: Function, y: Tensor, alpha: float) -> Tensor:
    """prox_{αg}(y), which must stay what y is: same dtype, device and shape."""
    try:
        found = prox(g, Euclidean(), y, alpha)
    except RuntimeError as error:
        raise ProxError(
            f"The prox of {_kind(g)} failed on a parameter of shape {tuple(y.shape)}, {y.dtype}, "
            f"on {y.device}: {error}. Its own data (a weight, an end of a box) must have the same "
            "dtype and device and a shape that broadcasts: convert them with .to(parameter)."
        ) from error
    if not isinstance(found, Tensor):
        raise ProxError(f"The prox of {_kind(g)} returned {_kind(found)}, not a tensor.")
    for what in ("dtype", "device", "shape"):
        before, after = getattr(y, what), getattr(found, what)
        if before != after:
            if what == "shape":
                before, after = tuple(before), tuple(after)
            raise ProxError(
                f"The prox of {_kind(g)} changed the {what} of a parameter from {before} to "
                f"{after}. Its own data (a weight, an end of a box) must match the parameter: "
                "convert them with .to(parameter), or give plain numbers."
            )
    return found.detach()


def _kind(obj: object) -> str:
    return type(obj).__name__


def _as_float(returned: Any) -> float:
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return float(returned.detach())
    if isinstance(returned, (int, float)):
        return float(returned)
    what = f"shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else _kind(returned)
    raise ClosureError(
        f"The closure must return the loss, one number, not {what}. End it with `return loss`."
    )


def leaves_of(loss: Tensor) -> set[int]:
    """The ids of all leaf tensors in the graph of ``loss``; works after backward, too."""
    stack, visited, found = [loss.grad_fn], set(), {id(loss)}
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        found.add(id(getattr(node, "variable", None)))
        stack.extend(parent for parent, _ in node.next_functions)
    return found


def no_influence(described: list[str]) -> NoInfluenceError:
    return NoInfluenceError(
        f"The loss does not depend on {', '.join(described)}: no gradient reaches it. It was "
        "detached (.detach(), .item(), .data, torch.no_grad()), replaced by a copy, or never used. "
        "Use it in the loss or leave it out of the optimiser."
    )
