"""The gradient of the total-variation iteration in Triton: one small kernel an iteration.

Let q be the cotangent of p⁺ and z̄ = Π'ᵀq. With w = ∇ᵀz̄ what arrives at a is ā = z̄ − α∇w, of which
(1 + β)ā goes to p and −βā to p₋, and αw goes to y. All that looks at other pixels is the step from
z̄ to ā; the projection of the iteration before looks at one pixel only, so the same kernel goes on
to the z̄ of that iteration, and q and ā are never stored.
"""

# Triton knows no starred expressions.
# ruff: noqa: RUF005
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from legato.nn.fused.pixels import look_up
from legato.nn.total_variation.triton.pixels import (
    END_BEFORE_BAR,
    END_DUAL_BAR,
    END_VALUE_BAR,
    IMAGE_BAR,
    LATER,
    OTHER_Z_BAR,
    START_BAR,
    TAPE,
    WEIGHT_BAR,
    Z_BAR,
    as_number,
    beside,
    inner,
    inverse_norm,
    limits_at,
    own_pixels,
)


@triton.jit
def _noted(table, k, field, image, n, S, C: tl.constexpr):
    """What the tape says of iteration k: the points that were projected, or codes of clipping."""
    tape = look_up(table, TAPE, C.tape) + k * tl.cast(field, tl.int64) + n
    if C.grouped:
        points = ()
        for j in tl.static_range(C.channels * C.directions):
            points = points + (tl.load(tape + (image * C.channels * C.directions + j) * S),)
        return points
    else:
        return (tl.load(tape + image * S).to(tl.int32),)


@triton.jit
def _unprojected(q, noted, limits, C: tl.constexpr):
    """z̄ = Π'ᵀq and, for every direction, what its λ receives.

    Outside its ball z̄ = (λ/|z|)(q − n⟨n, q⟩) with n = z/|z|, and λ̄ = ⟨n, q⟩.
    """
    bars = ()
    to_limits = ()
    if C.grouped:
        factors = ()
        pulls = ()
        for e in tl.static_range(C.directions):
            outside, inverse = inverse_norm(inner(noted, noted, e, C), limits[e])
            along = tl.where(outside, inner(noted, q, e, C) * inverse, 0)
            factor = tl.where(outside, limits[e] * inverse, 1)
            factors = factors + (factor,)
            pulls = pulls + (factor * along * inverse,)
            to_limits = to_limits + (along,)
        for c in tl.static_range(C.channels):
            for e in tl.static_range(C.directions):
                own = q[c * C.directions + e]
                bars = bars + (factors[e] * own - pulls[e] * noted[c * C.directions + e],)
    else:
        for e in tl.static_range(C.directions):
            code = (noted[0] >> 2 * e) & 3
            bars = bars + (tl.where(code == 0, q[e], 0),)
            to_limits = to_limits + (tl.where(code == 1, q[e], tl.where(code == 2, -q[e], 0)),)
    return bars, to_limits


@triton.jit
def _weighed(table, image, n, S, C: tl.constexpr):
    """Where the gradient of λ lies for every kind of direction."""
    weight_bar = look_up(table, WEIGHT_BAR, C.dtype) + image * C.kinds * S + n
    if C.kinds > 1:
        places = ()
        for e in tl.static_range(C.directions):
            places = places + (weight_bar + e * S,)
        return places
    else:
        return (weight_bar,)


@triton.jit
def _by_kind(to_limits, C: tl.constexpr):
    """What each kind of direction receives: its own, or the sum where λ tells none apart."""
    if C.kinds > 1 or not C.by_direction:
        return to_limits
    else:
        total = to_limits[0]
        for e in tl.static_range(1, C.directions):
            total += to_limits[e]
        return (total,)


@triton.jit(do_not_specialize=["k"])
def seed_cotangents(
    table, k, field, strides, extent, C: tl.constexpr,
    LAST: tl.constexpr, VALUE: tl.constexpr, DUAL: tl.constexpr, BEFORE: tl.constexpr,
):  # fmt: skip
    """What the loss, or the section of the solve that comes after, sends to the end of a section.

    Of p directly and through u = y − ∇ᵀp, and of p₋; from there to z̄ of iteration k, the section's
    last. The LAST section comes first and begins the sums. Entries without a pair of neighbours
    take no part.
    """
    image, at, n, inside, S = own_pixels(extent, C)
    steps, leaves, _arrives = beside(at, extent, C)
    limits = limits_at(table, image, at, strides, C)
    plane = image * C.channels * S
    edges = plane * C.directions + n
    later = look_up(table, LATER, C.dtype) + edges
    z_bar = look_up(table, Z_BAR, C.dtype) + edges
    image_bar = look_up(table, IMAGE_BAR, C.dtype) + plane + n
    value_bar = look_up(table, END_VALUE_BAR, C.dtype) + plane
    dual_bar = look_up(table, END_DUAL_BAR, C.dtype) + edges
    before_bar = look_up(table, END_BEFORE_BAR, C.dtype) + edges
    zero = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    q = ()
    for c in tl.static_range(C.channels):
        u_bar = zero
        if VALUE:
            u_bar = tl.load(value_bar + c * S + n)
        if LAST:
            tl.store(image_bar + c * S, u_bar, mask=inside)
        for e in tl.static_range(C.directions):
            j = c * C.directions + e
            arriving = zero
            if DUAL:
                arriving += tl.load(dual_bar + j * S)
            if VALUE:
                there = tl.where(leaves[e], n + steps[e], n)
                arriving -= tl.load(value_bar + c * S + there) - u_bar
            q = q + (tl.where(leaves[e], arriving, 0),)
            if LAST:
                to_before = zero
                if BEFORE:
                    to_before += tl.where(leaves[e], tl.load(before_bar + j * S), 0)
                tl.store(later + j * S, to_before, mask=inside)
    bars, to_limits = _unprojected(q, _noted(table, k, field, image, n, S, C), limits, C)
    for j in tl.static_range(C.channels * C.directions):
        tl.store(z_bar + j * S, bars[j], mask=inside)
    if C.weigh:
        shares = _by_kind(to_limits, C)
        places = _weighed(table, image, n, S, C)
        for kind in tl.static_range(C.kinds):
            share = shares[kind]
            if not LAST:
                share += tl.load(places[kind])
            tl.store(places[kind], share, mask=inside)


@triton.jit
def _pulled_back(z_bar, n, around, S, C: tl.constexpr):
    """w = ∇ᵀz̄ and ā = z̄ − α∇w, of one channel."""
    steps, leaves, arrives = around
    own = ()
    w = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    for e in tl.static_range(C.directions):
        bar = tl.load(z_bar + e * S + n)
        w += tl.load(z_bar + e * S + n - steps[e], mask=arrives[e], other=0) - bar
        own = own + (bar,)
    a_bar = ()
    for e in tl.static_range(C.directions):
        there = tl.where(leaves[e], n + steps[e], n)
        ahead = own[e]
        for f in tl.static_range(C.directions):
            ahead -= tl.load(z_bar + f * S + there)
            if f != e:
                ahead += tl.load(z_bar + f * S + there - steps[f], mask=arrives[f], other=0)
        a_bar = a_bar + (own[e] - C.alpha * tl.where(leaves[e], ahead - w, 0),)
    return w, a_bar


@triton.jit(do_not_specialize=["i", "k", "beta"])
def reverse_step(table, i, k, beta, field, strides, extent, C: tl.constexpr, END: tl.constexpr):
    """Step i of the sweep over a section: from z̄ of an iteration to that of k, the one before it.

    At the END, where the section begins, q itself is left for whoever comes before.
    """
    image, at, n, inside, S = own_pixels(extent, C)
    around = beside(at, extent, C)
    beta = as_number(beta, C)
    plane = image * C.channels * S
    edges = plane * C.directions
    z_bar = look_up(table, Z_BAR + i % 2, C.dtype) + edges
    new_bar = look_up(table, OTHER_Z_BAR - i % 2, C.dtype) + edges + n
    later = look_up(table, LATER, C.dtype) + edges + n
    image_bar = look_up(table, IMAGE_BAR, C.dtype) + plane + n
    if END:
        new_bar = look_up(table, START_BAR, C.dtype) + edges + n
    else:
        limits = limits_at(table, image, at, strides, C)
        noted = _noted(table, k, field, image, n, S, C)
    if C.overlap:
        gdc_launch_dependents()
        gdc_wait()
    # All stores at the end: they would keep the loads after them from moving up.
    weighed = ()
    if C.weigh and not END:
        places = _weighed(table, image, n, S, C)
        for kind in tl.static_range(C.kinds):
            weighed = weighed + (tl.load(places[kind]),)
    bars = ()
    a_bars = ()
    image_bars = ()
    for c in tl.static_range(C.channels):
        so_far = tl.load(image_bar + c * S)
        arriving = ()
        for e in tl.static_range(C.directions):
            arriving = arriving + (tl.load(later + (c * C.directions + e) * S),)
        w, a_bar = _pulled_back(z_bar + c * C.directions * S, n, around, S, C)
        image_bars = image_bars + (so_far + C.alpha * w,)
        a_bars = a_bars + a_bar
        for e in tl.static_range(C.directions):
            bars = bars + (arriving[e] + (a_bar[e] + beta * a_bar[e]),)
    if not END:
        bars, to_limits = _unprojected(bars, noted, limits, C)
        if C.weigh:
            shares = _by_kind(to_limits, C)
            for kind in tl.static_range(C.kinds):
                tl.store(places[kind], weighed[kind] + shares[kind], mask=inside)
    for c in tl.static_range(C.channels):
        tl.store(image_bar + c * S, image_bars[c], mask=inside)
    for j in tl.static_range(C.channels * C.directions):
        tl.store(later + j * S, -beta * a_bars[j], mask=inside)
        tl.store(new_bar + j * S, bars[j], mask=inside)
