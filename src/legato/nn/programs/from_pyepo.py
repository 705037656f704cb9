"""Any solver of a problem with a linear objective, in the form of PyEPO, as a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from legato._support.checks import describe, inside_functional_transform, require_tensor
from legato._support.precision import out_of_autocast
from legato.errors import InputError
from legato.nn.programs.linear import LPGD, LinearGradient, Perturbed

_NEEDED = ("num_cost", "setObj", "solve")


def from_pyepo(model: Any, gradient: LinearGradient | None = None) -> nn.Module:
    r"""A layer of an optimisation model of PyEPO: costs in, solutions out.

    .. math:: x(c) = \arg\min_{x ∈ X}\; c^⊤x

    X may be anything, whole numbers included, for only the model looks at it: whatever has
    ``num_cost``, ``setObj(c)`` and ``solve()`` → (solution, value) is one, and ``modelSense`` −1
    makes it a maximum. PyEPO itself is not needed. As for :class:`LinearProgram`, the derivative of
    a solution is zero almost everywhere, and ``gradient`` is what to use instead. The model solves
    one instance after the other, on the CPU, once for each forward and backward (:class:`LPGD`) or
    once for each sample (:class:`Perturbed`); only it can know whether a solution is unique.

    Args:
        model (pyepo.model.opt.optModel): or anything with its methods.
        gradient (LinearGradient, optional): :class:`LPGD` or :class:`Perturbed`.
            Default: None, which is ``LPGD()``

    Returns:
        torch.nn.Module: takes costs (…, num_cost) and returns solutions of that shape.

    Reference: Tang and Khalil (2024), *PyEPO*; Vlastelica et al. (2020); Berthet et al. (2020).

    >>> class Cheapest:
    ...     num_cost = 3
    ...     def setObj(self, c):
    ...         self.c = c
    ...     def solve(self):
    ...         return [float(k == self.c.argmin()) for k in range(3)], self.c.min()
    >>> c = torch.tensor([[1.0, 1.2, 3.0]], requires_grad=True)
    >>> x = from_pyepo(Cheapest(), LPGD(1.0))(c)
    >>> x.detach()
    tensor([[1., 0., 0.]])
    >>> x[0, 0].backward()  # less of x₁: make it dearer, and the next one cheaper
    >>> c.grad
    tensor([[-1.,  1.,  0.]])
    """
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing:
        raise InputError(
            f"{type(model).__name__} has no {', '.join(missing)}: a model needs num_cost, "
            "setObj(c) and solve(), which returns a solution and its value."
        )
    if gradient is None:
        gradient = LPGD()
    if not isinstance(gradient, LPGD | Perturbed):
        raise InputError(
            f"gradient must be LPGD(…) or Perturbed(…), not {gradient!r}: others change the "
            "program, of which a model shows nothing but its solutions."
        )
    sense = getattr(model, "modelSense", 1)
    if sense not in (1, -1):
        raise InputError(f"modelSense must be 1 (minimise) or −1 (maximise), not {sense!r}.")
    return _Model(model, gradient, int(sense))


class _Model(nn.Module):
    """The layer of :func:`from_pyepo`."""

    def __init__(self, model: Any, gradient: LPGD | Perturbed, sense: int) -> None:
        super().__init__()
        self.model, self.gradient, self.sense = model, gradient, sense

    def extra_repr(self) -> str:
        return f"{type(self.model).__name__}, {self.gradient}"

    def forward(self, c: Tensor) -> Tensor:
        """Solutions (…, num_cost) for costs of that shape."""
        require_tensor(c, "c")
        if inside_functional_transform():
            raise InputError(
                "A model reads values, which torch.func hides. Give it the whole batch instead of "
                "vmap: leading axes are batches; and call .backward() or torch.autograd.grad."
            )
        c = out_of_autocast(c)
        if not c.is_floating_point() or c.ndim == 0 or c.shape[-1] != self.model.num_cost:
            raise InputError(
                f"c must be floating-point costs (…, {self.model.num_cost}), not {c.dtype} of "
                f"shape {describe(c)}."
            )
        if not bool(torch.isfinite(c.detach()).all()):
            count = int((~torch.isfinite(c.detach())).sum())
            raise InputError(f"c holds {count} NaN or infinite values of {c.numel()}.")
        if isinstance(self.gradient, Perturbed):
            Z = self.gradient.draw(tuple(c.shape), c)
            return self.gradient.mean(self.solutions(c.detach() + self.gradient.sigma * Z), Z, c)
        return _Difference.apply(self, c)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def solutions(self, c: Tensor) -> Tensor:
        """One call of the model for each instance."""
        n = c.shape[-1]
        costs = c.reshape(-1, n).double().cpu().numpy()
        out = np.empty_like(costs)
        for k, cost in enumerate(costs):
            self.model.setObj(cost.copy())
            solution = self.model.solve()[0]
            if isinstance(solution, Tensor):
                solution = solution.detach().cpu()
            x = np.asarray(solution, dtype=np.float64).reshape(-1)
            if x.shape != (n,) or not np.isfinite(x).all():
                raise InputError(
                    f"The model's solution of instance {k} is not {n} finite numbers: {solution!r}."
                )
            out[k] = x
        return torch.from_numpy(out).to(c).reshape(c.shape)


class _Difference(torch.autograd.Function):
    """x forward; backward the difference of two solves, as :class:`LPGD` takes it."""

    @staticmethod
    def forward(ctx: Any, layer: _Model, c: Tensor) -> Tensor:
        x = layer.solutions(c)
        ctx.layer = layer
        ctx.save_for_backward(c, x)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, xi: Tensor) -> Any:
        c, x = ctx.saved_tensors
        asked = (xi != 0).any(-1)  # NaN is asked for, and stays NaN
        known = asked & torch.isfinite(xi).all(-1)
        grad = torch.zeros_like(c).masked_fill((asked & ~known).unsqueeze(-1), torch.nan)
        if bool(known.any()):
            layer, tau = ctx.layer, ctx.layer.gradient.tau
            moved = layer.solutions(c[known] + layer.sense * tau * xi[known])
            grad[known] = layer.sense * (moved - x[known]) / tau
        return None, grad
