"""The one Bregman primitive, and the table of its closed forms.

    P(y) = argmin_x  α g(x) + ψ(x) − ⟨y, x⟩

An entry for (function, geometry) takes (g, geometry, y, α) and returns the minimiser *in mirror
coordinates*, ∇ψ(P(y)): in the Euclidean geometry that is the minimiser itself, elsewhere it is what
survives where the minimiser rounds to the boundary. There is no numerical fallback.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import may_be_differentiated
from legato._support.tree import Var, tree_map
from legato.errors import MissingProxError
from legato.functions.base import Function, Separable, Zero
from legato.functions.terms import (
    L1,
    AsymmetricL1,
    Box,
    GroupL1,
    L2Ball,
    NonNegative,
    Simplex,
)
from legato.geometry import (
    Burg,
    Entropy,
    Euclidean,
    Geometry,
    Interval,
    Product,
    Quartic,
)

MirrorProx = Callable[[Any, Any, Any, Any], Any]
_TABLE: dict[tuple[type[Function], type[Geometry]], MirrorProx] = {}
_RESOLVED: dict[tuple[type[Function], type[Geometry]], MirrorProx] = {}


def register_prox(
    function: type[Function], *geometries: type[Geometry]
) -> Callable[[MirrorProx], MirrorProx]:
    """Decorator that adds a closed form for (function, geometry) to the table.

    The decorated ``form(g, geometry, y, alpha)`` returns ∇ψ(P(y)), the minimiser of
    α g(x) + ψ(x) − ⟨y, x⟩ in mirror coordinates; for Euclidean that is the minimiser.
    Reference: torch.distributions.register_kl, a table keyed by a pair of types.

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

    Reference: :func:`register_prox`, which adds to them.

    >>> (lg.L1, lg.Euclidean) in lg.registered_pairs()
    True
    """
    return list(_TABLE)


def mirror_prox(g: Function, geometry: Geometry, y: Var, alpha: Any) -> Var:
    """∇ψ(P(y)): the prox point P(y) = argmin_x αg(x) + ψ(x) − ⟨y, x⟩ in mirror coordinates.

    What survives in float32 where the point itself has rounded to the boundary.
    Reference: Section 5.1 of Ochs et al. (2016), with errata 5.

    >>> y = torch.tensor([200.0, 0.0])
    >>> lg.mirror_prox(lg.Simplex(), lg.Entropy(), y, 1.0).exp()  # up to a constant: softmax
    tensor([2.7183, 0.0000])
    >>> lg.mirror_prox(lg.Simplex(), lg.Entropy(), y, 1.0).diff()  # where exp would be 0
    tensor([-200.])
    """
    form = _RESOLVED.get((type(g), type(geometry)))
    if form is not None:  # not a sum, and seen before
        return form(g, geometry, y, alpha)
    core, shift, epsilon = g.split(geometry)
    if shift is not None:
        y = tree.sub_scaled(y, alpha, shift)
    if epsilon is not None:
        factor = 1 + alpha * epsilon
        y = tree_map(lambda t: t / factor, y)
        alpha = alpha / factor
    return _lookup(type(core), type(geometry))(core, geometry, y, alpha)


def prox(g: Function, geometry: Geometry, y: Var, alpha: Any) -> Var:
    """P(y) = argmin_x α g(x) + ψ(x) − ⟨y, x⟩, with y in mirror coordinates.

    Reference: Section 5.1 of Ochs et al. (2016), with errata 5.

    >>> lg.prox(lg.L1(1.0), lg.Euclidean(), torch.tensor([3.0, -0.5]), 2.0)
    tensor([1., 0.])
    >>> lg.prox(lg.Box(-1.0, 1.0), lg.Interval(-1.0, 1.0), torch.tensor([0.0, 100.0]), 1.0)
    tensor([0., 1.])
    """
    return geometry.unmirror(mirror_prox(g, geometry, y, alpha))


# --- any geometry ---------------------------------------------------------------------------------


@register_prox(Zero, Geometry)  # type: ignore[type-abstract]
def _(g: Zero, geometry: Geometry, y: Var, alpha: Any) -> Var:
    return y


@register_prox(NonNegative, Entropy, Burg)
def _(g: NonNegative, geometry: Geometry, y: Var, alpha: Any) -> Var:
    return y  # the geometry's domain is the constraint (Example 5)


@register_prox(Separable, Product)
def _(g: Separable, geometry: Product, y: Var, alpha: Any) -> Var:
    alphas = alpha if isinstance(alpha, tuple) else (alpha,) * len(g.blocks)
    parts = zip(g.blocks, geometry.blocks, y, alphas, strict=True)
    return tuple(mirror_prox(block, part, t, a) for block, part, t, a in parts)


@register_prox(Zero, Product)
def _(g: Zero, geometry: Product, y: Var, alpha: Any) -> Var:
    return y


# --- Euclidean ------------------------------------------------------------------------------------


@register_prox(L1, Euclidean, Quartic)
def _(g: L1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    # Soft thresholding; for a radial ψ the minimiser is parallel to the thresholded vector.
    return soft_threshold(y, alpha * g.weight)


@register_prox(AsymmetricL1, Euclidean)
def _(g: AsymmetricL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - _clip(y, _times(alpha, g.lo), _times(alpha, g.hi))


@register_prox(GroupL1, Euclidean)
def _(g: GroupL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    norms = g.norms(y)
    threshold = alpha * g.weight
    kept = norms > threshold
    ratio = threshold / torch.where(kept, norms, torch.ones_like(norms))
    return y * g.spread(torch.where(kept, 1 - ratio, torch.zeros_like(norms)))


@register_prox(NonNegative, Euclidean)
def _(g: NonNegative, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return torch.clamp(y, min=0)


@register_prox(Box, Euclidean)
def _(g: Box, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return _clip(y, g.lo, g.hi)


@register_prox(L2Ball, Euclidean)
def _(g: L2Ball, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    norms = GroupL1(dim=g.dim).norms(y)
    outside = norms > g.radius
    shrink = g.radius / torch.where(outside, norms, torch.ones_like(norms))
    return y * torch.where(outside, shrink, torch.ones_like(norms))


@register_prox(Simplex, Euclidean)
def _(g: Simplex, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    """Projection onto the simplex: subtract the threshold that makes the positive part sum to 1."""
    y = y - y.detach().amax(g.dim, keepdim=True)  # projections do not see constants; rounding does
    threshold = _simplex_threshold(y.detach(), g.dim)
    if not may_be_differentiated(y):
        return torch.clamp(y - threshold, min=0)
    support = ~(y.detach() <= threshold)  # so that NaN stays NaN
    total = torch.where(support, y, torch.zeros_like(y)).sum(g.dim, keepdim=True)
    threshold = (total - 1) / support.sum(g.dim, keepdim=True)
    return torch.where(support, y - threshold, torch.zeros_like(y))


def _simplex_threshold(y: Tensor, dim: int) -> Tensor:
    """τ with Σ max(y − τ, 0) = 1, which is the largest (y₍₁₎ + … + y₍ₖ₎ − 1)/k of the sorted y."""
    count = y.shape[dim]
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


# --- entropies ------------------------------------------------------------------------------------


@register_prox(L1, Entropy, Burg)
def _(g: L1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - alpha * g.weight  # on x ≥ 0 the ℓ1 norm is linear


@register_prox(AsymmetricL1, Entropy, Burg)
def _(g: AsymmetricL1, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return y - alpha * g.hi


@register_prox(Simplex, Entropy)
def _(g: Simplex, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    return 1 + torch.log_softmax(y, g.dim)  # softmax (Example 6)


@register_prox(Box, Entropy)
def _(g: Box, geometry: Geometry, y: Tensor, alpha: Any) -> Tensor:
    lo = torch.clamp(torch.as_tensor(g.lo, dtype=y.dtype, device=y.device), min=0)
    hi = torch.as_tensor(g.hi, dtype=y.dtype, device=y.device)
    return _clip(y, geometry.mirror(lo), geometry.mirror(hi))


@register_prox(Box, Interval)
def _(g: Box, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    if g.lo is geometry.lo and g.hi is geometry.hi:
        return y  # the geometry's domain is the constraint (Example 7)
    lo = torch.as_tensor(g.lo, dtype=y.dtype, device=y.device)
    hi = torch.as_tensor(g.hi, dtype=y.dtype, device=y.device)
    floor = torch.full_like(y, -torch.inf)
    ceiling = torch.full_like(y, torch.inf)
    above = lo > geometry.lo
    below = hi < geometry.hi
    safe_lo = torch.where(above, lo, torch.as_tensor(geometry.middle).to(lo))
    safe_hi = torch.where(below, hi, torch.as_tensor(geometry.middle).to(hi))
    return _clip(
        y,
        torch.where(above, geometry.mirror(safe_lo), floor),
        torch.where(below, geometry.mirror(safe_hi), ceiling),
    )


@register_prox(L1, Interval)
def _(g: L1, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    return _one_homogeneous_on_interval(geometry, y, -alpha * g.weight, alpha * g.weight)


@register_prox(AsymmetricL1, Interval)
def _(g: AsymmetricL1, geometry: Interval, y: Tensor, alpha: Any) -> Tensor:
    return _one_homogeneous_on_interval(geometry, y, _times(alpha, g.lo), _times(alpha, g.hi))


def _one_homogeneous_on_interval(geometry: Interval, y: Tensor, lo: Any, hi: Any) -> Tensor:
    """∇ψ is increasing in each coordinate, so thresholding happens around ∇ψ(0)."""
    ends = [torch.as_tensor(e, dtype=y.dtype, device=y.device) for e in (geometry.lo, geometry.hi)]
    straddles = (ends[0] < 0) & (ends[1] > 0)
    middle = torch.as_tensor(geometry.middle).to(y)
    zero = torch.where(straddles, torch.zeros_like(middle), middle)
    origin = geometry.mirror(zero)
    around = y - origin
    thresholded = origin + around - _clip(around, lo, hi)
    one_sided = torch.where(ends[0] >= 0, y - hi, y - lo)
    return torch.where(straddles, thresholded, one_sided)


def _times(alpha: Any, end: Any) -> Any:
    """α·end, where an infinite end stays infinite and gives α no (NaN) derivative."""
    if not isinstance(end, Tensor):
        return end if math.isinf(end) else alpha * end
    infinite = torch.isinf(end)
    return torch.where(infinite, end, alpha * torch.where(infinite, torch.zeros_like(end), end))


def soft_threshold(y: Tensor, threshold: Any) -> Tensor:
    """sign(y)·max(|y| − t, 0), written with one clamp so that it is cheap to differentiate."""
    return y - _clip(y, -threshold, threshold)


def _clip(y: Tensor, lo: Any, hi: Any) -> Tensor:
    """Clamp between numbers or tensors; unlike clamp it takes a mixture of both."""
    if isinstance(lo, Tensor) == isinstance(hi, Tensor):
        return torch.clamp(y, lo, hi)
    return torch.clamp(torch.clamp(y, min=lo), max=hi)


# --- strong convexity -----------------------------------------------------------------------------


def strong_convexity(geometry: Geometry, g: Function) -> float | None:
    r"""A modulus of ψ on dom g with respect to the Euclidean norm, or None where there is none.

    .. math:: D_ψ(x, z) ≥ \tfrac m2 ‖x − z‖² \quad\text{for } x, z ∈ \operatorname{dom} g

    Reference: Example 3 of Ochs et al. (2016), with errata 9.

    >>> legato.functions.strong_convexity(lg.Entropy(), lg.Simplex())
    1.0
    >>> legato.functions.strong_convexity(lg.Entropy(), lg.NonNegative()) is None
    True
    """
    core = g.split(geometry).core
    if isinstance(geometry, Product):
        blocks = core.blocks if isinstance(core, Separable) else (core,) * len(geometry.blocks)
        moduli = [strong_convexity(b, f) for b, f in zip(geometry.blocks, blocks, strict=True)]
        known = [m for m in moduli if m is not None]
        return min(known) if len(known) == len(moduli) else None
    if isinstance(geometry, (Euclidean, Interval, Quartic)):
        return 1.0
    if isinstance(geometry, Entropy) and isinstance(core, Simplex):
        return 1.0
    if isinstance(geometry, Entropy) and isinstance(core, Box):
        return float(1 / torch.as_tensor(core.hi).detach().amax())
    return None
