"""The Potts iteration and its gradient on CUDA, in Triton: one lean kernel an iteration each way.

The dual variable is never stored. Its updates telescope: with Sᵏ = u¹ + … + uᵏ

    bᵏ = b⁰ + σK(Sᵏ + uᵏ − u⁰)

so a field with one number per pixel and label stands for one with a number per edge. The tape
holds Zᵏ = Sᵏ − u⁰, from which uᵏ = Zᵏ − Zᵏ⁻¹ and bᵏ = b⁰ + σK(Zᵏ + uᵏ). Z is kept in fixed point:
its sums and differences are exact, so that a long sum costs no accuracy and the reverse sweep
meets the very b of the forward sweep.

The gradient telescopes the same way. Let ā be the cotangent of aᵏ⁺¹, s = ā/(1 + τε), and
dᵏ = −τ(1 − tanh²bᵏ)·Ks what bᵏ receives directly. Then, with Qᵏ = σKᵀ(dᵏ + dᵏ⁺¹ + …),

    ūᵏ = Qᵏ + σKᵀdᵏ    and    w̄ = −τ Σₖ ∇s·(tanh bᵏ + (1 − tanh²bᵏ)(bᵏ − b⁰))

so neither sweep reads or writes anything per edge but the weights and their gradient.

A solve is one table of addresses and a fixed list of launches that look them up, so the list can
be captured once as a CUDA graph and replayed on whatever tensors come.
"""

# Triton knows no starred expressions.
# ruff: noqa: RUF005
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment"

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_operator import PottsCotangents, PottsSettings, make_operator
from legato.operators import Differences

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

# Places in the table of addresses. The kernels write them as numbers; those from 7 on differ
# between the sweeps.
COST, WEIGHTS, TAU, SIGMA, EPSILON_AT, START_DUAL, TAPE = range(7)
MIRROR, FINAL_DUAL, FINAL_U = range(7, 10)
BAR, OTHER_BAR, REST_BAR, COST_BAR, WEIGHT_BAR, DUAL_BAR, MEAN_BAR, STEPS_BAR = range(7, 15)
U_BAR, U = range(15, 17)
TABLE = 17


@triton.jit(do_not_specialize=[f"p{i}" for i in range(TABLE)])
def _fill_table(
    table, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10,
    p11, p12, p13, p14, p15, p16,
):  # fmt: skip
    """The addresses travel as arguments of a launch: in stream order, with no copy to wait for."""
    addresses = (
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11,
        p12, p13, p14, p15, p16,
    )  # fmt: skip
    for i in tl.static_range(17):
        tl.store(table + i, addresses[i])


@triton.jit
def _look_up(table, place, dtype: tl.constexpr):
    return tl.load(table + place).to(tl.pointer_type(dtype))


@triton.jit
def _tanh(x):
    # The power may overflow to infinity or vanish: both give ±1.
    return 1 - 2 / (tl.exp2(x * 2.885390081777927) + 1)


@triton.jit
def _direction(e: tl.constexpr, VOLUME: tl.constexpr):
    """The steps (dz, dy, dx) of direction e, in the order of `neighbourhood.offsets`."""
    if VOLUME:
        return (1 if e == 0 else 0), (1 if e == 1 else 0), (1 if e == 2 else 0)
    else:
        return 0, (0 if e == 1 else 1), (-1 if e == 3 else (0 if e == 0 else 1))


@triton.jit
def _place(
    D, H, W, VOLUME: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr, WIDE: tl.constexpr
):
    """The image of this program, its pixels' coordinates and index, and which are inside.

    Pixels beyond the border repeat the last ones, so loads need no masks.
    """
    image = tl.program_id(0)
    z = 0
    if VOLUME:
        z = image % D
        image = image // D
    lane = tl.arange(0, TILE_Y * TILE_X)
    y = tl.program_id(1) * TILE_Y + lane // TILE_X
    x = tl.program_id(2) * TILE_X + lane % TILE_X
    inside = (y < H) & (x < W)
    y = tl.minimum(y, H - 1)
    x = tl.minimum(x, W - 1)
    n = (z * H + y) * W + x
    if WIDE:
        n = n.to(tl.int64)
    return image.to(tl.int64), z, y, x, n, inside


@triton.jit
def _neighbours(n, z, y, x, D, H, W, E: tl.constexpr, VOLUME: tl.constexpr):
    """Per direction the pixels ahead and behind, and whether they exist.

    A missing neighbour is the pixel itself: its differences vanish and its address is good.
    """
    ahead = ()
    behind = ()
    leaves = ()
    arrives = ()
    for e in tl.static_range(E):
        dz, dy, dx = _direction(e, VOLUME)
        jump = (dz * H + dy) * W + dx
        leave = (z + dz < D) & (y + dy < H) & (x + dx < W) & (x + dx >= 0)
        arrive = (z >= dz) & (y >= dy) & (x >= dx) & (x - dx < W)
        ahead = ahead + (tl.where(leave, n + jump, n),)
        behind = behind + (tl.where(arrive, n - jump, n),)
        leaves = leaves + (leave,)
        arrives = arrives + (arrive,)
    return ahead, behind, leaves, arrives


@triton.jit
def _edge_weights(at, leaves, arrives, w_e, w_z, w_y, w_x, E: tl.constexpr, VOLUME: tl.constexpr):
    """The weights of the edges that leave and that arrive, in turn; zero where there is none."""
    w = ()
    for e in tl.static_range(E):
        dz, dy, dx = _direction(e, VOLUME)
        back = dz * w_z + dy * w_y + dx * w_x
        own = tl.load(at + e * w_e, mask=leaves[e], other=0)
        arriving = tl.load(at + e * w_e - back, mask=arrives[e], other=0)
        w = w + (own, arriving)
    return w


@triton.jit
def _lookahead(now, before, n):
    """Zᵏ + uᵏ at the pixels n."""
    z = tl.load(now + n)
    return z + (z - tl.load(before + n))


@triton.jit
def _stepped(
    mirror, cost, now, before, start_dual, n, ahead, behind, w, tau, step, shrink, S,
    E: tl.constexpr, WARM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """aᵏ⁺¹ of one label before re-centring, and Zᵏ; `step` is σ in units of the fixed point."""
    here = tl.load(now + n)
    v = here + (here - tl.load(before + n))
    force = tl.load(cost + n)
    for e in tl.static_range(E):
        b = (_lookahead(now, before, ahead[e]) - v).to(DTYPE) * (step * w[2 * e])
        if WARM:
            b += tl.load(start_dual + e * S + n)
        force -= w[2 * e] * _tanh(b)
        b = (v - _lookahead(now, before, behind[e])).to(DTYPE) * (step * w[2 * e + 1])
        if WARM:
            b += tl.load(start_dual + e * S + behind[e])
        force += w[2 * e + 1] * _tanh(b)
    return (tl.load(mirror + n) - tau * force) * shrink, here


@triton.jit(do_not_specialize=["k", "now_at", "before_at", "after_at"])
def _forward(
    table, k, now_at, before_at, after_at, field, w_b, w_l, w_e, w_z, w_y, w_x, D, H, W,
    L: tl.constexpr, E: tl.constexpr, VOLUME: tl.constexpr, TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr, WIDE: tl.constexpr, BY_LABEL: tl.constexpr, WARM: tl.constexpr,
    EPSILON: tl.constexpr, HELD: tl.constexpr, UNROLL: tl.constexpr, SCALE: tl.constexpr,
    OVERLAP: tl.constexpr, DTYPE: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """aᵏ⁺¹ in place of aᵏ, and Zᵏ⁺¹ from Zᵏ and Zᵏ⁻¹, which are at these places of the tape."""
    image, z, y, x, n, inside = _place(D, H, W, VOLUME, TILE_Y, TILE_X, WIDE)
    ahead, behind, leaves, arrives = _neighbours(n, z, y, x, D, H, W, E, VOLUME)
    S = D * H * W
    if WIDE:
        S = S.to(tl.int64)
    plane = image * L * S
    cost = _look_up(table, 0, DTYPE) + plane
    weights = _look_up(table, 1, DTYPE) + image * w_b + (z * w_z + y * w_y + x * w_x)
    tau = tl.load(_look_up(table, 2, DTYPE))
    # Z⁻¹ would be 2Z⁰ and is not stored; b⁰ needs no difference.
    step = tl.where(k > 0, tl.load(_look_up(table, 3, DTYPE)) * (1 / SCALE), 0)
    shrink = tau * 0 + 1
    if EPSILON:
        shrink = 1 / (1 + tau * tl.load(_look_up(table, 4, DTYPE)))
    start_dual = _look_up(table, 5, DTYPE) + plane * E
    tape = _look_up(table, 6, FIXED) + plane
    mirror = _look_up(table, 7, DTYPE) + plane
    field = field.to(tl.int64)
    now = tape + now_at * field
    before = tape + before_at * field
    after = tape + after_at * field
    w = _edge_weights(weights, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME)
    if OVERLAP:
        # All above is constant: it may run while the iteration before still does.
        gdc_launch_dependents()
        gdc_wait()
    if HELD:
        values = ()
        sums = ()
        for label in tl.static_range(L):
            if BY_LABEL:
                w = _edge_weights(
                    weights + label * w_l, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME
                )
            value, so_far = _stepped(
                mirror + label * S, cost + label * S, now + label * S, before + label * S,
                start_dual + label * E * S, n, ahead, behind, w, tau, step, shrink, S,
                E, WARM, DTYPE,
            )  # fmt: skip
            values = values + (value,)
            sums = sums + (so_far,)
        top = values[0]  # type: ignore[misc]
        for label in tl.static_range(1, L):
            top = tl.maximum(top, values[label])
        total = top * 0
        for label in tl.static_range(L):
            total += tl.exp(values[label] - top)
        scale = SCALE / total
        for label in tl.static_range(L):
            u = tl.exp(values[label] - top) * scale
            value = values[label] - top
            if EPSILON:
                # Fused with the product before it, the difference may miss zero, and the reverse
                # sweep looks for that zero.
                value = tl.where(values[label] >= top, 0, value)
            tl.store(mirror + label * S + n, value, mask=inside)
            tl.store(after + label * S + n, sums[label] + (u + 0.5).to(FIXED), mask=inside)
    else:
        # A number, not the infinity, so that no NaN can arise below.
        top = tl.full((TILE_Y * TILE_X,), -3.0e38, dtype=DTYPE)
        total = tl.zeros((TILE_Y * TILE_X,), dtype=DTYPE)
        for label in tl.range(0, L, loop_unroll_factor=UNROLL):
            if BY_LABEL:
                w = _edge_weights(
                    weights + label * w_l, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME
                )
            value, _ = _stepped(
                mirror + label * S, cost + label * S, now + label * S, before + label * S,
                start_dual + label * E * S, n, ahead, behind, w, tau, step, shrink, S,
                E, WARM, DTYPE,
            )  # fmt: skip
            tl.store(mirror + label * S + n, value, mask=inside)
            # The sum of exponentials follows the maximum as it grows.
            higher = tl.maximum(top, value)
            total = total * tl.exp(top - higher) + tl.exp(value - higher)
            top = higher
        tl.debug_barrier()
        scale = SCALE / total
        for label in tl.range(0, L, loop_unroll_factor=UNROLL):
            value = tl.load(mirror + label * S + n) - top
            u = tl.exp(value) * scale
            so_far = tl.load(now + label * S + n)
            tl.store(mirror + label * S + n, value, mask=inside)
            tl.store(after + label * S + n, so_far + (u + 0.5).to(FIXED), mask=inside)


@triton.jit
def _begin(
    table, D, H, W, L: tl.constexpr, VOLUME: tl.constexpr, TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr, WIDE: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Z⁰ = −u⁰ from a⁰, whose maximum over the labels is zero."""
    image, _, _, _, n, inside = _place(D, H, W, VOLUME, TILE_Y, TILE_X, WIDE)
    S = D * H * W
    if WIDE:
        S = S.to(tl.int64)
    mirror = _look_up(table, 7, DTYPE) + image * L * S + n
    tape = _look_up(table, 6, FIXED) + image * L * S + n
    total = tl.zeros((TILE_Y * TILE_X,), dtype=DTYPE)
    for label in range(L):
        total += tl.exp(tl.load(mirror + label * S))
    for label in range(L):
        u = tl.exp(tl.load(mirror + label * S)) / total
        tl.store(tape + label * S, -(u * SCALE + 0.5).to(FIXED), mask=inside)


@triton.jit(do_not_specialize=["now_at", "before_at"])
def _finish(
    table, now_at, before_at, field, w_b, w_l, w_e, w_z, w_y, w_x, D, H, W,
    L: tl.constexpr, E: tl.constexpr, VOLUME: tl.constexpr, TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr, WIDE: tl.constexpr, WARM: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """bᴺ, and uᴺ with all its digits."""
    image, z, y, x, n, inside = _place(D, H, W, VOLUME, TILE_Y, TILE_X, WIDE)
    ahead, _, leaves, arrives = _neighbours(n, z, y, x, D, H, W, E, VOLUME)
    S = D * H * W
    if WIDE:
        S = S.to(tl.int64)
    plane = image * L * S
    weights = _look_up(table, 1, DTYPE) + image * w_b + (z * w_z + y * w_y + x * w_x)
    step = tl.load(_look_up(table, 3, DTYPE)) * (1 / SCALE)
    tape = _look_up(table, 6, FIXED) + plane
    now = tape + now_at * field.to(tl.int64)
    before = tape + before_at * field.to(tl.int64)
    mirror = _look_up(table, 7, DTYPE) + plane + n
    start_dual = _look_up(table, 5, DTYPE) + plane * E + n
    final_dual = _look_up(table, 8, DTYPE) + plane * E + n
    final_u = _look_up(table, 9, DTYPE) + plane + n
    total = tl.zeros((TILE_Y * TILE_X,), dtype=DTYPE)
    for label in range(L):
        total += tl.exp(tl.load(mirror + label * S))
    for label in range(L):
        tl.store(final_u + label * S, tl.exp(tl.load(mirror + label * S)) / total, mask=inside)
        w = _edge_weights(weights + label * w_l, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME)
        v = _lookahead(now + label * S, before + label * S, n)
        for e in tl.static_range(E):
            rise = _lookahead(now + label * S, before + label * S, ahead[e]) - v
            b = rise.to(DTYPE) * (step * w[2 * e])
            if WARM:
                b += tl.load(start_dual + (label * E + e) * S)
            tl.store(final_dual + (label * E + e) * S, b, mask=inside)


@triton.jit
def _tanh_and_slope(x):
    """tanh x and 1 − tanh² x, which would lose its digits as a difference."""
    e = tl.exp2(tl.abs(x) * -2.885390081777927)
    h = 1 / (1 + e)
    p = (1 - e) * h
    return tl.where(x < 0, -p, p), 4 * e * h * h


@triton.jit
def _pulled_back(
    bar, rest_bar, now, before, start_dual, dual_bar, mean_bar, cost, n, inside, ahead, behind, w,
    tau, sigma, step, shrink, started, sums, S, E: tl.constexpr, WARM: tl.constexpr,
    EPSILON: tl.constexpr, AVERAGE: tl.constexpr, TO_DUAL: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Of one label: s, uᵏ, ūᵏ and Qᵏ.

    Adds to `sums`: −∂τ, σ∂σ, ⟨u, ū⟩, ⟨u, ū log u⟩, ⟨u, log u⟩ and per direction −w̄/τ.
    """
    rest = tl.load(rest_bar + n)
    here = tl.load(now + n)
    change = here - tl.load(before + n)
    v = here + change
    s = tl.load(bar + n) * shrink
    pull = s * 0
    to_tau = sums[0]
    to_sigma = sums[1]
    to_weights = ()
    for e in tl.static_range(E):
        rise = (_lookahead(now, before, ahead[e]) - v).to(DTYPE) * (step * w[2 * e])
        slope = tl.load(bar + ahead[e]) * shrink - s
        b = rise
        if WARM:
            b += tl.load(start_dual + e * S + n)
        p, bend = _tanh_and_slope(b)
        bend *= slope
        d = tau * w[2 * e] * bend
        pull += w[2 * e] * d
        to_tau += w[2 * e] * p * slope
        to_sigma -= d * rise
        to_weights = to_weights + (sums[5 + e] + (p * slope + bend * rise),)
        if TO_DUAL:
            at = dual_bar + e * S + n
            tl.store(at, tl.load(at) - d, mask=inside)
        # By symmetry the share of the arriving edge has the same form.
        b = (v - _lookahead(now, before, behind[e])).to(DTYPE) * (step * w[2 * e + 1])
        if WARM:
            b += tl.load(start_dual + e * S + behind[e])
        p, bend = _tanh_and_slope(b)
        slope = tl.load(bar + behind[e]) * shrink - s
        pull += tau * w[2 * e + 1] * w[2 * e + 1] * bend * slope
    u = tl.where(started, change, -here).to(DTYPE) * (1 / SCALE)
    new_rest = rest + sigma * pull
    # u⁰ has no share in the duals but −u⁰ in all later ones.
    u_bar = tl.where(started, new_rest + sigma * pull, -rest)
    if AVERAGE:
        u_bar += tl.where(started, tl.load(mean_bar + n), 0)
    log_one = sums[3]
    log_two = sums[4]
    if EPSILON:
        to_tau += s * tl.load(cost + n)
        log_u = tl.where(u > 0, tl.log(tl.maximum(u, 1e-37)), 0)
        log_one += u * u_bar * log_u
        log_two += u * log_u
    more = (to_tau, to_sigma, sums[2] + u * u_bar, log_one, log_two) + to_weights
    return s, u, u_bar, new_rest, more


@triton.jit
def _add_weight_bar(at, sums, tau, inside, S, E: tl.constexpr):
    for e in tl.static_range(E):
        tl.store(at + e * S, tl.load(at + e * S) - tau * sums[5 + e], mask=inside)


@triton.jit
def _without_weights(sums, zero, E: tl.constexpr):
    """The sums, those of the weights begun anew."""
    result = (sums[0], sums[1], sums[2], sums[3], sums[4])
    for _ in tl.static_range(E):
        result = result + (zero,)
    return result


@triton.jit
def _own_sums(table):
    """Every program has its own sums for τ and σ: no atomics, the same result every time."""
    program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    program = program * tl.num_programs(2) + tl.program_id(2)
    return _look_up(table, 14, tl.float64) + 2 * program


@triton.jit(do_not_specialize=["k", "i", "first", "before_at"])
def _reverse(
    table, k, i, first, before_at, field, w_b, w_l, w_e, w_z, w_y, w_x, D, H, W,
    L: tl.constexpr, E: tl.constexpr, VOLUME: tl.constexpr, TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr, WIDE: tl.constexpr, BY_LABEL: tl.constexpr, WARM: tl.constexpr,
    EPSILON: tl.constexpr, HELD: tl.constexpr, UNROLL: tl.constexpr, SCALE: tl.constexpr,
    OVERLAP: tl.constexpr, AVERAGE: tl.constexpr, TO_DUAL: tl.constexpr,
    DTYPE: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Step i of the sweep over a tape, from the cotangent of aᵏ⁺¹ to that of aᵏ.

    The tape begins at iterate `first` of the whole solve, and k counts from there.
    """
    image, z, y, x, n, inside = _place(D, H, W, VOLUME, TILE_Y, TILE_X, WIDE)
    ahead, behind, leaves, arrives = _neighbours(n, z, y, x, D, H, W, E, VOLUME)
    S = D * H * W
    if WIDE:
        S = S.to(tl.int64)
    plane = image * L * S
    cost = _look_up(table, 0, DTYPE) + plane
    weights = _look_up(table, 1, DTYPE) + image * w_b + (z * w_z + y * w_y + x * w_x)
    tau = tl.load(_look_up(table, 2, DTYPE))
    sigma = tl.load(_look_up(table, 3, DTYPE))
    started = k > 0
    step = tl.where(started, sigma * (1 / SCALE), 0)
    shrink = tau * 0 + 1
    growth = tau * 0
    if EPSILON:
        epsilon = tl.load(_look_up(table, 4, DTYPE))
        shrink = 1 / (1 + tau * epsilon)
        growth = (first + k) * tau * epsilon * shrink
    start_dual = _look_up(table, 5, DTYPE) + plane * E
    tape = _look_up(table, 6, FIXED) + plane
    now = tape + k * field.to(tl.int64)
    before = tape + before_at * field.to(tl.int64)
    old_bar = _look_up(table, 7 + i % 2, DTYPE) + plane
    new_bar = _look_up(table, 8 - i % 2, DTYPE) + plane
    rest_bar = _look_up(table, 9, DTYPE) + plane
    cost_bar = _look_up(table, 10, DTYPE) + plane
    weight_bar = _look_up(table, 11, DTYPE) + n
    weight_bar += plane * E if BY_LABEL else image * E * S
    dual_bar = _look_up(table, 12, DTYPE) + plane * E
    mean_bar = _look_up(table, 13, DTYPE) + plane
    steps_bar = _own_sums(table)
    w = _edge_weights(weights, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    tau_so_far = tl.load(steps_bar)
    sigma_so_far = tl.load(steps_bar + 1)
    zero = tl.zeros((TILE_Y * TILE_X,), dtype=DTYPE)
    sums = _without_weights((zero, zero, zero, zero, zero), zero, E)
    if HELD:
        # All stores at the end: they would keep the loads after them from moving up.
        held = ()
        for label in tl.static_range(L):
            if BY_LABEL:
                w = _edge_weights(
                    weights + label * w_l, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME
                )
                sums = _without_weights(sums, zero, E)
            so_far = tl.load(cost_bar + label * S + n)
            s, u, u_bar, rest, sums = _pulled_back(
                old_bar + label * S, rest_bar + label * S, now + label * S, before + label * S,
                start_dual + label * E * S, dual_bar + label * E * S, mean_bar + label * S,
                cost + label * S, n, inside, ahead, behind, w, tau, sigma, step, shrink, started,
                sums, S, E, WARM, EPSILON, AVERAGE, TO_DUAL, SCALE, DTYPE,
            )  # fmt: skip
            if BY_LABEL:
                _add_weight_bar(weight_bar + label * E * S, sums, tau, inside, S, E)
            held = held + (s + u * u_bar, u, rest, so_far - tau * s)
        for label in tl.static_range(L):
            t = held[4 * label] - held[4 * label + 1] * sums[2]
            tl.store(new_bar + label * S + n, t, mask=inside)
            tl.store(rest_bar + label * S + n, held[4 * label + 2], mask=inside)
            tl.store(cost_bar + label * S + n, held[4 * label + 3], mask=inside)
    else:
        for label in tl.range(0, L, loop_unroll_factor=UNROLL):
            if BY_LABEL:
                w = _edge_weights(
                    weights + label * w_l, leaves, arrives, w_e, w_z, w_y, w_x, E, VOLUME
                )
                sums = _without_weights(sums, zero, E)
            # What this iteration needs no more shall not push out what the next loop reads.
            so_far = tl.load(cost_bar + label * S + n, eviction_policy="evict_first")
            s, u, u_bar, rest, sums = _pulled_back(
                old_bar + label * S, rest_bar + label * S, now + label * S, before + label * S,
                start_dual + label * E * S, dual_bar + label * E * S, mean_bar + label * S,
                cost + label * S, n, inside, ahead, behind, w, tau, sigma, step, shrink, started,
                sums, S, E, WARM, EPSILON, AVERAGE, TO_DUAL, SCALE, DTYPE,
            )  # fmt: skip
            if BY_LABEL:
                _add_weight_bar(weight_bar + label * E * S, sums, tau, inside, S, E)
            tl.store(new_bar + label * S + n, s + u * u_bar, mask=inside)
            tl.store(rest_bar + label * S + n, rest, mask=inside, eviction_policy="evict_first")
            new_cost = so_far - tau * s
            tl.store(cost_bar + label * S + n, new_cost, mask=inside, eviction_policy="evict_first")
        tl.debug_barrier()
        for label in tl.range(0, L, loop_unroll_factor=UNROLL):
            here = tl.load(now + label * S + n)
            fixed = tl.where(started, here - tl.load(before + label * S + n), -here)
            t = tl.load(new_bar + label * S + n) - fixed.to(DTYPE) * (1 / SCALE) * sums[2]
            tl.store(new_bar + label * S + n, t, mask=inside)
    if not BY_LABEL:
        _add_weight_bar(weight_bar, sums, tau, inside, S, E)
    to_tau = sums[0]
    if EPSILON:
        to_tau = to_tau * (1 + growth) + (sums[3] - sums[2] * sums[4]) * growth / tau
    tl.store(steps_bar, tau_so_far + tl.sum(tl.where(inside, to_tau, 0).to(tl.float64)))
    tl.store(steps_bar + 1, sigma_so_far + tl.sum(tl.where(inside, sums[1], 0).to(tl.float64)))


@triton.jit
def _begin_reverse(
    table, D, H, W, L: tl.constexpr, E: tl.constexpr, VOLUME: tl.constexpr, TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr, WIDE: tl.constexpr, SCALE: tl.constexpr, BY_LABEL: tl.constexpr,
    DIRECT: tl.constexpr, THROUGH_U: tl.constexpr, DUAL: tl.constexpr, FRESH: tl.constexpr,
    DTYPE: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """The cotangent of aᴺ, directly and through u, and zeros where sums begin."""
    image, _, _, _, n, inside = _place(D, H, W, VOLUME, TILE_Y, TILE_X, WIDE)
    S = D * H * W
    if WIDE:
        S = S.to(tl.int64)
    at = image * L * S + n
    bar = _look_up(table, 7, DTYPE) + at
    rest_bar = _look_up(table, 9, DTYPE) + at
    cost_bar = _look_up(table, 10, DTYPE) + at
    u_bar = _look_up(table, 15, DTYPE) + at
    u = _look_up(table, 16, DTYPE) + at
    zero = tl.zeros((TILE_Y * TILE_X,), dtype=DTYPE)
    inner = zero
    if THROUGH_U:
        for label in range(L):
            inner += tl.load(u + label * S) * tl.load(u_bar + label * S)
    for label in range(L):
        t = zero
        if DIRECT:
            t = tl.load(bar + label * S)
        if THROUGH_U:
            t += tl.load(u + label * S) * (tl.load(u_bar + label * S) - inner)
        tl.store(bar + label * S, t, mask=inside)
        if not DUAL:
            tl.store(rest_bar + label * S, zero, mask=inside)
        if FRESH:
            tl.store(cost_bar + label * S, zero, mask=inside)
    if FRESH:
        edges = L * E if BY_LABEL else E
        weight_bar = _look_up(table, 11, DTYPE) + image * edges * S + n
        for e in range(edges):
            tl.store(weight_bar + e * S, zero, mask=inside)
        steps_bar = _own_sums(table)
        tl.store(steps_bar, tl.zeros((), dtype=tl.float64))
        tl.store(steps_bar + 1, tl.zeros((), dtype=tl.float64))


@dataclass(frozen=True)
class Launch:
    """How a kernel is laid on the machine.

    A program works on tile_y × tile_x pixels, one a thread. With at most `held` labels it keeps
    them all in registers, else it visits them in a loop, `unroll` at a time. `overlap` starts an
    iteration's constant part before the iteration before it has ended.
    """

    tile_y: int = 2
    tile_x: int = 32
    held: int = 8
    unroll: int = 1
    overlap: bool = True

    def options(self) -> dict[str, Any]:
        return {"num_warps": max(1, self.tile_y * self.tile_x // 32), "num_stages": 1}


def choose_launch(cost: Tensor) -> Launch:
    """The launch that measured best for a problem of this size."""
    tile_x = min(32, triton.next_power_of_2(cost.shape[-1]))
    unroll = 2 if cost.shape[1] > Launch.held else 1
    return Launch(64 // tile_x, tile_x, unroll=unroll, overlap=not INTERPRETED)


GRAPHS = 64
"""At most so many captured solves are kept, each a list of launches without memory of its own."""


@dataclass
class _Solve:
    """A list of launches, and the table that they read."""

    table: Tensor
    graph: torch.cuda.CUDAGraph | None = None


class _Replays:
    """Runs lists of launches, from the second time on as a CUDA graph.

    A graph and its table belong to one stream, so that calls in two streams cannot meet in it.
    """

    def __init__(self) -> None:
        self._solves: OrderedDict[Any, _Solve] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, key: Any, tensors: dict[int, Tensor], launch: Callable[[Tensor], None]) -> None:
        """Let `launch(table)` work on the tensors, given by their places in the table."""
        some = tensors[COST].data_ptr()
        addresses = [tensors[i].data_ptr() if i in tensors else some for i in range(TABLE)]
        device = tensors[COST].device
        if INTERPRETED or torch.cuda.is_current_stream_capturing():
            # The user's own graph takes the launches, and keeps the table.
            table = torch.empty(TABLE, dtype=torch.int64, device=device)
            _fill_table[(1,)](table, *addresses)
            launch(table)
            return
        with self._lock, torch.cuda.device(device):
            key = (key, device.index, torch.cuda.current_stream(device).cuda_stream)
            solve = self._solves.get(key)
            if solve is None:
                # Most of what is seen once is never seen again, and kernels must be compiled
                # before they can be captured.
                solve = _Solve(torch.empty(TABLE, dtype=torch.int64, device=device))
                self._remember(key, solve)
                _fill_table[(1,)](solve.table, *addresses)
                launch(solve.table)
                return
            self._solves.move_to_end(key)
            if solve.graph is None:
                solve.graph = _capture(solve.table, launch)
            _fill_table[(1,)](solve.table, *addresses)
            solve.graph.replay()

    def _remember(self, key: Any, solve: _Solve) -> None:
        self._solves[key] = solve
        if len(self._solves) > GRAPHS:
            # A graph must not be destroyed while it runs.
            torch.cuda.synchronize()
            self._solves.popitem(last=False)


def _capture(table: Tensor, launch: Callable[[Tensor], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # Nothing is allocated while capturing, so other threads may go on as they like.
    with torch.cuda.stream(torch.cuda.Stream(table.device)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch(table)
        finally:
            graph.capture_end()
    return graph


_replays = _Replays()


@dataclass(frozen=True)
class Problem:
    """The tensors that do not change while iterating, and the shape of the grid."""

    cost: Tensor
    weights: Tensor
    tau: Tensor
    sigma: Tensor
    epsilon: Tensor | None
    directions: tuple[tuple[int, ...], ...]
    launch: Launch

    @property
    def extent(self) -> tuple[int, int, int]:
        depth, height, width = (1, 1, *self.cost.shape[2:])[-3:]
        return depth, height, width

    @property
    def grid(self) -> tuple[int, int, int]:
        """Images and slices first: only the first axis of a CUDA grid may be long."""
        depth, height, width = self.extent
        down, across = -(-height // self.launch.tile_y), -(-width // self.launch.tile_x)
        return int(self.cost.shape[0]) * depth, down, across

    @property
    def weight_strides(self) -> tuple[int, ...]:
        """Strides over (batch, label, direction, z, y, x), zero along broadcast axes."""
        strides = [
            0 if size == 1 else step
            for size, step in zip(self.weights.shape, self.weights.stride(), strict=True)
        ]
        return (*strides[:3], *(0,) * (6 - len(strides)), *strides[3:])

    @property
    def by_label(self) -> bool:
        return self.weights.shape[1] > 1

    @property
    def differences(self) -> Differences:
        return Differences(self.directions)

    @property
    def tensors(self) -> dict[int, Tensor]:
        constant = {COST: self.cost, WEIGHTS: self.weights, TAU: self.tau, SIGMA: self.sigma}
        return constant if self.epsilon is None else constant | {EPSILON_AT: self.epsilon}

    def meta(self, iterations: int) -> dict[str, Any]:
        """What every kernel needs to know when it is compiled."""
        depth, height, width = self.extent
        double = self.cost.dtype == torch.float64
        return {
            "D": depth,
            "H": height,
            "W": width,
            "L": int(self.cost.shape[1]),
            "VOLUME": self.cost.dim() == 5,
            "TILE_Y": self.launch.tile_y,
            "TILE_X": self.launch.tile_x,
            # Addresses in 64 bits take twice the registers.
            "WIDE": self.cost[0].numel() * len(self.directions) >= 2**31,
            "SCALE": scale_of(iterations, self.cost.dtype),
            "DTYPE": tl.float64 if double else tl.float32,
            "FIXED": tl.int64 if double else tl.int32,
            **self.launch.options(),
        }

    def step_meta(self) -> dict[str, Any]:
        """What an iteration needs to know besides."""
        launch = self.launch
        step = {
            "E": len(self.directions),
            "BY_LABEL": self.by_label,
            "EPSILON": self.epsilon is not None,
            "HELD": self.cost.shape[1] <= launch.held,
            "UNROLL": launch.unroll,
            "OVERLAP": launch.overlap,
        }
        return step if INTERPRETED else step | {"launch_pdl": launch.overlap}

    def run(
        self, kind: tuple[Any, ...], tensors: dict[int, Tensor], launch: Callable[[Tensor], None]
    ) -> None:
        """Do the launches, which may depend on nothing but the problem's shape and `kind`."""
        shape = (self.launch, self.cost.shape, self.cost.dtype, self.weight_strides, self.by_label)
        key = (*shape, len(self.directions), self.epsilon is None, *kind)
        _replays.run(key, self.tensors | tensors, launch)


LONGEST = 1021
"""Iterations on one tape: with more of them the fixed point would have too few digits."""


def scale_of(iterations: int, dtype: torch.dtype) -> float:
    """The unit of the fixed point. No difference of lookaheads exceeds the iterations by three."""
    digits = 63 if dtype == torch.float64 else 31
    return float(2.0 ** (digits - (iterations + 2).bit_length()))


def _forward_run(
    problem: Problem, mirror: Tensor | None, dual: Tensor | None, iterations: int, tape: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """From (a⁰, b⁰) to (a, b, u) over a tape, whose places are used in turn."""
    cost = problem.cost
    a = torch.zeros_like(cost) if mirror is None else mirror - mirror.amax(1, keepdim=True)
    a = a.contiguous()
    b = cost.new_empty(*cost.shape[:2], len(problem.directions), *cost.shape[2:])
    u = torch.empty_like(cost)
    slots, warm = len(tape), dual is not None

    def launch(table: Tensor) -> None:
        grid, meta, step = problem.grid, problem.meta(iterations), problem.step_meta()
        shape = (cost.numel(), *problem.weight_strides)
        _begin[grid](table, **meta)
        for k in range(iterations):
            places = (k % slots, max(k - 1, 0) % slots, (k + 1) % slots)
            _forward[grid](table, k, *places, *shape, WARM=warm, **meta, **step)
        places = (iterations % slots, (iterations - 1) % slots)
        _finish[grid](table, *places, *shape, E=step["E"], WARM=warm, **meta)

    tensors = {TAPE: tape, MIRROR: a, FINAL_DUAL: b, FINAL_U: u}
    if dual is not None:
        tensors[START_DUAL] = dual.contiguous()
    problem.run(("forward", iterations, slots, warm), tensors, launch)
    return a, b, u


@dataclass(frozen=True)
class _Gradients:
    """What the tapes of a solve add up; steps are −∂τ and σ∂σ, a row for every program."""

    cost: Tensor
    weights: Tensor
    steps: Tensor


def _reverse_run(
    problem: Problem,
    bars: PottsCotangents,
    end: tuple[Tensor, Tensor],
    dual: Tensor | None,
    tape: Tensor,
    first: int,
    total: int,
    gradients: _Gradients,
    to_dual: bool,
) -> tuple[Tensor, Tensor | None]:
    """From the cotangents of the last iterates of a tape to those of (a, b) where it begins.

    `end` is (a, u) of the last iterate, `dual` the b of the first, None for zero. The last tape of
    the solve comes first and begins the gradients.
    """
    cost, (final_a, final_u) = problem.cost, end
    iterations = len(tape) - 1
    direct = None if bars.mirror is None else _centred(bars.mirror, final_a)
    u_bar = _arriving_at_u(bars, problem, total)
    bar = torch.empty_like(cost) if direct is None else direct
    other_bar = torch.empty_like(cost)
    tensors = {
        TAPE: tape,
        BAR: bar,
        OTHER_BAR: other_bar,
        COST_BAR: gradients.cost,
        WEIGHT_BAR: gradients.weights,
        STEPS_BAR: gradients.steps,
        U: final_u,
    }
    if u_bar is not None:
        tensors[U_BAR] = u_bar.contiguous()
    if bars.dual is None:
        tensors[REST_BAR] = torch.empty_like(cost)
    else:
        rest = problem.sigma * problem.differences.adjoint(problem.weights * bars.dual)
        tensors[REST_BAR] = rest.contiguous()
    if dual is not None:
        tensors[START_DUAL] = dual.contiguous()
    if bars.mean is not None:
        tensors[MEAN_BAR] = bars.mean.contiguous() / total
    dual_bar = None
    if to_dual:
        dual_bar = cost.new_zeros(*cost.shape[:2], len(problem.directions), *cost.shape[2:])
        if bars.dual is not None:
            dual_bar += bars.dual
        tensors[DUAL_BAR] = dual_bar
    begin = {
        "DIRECT": direct is not None,
        "THROUGH_U": u_bar is not None,
        "DUAL": bars.dual is not None,
        "FRESH": first + iterations == total,
    }
    own = {"WARM": dual is not None, "AVERAGE": bars.mean is not None, "TO_DUAL": to_dual}

    def launch(table: Tensor) -> None:
        grid, meta, step = problem.grid, problem.meta(iterations), problem.step_meta()
        shape = (cost.numel(), *problem.weight_strides)
        _begin_reverse[grid](table, E=step["E"], BY_LABEL=step["BY_LABEL"], **begin, **meta)
        for i in range(iterations):
            k = iterations - 1 - i
            _reverse[grid](table, k, i, first, max(k - 1, 0), *shape, **own, **meta, **step)

    kind = ("reverse", iterations, first, *begin.values(), *own.values())
    problem.run(kind, tensors, launch)
    # After the launches, which begin the sums.
    if bars.dual is not None:
        _add_last_dual(problem, bars.dual, tape, gradients)
    if problem.epsilon is not None and u_bar is not None:
        through_u = final_u * (u_bar - (final_u * u_bar).sum(1, keepdim=True))
        _add_logarithms(problem, through_u, final_a, first + iterations, gradients)
    if problem.epsilon is not None and bars.mirror is not None and first + iterations == total:
        _add_logarithms(problem, _centred(bars.mirror, final_a), final_a, total, gradients)
    return (other_bar if iterations % 2 else bar), dual_bar


class TritonPotts:
    """The kernel, as `potts_operator` wants it; a fixed launch is for measurements."""

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch

    def _problem(
        self, cost: Tensor, weights: Tensor, tau: Tensor, sigma: Tensor, settings: PottsSettings
    ) -> Problem:
        cost = cost.detach().contiguous()
        epsilon = cost.new_full((), settings.epsilon) if settings.epsilon > 0 else None
        directions = offsets(cost.dim() - 2, settings.neighbours)
        launch = self.launch or choose_launch(cost)
        weights, tau, sigma = (t.detach().to(cost.dtype) for t in (weights, tau, sigma))
        return Problem(cost, weights, tau, sigma, epsilon, directions, launch)

    def tape_shapes(
        self, cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        batch, labels, *spatial = cost.shape
        interval = _interval(settings)
        if _marked(settings):
            marks = -(-settings.iterations // interval)
            return (0,), (marks, *cost.shape), (marks, batch, labels, directions, *spatial)
        return (settings.iterations + 1, *cost.shape), (0,), (0,)

    def forward(
        self,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
        settings: PottsSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = self._problem(cost, weights, tau, sigma, settings)
        cost, total, interval = problem.cost, settings.iterations, _interval(settings)
        shapes = self.tape_shapes(cost, len(problem.directions), settings) if keep else ((0,),) * 3
        tape, marked_a, marked_b = (cost.new_empty(tuple(shape)) for shape in shapes)
        if dual is None and not marked_b.numel():
            marked_b = _cold_start_hint(cost)
        mean = torch.zeros_like(cost) if settings.average else cost.new_empty(0)
        a, b = mirror, dual
        for i, start in enumerate(range(0, total, interval)):
            count = min(interval, total - start)
            if marked_a.numel():
                marked_a[i] = 0 if a is None else a
                marked_b[i] = 0 if b is None else b
            # Without a tape, three places are used in turn.
            places = tape if tape.numel() else cost.new_empty(3, *cost.shape)
            if settings.average:
                mean += 1 / cost.shape[1] if a is None else torch.softmax(a, 1)
            a, b, u = _forward_run(problem, a, b, count, places)
            if settings.average:
                mean += _from_fixed(places[count % len(places)], count)
        assert a is not None
        assert b is not None
        return a, b, u, mean.div_(total), tape, marked_a, marked_b

    def reverse(
        self,
        bars: PottsCotangents,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final: tuple[Tensor, Tensor, Tensor],
        tape: Tensor,
        marked: tuple[Tensor, Tensor],
        settings: PottsSettings,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = self._problem(cost, weights, tau, sigma, settings)
        total, interval = settings.iterations, _interval(settings)
        final_a, final_b, final_u = final
        cost = problem.cost
        by_label = problem.by_label
        programs = problem.grid[0] * problem.grid[1] * problem.grid[2]
        gradients = _Gradients(
            torch.empty_like(cost),
            torch.empty_like(final_b if by_label else final_b[:, :1]),
            torch.empty(programs, 2, dtype=torch.float64, device=cost.device),
        )
        mirror_bar, dual_bar = None, None
        if _marked(settings):
            for i in reversed(range(len(marked[0]))):
                start = marked[0][i], marked[1][i]
                count = min(interval, total - i * interval)
                tape = cost.new_empty(count + 1, *cost.shape)
                a, _, u = _forward_run(problem, *start, count, tape)
                mirror_bar, dual_bar = _reverse_run(
                    problem, bars, (a, u), start[1], tape, i * interval, total, gradients,
                    to_dual or i > 0,
                )  # fmt: skip
                bars = PottsCotangents(mirror_bar, dual_bar, None, bars.mean)
        else:
            start_dual = None
            if not _is_cold_start_hint(marked[1]):
                start_dual = final_b - problem.sigma * problem.weights * _last_rise(problem, tape)
            mirror_bar, dual_bar = _reverse_run(
                problem, bars, (final_a, final_u), start_dual, tape, 0, total, gradients, to_dual
            )
        assert mirror_bar is not None
        to_tau, to_sigma = gradients.steps.sum(0).unbind()
        to_tau = -to_tau
        if settings.epsilon == 0:
            to_tau = to_tau + _inner_product(gradients.cost, cost) / problem.tau
        return (
            gradients.cost,
            gradients.weights.sum_to_size(weights.shape),
            to_tau.to(tau.dtype),
            (to_sigma / problem.sigma).to(sigma.dtype),
            mirror_bar if to_mirror else cost.new_empty(0),
            cost.new_empty(0) if not to_dual or dual_bar is None else dual_bar,
        )


def _marked(settings: PottsSettings) -> bool:
    """Whether a solve keeps checkpoints instead of one tape."""
    return settings.checkpoint > 0 or settings.iterations > LONGEST


def _interval(settings: PottsSettings) -> int:
    """Iterations on one tape. A solve too long for the fixed point is cut as if by checkpoints."""
    if settings.iterations <= LONGEST:
        return settings.checkpoint or settings.iterations
    return min(settings.checkpoint or LONGEST, LONGEST)


def _cold_start_hint(cost: Tensor) -> Tensor:
    """No checkpoints, and a word that b⁰ was zero: an empty view of something.

    The reverse operator is not given b⁰ and rebuilds it from bᴺ; with the word it need not. A copy
    of the tensor loses the word, which costs time and changes nothing else.
    """
    return cost.new_empty(1)[:0]


def _is_cold_start_hint(marked: Tensor) -> bool:
    return marked.numel() == 0 and marked.untyped_storage().nbytes() == marked.element_size()


def _from_fixed(z: Tensor, iterations: int) -> Tensor:
    """Numbers of the tape in double precision."""
    kind = torch.int64 if z.dtype == torch.float64 else torch.int32
    return z.view(kind).double() / scale_of(iterations, z.dtype)


def _last_rise(problem: Problem, tape: Tensor) -> Tensor:
    """∇(Zᴺ + uᴺ) for the last iterate of a tape."""
    last, before = (_from_fixed(tape[i], len(tape) - 1) for i in (-1, -2))
    return problem.differences(2 * last - before).to(tape.dtype)


def _add_last_dual(problem: Problem, dual_bar: Tensor, tape: Tensor, gradients: _Gradients) -> None:
    """Add what the dual at the end of the tape sends to the weights and to σ."""
    share = problem.sigma * dual_bar * _last_rise(problem, tape)
    gradients.weights.add_(share if problem.by_label else share.sum(1, keepdim=True))
    gradients.steps[0, 1] += _inner_product(share, problem.weights)


def _add_logarithms(
    problem: Problem, bar: Tensor, a: Tensor, iterate: int, gradients: _Gradients
) -> None:
    """Add to −∂τ what a cotangent that enters at an iterate meets in all ε-steps before it."""
    assert problem.epsilon is not None
    rate = problem.epsilon / (1 + problem.tau * problem.epsilon)
    gradients.steps[0, 0] += iterate * rate * _inner_product(bar, a)


def _inner_product(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ in double precision without a double-precision copy of either."""
    return (x * y).sum(dtype=torch.float64)


def _centred(bar: Tensor, a: Tensor) -> Tensor:
    """The cotangent of a before re-centring: it sums to zero over the labels.

    With that no earlier re-centring needs to be differentiated.
    """
    highest = (a == 0).to(a.dtype)
    share = highest / highest.sum(1, keepdim=True)
    return (bar - share * bar.sum(1, keepdim=True)).contiguous()


def _arriving_at_u(bars: PottsCotangents, problem: Problem, iterations: int) -> Tensor | None:
    """The cotangent of uᴺ: directly, through the mean and through the last dual update."""
    parts = []
    if bars.probabilities is not None:
        parts.append(bars.probabilities)
    if bars.mean is not None:
        parts.append(bars.mean / iterations)
    if bars.dual is not None:
        adjoint = problem.differences.adjoint(problem.weights * bars.dual)
        parts.append(2 * problem.sigma * adjoint)
    return sum(parts[1:], parts[0]) if parts else None


potts = make_operator("triton", TritonPotts())
