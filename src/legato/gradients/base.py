"""What gradient strategies share: their contract, their report, and the derivative of one step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support import tree
from legato._support.compiling import is_being_recorded
from legato._support.graph import leaves_behind
from legato._support.lazy import lazy
from legato._support.rows import Rows
from legato._support.tree import Tree
from legato.algorithms import Algorithm
from legato.algorithms.base import norm_of
from legato.engine import Engine
from legato.engine.switch import transposed, uncompiled
from legato.errors import GradientError
from legato.gradients.linear.base import Factored, LinearResult, Product, SaddleFactors
from legato.running import Run, Stop, Trace, batch_of, run


@dataclass
class Backward:
    """What happened in the backward pass; empty until ``.backward()`` has run.

    ``residual`` is ‖ξ − (I − A_x)ᵀv‖/‖ξ‖ for the fixed-point family, with cotangents of x and its
    dual in the units of their steps, and the share of the cotangent that truncation dropped for
    ``Unroll``. ``warnings`` is all that was said, printed or not.
    Reference: errata of Ochs et al. (2016): a certificate ‖v − v*‖ ≤ ‖r‖/(1 − ρ).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit())
    >>> solution.x.sum().backward()
    >>> report = solution.backward
    >>> report.converged, report.residual < 1e-5, report.bound < 1e-4
    (True, True, True)
    """

    residual: float | None = None
    iterations: int | None = None
    spectral_radius: float | None = None
    converged: bool | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def bound(self) -> float | None:
        """‖v − v*‖/‖ξ‖ as estimated by residual/(1 − ρ), infinite where ρ ≥ 1, None where unknown.

        It bounds the error where A_x is normal, and where not it can be too small by the factor
        that :func:`legato.diagnose` measures; ask that for a certified bound.
        """
        if self.residual is None or self.spectral_radius is None:
            return None
        gap = 1 - self.spectral_radius
        return self.residual / gap if gap > 0 else float("inf")

    def record(self, result: LinearResult) -> None:
        self.residual, self.iterations = result.residual, result.iterations
        self.spectral_radius, self.converged = result.spectral_radius, result.converged


@dataclass(frozen=True)
class Task:
    """An iteration to run and to differentiate: what :func:`legato.solve` hands to a strategy.

    Args:
        problem: the problem.
        algorithm: the algorithm whose ``step`` is iterated.
        state: where it starts.
        stop: when it ends.
        trace: filled with objective and residual of every iteration, unless None.
        report: filled by the backward pass.
        engine: how the iterations run; None for step by step.

    >>> problem = lg.Composite(lg.LeastSquares(torch.eye(2), torch.ones(2)), lg.L1(0.5))
    >>> algorithm = lg.ForwardBackward()
    >>> start, report = algorithm.init(problem, None), legato.gradients.Backward()
    >>> task = legato.gradients.Task(problem, algorithm, start, lg.Stop(3), None, report)
    >>> task.run().state.point
    tensor([0.5000, 0.5000])
    """

    problem: Any
    algorithm: Algorithm[Any, Any]
    state: Any
    stop: Stop
    trace: Trace | None
    report: Backward
    engine: Engine | None = None

    def run(self) -> Run:
        """Run the iteration."""
        return run(
            self.problem, self.algorithm, self.state, self.stop, trace=self.trace,
            engine=self.engine,
        )  # fmt: skip

    def steadied(self) -> Task:
        """The task with steps that suit the derivatives of its iterations as well."""
        algorithm, state = self.algorithm.steadied(self.problem, self.state)
        return replace(self, algorithm=algorithm, state=state)

    def detached(self) -> Task:
        """The task from a start without history."""
        return replace(self, state=tree.detach(self.state))


class GradientStrategy(ABC):
    r"""A way to differentiate an iteration; passed to :func:`legato.solve`.

    .. math:: \frac{dL}{dθ} = \left(\frac{dx}{dθ}\right)^⊤ ξ, \qquad ξ = ∇_x L

    Reference: Section 4 of Ochs et al. (2016).
    """

    from_start: ClassVar[bool] = True
    """Whether the derivative goes back to where the iteration starts, and to its steps."""

    @abstractmethod
    def differentiate(self, task: Task) -> Run:
        """Run the task and return its run with a state that is attached to the graph."""

    def default_stop(self, dtype: torch.dtype) -> Stop:
        """What ``stop=None`` means: a fixed number of iterations, whose derivative is exact."""
        return Stop()


def refuse_second_derivatives() -> None:
    """Called in a backward pass that cannot itself be differentiated."""
    if torch.is_grad_enabled():
        raise GradientError(
            "Second derivatives (create_graph=True) go through Unroll() only: the other strategies "
            "compute the first one without a graph. Use gradient=Unroll()."
        )


def inside_transforms(why: str) -> GradientError:
    """The error of a strategy that torch.func cannot transform."""
    return GradientError(
        f"{why} and cannot be used inside torch.func transforms. Use Unroll() there, or call "
        ".backward()."
    )


def changed_since(found: str) -> GradientError:
    """The error where the backward pass meets other values than the solve did."""
    return GradientError(
        f"{found}: data of the problem were changed in place before .backward(), or its terms draw "
        "random numbers. Call .backward() first, change a copy, or use Unroll()."
    )


@dataclass(frozen=True)
class Transposed:
    """w ↦ A_xᵀw, with the engine that it runs by: a solver's recurrences may take it too."""

    product: Callable[[Tensor], Tensor]
    engine: Engine | None
    together: Callable[[Tensor], Tensor] | None = None
    """The same for many w, along one more axis in front; None where coordinates are curved."""

    def __call__(self, w: Tensor) -> Tensor:
        return self.product(w)


class Linearisation:
    r"""The Jacobian J of s ↦ step(s, θ) at ``state``, as matrix-free products from both sides.

    Products from the left are ordinary vector–Jacobian products. Products from the right use that
    w ↦ Jᵀw is linear, so its own vector–Jacobian product is t ↦ Jt: one backward pass each through
    a graph that is built once, for any operation that can be differentiated twice.
    Reference: Griewank and Walther (2008), Section 3.2.

    Args:
        problem: the problem.
        algorithm: the algorithm; for the fixed-point family its ``fixed_point_map``.
        state: where the step is differentiated.
        parameters: the θ of :meth:`jvp`.
        batch: how many leading axes of the state are a batch: cotangents are matrices then, with a
            row for each of its elements.
        engine: what products from the left run by, and solvers' own recurrences; None for step by
            step.

    >>> problem = lg.Composite(lg.Quadratic(0.5 * torch.eye(2), torch.zeros(2)))
    >>> algorithm = lg.ForwardBackward(1.0)
    >>> plain, state = algorithm.fixed_point_map(algorithm.init(problem, torch.ones(2)))
    >>> J = legato.gradients.Linearisation(problem, plain, state)
    >>> J.transposed(torch.ones(2))  # one step maps x to x/2
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        problem: Any,
        algorithm: Algorithm[Any, Any],
        state: Any,
        parameters: Sequence[Tensor] = (),
        batch: int = 0,
        engine: Engine | None = None,
    ) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.state = tree.detach(state)
        self.rows = Rows(self.state, batch)
        with torch.enable_grad():
            self._inputs = _fresh_leaves(state)
            self.after = algorithm.step(problem, tree.rebuild(state, self._inputs))
        self._outputs = tree.leaves(self.after)
        self._parameters = list(parameters)
        self._pull: tuple[list[Tensor], list[Tensor | None]] | None = None
        self.engine = engine

    @lazy
    def _product(self) -> Callable[..., Sequence[Tensor]] | None:
        """The product by an engine; not every solver asks for it."""
        engine = uncompiled(self.engine)
        return transposed(engine, self.problem, self.algorithm, self.state)

    @property
    def transposed(self) -> Transposed:
        """w ↦ A_xᵀw on rows; made anew, for one that is kept would keep itself alive."""
        flat = not self.algorithm.coordinates(self.state)
        engine = self.engine if self._product else None
        return Transposed(self._transposed, engine, self._together if flat else None)

    @property
    def scaled(self) -> tuple[Transposed, Tensor | None]:
        r"""w ↦ dA_xᵀ(w/d), with the units d of primal and dual cotangents; None where all are 1."""
        plain, units = self.transposed, self.algorithm.units(self.state)
        if units is None:
            return plain, None
        d = self.rows.flatten(units)

        def times(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda w: d * product(w / d)

        together = None if plain.together is None else times(plain.together)
        return Transposed(times(plain), plain.engine, together), d

    @lazy
    def present_change(self) -> Tensor:
        """The change in one step, relative to the present size: one number for each element."""
        after = tree.detach(self.after)
        return self.algorithm.residual(self.state, after, self.rows.batch)

    @lazy
    def share(self) -> Tensor:
        """‖x‖ of the points' size, which a dual is a part of: one number for each element."""
        if self.algorithm.dual(self.state) is None:
            return torch.ones_like(self.present_change)
        x = norm_of(self.algorithm.solution(self.state), self.rows.batch)
        size = self.algorithm.size(self.state, self.rows.batch)
        return x / torch.where(size > 0, size, 1.0)

    def _together(self, W: Tensor) -> Tensor:
        found = self._on_copies(partial(self.algorithm.step, self.problem), self.state, W)
        return self._products(self._outputs, self._inputs)(W) if found is None else found

    def _transposed(self, w: Tensor) -> Tensor:
        r"""A_xᵀ as the fixed-point family needs it, on cotangents of mirror coordinates, as rows.

        In mirror coordinates A_xᵀ becomes w ↦ S_yᵀ T w, where T transports cotangents from the
        state before the step to the one after it: similar to A_xᵀ, hence of the same spectrum.
        """
        moved = self.transport(self.rows.unflatten(w))
        if self._product is not None and not is_being_recorded():
            return self.rows.flatten(tuple(self._product(*tree.leaves(moved))))
        pulled = tuple(pull_back(self._outputs, self._inputs, tree.leaves(moved)))
        return self.rows.flatten(pulled)

    def transport(self, cotangent: Any) -> Any:
        return self.algorithm.transport(self.state, tree.detach(self.after), cotangent)

    def factored(self) -> Factored | None:
        r"""A_xᵀ = BP, where the step comes as two maps s ↦ h ↦ s⁺ with symmetric Jacobians.

        .. math:: B = ∂h/∂s, \qquad P = ∂s⁺/∂h
        """
        halves = self.algorithm.halves(self.problem)
        if halves is None:
            return None
        with torch.enable_grad():
            inputs = _fresh_leaves(self.state)
            half = halves.forward(tree.rebuild(self.state, inputs))
            middle = _fresh_leaves(half)
            after = halves.backward(tree.rebuild(half, middle))
        with torch.no_grad():
            project = halves.range_projector(tree.detach(half))

        B = self._products(tree.leaves(half), inputs)
        P = self._products(tree.leaves(after), middle)

        def together(V: Tensor) -> Tensor:
            pulled = self._on_copies(halves.backward, half, V)
            pulled = P(V) if pulled is None else pulled
            found = self._on_copies(halves.forward, self.state, pulled)
            return B(pulled) if found is None else found

        return Factored(
            B,
            P,
            project and (lambda v: self.rows.flatten(project(self.rows.unflatten(v)))),
            halves.symmetric,
            together,
            self.engine,
        )

    def saddle(self) -> SaddleFactors | None:
        """A_xᵀ as what it is made of, where the step is a primal–dual one with one τ and one σ."""
        splitting = self.algorithm.splitting(self.problem)
        if splitting is None:
            return None
        tau, sigma = self._one_for_each(splitting.tau), self._one_for_each(splitting.sigma)
        if tau is None or sigma is None:
            return None
        x, y = self.state
        batch = self.rows.batch if self.rows.count else 0
        primal, dual = Rows(x, batch), Rows(y, batch)
        operator = self.problem.operator
        # With derivatives, as the step itself: on a kink the last digit decides on which side.
        with torch.enable_grad():
            halves = tree.detach(splitting.halves(tree.rebuild((x, y), _fresh_leaves((x, y)))))

        def derivative(rows: Rows, at: Any, map_: Callable[[Any], Any]) -> Product:
            with torch.enable_grad():
                inputs = _fresh_leaves(at)
                outputs = tree.leaves(map_(tree.rebuild(at, inputs)))
            return lambda v: rows.flatten(
                tuple(pull_back(outputs, inputs, tree.leaves(rows.unflatten(v))))
            )

        return SaddleFactors(
            sum(map(tree.entries, tree.leaves(x))) // math.prod(self.rows.count),
            derivative(primal, halves.u, splitting.primal),
            derivative(dual, halves.v, splitting.dual),
            lambda v: dual.flatten(tree.detach(operator(primal.unflatten(v)))),
            lambda v: primal.flatten(tree.detach(operator.adjoint(dual.unflatten(v)))),
            None if splitting.is_affine else derivative(primal, x, self.problem.smooth.grad),
            tau,
            sigma,
            self.engine,
        )

    def _one_for_each(self, step: Any) -> Tensor | None:
        """A step as one number, or one for each row; None where it varies inside of rows."""
        if isinstance(step, tuple):
            return None
        like = tree.real_like(self._inputs[0])
        found = torch.as_tensor(step, dtype=like.dtype, device=like.device).detach()
        if found.numel() == 1:
            return found.reshape(())
        matching = self.rows.count and found.numel() == self.rows.count[0]
        return found.reshape(-1, 1) if matching else None

    def _products(self, outputs: list[Tensor], inputs: list[Tensor]) -> Callable[[Tensor], Tensor]:
        """v ↦ Jᵀv on rows, or for many v along one more axis in front."""
        single = len(self.rows.count) + 1

        def product(v: Tensor) -> Tensor:
            count = v.shape[: v.ndim - single]
            cotangents = tree.leaves(self.rows.unflatten(v))
            found = pull_back(outputs, inputs, cotangents, count)
            return torch.cat([tree.as_real(t).reshape(*v.shape[:-1], -1) for t in found], -1)

        return product

    def _on_copies(self, map_: Callable[[Any], Any], at: Any, V: Tensor) -> Tensor | None:
        """Jᵀv for many v along one more axis in front, by the map on as many copies of its point.

        Copies are a batch, and a matrix multiplies a batch at once; vmap's rules for a product with
        a vector take one matrix for each. None where terms couple the axis in front, or refuse it.
        """
        copies = [
            t.detach().expand(len(V), *t.shape).clone().requires_grad_() for t in tree.leaves(at)
        ]
        state = tree.rebuild(at, copies)
        if batch_of(self.problem, self.algorithm, tree.detach(state)) != self.rows.batch + 1:
            return None
        try:
            with torch.enable_grad():
                outputs = tree.leaves(map_(state))
            cotangents = tree.leaves(self.rows.unflatten(V))
            if [t.shape for t in outputs] != [t.shape for t in cotangents]:
                return None
            found = pull_back(outputs, copies, cotangents)
        except (RuntimeError, ValueError):  # data of shapes that fit no more axes
            return None
        return torch.cat([tree.as_real(t).reshape(*V.shape[:-1], -1) for t in found], -1)

    def jvp(self, tangents: Sequence[Tensor], parameter_tangents: Sequence[Tensor] = ()) -> Any:
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
            self._pull = pullback_graph(self._outputs, [*self._inputs, *self._parameters])
        return self._pull


def pullback_graph(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Zeros u and Jᵀu as a graph over them, whose own vector–Jacobian product in u is t ↦ Jt."""
    with torch.enable_grad():
        dummies = [torch.zeros_like(out).requires_grad_() for out in outputs]
        return dummies, _gradients(outputs, inputs, dummies, differentiable=True)


def pull_back(
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    count: Sequence[int] = (),
) -> list[Tensor]:
    """Jᵀw through a graph that stays; ``count`` is the axis of a batch of cotangents, if any."""
    try:
        grads = _gradients(outputs, inputs, cotangents, batched=bool(count))
    except RuntimeError:
        if not count:
            raise
        # An operation that reads values cannot be batched, such as a solve with refinement.
        rows = [pull_back(outputs, inputs, [c[i] for c in cotangents]) for i in range(count[0])]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]
    return [
        t.new_zeros((*count, *t.shape)) if g is None else g
        for g, t in zip(grads, inputs, strict=True)
    ]


def _gradients(
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    differentiable: bool = False,
    batched: bool = False,
) -> list[Tensor | None]:
    """torch.autograd.grad for outputs of which some, or all, depend on nothing."""
    pairs = [
        (out, w)
        for out, w in zip(outputs, cotangents, strict=True)
        if out is not None and out.requires_grad
    ]
    if not pairs:
        return [None] * len(inputs)
    live, weights = zip(*pairs, strict=True)
    grads = torch.autograd.grad(
        live,
        inputs,
        weights,
        retain_graph=True,
        create_graph=differentiable,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return list(grads)


def _fresh_leaves(state: Tree) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tree.leaves(state)]
