"""Total variation by the engine: any dtype, any device, any order of derivative."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from legato._support.tree import Var
from legato.algorithms import ForwardBackward, Nesterov, PrimalDual
from legato.algorithms.forward_backward import ForwardBackwardState, InertialState
from legato.algorithms.primal_dual import PrimalDualState, Steps
from legato.functions import Box, Function, L2Ball, LeastSquares, Linear, SquaredNorm
from legato.gradients import GradientStrategy, Piggyback, Unroll
from legato.nn.kernels.tv_growth import watch, watched
from legato.nn.kernels.tv_iterates import (
    RESTART,
    Coupling,
    TVIterates,
    canonical_weight,
    require_edges,
    step_size,
)
from legato.operators import Differences, Operator
from legato.problems import Composite, Saddle
from legato.running import Stop
from legato.solving import solve


@dataclass(frozen=True, eq=False)
class _Flat(Operator):
    """∇ with its channels and directions on one axis, (B, C·E, *spatial), for a norm over both."""

    gradient: Differences
    channels: int

    @property
    def _axis(self) -> int:
        return -len(self.gradient.dims) - 1

    def __call__(self, x: Var) -> Var:
        return self.gradient(x).flatten(self._axis - 1, self._axis)

    def adjoint(self, y: Var) -> Var:
        return self.gradient.adjoint(y.unflatten(self._axis, (self.channels, -1)))

    def norm(self, like: Var | None = None) -> Tensor:
        return self.gradient.norm(like)


class _Terms:
    """∇ and the dual ball of λ|∇u|, in the shapes that the engine's functions take."""

    def __init__(self, image: Tensor, w: Tensor, coupling: Coupling) -> None:
        self.image = image
        axes = image.dim() - 2
        gradient = Differences(dims=tuple(range(-axes, 0)))
        self.flat = coupling.directions and coupling.channels
        self.operator: Operator = _Flat(gradient, image.shape[1]) if self.flat else gradient
        if self.flat:
            self.ball: Function = L2Ball(w.squeeze(2), dim=-axes - 1)
        elif coupling.directions:
            self.ball = L2Ball(w, dim=-axes - 1)
        elif coupling.channels:
            self.ball = L2Ball(w, dim=-axes - 2)
        else:
            self.ball = Box(-w, w)

    def pack(self, p: Tensor) -> Tensor:
        return p.flatten(1, 2) if self.flat else p

    def unpack(self, p: Tensor) -> Tensor:
        return p.unflatten(1, (self.image.shape[1], -1)) if self.flat else p

    def value(self, packed: Tensor) -> Tensor:
        """u = y − ∇ᵀp."""
        return self.image - self.operator.adjoint(packed)

    def dual_problem(self) -> Composite:
        return Composite(LeastSquares(self.operator.T, self.image), self.ball)


def model(image: Tensor, w: Tensor, coupling: Coupling) -> Saddle:
    """min_u max_p ⟨∇u, p⟩ + ½‖u‖² − ⟨y, u⟩ over |p| ≤ λ: the energy without the constant ½‖y‖²."""
    terms = _Terms(image, w, coupling)
    return Saddle(terms.operator, terms.ball, nonsmooth=SquaredNorm() + Linear(-image))


def gap(image: Tensor, w: Tensor, coupling: Coupling, value: Tensor, dual: Tensor) -> Tensor:
    """λ|∇u| − ⟨∇u, p⟩ + ½‖u − y + ∇ᵀp‖², the primal–dual gap as a sum of terms that are ≥ 0."""
    terms = _Terms(image, w, coupling)
    p, slope = terms.pack(dual), terms.operator(value)
    rest = value - terms.value(p)
    return terms.ball.conjugate(slope) - (slope * p).sum() + 0.5 * rest.square().sum()


def tv(
    image: Tensor,
    weight: Tensor,
    *,
    iterations: int,
    coupling: Coupling,
    dual: Tensor | None = None,
    previous: Tensor | None = None,
    first: int = 0,
    checkpoint: int | None = None,
) -> TVIterates:
    r"""Run FISTA on the dual of total variation denoising, from its iteration ``first``.

    .. math:: a = p + β_k(p − p₋), \quad p⁺ = Π_{|·| ≤ λ}(a + α∇(y − ∇^⊤a)), \quad u = y − ∇^⊤p

    Reference: Beck and Teboulle (2009), fast gradient-based algorithms for total variation.
    """
    w = canonical_weight(weight, image, coupling)
    bars: list[Tensor | None] = [None, None, None]
    if any(t is not None and t.requires_grad for t in (image, w, dual, previous)):
        image, bars = watched(image, iterations)
    terms = _Terms(image, w, coupling)
    axes = image.dim() - 2
    dual = require_edges(dual, image)
    before = dual if previous is None else require_edges(previous, image)
    if dual is None or before is None:
        dual = before = image.new_zeros((*image.shape[:2], axes, *image.shape[2:]))
    alpha = step_size(axes)
    t = image.new_tensor(_t(first))
    p = terms.pack(dual)
    state = InertialState(p, p, image.new_tensor(alpha), terms.pack(before), t)
    done = solve(
        terms.dual_problem(),
        ForwardBackward(alpha, inertia=Nesterov(RESTART)),
        state,
        gradient=Unroll(checkpoint=checkpoint),
        stop=Stop(iterations),
    ).state
    u, p, before = terms.value(done.mirror), *map(terms.unpack, (done.mirror, done.previous))
    found = TVIterates(u, p.view_as(p), before.view_as(before))  # u depends on p, not on its view
    watch(found, bars)
    return found


def _t(k: int) -> float:
    t = 1.0
    for _ in range(k % RESTART):
        t = (1 + (1 + 4 * t * t) ** 0.5) / 2
    return t


def attach(
    image: Tensor, w: Tensor, coupling: Coupling, dual: Tensor, gradient: GradientStrategy
) -> tuple[Tensor, Tensor]:
    """u and p after one more step from a solution p, differentiated by the fixed-point family."""
    terms = _Terms(image, w, coupling)
    p, axes = terms.pack(dual.detach()), image.dim() - 2
    if isinstance(gradient, Piggyback):
        step = step_size(axes) ** 0.5
        u = terms.value(p).detach()
        at = PrimalDualState(u, p, u, p, Steps((), ()))
        problem = model(image, w, coupling)
        done = solve(problem, PrimalDual(step, step), at, gradient=gradient, stop=Stop(1))
        assert isinstance(done.y, Tensor)
        return done.x, terms.unpack(done.y)
    state = ForwardBackwardState(p, p, ())
    algorithm = ForwardBackward(step_size(axes))
    p = solve(terms.dual_problem(), algorithm, state, gradient=gradient, stop=Stop(1)).x
    return terms.value(p), terms.unpack(p)


def by_engine(
    image: Tensor,
    w: Tensor,
    coupling: Coupling,
    dual: Tensor | None,
    iterations: int,
    gradient: GradientStrategy,
) -> tuple[Tensor, Tensor]:
    """The whole iteration in the engine, for strategies that look at every step themselves."""
    terms = _Terms(image, w, coupling)
    axes = image.dim() - 2
    dual = require_edges(dual, image)
    if dual is None:
        dual = image.new_zeros((*image.shape[:2], axes, *image.shape[2:]))
    algorithm = ForwardBackward(step_size(axes), inertia=Nesterov(RESTART))
    start = terms.pack(dual)
    p = solve(terms.dual_problem(), algorithm, start, gradient=gradient, stop=Stop(iterations))
    return terms.value(p.x), terms.unpack(p.x)
