"""The dual FISTA iteration of total variation in Triton: one small kernel an iteration.

With a = p + β(p − p₋) an iteration is p⁺ = Π(a + α∇(y − ∇ᵀa)). At each pixel it takes a at ten
places around it, which nearly all come from the cache: of memory it reads p, p₋ and y and writes
p⁺, and a and y − ∇ᵀa are never stored.
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
    FIRST,
    IMAGE,
    START,
    START_BEFORE,
    TAPE,
    THIRD,
    VALUE,
    as_number,
    beside,
    inner,
    inverse_norm,
    limits_at,
    own_pixels,
)


@triton.jit
def begin(table, extent, C: tl.constexpr, COLD: tl.constexpr):
    """p⁰ and p⁻¹, zero or copied."""
    image, _at, n, inside, S = own_pixels(extent, C)
    plane = image * C.channels * C.directions * S + n
    p = look_up(table, FIRST, C.dtype) + plane
    before = look_up(table, THIRD, C.dtype) + plane
    start = look_up(table, START, C.dtype) + plane
    start_before = look_up(table, START_BEFORE, C.dtype) + plane
    for j in range(C.channels * C.directions):
        if COLD:
            zero = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
            tl.store(p + j * S, zero, mask=inside)
            tl.store(before + j * S, zero, mask=inside)
        else:
            tl.store(p + j * S, tl.load(start + j * S), mask=inside)
            tl.store(before + j * S, tl.load(start_before + j * S), mask=inside)


@triton.jit
def _ahead(now, before, n, beta):
    """a = p + β(p − p₋) at the pixels n."""
    p = tl.load(now + n)
    return p + beta * (p - tl.load(before + n))


@triton.jit
def _ahead_if(exists, now, before, n, beta):
    """The same, zero where there is no such pixel."""
    p = tl.load(now + n, mask=exists, other=0)
    return p + beta * (p - tl.load(before + n, mask=exists, other=0))


@triton.jit
def _stepped(y, now, before, n, around, beta, S, C: tl.constexpr):
    """z = a + α∇v with v = y − ∇ᵀa, of one channel, for every direction.

    y holds the image here and one step ahead in every direction.
    """
    steps, leaves, arrives = around
    own = ()
    v = y[0]
    for e in tl.static_range(C.directions):
        a = _ahead(now + e * S, before + e * S, n, beta)
        v += a - _ahead_if(arrives[e], now + e * S, before + e * S, n - steps[e], beta)
        own = own + (a,)
    z = ()
    for e in tl.static_range(C.directions):
        there = tl.where(leaves[e], n + steps[e], n)
        ahead = y[1 + e] - own[e]
        for f in tl.static_range(C.directions):
            ahead += _ahead(now + f * S, before + f * S, there, beta)
            if f != e:
                ahead -= _ahead_if(arrives[f], now + f * S, before + f * S, there - steps[f], beta)
        z = z + (own[e] + C.alpha * tl.where(leaves[e], ahead - v, 0),)
    return z


@triton.jit(do_not_specialize=["k", "now_at", "before_at", "after_at", "beta"])
def forward_step(
    table, k, now_at, before_at, after_at, beta, field, strides, extent, C: tl.constexpr
):  # fmt: skip
    """p⁺ from p and p₋, which are at these places; its tape is the k-th of so many entries."""
    image, at, n, inside, S = own_pixels(extent, C)
    around = beside(at, extent, C)
    limits = limits_at(table, image, at, strides, C)
    beta = as_number(beta, C)
    plane = image * C.channels * S
    edges = plane * C.directions
    y = look_up(table, IMAGE, C.dtype) + plane
    now = look_up(table, now_at + FIRST, C.dtype) + edges
    before = look_up(table, before_at + FIRST, C.dtype) + edges
    after = look_up(table, after_at + FIRST, C.dtype) + edges + n
    tape = look_up(table, TAPE, C.tape) + k * tl.cast(field, tl.int64) + n
    images = ()
    for c in tl.static_range(C.channels):
        images = images + (tl.load(y + c * S + n),)
        for e in tl.static_range(C.directions):
            there = tl.where(around[1][e], n + around[0][e], n)
            images = images + (tl.load(y + c * S + there),)
    if C.overlap:
        # All above is constant: it may run while the iteration before still does.
        gdc_launch_dependents()
        gdc_wait()
    points = ()
    for c in tl.static_range(C.channels):
        own = ()
        for e in tl.static_range(C.directions + 1):
            own = own + (images[c * (C.directions + 1) + e],)
        edge = c * C.directions * S
        points = points + _stepped(own, now + edge, before + edge, n, around, beta, S, C)
    if C.grouped:
        for e in tl.static_range(C.directions):
            outside, inverse = inverse_norm(inner(points, points, e, C), limits[e])
            factor = tl.where(outside, limits[e] * inverse, 1)
            for c in tl.static_range(C.channels):
                edge = (c * C.directions + e) * S
                z = points[c * C.directions + e]
                tl.store(after + edge, z * factor, mask=inside)
                if C.keep:
                    tl.store(tape + edges + edge, z, mask=inside)
    else:
        codes = tl.zeros((C.tile_y * C.tile_x,), dtype=tl.int32)
        for e in tl.static_range(C.directions):
            z = points[e]
            above = z > limits[e]
            below = z < -limits[e]
            codes += tl.where(above, 1 << 2 * e, tl.where(below, 2 << 2 * e, 0))
            clipped = tl.where(above, limits[e], tl.where(below, -limits[e], z))
            tl.store(after + e * S, clipped, mask=inside)
        if C.keep:
            tl.store(tape + plane, codes.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["now_at"])
def finish(table, now_at, extent, C: tl.constexpr):
    """u = y − ∇ᵀp."""
    image, at, n, inside, S = own_pixels(extent, C)
    steps, _leaves, arrives = beside(at, extent, C)
    plane = image * C.channels * S
    y = look_up(table, IMAGE, C.dtype) + plane + n
    p = look_up(table, now_at + FIRST, C.dtype) + plane * C.directions + n
    value = look_up(table, VALUE, C.dtype) + plane + n
    for c in range(C.channels):
        u = tl.load(y + c * S)
        for e in tl.static_range(C.directions):
            edge = p + (c * C.directions + e) * S
            u += tl.load(edge) - tl.load(edge - steps[e], mask=arrives[e], other=0)
        tl.store(value + c * S, u, mask=inside)
