"""Forward-mode differentiation: tangents carried along with the iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import inside_functional_transform
from legato._support.compiling import never_compiled
from legato._support.graph import leaves_behind
from legato._support.telling import tell
from legato._support.tree import Tree
from legato.algorithms import Algorithm
from legato.errors import GradientError, InexactGradientWarning, InputError
from legato.gradients.base import (
    GradientStrategy,
    Linearisation,
    Task,
    inside_transforms,
    pull_back,
    pullback_graph,
    refuse_second_derivatives,
)
from legato.running import Run


class Forward(GradientStrategy):
    r"""The paper's forward mode: dx/dθ is computed during the iteration, online.

    .. math:: \frac{dx^{n+1}}{dθ} = A_x(x^n)\,\frac{dx^n}{dθ} + A_θ(x^n)

    Exact like :class:`Unroll`; memory grows with the number of entries of ``params``, not with the
    number of iterations. Only the listed tensors get a gradient; a tensor that needs one and is not
    listed causes a warning. Reference: Section 4.2 of Ochs et al. (2016).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Forward(weight))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-3.0410)
    """

    def __init__(self, *params: Tensor | Sequence[Tensor]) -> None:
        flat = [t for p in params for t in ([p] if isinstance(p, Tensor) else p)]
        if not flat or not all(isinstance(t, Tensor) for t in flat):
            raise InputError("Forward needs the tensors to differentiate in: Forward(theta, …).")
        idle = [i for i, t in enumerate(flat) if not t.requires_grad]
        if idle:
            raise InputError(
                f"Forward: parameter {idle[0]} does not require a gradient. Call "
                ".requires_grad_() on it before building the problem."
            )
        self.params = flat

    @never_compiled("tangents are carried by nested backward passes")
    def differentiate(self, task: Task) -> Run:
        task = task.steadied()
        if not torch.is_grad_enabled():
            return task.run()
        if inside_functional_transform():
            raise inside_transforms("Forward carries its tangents by nested backward passes")
        carrier = _Carrier(task.algorithm, self.params, task.state)
        with torch.no_grad():
            done = replace(task, algorithm=carrier, state=carrier.state).run()
        if not carrier.influenced:
            raise GradientError(
                "None of the parameters given to Forward influences the iteration: the problem was "
                "built from other tensors (copies, detached or converted ones)."
            )
        primal, tangents = done.state
        values = [t.detach() for t in tree.leaves(primal)]
        attached = _Contract.apply(values, tangents, *self.params)  # type: ignore[no-untyped-call]
        return replace(done, state=tree.rebuild(primal, attached))


class _Carrier(Algorithm[Any, Any]):
    """An algorithm whose state is (state, tangents): one leading axis of all parameter entries."""

    def __init__(self, algorithm: Algorithm[Any, Any], params: list[Tensor], state: Tree) -> None:
        self.algorithm = algorithm
        self.params = params
        self.checked = False
        start = tree.leaves(state)
        count = sum(map(tree.entries, params))
        self.seeds = self._seeds(count)
        # The start may depend on the parameters too.
        dummies, pulled = pullback_graph(start, params)
        tangents = pull_back(pulled, dummies, self.seeds, (count,))
        self.influenced = any(g is not None for g in pulled)
        self.unlisted = leaves_behind(start, params)
        self.state = (tree.detach(state), tuple(tangents))

    def _seeds(self, count: int) -> list[Tensor]:
        """θ̇ for every entry of every parameter: the rows of an identity matrix, cut up.

        A complex entry is two real ones.
        """
        seeds, offset = [], 0
        for p in self.params:
            own, kind = tree.entries(p), tree.real_dtype(p.dtype)
            seed = torch.zeros(count, own, dtype=kind, device=p.device)
            seed[offset : offset + own] = torch.eye(own, dtype=kind, device=p.device)
            seeds.append(tree.shaped(p.expand(count, *p.shape), seed))
            offset += own
        return seeds

    def init(self, problem: Any, x0: Any) -> Any:
        return self.state

    def step(self, problem: Any, state: Any) -> Any:
        primal, tangents = state
        linear = Linearisation(problem, self.algorithm, primal, self.params)
        if not self.checked:
            self.checked = True
            self._warn_about_others(linear)
        moved = linear.jvp(tangents, self.seeds)
        self.influenced = self.influenced or linear.depends_on_parameters
        return tree.detach(linear.after), tuple(t.detach() for t in tree.leaves(moved))

    def _warn_about_others(self, linear: Linearisation) -> None:
        others = {id(t): t for t in [*linear.other_leaves(), *self.unlisted]}
        if others:
            shapes = ", ".join(str(tuple(t.shape)) for t in others.values())
            tell(
                f"The problem or its start depends on tensors that require a gradient but were not "
                f"given to Forward (shapes {shapes}): they will get none. List them, or use "
                "Unroll().",
                InexactGradientWarning,
            )

    def solution(self, state: Any) -> Any:
        return self.algorithm.solution(state[0])

    def residual(
        self, before: Any, after: Any, batch: int = 0, largest: Tensor | None = None
    ) -> Tensor:
        return self.algorithm.residual(before[0], after[0], batch, largest)

    def size(self, state: Any, batch: int = 0) -> Tensor:
        return self.algorithm.size(state[0], batch)


class _Contract(torch.autograd.Function):
    """The final state; its backward contracts the cotangent with the tangents."""

    @staticmethod
    def forward(
        ctx: Any, values: list[Tensor], tangents: tuple[Tensor, ...], *params: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.tangents = tangents
        ctx.params = [p.detach() for p in params]
        return tuple(v.clone() for v in values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivatives()
        parts = [
            tree.as_real(t).reshape(t.shape[0], -1) @ tree.as_real(g).reshape(-1)
            for t, g in zip(ctx.tangents, grads, strict=True)
        ]
        total = torch.stack(parts).sum(0)
        pieces = torch.split(total, [tree.entries(p) for p in ctx.params])
        shaped = (tree.shaped(p, piece) for p, piece in zip(ctx.params, pieces, strict=True))
        return (None, None, *shaped)
