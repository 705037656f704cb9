"""The Potts iteration in Triton: one small kernel an iteration.

The dual variable is never stored. Its updates telescope: with Sᵏ = u¹ + … + uᵏ

    bᵏ = b⁰ + σK(Sᵏ + uᵏ − u⁰)

so a field with one number per pixel and label stands for one with a number per edge. The tape
holds Zᵏ = Sᵏ − u⁰, from which uᵏ = Zᵏ − Zᵏ⁻¹ and bᵏ = b⁰ + σK(Zᵏ + uᵏ). Z is kept in fixed point:
its sums and differences are exact, so that a long sum costs no accuracy and the reverse sweep
meets the very b of the forward sweep.
"""

# Triton knows no starred expressions.
# ruff: noqa: RUF005
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from legato.nn.fused.pixels import look_up
from legato.nn.potts.triton.pixels import (
    COST,
    FINAL_DUAL,
    FINAL_U,
    MEAN,
    MIRROR,
    SIGMA,
    START_DUAL,
    START_MIRROR,
    TAPE,
    TAU,
    edge_weights,
    lookahead,
    neighbours,
    own_pixels,
    shrinkage,
    weights_at,
)


@triton.jit
def _tanh(x):
    # The power may overflow to infinity or vanish: both give ±1.
    return 1 - 2 / (tl.exp2(x * 2.885390081777927) + 1)


@triton.jit
def _rounded(u, k, C: tl.constexpr):
    """u, in units of the tape, rounded at a threshold that moves with k.

    An iterate that has come to rest would be rounded the same way every time, and the errors would
    add up; multiples of the golden ratio spread the thresholds evenly, and the errors cancel.
    """
    turn = (k * 0.6180339887498949).to(C.dtype)
    return (u + (turn - tl.floor(turn))).to(C.fixed)


@triton.jit(do_not_specialize=["total"])
def begin(table, total, extent, C: tl.constexpr, COLD: tl.constexpr, FRESH: tl.constexpr):
    """a⁰, re-centred, and Z⁰ = −u⁰; begins the mean or goes on with it."""
    image, _at, n, inside, S = own_pixels(extent, C)
    at = image * C.labels * S + n
    start = look_up(table, START_MIRROR, C.dtype) + at
    mirror = look_up(table, MIRROR, C.dtype) + at
    tape = look_up(table, TAPE, C.fixed) + at
    mean = look_up(table, MEAN, C.dtype) + at
    zero = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    top = zero
    if COLD:
        sum_of_powers = zero + C.labels
    else:
        top = tl.load(start)
        for label in range(1, C.labels):
            top = tl.maximum(top, tl.load(start + label * S))
        sum_of_powers = zero
        for label in range(C.labels):
            sum_of_powers += tl.exp(tl.load(start + label * S) - top)
    for label in range(C.labels):
        value = zero
        if not COLD:
            value = tl.load(start + label * S) - top
        u = tl.exp(value) / sum_of_powers
        # It may be written where it was read.
        tl.debug_barrier()
        tl.store(mirror + label * S, value, mask=inside)
        tl.store(tape + label * S, -(u * C.scale + 0.5).to(C.fixed), mask=inside)
        if C.average:
            share = u / total
            if not FRESH:
                share += tl.load(mean + label * S)
            tl.store(mean + label * S, share, mask=inside)


@triton.jit
def _stepped(fields, n, beside, w, tau, step, shrink, S, C: tl.constexpr):
    """aᵏ⁺¹ of one label before re-centring, and Zᵏ; `step` is σ in units of the fixed point."""
    mirror, cost, now, before, start_dual = fields
    ahead, behind = beside
    here = tl.load(now + n)
    v = here + (here - tl.load(before + n))
    force = tl.load(cost + n)
    for e in tl.static_range(C.directions):
        b = (lookahead(now, before, ahead[e]) - v).to(C.dtype) * (step * w[2 * e])
        if C.warm:
            b += tl.load(start_dual + e * S + n)
        force -= w[2 * e] * _tanh(b)
        b = (v - lookahead(now, before, behind[e])).to(C.dtype) * (step * w[2 * e + 1])
        if C.warm:
            b += tl.load(start_dual + e * S + behind[e])
        force += w[2 * e + 1] * _tanh(b)
    return (tl.load(mirror + n) - tau * force) * shrink, here


@triton.jit
def _of_label(fields, at, C: tl.constexpr):
    mirror, cost, now, before, start_dual = fields
    return mirror + at, cost + at, now + at, before + at, start_dual + at * C.directions


@triton.jit(do_not_specialize=["k", "now_at", "before_at", "after_at"])
def forward_step(table, k, now_at, before_at, after_at, field, strides, extent, C: tl.constexpr):
    """aᵏ⁺¹ in place of aᵏ, and Zᵏ⁺¹ from Zᵏ and Zᵏ⁻¹, which are at these places of the tape."""
    image, at, n, inside, S = own_pixels(extent, C)
    beside, exists = neighbours(n, at, extent, C)
    plane = image * C.labels * S
    weights = weights_at(table, image, at, strides, C)
    tau = tl.load(look_up(table, TAU, C.dtype))
    # Z⁻¹ would be 2Z⁰ and is not stored; b⁰ needs no difference.
    step = tl.where(k > 0, tl.load(look_up(table, SIGMA, C.dtype)) * (1 / C.scale), 0)
    shrink = shrinkage(table, tau, C)
    tape = look_up(table, TAPE, C.fixed) + plane
    field = tl.cast(field, tl.int64)
    mirror = look_up(table, MIRROR, C.dtype) + plane
    now = tape + now_at * field
    after = tape + after_at * field
    fields = (
        mirror, look_up(table, COST, C.dtype) + plane, now, tape + before_at * field,
        look_up(table, START_DUAL, C.dtype) + plane * C.directions,
    )  # fmt: skip
    w = edge_weights(weights, exists, strides, C)
    if C.overlap:
        # All above is constant: it may run while the iteration before still does.
        gdc_launch_dependents()
        gdc_wait()
    if C.held:
        values = ()
        sums = ()
        for label in tl.static_range(C.labels):
            if C.by_label:
                w = edge_weights(weights + label * strides[1], exists, strides, C)
            value, so_far = _stepped(
                _of_label(fields, label * S, C), n, beside, w, tau, step, shrink, S, C
            )
            values = values + (value,)
            sums = sums + (so_far,)
        top = values[0]  # type: ignore[misc]
        for label in tl.static_range(1, C.labels):
            top = tl.maximum(top, values[label])
        total = top * 0
        for label in tl.static_range(C.labels):
            total += tl.exp(values[label] - top)
        scale = C.scale / total
        for label in tl.static_range(C.labels):
            u = tl.exp(values[label] - top) * scale
            value = values[label] - top
            if C.epsilon:
                # Fused with the product before it, the difference may miss zero, and the reverse
                # sweep looks for that zero.
                value = tl.where(values[label] >= top, 0, value)
            tl.store(mirror + label * S + n, value, mask=inside)
            tl.store(after + label * S + n, sums[label] + _rounded(u, k + 1, C), mask=inside)
    else:
        # A number, not the infinity, so that no NaN can arise below.
        top = tl.full((C.tile_y * C.tile_x,), -3.0e38, dtype=C.dtype)
        total = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
        for label in tl.range(0, C.labels, loop_unroll_factor=C.unroll):
            if C.by_label:
                w = edge_weights(weights + label * strides[1], exists, strides, C)
            value, so_far = _stepped(
                _of_label(fields, label * S, C), n, beside, w, tau, step, shrink, S, C
            )
            tl.store(mirror + label * S + n, value, mask=inside)
            # The sum of exponentials follows the maximum as it grows.
            higher = tl.maximum(top, value)
            total = total * tl.exp(top - higher) + tl.exp(value - higher)
            top = higher
        tl.debug_barrier()
        scale = C.scale / total
        for label in tl.range(0, C.labels, loop_unroll_factor=C.unroll):
            value = tl.load(mirror + label * S + n) - top
            u = tl.exp(value) * scale
            so_far = tl.load(now + label * S + n)
            tl.store(mirror + label * S + n, value, mask=inside)
            tl.store(after + label * S + n, so_far + _rounded(u, k + 1, C), mask=inside)


@triton.jit(do_not_specialize=["now_at", "before_at", "total"])
def finish(table, now_at, before_at, total, field, strides, extent, C: tl.constexpr):
    """bᴺ, uᴺ with all its digits, and (Sᴺ − u⁰)/total to the mean."""
    image, at, n, inside, S = own_pixels(extent, C)
    beside, exists = neighbours(n, at, extent, C)
    ahead, _behind = beside
    plane = image * C.labels * S
    weights = weights_at(table, image, at, strides, C)
    step = tl.load(look_up(table, SIGMA, C.dtype)) * (1 / C.scale)
    tape = look_up(table, TAPE, C.fixed) + plane
    now = tape + now_at * tl.cast(field, tl.int64)
    before = tape + before_at * tl.cast(field, tl.int64)
    mirror = look_up(table, MIRROR, C.dtype) + plane + n
    start_dual = look_up(table, START_DUAL, C.dtype) + plane * C.directions + n
    final_dual = look_up(table, FINAL_DUAL, C.dtype) + plane * C.directions + n
    final_u = look_up(table, FINAL_U, C.dtype) + plane + n
    mean = look_up(table, MEAN, C.dtype) + plane + n
    sum_of_powers = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    for label in range(C.labels):
        sum_of_powers += tl.exp(tl.load(mirror + label * S))
    for label in range(C.labels):
        u = tl.exp(tl.load(mirror + label * S)) / sum_of_powers
        tl.store(final_u + label * S, u, mask=inside)
        w = edge_weights(weights + label * strides[1], exists, strides, C)
        v = lookahead(now + label * S, before + label * S, n)
        for e in tl.static_range(C.directions):
            rise = lookahead(now + label * S, before + label * S, ahead[e]) - v
            b = rise.to(C.dtype) * (step * w[2 * e])
            if C.warm:
                b += tl.load(start_dual + (label * C.directions + e) * S)
            tl.store(final_dual + (label * C.directions + e) * S, b, mask=inside)
        if C.average:
            share = tl.load(now + label * S + n).to(C.dtype) * (1 / C.scale) / total
            tl.store(mean + label * S, tl.load(mean + label * S) + share, mask=inside)
