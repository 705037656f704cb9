"""Total variation by the engine: any dtype, any device, any order of derivative."""

from __future__ import annotations

from torch import Tensor

from legato._support.momentum import t_after
from legato.algorithms import ForwardBackward, Nesterov, PrimalDual
from legato.algorithms.forward_backward import InertialState, MirrorState
from legato.algorithms.saddle.states import MirrorPair
from legato.gradients import GradientStrategy, Piggyback, Unroll
from legato.nn.fused.operator import Tensors
from legato.nn.fused.unrolling import iterate_from
from legato.nn.total_variation.growth import watch, watched
from legato.nn.total_variation.model import (
    RESTART_AFTER,
    Coupling,
    Terms,
    TVSettings,
    dual_shape,
    model,
    step_size,
    tv_function,
    with_edges,
)
from legato.running import Stop
from legato.solving import solve


def _unrolled(tensors: Tensors, settings: TVSettings) -> Tensors:
    r"""Run FISTA on the dual of total variation denoising, from its iteration ``first``.

    .. math:: a = p + β_k(p − p₋), \quad p⁺ = Π_{|·| ≤ λ}(a + α∇(y − ∇^⊤a)), \quad u = y − ∇^⊤p

    Reference: Beck and Teboulle (2009), fast gradient-based algorithms for total variation.
    """
    image, w, dual, before = tensors
    bars: list[Tensor | None] = [None, None, None]
    if any(t is not None and t.requires_grad for t in tensors):
        image, bars = watched(image, settings.iterations)
    terms = Terms(image, w, settings.coupling)
    if dual is None or before is None:
        dual = before = image.new_zeros(dual_shape(image))
    alpha, t = (
        step_size(image.dim() - 2),
        image.new_full((), t_after(settings.first % RESTART_AFTER)),
    )
    p = terms.pack(dual)
    done = iterate_from(
        terms.dual_problem(),
        ForwardBackward(alpha, inertia=Nesterov(RESTART_AFTER)),
        InertialState(p, p, image.new_full((), alpha), terms.pack(before), t),
        settings.iterations,
        Unroll(checkpoint=settings.checkpoint or None),
    )
    u, p, before = terms.value(done.mirror), *map(terms.unpack, (done.mirror, done.previous))
    found = (u, p.view_as(p), before.view_as(before))  # u depends on p, not on its view
    watch(found, bars)
    return found


tv = tv_function(_unrolled)


def attach(
    image: Tensor, w: Tensor, coupling: Coupling, dual: Tensor, gradient: GradientStrategy
) -> tuple[Tensor, Tensor]:
    """u and p after one more step from a solution p, differentiated by the fixed-point family."""
    terms = Terms(image, w, coupling)
    p, alpha = terms.pack(dual.detach()), step_size(image.dim() - 2)
    if isinstance(gradient, Piggyback):
        step = alpha**0.5
        at = MirrorPair(terms.value(p).detach(), p)
        problem = model(image, w, coupling)
        found = iterate_from(problem, PrimalDual(step, step), at, 1, gradient)
        return found.primal, terms.unpack(found.dual)
    found = iterate_from(terms.dual_problem(), ForwardBackward(alpha), MirrorState(p), 1, gradient)
    return terms.value(found.mirror), terms.unpack(found.mirror)


def by_engine(
    image: Tensor,
    w: Tensor,
    coupling: Coupling,
    dual: Tensor | None,
    iterations: int,
    gradient: GradientStrategy,
) -> tuple[Tensor, Tensor]:
    """The whole iteration in the engine, for strategies that look at every step themselves."""
    terms = Terms(image, w, coupling)
    dual = with_edges(dual, image)
    start = terms.pack(image.new_zeros(dual_shape(image)) if dual is None else dual)
    algorithm = ForwardBackward(step_size(image.dim() - 2), inertia=Nesterov(RESTART_AFTER))
    p = solve(terms.dual_problem(), algorithm, start, gradient=gradient, stop=Stop(iterations))
    return terms.value(p.x), terms.unpack(p.x)
