"""The gradient of the Potts iteration in Triton: one small kernel an iteration.

It telescopes as the iteration does. Let ā be the cotangent of aᵏ⁺¹, s = ā/(1 + τε), and
dᵏ = −τ(1 − tanh²bᵏ)·Ks what bᵏ receives directly. Then, with Qᵏ = σKᵀ(dᵏ + dᵏ⁺¹ + …),

    ūᵏ = Qᵏ + σKᵀdᵏ    and    w̄ = −τ Σₖ ∇s·(tanh bᵏ + (1 − tanh²bᵏ)(bᵏ − b⁰))

so nothing per edge is read or written but the weights and their gradient.

τ acts through the force F = c + Kᵀ tanh b and through the shrinkage ρ = 1/(1 + τε) of every aᵏ,
which the tape does not hold; but aᵏ is a sum of earlier forces. Their cotangent is not s but what
is left of it once later shrinkages have passed, which cancels in the long run and so is not taken
as a difference:

    ∂τ = −Σₖ ⟨rᵏ, Fᵏ⟩ − ⟨s⁰ − r⁰, a⁰⟩/τ    with    rᵏ = ρ(rᵏ⁺¹ + sᵏ − sᵏ⁺¹)
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
    BAR,
    COST,
    COST_BAR,
    DUAL_BAR,
    END_DUAL_BAR,
    END_MIRROR_BAR,
    END_U_BAR,
    FINAL_U,
    LEFT_BAR,
    MEAN,
    MIRROR,
    OTHER_BAR,
    REST_BAR,
    SIGMA,
    START_DUAL,
    STEPS_BAR,
    TAPE,
    TAU,
    WEIGHT_BAR,
    edge_weights,
    lookahead,
    neighbours,
    own_pixels,
    shrinkage,
    weights_at,
)


@triton.jit
def _own_sums(table):
    """Every program has its own sums for τ and σ: no atomics, the same result every time."""
    program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    program = program * tl.num_programs(2) + tl.program_id(2)
    return look_up(table, STEPS_BAR, tl.float64) + 2 * program


@triton.jit
def _weight_bar(table, plane, C: tl.constexpr):
    """Where the gradient of the weights begins; without labels of their own they have one plane."""
    if C.shared:
        plane = plane // C.labels
    return look_up(table, WEIGHT_BAR, C.dtype) + plane * C.directions


@triton.jit(do_not_specialize=["now_at", "before_at", "total"])
def seed_cotangents(
    table, now_at, before_at, total, field, strides, extent, C: tl.constexpr,
    LAST: tl.constexpr, DIRECT: tl.constexpr, THROUGH_U: tl.constexpr, DUAL: tl.constexpr,
):  # fmt: skip
    """What the loss, or the section of the solve that comes after, sends to the end of a section.

    Of aᴺ, directly and through uᴺ, which feeds the mean and bᴺ = b⁰ + σK(Zᴺ + uᴺ); of Q, the
    weights and σ, through bᴺ. The LAST section comes first and begins the sums.
    """
    image, at, n, inside, S = own_pixels(extent, C)
    beside, exists = neighbours(n, at, extent, C)
    ahead, behind = beside
    plane = image * C.labels * S
    weights = weights_at(table, image, at, strides, C)
    sigma = tl.load(look_up(table, SIGMA, C.dtype))
    tape = look_up(table, TAPE, C.fixed) + plane
    now = tape + now_at * tl.cast(field, tl.int64)
    before = tape + before_at * tl.cast(field, tl.int64)
    final_a = look_up(table, MIRROR, C.dtype) + plane + n
    final_u = look_up(table, FINAL_U, C.dtype) + plane + n
    mean_bar = look_up(table, MEAN, C.dtype) + plane + n
    bar = look_up(table, BAR, C.dtype) + plane + n
    rest_bar = look_up(table, REST_BAR, C.dtype) + plane + n
    cost_bar = look_up(table, COST_BAR, C.dtype) + plane + n
    dual_bar = look_up(table, DUAL_BAR, C.dtype) + plane * C.directions + n
    left_bar = look_up(table, LEFT_BAR, C.dtype) + plane + n
    other_bar = look_up(table, OTHER_BAR, C.dtype) + plane + n
    end_mirror_bar = look_up(table, END_MIRROR_BAR, C.dtype) + plane + n
    end_dual_bar = look_up(table, END_DUAL_BAR, C.dtype) + plane * C.directions
    end_u_bar = look_up(table, END_U_BAR, C.dtype) + plane + n
    weight_bar = _weight_bar(table, plane, C) + n
    zero = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    if LAST:
        for j in range(C.directions if C.shared else C.labels * C.directions):
            tl.store(weight_bar + j * S, zero, mask=inside)
        tl.debug_barrier()
    # aᴺ was re-centred: its highest labels, where it is zero, answer for the others. From there on
    # cotangents sum to zero over the labels, and no earlier re-centring needs to be differentiated.
    highest = zero
    excess = zero
    if LAST and DIRECT:
        for label in range(C.labels):
            highest += tl.where(tl.load(final_a + label * S) == 0, 1.0, 0.0).to(C.dtype)
            excess += tl.load(end_mirror_bar + label * S)
        excess = excess / highest
    to_sigma = zero
    total_bar = zero
    total_u = zero
    for label in range(C.labels):
        if LAST:
            u = tl.load(final_u + label * S)
        else:
            u = tl.load(now + label * S + n) - tl.load(before + label * S + n)
            u = u.to(C.dtype) * (1 / C.scale)
        u_bar = zero
        rest = zero
        if THROUGH_U:
            u_bar += tl.load(end_u_bar + label * S)
        if C.average:
            u_bar += tl.load(mean_bar + label * S) / total
        if DUAL:
            w = edge_weights(weights + label * strides[1], exists, strides, C)
            v = lookahead(now + label * S, before + label * S, n)
            for e in tl.static_range(C.directions):
                edge = end_dual_bar + (label * C.directions + e) * S
                own = tl.load(edge + n)
                rest += w[2 * e + 1] * tl.load(edge + behind[e]) - w[2 * e] * own
                rise = lookahead(now + label * S, before + label * S, ahead[e]) - v
                share = own * rise.to(C.dtype) * (sigma * (1 / C.scale))
                to_sigma += w[2 * e] * share
                if C.by_label:
                    to = weight_bar + (label * C.directions + e) * S
                else:
                    to = weight_bar + e * S
                tl.store(to, tl.load(to) + share, mask=inside)
                if LAST and C.to_dual:
                    tl.store(dual_bar + (label * C.directions + e) * S, own, mask=inside)
            rest = sigma * rest
            u_bar += 2 * rest
        if LAST and C.to_dual and not DUAL:
            for e in tl.static_range(C.directions):
                tl.store(dual_bar + (label * C.directions + e) * S, zero, mask=inside)
        t = u * u_bar
        if DIRECT:
            if LAST:
                is_highest = tl.load(final_a + label * S) == 0
                t += tl.load(end_mirror_bar + label * S) - tl.where(is_highest, excess, 0)
            else:
                t += tl.load(bar + label * S)
        total_bar += t
        total_u += u
        tl.store(bar + label * S, t, mask=inside)
        tl.store(rest_bar + label * S, rest, mask=inside)
        if LAST:
            tl.store(cost_bar + label * S, zero, mask=inside)
            if C.steps and C.epsilon:
                tl.store(left_bar + label * S, zero, mask=inside)
                tl.store(other_bar + label * S, zero, mask=inside)
    tl.debug_barrier()
    inner = total_bar / total_u
    for label in range(C.labels):
        if LAST:
            u = tl.load(final_u + label * S)
        else:
            u = tl.load(now + label * S + n) - tl.load(before + label * S + n)
            u = u.to(C.dtype) * (1 / C.scale)
        tl.store(bar + label * S, tl.load(bar + label * S) - u * inner, mask=inside)
    if C.steps:
        steps_bar = _own_sums(table)
        tau_so_far = tl.zeros((), dtype=tl.float64)
        sigma_so_far = tl.zeros((), dtype=tl.float64)
        if not LAST:
            tau_so_far = tl.load(steps_bar)
            sigma_so_far = tl.load(steps_bar + 1)
        tl.store(steps_bar, tau_so_far)
        share = tl.sum(tl.where(inside, to_sigma, 0).to(tl.float64))
        tl.store(steps_bar + 1, sigma_so_far + share)


@triton.jit
def _tanh_and_slope(x):
    """tanh x and 1 − tanh² x, which would lose its digits as a difference."""
    e = tl.exp2(tl.abs(x) * -2.885390081777927)
    h = 1 / (1 + e)
    p = (1 - e) * h
    return tl.where(x < 0, -p, p), 4 * e * h * h


@triton.jit
def _pulled_back(fields, n, inside, beside, w, numbers, started, sums, S, C: tl.constexpr):
    """Of one label: s, uᵏ, s + uᵏūᵏ and Qᵏ.

    Adds to `sums`: −∂τ, σ∂σ, Σ(s + uū), Σu and per direction −w̄/τ.
    """
    bar, new_bar, rest_bar, now, before, start_dual, dual_bar, mean_bar, cost, left_bar = fields
    ahead, behind = beside
    tau, sigma, step, shrink, total = numbers
    # Every load before the first use: they travel together.
    rest = tl.load(rest_bar + n)
    here = tl.load(now + n)
    change = here - tl.load(before + n)
    v = here + change
    s = tl.load(bar + n)
    around = ()
    for e in tl.static_range(C.directions):
        around = around + (
            lookahead(now, before, ahead[e]), tl.load(bar + ahead[e]),
            lookahead(now, before, behind[e]), tl.load(bar + behind[e]),
        )  # fmt: skip
    s = s * shrink
    pull = s * 0
    force = s * 0
    to_sigma = sums[1]
    to_weights = ()
    for e in tl.static_range(C.directions):
        rise = (around[4 * e] - v).to(C.dtype) * (step * w[2 * e])
        slope = around[4 * e + 1] * shrink - s
        b = rise
        if C.warm:
            b += tl.load(start_dual + e * S + n)
        p, bend = _tanh_and_slope(b)
        bend *= slope
        d = tau * w[2 * e] * bend
        pull += w[2 * e] * d
        force -= w[2 * e] * p
        to_sigma -= d * rise
        to_weights = to_weights + (sums[4 + e] + (p * slope + bend * rise),)
        if C.to_dual:
            at = dual_bar + e * S + n
            tl.store(at, tl.load(at) - d, mask=inside)
        # By symmetry the share of the arriving edge has the same form.
        b = (v - around[4 * e + 2]).to(C.dtype) * (step * w[2 * e + 1])
        if C.warm:
            b += tl.load(start_dual + e * S + behind[e])
        p, bend = _tanh_and_slope(b)
        slope = around[4 * e + 3] * shrink - s
        pull += tau * w[2 * e + 1] * w[2 * e + 1] * bend * slope
        force += w[2 * e + 1] * p
    u = tl.where(started, change, -here).to(C.dtype) * (1 / C.scale)
    new_rest = rest + sigma * pull
    # u⁰ has no share in the duals but −u⁰ in all later ones.
    u_bar = tl.where(started, new_rest + sigma * pull, -rest)
    if C.average:
        u_bar += tl.where(started, tl.load(mean_bar + n) / total, 0)
    to_tau = sums[0]
    if C.steps:
        left = s
        if C.epsilon:
            # The place of the new ā still has that of the step before.
            change_of_s = s - tl.load(new_bar + n) * shrink
            left = (tl.load(left_bar + n) + change_of_s) * shrink
            tl.store(left_bar + n, left, mask=inside)
        to_tau += left * (tl.load(cost + n) + force)
    else:
        to_sigma = sums[1]
    t = s + u * u_bar
    return s, u, t, new_rest, (to_tau, to_sigma, sums[2] + t, sums[3] + u) + to_weights


@triton.jit
def _of_label(fields, at, C: tl.constexpr):
    bar, new_bar, rest_bar, now, before, start_dual, dual_bar, mean_bar, cost, left_bar = fields
    edge = at * C.directions
    return (
        bar + at, new_bar + at, rest_bar + at, now + at, before + at, start_dual + edge,
        dual_bar + edge, mean_bar + at, cost + at, left_bar + at,
    )  # fmt: skip


@triton.jit
def _add_weight_bar(at, sums, tau, inside, S, C: tl.constexpr):
    for e in tl.static_range(C.directions):
        tl.store(at + e * S, tl.load(at + e * S) - tau * sums[4 + e], mask=inside)


@triton.jit
def _without_weights(sums, zero, C: tl.constexpr):
    """The sums, those of the weights begun anew."""
    result = (sums[0], sums[1], sums[2], sums[3])
    for _e in tl.static_range(C.directions):
        result = result + (zero,)
    return result


@triton.jit(do_not_specialize=["k", "i", "before_at", "total"])
def reverse_step(table, k, i, before_at, total, field, strides, extent, C: tl.constexpr):
    """Step i of the sweep over a section, from the cotangent of aᵏ⁺¹ to that of aᵏ.

    Differentiating u = softmax(a), ā = s + u(ū − ⟨u, ū⟩) sums to zero over the labels; what the
    rounding of the tape leaves of that sum is taken out, for it would add up over the iterations.
    """
    image, at, n, inside, S = own_pixels(extent, C)
    beside, exists = neighbours(n, at, extent, C)
    plane = image * C.labels * S
    weights = weights_at(table, image, at, strides, C)
    tau = tl.load(look_up(table, TAU, C.dtype))
    sigma = tl.load(look_up(table, SIGMA, C.dtype))
    started = k > 0
    step = tl.where(started, sigma * (1 / C.scale), 0)
    shrink = shrinkage(table, tau, C)
    numbers = (tau, sigma, step, shrink, total)
    tape = look_up(table, TAPE, C.fixed) + plane
    now = tape + k * tl.cast(field, tl.int64)
    before = tape + before_at * tl.cast(field, tl.int64)
    new_bar = look_up(table, OTHER_BAR - i % 2, C.dtype) + plane
    rest_bar = look_up(table, REST_BAR, C.dtype) + plane
    cost_bar = look_up(table, COST_BAR, C.dtype) + plane
    weight_bar = _weight_bar(table, plane, C) + n
    fields = (
        look_up(table, BAR + i % 2, C.dtype) + plane, new_bar, rest_bar, now, before,
        look_up(table, START_DUAL, C.dtype) + plane * C.directions,
        look_up(table, DUAL_BAR, C.dtype) + plane * C.directions,
        look_up(table, MEAN, C.dtype) + plane, look_up(table, COST, C.dtype) + plane,
        look_up(table, LEFT_BAR, C.dtype) + plane,
    )  # fmt: skip
    w = edge_weights(weights, exists, strides, C)
    if C.overlap:
        gdc_launch_dependents()
        gdc_wait()
    zero = tl.zeros((C.tile_y * C.tile_x,), dtype=C.dtype)
    sums = _without_weights((zero, zero, zero, zero), zero, C)
    if C.held:
        # All stores at the end: they would keep the loads after them from moving up.
        held = ()
        for label in tl.static_range(C.labels):
            if C.by_label:
                w = edge_weights(weights + label * strides[1], exists, strides, C)
                sums = _without_weights(sums, zero, C)
            so_far = tl.load(cost_bar + label * S + n)
            s, u, t, rest, sums = _pulled_back(
                _of_label(fields, label * S, C), n, inside, beside, w, numbers, started, sums, S, C
            )
            if C.by_label:
                _add_weight_bar(weight_bar + label * C.directions * S, sums, tau, inside, S, C)
            held = held + (t, u, rest, so_far - tau * s)
        inner = sums[2] / sums[3]
        for label in tl.static_range(C.labels):
            t = held[4 * label] - held[4 * label + 1] * inner
            tl.store(new_bar + label * S + n, t, mask=inside)
            tl.store(rest_bar + label * S + n, held[4 * label + 2], mask=inside)
            tl.store(cost_bar + label * S + n, held[4 * label + 3], mask=inside)
    else:
        for label in tl.range(0, C.labels, loop_unroll_factor=C.unroll):
            if C.by_label:
                w = edge_weights(weights + label * strides[1], exists, strides, C)
                sums = _without_weights(sums, zero, C)
            so_far = tl.load(cost_bar + label * S + n)
            s, u, t, rest, sums = _pulled_back(
                _of_label(fields, label * S, C), n, inside, beside, w, numbers, started, sums, S, C
            )
            if C.by_label:
                _add_weight_bar(weight_bar + label * C.directions * S, sums, tau, inside, S, C)
            tl.store(new_bar + label * S + n, t, mask=inside)
            tl.store(rest_bar + label * S + n, rest, mask=inside)
            tl.store(cost_bar + label * S + n, so_far - tau * s, mask=inside)
        tl.debug_barrier()
        inner = sums[2] / sums[3]
        for label in tl.range(0, C.labels, loop_unroll_factor=C.unroll):
            here = tl.load(now + label * S + n)
            fixed = tl.where(started, here - tl.load(before + label * S + n), -here)
            t = tl.load(new_bar + label * S + n) - fixed.to(C.dtype) * (1 / C.scale) * inner
            tl.store(new_bar + label * S + n, t, mask=inside)
    if C.shared:
        _add_weight_bar(weight_bar, sums, tau, inside, S, C)
    if C.steps:
        steps_bar = _own_sums(table)
        to_tau = tl.sum(tl.where(inside, sums[0], 0).to(tl.float64))
        to_sigma = tl.sum(tl.where(inside, sums[1], 0).to(tl.float64))
        tl.store(steps_bar, tl.load(steps_bar) + to_tau)
        tl.store(steps_bar + 1, tl.load(steps_bar + 1) + to_sigma)
