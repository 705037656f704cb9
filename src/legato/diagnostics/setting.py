"""What is diagnosed: a problem, an algorithm and a loss, given as they are or made by a factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.graph import leaves_behind
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import InputError, NoInfluenceError, NonFiniteLossError
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.base import pull_back
from legato.running import Stop
from legato.solving import Solution, prepare, solve_silently

Loss = Callable[[Var], Tensor]
Params = Tensor | Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Setting:
    """The bilevel problem as a whole: x*(θ) from ``problem`` by ``algorithm``, then L(x*)."""

    problem: Any
    algorithm: Algorithm[Any, Any]
    loss: Loss
    x0: Var | None = None
    params: Params | None = None

    @property
    def theta(self) -> list[Tensor]:
        """The tensors to differentiate by, as one flat list."""
        given = () if self.params is None else self.params
        return [given] if isinstance(given, Tensor) else list(given)

    def start(self) -> Any:
        """The first state; ``x0`` may be the state of an earlier solution."""
        if isinstance(self.x0, tuple) and hasattr(self.x0, "_fields"):
            return self.algorithm.resume(self.problem, self.x0)
        return self.algorithm.init(self.problem, self.x0)

    def solve(self, gradient: GradientStrategy, stop: Stop) -> Solution:
        return solve_silently(self.problem, self.algorithm, self.x0, gradient=gradient, stop=stop)

    def value(self, x: Var) -> Tensor:
        """L(x), refused where it is no number."""
        value = self.loss(x)
        if not isinstance(value, Tensor) or value.numel() != 1:
            is_tensor = isinstance(value, Tensor)
            given = f"shape {tuple(value.shape)}" if is_tensor else type(value).__name__
            raise InputError(
                "The loss must be a function of the solution that returns one number as a tensor, "
                f"not {given}. Reduce it, e.g. with .sum() or .mean()."
            )
        if not bool(torch.isfinite(value.detach())):
            raise NonFiniteLossError(
                f"The loss is {float(value.detach()):g} at the solution, so no gradient of it "
                "means anything. Look for log(0), 0/0 or overflow in the loss."
            )
        return value.reshape(())

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of ``value`` in θ as one flat vector; graphs behind the problem stay."""
        with torch.enable_grad():
            return flat(pull_back([value], self.theta, [torch.ones_like(value)])).detach()

    def two_steps(self) -> tuple[Tensor, Any]:
        """The loss after two iterations, and the state: everything that a run touches, cheaply."""
        state = self.start()
        for _ in range(2):
            state = self.algorithm.step(self.problem, state)
        return self.value(self.algorithm.solution(state)), state


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries as one vector."""
    return torch.cat([t.reshape(-1) for t in tensors])


# --- factories ------------------------------------------------------------------------------------

Factory = Callable[..., tuple[Any, ...]]


def in_two_precisions(
    make: Factory, dtype: torch.dtype | None, stop: Stop
) -> tuple[Setting, Setting, Solution]:
    """The setting to measure, its twin in float64 (itself, where it has none), and its solution."""
    if not _takes_dtype(make):
        if dtype is not None:
            raise InputError(
                f"Nothing here takes a dtype, so the problem cannot be measured in {dtype} but "
                "only as it is: pass a factory make(dtype), or leave dtype out."
            )
        setting, solution = attach(_made(make), stop)
        return setting, setting, solution
    dtype = torch.get_default_dtype() if dtype is None else dtype
    setting, solution = attach(_made(make, dtype), stop)
    _require_dtype(make, setting, dtype)
    if dtype == torch.float64:
        return setting, setting, solution
    twin, _ = attach(_made(make, torch.float64), stop)
    _require_dtype(make, twin, torch.float64)
    _require_same(make, setting, twin, dtype)
    return setting, twin, solution


def _takes_dtype(make: Factory) -> bool:
    """Whether a factory is to be called with a dtype: it names one, or needs an argument."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some callables of C have no signature
        return True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        p.name == "dtype" or (p.default is p.empty and p.kind not in variadic) for p in parameters
    )


def _made(make: Factory, *dtype: torch.dtype) -> Setting:
    """What a factory returns, checked for its form."""
    made = make(*dtype)
    if not isinstance(made, tuple) or len(made) not in (3, 4, 5):
        given = f"{len(made)} values" if isinstance(made, tuple) else type(made).__name__
        raise InputError(
            f"{_call(make, *dtype)} returned {given}, but (problem, algorithm, loss) is wanted, "
            "or (problem, algorithm, loss, x0), or (problem, algorithm, loss, x0, params)."
        )
    if not callable(made[2]):
        raise InputError(
            f"The loss must be a function of the solution, not {type(made[2]).__name__}: pass "
            "loss=lambda x: …, not its value, so that it can be evaluated elsewhere."
        )
    return Setting(*prepare(*made[:2]), *made[2:])


def _call(make: Factory, *dtype: torch.dtype) -> str:
    name = getattr(make, "__name__", "make").replace("<lambda>", "make")
    return f"{name}({', '.join(map(str, dtype))})"


def _require_dtype(make: Factory, setting: Setting, dtype: torch.dtype) -> None:
    """Refuse a factory that does not compute in the dtype it is given."""
    with torch.no_grad():
        value, state = setting.two_steps()
    floating = [t for t in (*tree.leaves(state), value) if t.is_floating_point()]
    wrong = next((t for t in floating if t.dtype != dtype), None)
    if wrong is not None:
        what = "a loss" if wrong is value else "an iteration"
        raise InputError(
            f"{_call(make, dtype)} gives {what} in {wrong.dtype}. Make every tensor, also those in "
            "callables, of the dtype that is asked for; or let the factory take no argument, and "
            "the problem is measured as it is."
        )
    coarse = next(
        (t for t in setting.theta if torch.finfo(t.dtype).eps > torch.finfo(dtype).eps), None
    )
    if coarse is not None:
        raise InputError(
            f"{_call(make, dtype)} computes in {dtype}, but from a parameter in {coarse.dtype}, so "
            "that its gradient is rounded to that. Make parameters of the dtype themselves: "
            "θ = values.to(dtype).requires_grad_()."
        )


def _require_same(make: Factory, setting: Setting, twin: Setting, dtype: torch.dtype) -> None:
    """Refuse a factory whose problems differ by more than rounding."""
    with torch.no_grad():
        loss, exact = (float(s.two_steps()[0]) for s in (setting, twin))
    same = [t.shape for t in setting.theta] == [t.shape for t in twin.theta] and all(
        torch.allclose(a.detach().double(), b.detach(), rtol=1e-3, atol=1e-6)
        for a, b in zip(setting.theta, twin.theta, strict=True)
    )
    if not same or abs(loss - exact) > 1e-3 * (1 + abs(exact)):
        what = "the loss after two iterations differs" if same else "the parameters differ"
        raise InputError(
            f"{_call(make, dtype)} and {_call(make, torch.float64)} are not the same problem: "
            f"{what}. Draw random data once, outside, or with a fixed seed in one dtype that is "
            "then converted; where the order of the parameters is in doubt, return them as a fifth "
            "value."
        )


# --- parameters -----------------------------------------------------------------------------------


def attach(setting: Setting, stop: Stop) -> tuple[Setting, Solution]:
    """The setting with its parameters, given or found, and its solution, detached.

    Found are all leaves behind the loss that two solves share: callables may make others anew in
    each call. Refuses parameters, and a loss, that have no influence.
    """
    wanted = None if setting.params is None else _require_params(setting)
    with torch.enable_grad():
        first, solution = (setting.solve(Unroll(), stop) for _ in range(2))
        _require_dependence(setting, solution.x)
        value = setting.value(solution.x)
        moving = [torch.stack([t.sum() for t in tree.leaves(s.x)]).sum() for s in (first, solution)]
        if not _shared_leaves(*moving):
            raise NoInfluenceError(
                "No tensor behind the solution requires a gradient, so there is nothing to "
                "differentiate. Call .requires_grad_() on θ before building the problem from it."
            )
        if wanted is None:
            wanted = _shared_leaves(setting.value(first.x), value)
        grads = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True)
    for i, (p, g) in enumerate(zip(wanted, grads, strict=True)):
        if g is None:
            raise NoInfluenceError(
                f"params[{i}] (shape {tuple(p.shape)}) does not influence the loss: the problem "
                "was built from another tensor (a copy, a detached or converted one), or does not "
                "use it. Build the problem from params[i] itself."
            )
    return replace(setting, params=wanted), replace(solution, x=tree.detach(solution.x))


def _shared_leaves(value: Tensor, again: Tensor) -> list[Tensor]:
    later = {id(t) for t in leaves_behind([again], [])}
    return [t for t in leaves_behind([value], []) if id(t) in later]


def _require_params(setting: Setting) -> list[Tensor]:
    theta = setting.theta
    if not theta:
        raise InputError("params is empty: pass tensors, or None for all that matter.")
    for i, p in enumerate(theta):
        if not isinstance(p, Tensor) or not p.requires_grad:
            what = "does not require a gradient" if isinstance(p, Tensor) else "is no tensor"
            raise InputError(
                f"params[{i}] {what}. Call .requires_grad_() on it before building the problem."
            )
    return theta


def _require_dependence(setting: Setting, x: Var) -> None:
    """Refuse a loss that does not see the solution."""
    points = [t.detach().requires_grad_() for t in tree.leaves(x)]
    value = setting.value(tree.rebuild(x, points))
    seen: tuple[Tensor | None, ...] = (None,)
    if value.requires_grad:
        seen = torch.autograd.grad(value, points, allow_unused=True, retain_graph=True)
    if all(g is None for g in seen):
        raise InputError(
            "The loss does not depend on the solution through autograd, so every gradient strategy "
            "gives the same. Pass loss=function of x, computed with torch operations from the x it "
            "is given, without detach(), item() or numpy."
        )
    if not all(bool(torch.isfinite(g).all()) for g in seen if g is not None):
        raise NonFiniteLossError(
            "The gradient of the loss in the solution holds NaN or infinity. Look for log(0), "
            "sqrt(0) or a norm at 0 in the loss."
        )
