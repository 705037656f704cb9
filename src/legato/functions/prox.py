"""The one Bregman primitive, and the table of its closed forms.

    P(y) = argmin_x  α g(x) + ψ(x) − ⟨y, x⟩

An entry for (function, geometry) takes (g, geometry, y, α) and returns the minimiser *in mirror
coordinates*, ∇ψ(P(y)): in the Euclidean geometry that is the minimiser itself, elsewhere it is what
survives where the minimiser rounds to the boundary. There is no numerical fallback.

On a kink every entry has the derivative of one side, which its function's docstring names; where a
weight or radius is exactly 0, the derivative in it is the one towards positive numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import cheap_to_read, is_concrete, may_be_differentiated
from legato._support.tree import Var, map_steps, tree_map
from legato.errors import EmptyDomainError, InputError, MissingProxError
from legato.functions.affine import Equality, Zero
from legato.functions.algebra import Composed, Conjugate, Shifted
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.functions.complexity import by_moduli, require_real
from legato.functions.fitting import explain
from legato.functions.norms import L1, AsymmetricL1, GroupL1, require_one_each
from legato.functions.sets import Box, L2Ball, LInfBall, NonNegative, Simplex
from legato.geometry import Burg, Entropy, Euclidean, Geometry, Interval, Product, Quartic

MirrorProx = Callable[[Any, Any, Any, Any], Any]
_TABLE: dict[tuple[type[Function], type[Geometry]], MirrorProx] = {}
_RESOLVED: dict[tuple[type[Function], type[Geometry]], MirrorProx] = {}


def register_prox(
    function: type[Function], *geometries: type[Geometry]
) -> Callable[[MirrorProx], MirrorProx]:
    """Decorator that adds a closed form for (function, geometry) to the table.

    The decorated ``form(g, geometry, y, alpha)`` returns ∇ψ(P(y)), the minimiser of
    α g(x) + ψ(x) − ⟨y, x⟩ in mirror coordinates; for Euclidean that is the minimiser.
    Like torch.distributions.register_kl, it is a table keyed by a pair of types.

    >>> class Huber(lg.Function):
    ...     def value(self, x):
    ...         return torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5).sum()
    >>> @lg.register_prox(Huber, lg.Euclidean)
    ... def _(g, geometry, y, alpha):
    ...     return y - alpha * y / torch.clamp(y.abs(), min=1 + alpha)
    >>> lg.prox(Huber(), lg.Euclidean(), torch.tensor([1.0, 4.0]), 1.0)
    tensor([0.5000, 3.0000])
    """

    def add(form: MirrorProx) -> MirrorProx:
        for geometry in geometries:
            _TABLE[function, geometry] = form
        _RESOLVED.clear()
        return form

    return add


def _lookup(function: type[Function], geometry: type[Geometry]) -> MirrorProx:
    """The entry of the closest pair of base classes, remembered."""
    found = _RESOLVED.get((function, geometry))
    if found is not None:
        return found
    for f in function.__mro__:
        for g in geometry.__mro__:
            if (f, g) in _TABLE:
                _RESOLVED[function, geometry] = _TABLE[f, g]
                return _TABLE[f, g]
    raise MissingProxError(_missing(function, geometry))


def _missing(function: type[Function], geometry: type[Geometry]) -> str:
    def listing(pairs: list[str]) -> str:
        return ", ".join(sorted(pairs)) or "none"

    same_function = [g.__name__ for f, g in _TABLE if issubclass(function, f)]
    same_geometry = [f.__name__ for f, g in _TABLE if issubclass(geometry, g)]
    everything = [f"({f.__name__}, {g.__name__})" for f, g in _TABLE]
    return (
        f"No closed-form prox for ({function.__name__}, {geometry.__name__}). "
        f"{function.__name__} goes with the geometries: {listing(same_function)}. "
        f"{geometry.__name__} goes with the functions: {listing(same_geometry)}. "
        f"All pairs: {listing(everything)}. Add your own with @legato.register_prox"
        f"({function.__name__}, {geometry.__name__})."
    )


def registered_pairs() -> list[tuple[type[Function], type[Geometry]]]:
    """All (function, geometry) pairs (g, ψ) with a closed form of argmin_x αg(x) + ψ(x) − ⟨y, x⟩.

    :func:`register_prox` adds to them.

    >>> (lg.L1, lg.Euclidean) in lg.registered_pairs()
    True
    """
    return list(_TABLE)


def mirror_prox(g: Function, geometry: Geometry, y: Var, alpha: Any) -> Var:
    """∇ψ(P(y)): the prox point P(y) = argmin_x αg(x) + ψ(x) − ⟨y, x⟩ in mirror coordinates.

    What survives in float32 where the point itself has rounded to the boundary.
    Reference: Section 5.1 of Ochs et al. (2016), with errata 5.

    Args:
        g, geometry: a pair of the table, see :func:`registered_pairs`; linear terms and multiples
            of the geometry's ψ may be added to g.
        y: the argument in mirror coordinates, ∇ψ(x) for a point x.
        alpha: the step α, a number or a tensor that broadcasts to y.

    >>> y = torch.tensor([200.0, 0.0])
    >>> lg.mirror_prox(lg.Simplex(), lg.Entropy(), y, 1.0).exp()  # up to a constant: softmax
    tensor([2.7183, 0.0000])
    >>> lg.mirror_prox(lg.Simplex(), lg.Entropy(), y, 1.0).diff()  # where exp would be 0
    tensor([-200.])
    """
    try:
        core, argument, step = prox_argument(g, geometry, y, alpha)
        form = _lookup(type(core), type(geometry))
        if isinstance(argument, Tensor) and argument.is_complex() and not core.takes_complex:
            if not (core.of_moduli and geometry.takes_complex):
                require_real(core, argument)
            return by_moduli(lambda size: form(core, geometry, size, step), argument)
        return form(core, geometry, argument, step)
    except (RuntimeError, IndexError):
        explain(g, y)
        raise


def prox_argument(g: Function, geometry: Geometry, y: Var, alpha: Any) -> tuple[Function, Var, Any]:
    """The core whose entry gives the prox of g, with the argument and step it is called with.

    Where there is no core, the step is the one that was given.
    """
    core, scale, shifts, epsilon = g.prox_parts(geometry)
    for factor, c in shifts:  # α may be a tuple, one step a block
        y = tree.sub_scaled(y, map_steps(partial(operator.mul, factor), alpha), c)
    if epsilon is not None:
        y = tree.divide(y, map_steps(lambda a: 1 + a * epsilon, alpha))
        if isinstance(core, Zero):  # whose prox sees no step
            return core, y, alpha
        alpha = map_steps(lambda a: a / (1 + a * epsilon), alpha)
    if scale is not None:
        alpha = map_steps(lambda a: a * scale, alpha)
    if isinstance(alpha, Tensor) and alpha.ndim > 0:
        _require_constant(alpha, core, y)
    return core, y, alpha


def _require_constant(alpha: Tensor, core: Function, y: Tensor) -> None:
    """Refuse a step that varies along an axis whose entries the prox mixes: no formula holds."""
    for dim in core.prox_couples():
        axis = dim if dim < 0 else dim - y.ndim
        if alpha.ndim >= -axis and alpha.shape[axis] > 1:
            raise InputError(
                f"The prox of {core!r} couples the entries along axis {dim}, but a step or the "
                f"weight of a quadratic term beside it varies there (shape {tuple(alpha.shape)}). "
                "Use one number along that axis, or make the weighted term part of the smooth term."
            )


def has_prox(g: Function, geometry: Geometry) -> bool:
    """Whether the table holds what the prox of g needs in a geometry; g must allow some x."""
    try:
        core = g.prox_parts(geometry).core
        if isinstance(core, Separable):
            return all(map(has_prox, core.blocks, blocks_of(geometry, len(core.blocks))))
        if isinstance(core, Conjugate | Shifted):
            return isinstance(geometry, Euclidean) and has_prox(core.function, geometry)
        if isinstance(core, Composed):
            from legato.functions.compositions import is_passed

            return isinstance(geometry, Euclidean) and is_passed(core)
        _lookup(type(core), type(geometry))
    except EmptyDomainError:  # which no other way of solving helps
        raise
    except (MissingProxError, InputError):
        return False
    return True


def prox(g: Function, geometry: Geometry, y: Var, alpha: Any) -> Var:
    """P(y) = argmin_x α g(x) + ψ(x) − ⟨y, x⟩, with y in mirror coordinates.

    ``g.prox(x, step, geometry)`` takes the point x itself instead, y = ∇ψ(x).
    Reference: Section 5.1 of Ochs et al. (2016), with errata 5.

    Args:
        g, geometry: a pair of the table, see :func:`registered_pairs`; linear terms and multiples
            of the geometry's ψ may be added to g.
        y: the argument in mirror coordinates, ∇ψ(x) for a point x.
        alpha: the step α, a number or a tensor that broadcasts to y.

    >>> lg.prox(lg.L1(1.0), lg.Euclidean(), torch.tensor([3.0, -0.5]), 2.0)
    tensor([1., 0.])
    >>> lg.prox(lg.Box(-1.0, 1.0), lg.Interval(-1.0, 1.0), torch.tensor([0.0, 100.0]), 1.0)
    tensor([0., 1.])
    """
    require_step(alpha)
    return geometry.unmirror(mirror_prox(g, geometry, y, alpha))


def require_step(alpha: Any) -> None:
    """Refuse steps below zero, as far as they can be read without waiting."""
    for a in alpha if isinstance(alpha, tuple) else (alpha,):
        if isinstance(a, Tensor) and (not cheap_to_read(a) or a.is_complex()):
            continue
        least = a.detach().amin() if isinstance(a, Tensor) and a.numel() else a
        if not isinstance(a, Tensor) and not isinstance(a, Real):
            raise InputError(
                f"The step of a prox is a number or a tensor of them, not {type(a).__name__}."
            )
        if not bool(torch.as_tensor(least >= 0).all()):
            raise InputError(
                f"The step of a prox must be at least 0, not {float(least):g}: with a negative one "
                "the term would count as its negative, which has no minimiser in general."
            )


# --- any geometry ---------------------------------------------------------------------------------


@register_prox(Zero, Geometry)  # type: ignore[type-abstract]
def _(g: Zero, geometry: Geometry, y: Var, alpha: Any) -> Var:
    return y


@register_prox(NonNegative, Entropy, Burg)
def _(g: NonNegative, geometry: Geometry, y: Var, alpha: Any) -> Var:
    return y  # the geometry's domain is the constraint (Example 5)


@register_prox(Separable, Geometry)  # type: ignore[type-abstract]
def _(g: Separable, geometry: Geometry, y: Var, alpha: Any) -> Var:
    count = len(g.blocks)
    alphas = alpha if isinstance(alpha, tuple) else (alpha,) * count
    parts = zip(g.paired(y), blocks_of(geometry, count), alphas, strict=True)
    return tuple(mirror_prox(block, part, t, a) for (block, t), part, a in parts)


def blocks_of(geometry: Geometry, count: int) -> tuple[Geometry, ...]:
    """The geometries of a tuple's blocks: those of a product, or the same for all."""
    return geometry.blocks if isinstance(geometry, Product) else (geometry,) * count


# --- Euclidean ------------------------------------------------------------------------------------


@register_prox(Equality, Euclidean)
def _(g: Equality, geometry: Geometry, y: Var, alpha: Any) -> Var:
    return tree_map(lambda t: torch.zeros_like(t) + g.b, y)


@register_prox(Shifted, Euclidean)
def _(g: Shifted, geometry: Geometry, y: Var, alpha: Any) -> Var:
    inner = mirror_prox(g.function, geometry, tree.sub_scaled(y, 1.0, g.c), alpha)
    return tree.sub_scaled(inner, -1.0, g.c)


@register_prox(Conjugate, Euclidean)
def _(g: Conjugate, geometry: Geometry, y: Var, alpha: Any) -> Var:
    """Moreau's identity; it holds for steps that do not vary where the prox couples."""
    inverse = map_steps(lambda a: 1 / a, alpha)
    inner = mirror_prox(g.function, geometry, tree.divide(y, alpha), inverse)
    return tree.sub_scaled(y, alpha, inner)


@register_prox(L1, Euclidean, Quartic)
def _(g: L1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    # Soft thresholding; for a radial ψ the minimiser is parallel to the thresholded vector.
    return soft_threshold(y, alpha * g.weight)


@register_prox(AsymmetricL1, Euclidean)
def _(g: AsymmetricL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - clip(y, times_end(alpha, g.lo), times_end(alpha, g.hi))


@register_prox(GroupL1, Euclidean)
def _(g: GroupL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    norms = g.norms(y)
    require_one_each(g.weight, norms, "GroupL1: the weight")
    threshold = alpha * g.weight
    # A group of norm 0 is kept if its weight is 0: nothing is taken from it.
    kept = (norms > threshold) | (threshold == 0)
    ratio = threshold / torch.where(kept & (norms > 0), norms, torch.ones_like(norms))
    return y * g.spread(torch.where(kept, 1 - ratio, torch.zeros_like(norms)))


@register_prox(NonNegative, Euclidean)
def _(g: NonNegative, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return torch.clamp(y, min=0)


@register_prox(Box, Euclidean)
def _(g: Box, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return clip(y, g.lo, g.hi)


@register_prox(LInfBall, Euclidean)
def _(g: LInfBall, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return clip(y, -g.radius, g.radius)


@register_prox(L2Ball, Euclidean)
def _(g: L2Ball, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    norms = g.norms(y)
    # The centre of a ball of radius 0 is outside of it: the ball has no inside to move in.
    outside = (norms > g.radius) | (g.radius == 0)
    shrink = g.radius / torch.where(outside & (norms > 0), norms, torch.ones_like(norms))
    return y * torch.where(outside, shrink, torch.ones_like(norms))


@register_prox(Simplex, Euclidean)
def _(g: Simplex, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    """Projection onto the simplex: subtract the threshold that makes the positive part sum to 1."""
    y = g.on_an_axis(y)
    y = y - y.detach().amax(g.dim, keepdim=True)  # projections do not see constants; rounding does
    of = _of_more_than_one if y.shape[g.dim] == 3 else simplex_threshold
    threshold = of(y.detach(), g.dim)
    if not may_be_differentiated(y):
        return torch.clamp(y - threshold, 0, 1)
    support = ~(y.detach() <= threshold)  # so that NaN stays NaN
    total = torch.where(support, y, torch.zeros_like(y)).sum(g.dim, keepdim=True)
    threshold = (total - 1) / support.sum(g.dim, keepdim=True)
    return torch.where(support, y - threshold, torch.zeros_like(y))


def simplex_threshold(y: Tensor, dim: int) -> Tensor:
    """τ with Σ max(y − τ, 0) = 1, which is the largest (y₍₁₎ + … + y₍ₖ₎ − 1)/k of the sorted y.

    The largest entry of y has to be 0.
    """
    count = y.shape[dim]
    if count == 3:
        return _of_more_than_one(y, dim).clamp(min=-1)
    if count <= 4:  # exchanging neighbours is several times faster than a sort of so few
        parts = list(y.unbind(dim))
        for last in range(count - 1, 0, -1):
            for k in range(last):
                a, b = parts[k], parts[k + 1]
                parts[k], parts[k + 1] = torch.maximum(a, b), torch.minimum(a, b)
        total, threshold = parts[0], parts[0] - 1
        for k in range(1, count):
            total = total + parts[k]
            threshold = torch.maximum(threshold, (total - 1) / (k + 1))
        return threshold.unsqueeze(dim)
    ordered = y.sort(dim=dim, descending=True).values
    shape = [1] * y.ndim
    shape[dim] = -1
    rank = torch.arange(1, count + 1, device=y.device, dtype=y.dtype).reshape(shape)
    return ((ordered.cumsum(dim) - 1) / rank).amax(dim, keepdim=True)


def _of_more_than_one(y: Tensor, dim: int) -> Tensor:
    """max_k (y₍₁₎ + … + y₍ₖ₎ − 1)/k over k = 2, 3, of three entries of which the largest is 0.

    Where it is below −1, the threshold of the simplex, no other entry is above it.
    """
    of_all = y.mean(dim, keepdim=True) - 1 / 3
    return torch.maximum(of_all, torch.lerp(of_all, y.amin(dim, keepdim=True), -0.5))


# --- entropies ------------------------------------------------------------------------------------


@register_prox(L1, Entropy, Burg)
def _(g: L1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - alpha * g.weight  # on x ≥ 0 the ℓ1 norm is linear


@register_prox(AsymmetricL1, Entropy, Burg)
def _(g: AsymmetricL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - alpha * g.hi


@register_prox(Simplex, Entropy)
def _(g: Simplex, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return 1 + torch.log_softmax(g.on_an_axis(y), g.dim)  # softmax (Example 6)


@register_prox(Box, Entropy)
def _(g: Box, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    lo = torch.clamp(torch.as_tensor(g.lo, dtype=y.dtype, device=y.device), min=0)
    hi = torch.as_tensor(g.hi, dtype=y.dtype, device=y.device)
    return clip(y, geometry.mirror(lo), geometry.mirror(hi))


@register_prox(Box, Interval)
@register_prox(LInfBall, Interval)
def _(g: Function, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    ends = g.bounds()
    if _same_end(ends[0], geometry.lo) and _same_end(ends[1], geometry.hi):
        return y  # the geometry's domain is the constraint (Example 7)
    lo = torch.as_tensor(ends[0], dtype=y.dtype, device=y.device)
    hi = torch.as_tensor(ends[1], dtype=y.dtype, device=y.device)
    floor = torch.full_like(y, -torch.inf)
    ceiling = torch.full_like(y, torch.inf)
    above = lo > geometry.lo
    below = hi < geometry.hi
    safe_lo = torch.where(above, lo, torch.as_tensor(geometry.middle).to(lo))
    safe_hi = torch.where(below, hi, torch.as_tensor(geometry.middle).to(hi))
    return clip(
        y,
        torch.where(above, geometry.mirror(safe_lo), floor),
        torch.where(below, geometry.mirror(safe_hi), ceiling),
    )


def _same_end(one: Any, other: Any) -> bool:
    """Whether two ends are the same number or tensor, as far as can be told without reading one."""
    numbers = not isinstance(one, Tensor) and not isinstance(other, Tensor)
    return one is other or (numbers and one == other)


@register_prox(L1, Interval)
def _(g: L1, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    return _one_homogeneous_on_interval(geometry, y, -alpha * g.weight, alpha * g.weight)


@register_prox(AsymmetricL1, Interval)
def _(g: AsymmetricL1, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    return _one_homogeneous_on_interval(geometry, y, times_end(alpha, g.lo), times_end(alpha, g.hi))


def _one_homogeneous_on_interval(geometry: Interval, y: Tensor, lo: Any, hi: Any) -> Tensor:
    """∇ψ is increasing in each coordinate, so thresholding happens around ∇ψ(0)."""
    ends = [torch.as_tensor(e, dtype=y.dtype, device=y.device) for e in (geometry.lo, geometry.hi)]
    straddles = (ends[0] < 0) & (ends[1] > 0)
    middle = torch.as_tensor(geometry.middle).to(y)
    zero = torch.where(straddles, torch.zeros_like(middle), middle)
    origin = geometry.mirror(zero)
    around = y - origin
    thresholded = origin + around - clip(around, lo, hi)
    one_sided = torch.where(ends[0] >= 0, y - hi, y - lo)
    return torch.where(straddles, thresholded, one_sided)


def times_end(alpha: Any, end: Any) -> Any:
    """α·end, where an infinite end stays infinite and gives α no (NaN) derivative."""
    if not isinstance(end, Tensor):
        return end if math.isinf(end) else alpha * end
    infinite = torch.isinf(end)
    return torch.where(infinite, end, alpha * torch.where(infinite, torch.zeros_like(end), end))


def soft_threshold(y: Tensor, threshold: Any) -> Tensor:
    """sign(y)·max(|y| − t, 0), written as y minus its projection onto [−t, t]."""
    return y - clip(y, -threshold, threshold)


def _surely_apart(lo: Any, hi: Any) -> bool:
    """Whether lo < hi everywhere, where that is cheap to see."""
    for end in (lo, hi):
        if isinstance(end, Tensor) and (end.numel() != 1 or end.is_cuda or end.is_meta):
            return False
    return is_concrete() and bool(lo < hi)


def clip(y: Tensor, lo: Any, hi: Any) -> Tensor:
    """The projection onto [lo, hi], which takes numbers and tensors.

    Below lo it is lo, above hi it is hi, and so are its derivatives, also where lo = hi. There
    torch.clamp has none in lo: a weight of exactly zero would not get its one-sided derivative. On
    an end, y = lo < hi or y = hi > lo, it is y; where y = lo = hi it is the mean of the ends.
    """
    # A number may be kept on the host.
    lo, hi = (e.to(y.device) if isinstance(e, Tensor) else e for e in (lo, hi))
    ends = [end for end in (lo, hi) if isinstance(end, Tensor)]
    if not ends:
        return torch.clamp(y, lo, hi) if lo < hi else lo + 0 * y.detach()  # which keeps NaN
    if any(map(may_be_differentiated, (y, *ends))) and not _surely_apart(lo, hi):
        inside = torch.where(lo == hi, (lo + hi) / 2 + 0 * y.detach(), y)
        return torch.where(y < lo, lo, torch.where(y > hi, hi, inside))
    if len(ends) == 1:
        return torch.clamp(torch.clamp(y, min=lo), max=hi)
    return torch.clamp(y, lo, hi)
