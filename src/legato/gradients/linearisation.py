"""The derivative of one step at one state, as matrix-free products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.graph import leaves_behind
from legato._support.tree import Var
from legato.algorithms import Algorithm


class Linearisation:
    r"""The Jacobian of s ↦ step(s, θ) at ``state``, with products from both sides.

    Products from the left are ordinary vector–Jacobian products. Products from the right use that
    w ↦ Jᵀw is linear, so its own vector–Jacobian product is t ↦ Jt: one backward pass each through
    a graph that is built once, for any operation that can be differentiated twice.
    Reference: Griewank and Walther (2008), Section 3.2.

    >>> problem = lg.Composite(lg.Quadratic(0.5 * torch.eye(2), torch.zeros(2)))
    >>> algorithm = lg.ForwardBackward(1.0)
    >>> stationary, state = algorithm.fixed_point_map(algorithm.init(problem, torch.ones(2)))
    >>> J = legato.gradients.Linearisation(problem, stationary, state)
    >>> J.transposed(torch.ones(2))  # one step maps x to x/2
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        problem: Any,
        algorithm: Algorithm,
        state: Var,
        parameters: Sequence[Tensor] = (),
    ) -> None:
        self.algorithm = algorithm
        self.state = tree.detach(state)
        with torch.enable_grad():
            self._inputs = [t.detach().requires_grad_() for t in tree.leaves(state)]
            self.after = algorithm.step(problem, tree.rebuild(state, self._inputs))
        self._outputs = tree.leaves(self.after)
        self._parameters = list(parameters)
        self._pull: tuple[list[Tensor], list[Tensor | None]] | None = None

    def vjp(self, cotangent: Var) -> Var:
        """Jᵀw with respect to the state."""
        pulled = pull_back(self._outputs, self._inputs, tree.leaves(cotangent))
        return tree.rebuild(self.state, pulled)

    def flat(self, cotangent: Var) -> Tensor:
        """A cotangent of the state as one vector, which is what ``transposed`` takes."""
        return tree.flatten(cotangent)

    def transposed(self, w: Tensor) -> Tensor:
        r"""A_xᵀ as the fixed-point family needs it, on flat cotangents of mirror coordinates.

        In mirror coordinates A_xᵀ becomes w ↦ S_yᵀ T w, where T transports cotangents from the
        state before the step to the one after it: similar to A_xᵀ, hence of the same spectrum.
        """
        return tree.flatten(self.vjp(self.transport(tree.unflatten(self.state, w))))

    def transport(self, cotangent: Var) -> Var:
        return self.algorithm.transport(self.state, tree.detach(self.after), cotangent)

    def jvp(self, tangents: Sequence[Tensor], parameter_tangents: Sequence[Tensor] = ()) -> Var:
        """J·(ṡ, θ̇), for tangents that may have one more leading axis, of directions."""
        dummies, pulled = self._pullback()
        batched = bool(tangents) and tangents[0].ndim > self._inputs[0].ndim
        count = tangents[0].shape[:1] if batched else ()
        filled = pull_back(pulled, dummies, [*tangents, *parameter_tangents], count)
        return tree.rebuild(self.after, filled)

    @property
    def depends_on_parameters(self) -> bool:
        """Whether any of the given parameters influences this step."""
        _, pulled = self._pullback()
        return any(g is not None for g in pulled[len(self._inputs) :])

    def other_leaves(self) -> list[Tensor]:
        """Leaf tensors that require a gradient, influence the step and are not parameters."""
        return leaves_behind(self._outputs, [*self._inputs, *self._parameters])

    def _pullback(self) -> tuple[list[Tensor], list[Tensor | None]]:
        if self._pull is None:
            with torch.enable_grad():
                dummies = [torch.zeros_like(out).requires_grad_() for out in self._outputs]
                live = [
                    (out, d)
                    for out, d in zip(self._outputs, dummies, strict=True)
                    if out.requires_grad
                ]
                wanted = [*self._inputs, *self._parameters]
                pulled: Sequence[Tensor | None] = [None] * len(wanted)
                if live:
                    pulled = torch.autograd.grad(
                        [out for out, _ in live],
                        wanted,
                        [d for _, d in live],
                        create_graph=True,
                        allow_unused=True,
                    )
            self._pull = dummies, list(pulled)
        return self._pull


def pull_back(
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    count: Sequence[int] = (),
) -> list[Tensor]:
    """Jᵀw through a graph that stays; ``count`` is the axis of a batch of cotangents, if any."""
    pairs = [
        (out, w)
        for out, w in zip(outputs, cotangents, strict=True)
        if out is not None and out.requires_grad
    ]
    grads: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs:
        grads = torch.autograd.grad(
            [out for out, _ in pairs],
            inputs,
            [w for _, w in pairs],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=bool(count),
        )
    return [
        t.new_zeros((*count, *t.shape)) if g is None else g
        for g, t in zip(grads, inputs, strict=True)
    ]
