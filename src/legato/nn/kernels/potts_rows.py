"""The Potts iteration and its reverse sweep, row by row, several iterations in flight.

Rows of the image (of the volume, for three axes) are the unit. Iteration j works on row t − jM at
time t, M being the reach of ∇ in rows: its primal update of that row needs the dual one iteration
back at that row and M above, which iteration j − 1 has just finished; its dual update follows M
rows behind. So a window of the image goes through many iterations while it stays in the cache, in
place and without doing anything twice:

    for t:  for j:  primal(j, t − jM);  dual(j, t − jM − M)

Arrays are (rows, labels[, directions], columns) so that everything about a row lies together, with
the columns padded to whole vectors. Missing neighbours are zero weights, never branches in a loop.

What remains is bound by instructions, not by memory: the functions named `…_line` do all that can
be done to a line of one label in one loop, for the direction down and the one to the right at once,
which every grid has; other directions go through `_others`. Their arguments never overlap, and
`distinct` says so: LLVM gives up on a loop that needs more than eight checks for overlap.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import math

from legato.nn.kernels.numba_rows import (
    MARGIN,
    clear,
    compiled,
    copy_line,
    inlined,
    line_function,
    shifted,
    stream_line,
)
from legato.nn.kernels.vector_math import distinct, exp, exp_twice, tanh


@inlined
def _weight_row(weights, zeros, row):
    """The weights of a row; a negative index means that the neighbour is missing."""
    if row < 0:
        return zeros
    return weights[row]


@line_function
def _add_to(sums, values):
    """sums += values, in double precision whatever the values are; the values become zero."""
    distinct()
    for x in range(values.size):
        sums[x] += values[x]
        values[x] = 0


@compiled
def _fill_ring(values, saturate, weights, zeros, edges, r, ring, base, down):
    """Leaves W·values, or W·tanh(values), of row r in the ring for the rows below."""
    labels, directions, columns = values.shape
    for label in range(labels):
        for e in range(directions):
            if down[e] > 0:
                line = shifted(ring[base[e] + r % down[e], label], 0, columns)
                w = _weight_row(weights[label % weights.shape[0], e], zeros, edges[e, r])
                here = values[label, e]
                for x in range(columns):
                    line[x] = w[x] * (tanh(here[x]) if saturate else here[x])


@compiled
def _others(
    total, start, values, saturate, weights, zeros, edges, r, label, ring, base, down, right, across
):  # fmt: skip
    """total = start + Kᵀ(values), or start + Kᵀ tanh(values), at row r, for all directions but the
    first and `across`; leaves W·values in the ring for the rows below."""
    columns = total.size
    copy_line(total, start)
    for e in range(1, down.size):
        if e == across:
            continue
        line = ring[base[e] + r % down[e], label]
        above = shifted(line, -right[e], columns)
        for x in range(columns):
            total[x] += above[x]
        row = shifted(line, 0, columns)
        w = _weight_row(weights[e], zeros, edges[e, r])
        here = values[e]
        for x in range(columns):
            y = w[x] * (tanh(here[x]) if saturate else here[x])
            row[x] = y
            total[x] -= y


@line_function
def _force_line(a, top, start, above, b_down, b_across, w_down, w_across, tau, shrink):
    """a − τ(start + Kᵀ tanh b), shrunk, and its maximum with `top`; W tanh b for the row below."""
    distinct()
    left = a.dtype.type(0)
    for x in range(a.size):
        down = w_down[x] * tanh(b_down[x])
        across = w_across[x] * tanh(b_across[x])
        value = (a[x] - tau * (start[x] + above[x] - down - across + left)) * shrink
        left = across
        above[x] = down
        a[x] = value
        top[x] = value if value > top[x] else top[x]


@line_function
def _power_line(a, power, top, total, flush):
    """a − top, and its exponential, added to the total."""
    distinct()
    zero = a.dtype.type(0)
    for x in range(a.size):
        value = a[x] - top[x]
        a[x] = value
        y = exp(value)
        y = y if y > flush else zero
        power[x] = y
        total[x] += y


@line_function
def _lead_line(u, power, total, lead):
    """The new u = power/total, and 2u⁺ − u."""
    distinct()
    for x in range(u.size):
        new = power[x] * total[x]
        lead[x] = new + new - u[x]
        u[x] = new


@line_function
def _invert_line(total):
    for x in range(total.size):
        total[x] = total.dtype.type(1) / total[x]


@compiled
def _primal_row(
    a, u, cost, b, weights, zeros, edges, r, tau, shrink, flush,
    ring, base, down, right, across, lead, power, total, top,
):  # fmt: skip
    """aᵏ⁺¹ and uᵏ⁺¹ of one row, and 2uᵏ⁺¹ − uᵏ for the dual update that follows."""
    labels, columns = a.shape
    for x in range(columns):
        top[x] = -math.inf
    for label in range(labels):
        w = weights[label % weights.shape[0]]
        start = cost[label]
        if down.size > 2:
            _others(
                total, start, b[label], True, w, zeros, edges,
                r, label, ring, base, down, right, across,
            )  # fmt: skip
            start = total
        _force_line(
            a[label], top, start, shifted(ring[r % down[0], label], 0, columns),
            b[label, 0], b[label, across],
            _weight_row(w[0], zeros, edges[0, r]), _weight_row(w[across], zeros, edges[across, r]),
            tau, shrink,
        )  # fmt: skip
    clear(total)
    for label in range(labels):
        _power_line(a[label], power[label], top, total, flush)
    _invert_line(total)
    for label in range(labels):
        _lead_line(u[label], power[label], total, shifted(lead[label], 0, columns))


@line_function
def _dual_line(b_down, b_across, w_down, w_across, here, below, beside, sigma):
    """b + σK(lead) of one line."""
    distinct()
    for x in range(b_down.size):
        b_down[x] += sigma * w_down[x] * (below[x] - here[x])
        b_across[x] += sigma * w_across[x] * (beside[x] - here[x])


@line_function
def _dual_line_of(b, w, here, there, sigma):
    """The same, for one direction."""
    distinct()
    for x in range(b.size):
        b[x] += sigma * w[x] * (there[x] - here[x])


@compiled
def _dual_row(b, weights, zeros, edges, r, sigma, lead, down, right, across):
    """bᵏ⁺¹ = bᵏ + σK(2uᵏ⁺¹ − uᵏ) of one row."""
    labels, directions, columns = b.shape
    depth = lead.shape[0]
    for label in range(labels):
        w = weights[label % weights.shape[0]]
        here = shifted(lead[r % depth, label], 0, columns)
        _dual_line(
            b[label, 0], b[label, across],
            _weight_row(w[0], zeros, edges[0, r]), _weight_row(w[across], zeros, edges[across, r]),
            here, shifted(lead[(r + down[0]) % depth, label], 0, columns),
            shifted(lead[r % depth, label], 1, columns), sigma,
        )  # fmt: skip
        for e in range(1, directions):
            if e != across and edges[e, r] >= 0:
                there = shifted(lead[(r + down[e]) % depth, label], right[e], columns)
                _dual_line_of(b[label, e], w[e, edges[e, r]], here, there, sigma)


@compiled
def advance(
    a, u, b, first_row, own, count, cost, tape, tape_mirror, mean, weights, zeros, edges,
    tau, sigma, shrink, flush, base, down, right, across, ring, lead, power, work,
):  # fmt: skip
    """`count` iterations on the rows `own` of a band that starts at `first_row`, in place.

    The rows beyond `own` are a margin that shrinks by the reach of ∇ with every iteration; only
    rows of `own` are written to the tape (u, or a with `tape_mirror`) and added to the mean.
    """
    rows = edges.shape[1]
    reach = lead.shape[1] - 1
    low, high = own
    clear(ring)
    clear(lead)
    depth = lead.shape[1]
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - (count - 1) * reach - reach >= high:
            break
        for j in range(count):
            r = t - j * reach
            start = max(0, low - (count - 1 - j) * reach)
            stop = min(rows, high + (count - 1 - j) * reach)
            i = r - first_row
            if start - reach <= r < start and r >= 0:
                _fill_ring(b[i], True, weights, zeros, edges, r, ring[j], base, down)
            elif start <= r < min(rows, stop + reach):
                _primal_row(
                    a[i], u[i], cost[r], b[i], weights, zeros, edges, r, tau, shrink, flush,
                    ring[j], base, down, right, across, lead[j, r % depth], power, work[0], work[1],
                )  # fmt: skip
                if low <= r < high:
                    if tape.shape[0] > 0:
                        row, source = tape[j, r], a[i] if tape_mirror else u[i]
                        stream_line(row.reshape(row.size), source.reshape(source.size))
                    if mean.shape[0] > 0:
                        _add_rows(mean[r].reshape(mean[r].size), u[i].reshape(u[i].size))
            if start <= r - reach < stop:
                _dual_row(
                    b[i - reach], weights, zeros, edges, r - reach, sigma,
                    lead[j], down, right, across,
                )  # fmt: skip


@line_function
def _add_rows(row, source):
    distinct()
    for x in range(row.size):
        row[x] += source[x]


@line_function
def _cotangent_line(
    g, u_bar, inner, dot, lead, q_above, w_above, q_down, q_across, w_down, w_across, start, extra,
    u, u_before, sigma,
):  # fmt: skip
    """ū = σ(2Kᵀq − the last Kᵀq) + extra; adds to ⟨u, ū⟩ and, as `dot`, to the gradient of σ."""
    distinct()
    left = g.dtype.type(0)
    for x in range(g.size):
        across = w_across[x] * q_across[x]
        total = start[x] + w_above[x] * q_above[x] - w_down[x] * q_down[x] - across + left
        left = across
        y = sigma * (total + total - g[x]) + extra[x]
        g[x] = total
        u_bar[x] = y
        inner[x] += u[x] * y
        ahead = u[x] + u[x] - u_before[x]
        lead[x] = ahead
        dot[x] += total * ahead


@line_function
def _centre_line(u_bar, u, inner, rest):
    """ū − ⟨u, ū⟩, and its own mean `rest`, which rounding leaves.

    Where one u is almost one, its ū and ⟨u, ū⟩ cancel: without `rest` the labels' cotangents, which
    have to sum to zero, drift away from it as the iterations go on.
    """
    distinct()
    for x in range(u.size):
        y = u_bar[x] - inner[x]
        u_bar[x] = y
        rest[x] += u[x] * y


@line_function
def _slope_line(s, u_bar, u, rest, shrink, flush):
    """The cotangent of a, v = (s + u ⊙ (ū − ⟨u, ū⟩))/(1 + τε)."""
    distinct()
    zero = s.dtype.type(0)
    for x in range(s.size):
        y = u[x]
        value = (s[x] + (y if y > flush else zero) * (u_bar[x] - rest[x])) * shrink
        s[x] = value if abs(value) > flush else zero


@line_function
def _slope_and_cost_line(s, cost_bar, pair, u_bar, u, rest, shrink, flush):
    """The same; adds v to the gradient of the cost, and if `pair` is one the v before it."""
    distinct()
    zero = s.dtype.type(0)
    for x in range(s.size):
        y, before = u[x], s[x]
        value = (before + (y if y > flush else zero) * (u_bar[x] - rest[x])) * shrink
        value = value if abs(value) > flush else zero
        s[x] = value
        cost_bar[x] += value + pair * before


@line_function
def _mean_force_line(mean, u, cost, a, epsilon):
    """mean += u ⊙ (c + εa)."""
    distinct()
    for x in range(mean.size):
        mean[x] += u[x] * (cost[x] + epsilon * a[x])


@line_function
def _force_sum_line(dot, v, cost, a, mean, epsilon):
    """dot += v ⊙ (c + εa − mean), where the mean only spares rounding: over labels Σ v = 0."""
    distinct()
    for x in range(dot.size):
        dot[x] += v[x] * (cost[x] + epsilon * a[x] - mean[x])


@line_function
def _reverse_dual_line(
    b_down, b_across, q_down, q_across, w_down, w_across, bar_down, bar_across, here, below, beside,
    slope_here, slope_below, slope_beside, dot, tau, sigma, flush,
):  # fmt: skip
    """bᵏ from bᵏ⁺¹, the cotangent of one from that of the other; adds to the gradients of the
    weights and, as `dot`, of τ."""
    distinct()
    zero, one, four = dot.dtype.type(0), dot.dtype.type(1), dot.dtype.type(4)
    for x in range(dot.size):
        rise = sigma * (below[x] - here[x])
        fall = tau * (slope_below[x] - slope_here[x])
        y = b_down[x] - w_down[x] * rise
        b_down[x] = y
        e = exp_twice(y)
        d = one / (e + one)
        p = (e - one) * d
        bar_down[x] += q_down[x] * rise - p * fall
        change = w_down[x] * fall
        value = q_down[x] - four * (e * d) * d * change
        q_down[x] = value if abs(value) > flush else zero
        total = p * change

        rise = sigma * (beside[x] - here[x])
        fall = tau * (slope_beside[x] - slope_here[x])
        y = b_across[x] - w_across[x] * rise
        b_across[x] = y
        e = exp_twice(y)
        d = one / (e + one)
        p = (e - one) * d
        bar_across[x] += q_across[x] * rise - p * fall
        change = w_across[x] * fall
        value = q_across[x] - four * (e * d) * d * change
        q_across[x] = value if abs(value) > flush else zero
        dot[x] += total + p * change


@line_function
def _reverse_dual_line_of(
    b, q, w, bar, here, there, slope_here, slope_there, dot, tau, sigma, flush
):  # fmt: skip
    """The same, for one direction."""
    distinct()
    zero, one, four = dot.dtype.type(0), dot.dtype.type(1), dot.dtype.type(4)
    for x in range(dot.size):
        rise = sigma * (there[x] - here[x])
        fall = tau * (slope_there[x] - slope_here[x])
        y = b[x] - w[x] * rise
        b[x] = y
        e = exp_twice(y)
        d = one / (e + one)
        p = (e - one) * d
        bar[x] += q[x] * rise - p * fall
        change = w[x] * fall
        value = q[x] - four * (e * d) * d * change
        q[x] = value if abs(value) > flush else zero
        dot[x] += p * change


@inlined
def _field_line(flat, row, label, labels, shift, columns):
    """A line of a field that has margins at its two ends, from `shift` columns further left.

    At the ends of a line this looks into other lines, where the weight is zero.
    """
    start = MARGIN + (row * labels + label) * columns + shift
    return flat[start : start + columns]


@line_function
def _reverse_dual_lines(
    b, q, weight_bar, w, zeros, edges, r, i, label, tau, sigma, flush, lead, slope,
    down, right, across, dot,
):  # fmt: skip
    """Rebuilds bᵏ from bᵏ⁺¹ and takes the cotangent of one to that of the other: row r, one label.

    Row r is row i of the band, and its v are in `slope`.
    """
    labels, directions, columns = b.shape
    depth = lead.shape[0]
    line = lead[r % depth, label]
    here, slope_here = shifted(line, 0, columns), _field_line(slope, i, label, labels, 0, columns)
    # Without a neighbour below, any line will do: its weight is zero.
    below = down[0] if edges[0, r] >= 0 else 0
    _reverse_dual_line(
        b[label, 0], b[label, across], q[label, 0], q[label, across],
        _weight_row(w[0], zeros, edges[0, r]), _weight_row(w[across], zeros, edges[across, r]),
        weight_bar[0], weight_bar[across],
        here, shifted(lead[(r + below) % depth, label], 0, columns), shifted(line, 1, columns),
        slope_here, _field_line(slope, i + below, label, labels, 0, columns),
        _field_line(slope, i, label, labels, 1, columns), dot, tau, sigma, flush,
    )  # fmt: skip
    for e in range(1, directions):
        if e != across and edges[e, r] >= 0:
            _reverse_dual_line_of(
                b[label, e], q[label, e], w[e, edges[e, r]], weight_bar[e],
                here, shifted(lead[(r + down[e]) % depth, label], right[e], columns),
                slope_here, _field_line(slope, i + down[e], label, labels, right[e], columns),
                dot, tau, sigma, flush,
            )  # fmt: skip


@compiled
def retreat(
    s, slope, g, q, b, u, first_row, own, count, tape, mean_bar, nothing, cost_bar, weight_bar,
    cost, weights, zeros, edges, tau, sigma, shrink, epsilon, flush, tiny, base, down, right,
    across, ring, lead, u_bar, before, waste, work, to_steps, sums,
):  # fmt: skip
    """`count` iterations of the reverse sweep, in place.

    `tape[i]` holds the primal iterate i, of which count + 1 are needed: u, or with ε > 0 a, from
    which u is computed again and kept. `slope` is s, flat and with margins at its ends. Rows of the
    margin leave the gradients of their weights in `waste`. Only with `to_steps` do the `sums` for
    the gradients of σ and τ mean anything.

    A line of the dual of one iteration is followed at once by that of the primal of the next.
    """
    labels, columns = s.shape[1:]
    rows = edges.shape[1]
    reach = lead.shape[1] - 1
    low, high = own
    clear(ring)
    clear(lead)
    depth = lead.shape[1]
    one, zero = s.dtype.type(1), s.dtype.type(0)
    inner, total, unused, dots = work[0], work[1], work[2], work[3:6]
    clear(dots)
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - count * reach >= high:
            break
        for j in range(count + 1):
            # The dual of iteration j − 1 and the primal of iteration j, both in row r.
            r = t - j * reach
            i = r - first_row
            margin = (count - 1 - j) * reach
            start, stop = max(0, low - margin), min(rows, high + margin)
            primal = j < count and start <= r < min(rows, stop + reach)
            dual = j > 0 and max(0, start - reach) <= r < min(rows, high + margin + reach)
            owned = low <= r < high
            new = old = before
            if primal:
                new, old = tape[count - j, r], tape[count - j - 1, r]
                if epsilon > 0:
                    _soften_row(before, old, total, tiny)
                    new, old = u[i], before
                clear(inner)
            for label in range(labels if primal or dual else 0):
                w = weights[label % weights.shape[0]]
                if dual:
                    bars = weight_bar[r] if owned else waste
                    _reverse_dual_lines(
                        b[i], q[i], bars[label % bars.shape[0]], w, zeros, edges, r, i, label,
                        tau, sigma, flush, lead[j - 1], slope, down, right, across,
                        dots[1] if owned else unused,
                    )  # fmt: skip
                if not primal:
                    continue
                begin = zeros
                if down.size > 2:
                    _others(
                        total, zeros, q[i, label], False, w, zeros, edges,
                        r, label, ring[j], base, down, right, across,
                    )  # fmt: skip
                    begin = total
                above = r - down[0]
                _cotangent_line(
                    g[i, label], u_bar[label], inner, dots[0] if owned else unused,
                    shifted(lead[j, r % depth, label], 0, columns),
                    q[i - down[0], label, 0] if above >= 0 else zeros,
                    _weight_row(w[0], zeros, edges[0, above]) if above >= 0 else zeros,
                    q[i, label, 0], q[i, label, across], _weight_row(w[0], zeros, edges[0, r]),
                    _weight_row(w[across], zeros, edges[across, r]), begin,
                    mean_bar[r, label] if mean_bar.shape[0] > 0 else zeros,
                    new[label], old[label], sigma,
                )  # fmt: skip
            if to_steps and dual and owned:
                _add_to(sums[1], dots[1])
            if not primal:
                if j < count and max(0, start - reach) <= r < start and down.size > 2:
                    _fill_ring(q[i], False, weights, zeros, edges, r, ring[j], base, down)
                continue
            if to_steps and owned:
                _add_to(sums[0], dots[0])
            clear(total)
            for label in range(labels):
                _centre_line(u_bar[label], new[label], inner, total)
            for label in range(labels):
                # The gradient of the cost is fetched for two iterations at a time.
                if owned and (j % 2 == 1 or j == count - 1):
                    _slope_and_cost_line(
                        s[i, label], cost_bar[r, label], one if j % 2 == 1 else zero,
                        u_bar[label], new[label], total, shrink, flush,
                    )  # fmt: skip
                else:
                    _slope_line(s[i, label], u_bar[label], new[label], total, shrink, flush)
            if epsilon > 0:
                if to_steps and owned:
                    a = tape[count - j, r]
                    clear(total)
                    for label in range(labels):
                        _mean_force_line(total, new[label], cost[r, label], a[label], epsilon)
                    for label in range(labels):
                        _force_sum_line(
                            dots[2], s[i, label], cost[r, label], a[label], total, epsilon
                        )
                    _add_to(sums[2], dots[2])
                copy_line(new.reshape(new.size), before.reshape(before.size))


@compiled
def recentre(rows):
    """Subtracts the maximum over the labels, in place."""
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            top = rows[i, 0, x]
            for label in range(1, rows.shape[1]):
                top = max(top, rows[i, label, x])
            for label in range(rows.shape[1]):
                rows[i, label, x] -= top


@compiled
def soften(u, a, total, flush):
    """u = softmax(a) of mirror variables whose maximum over the labels is zero."""
    for i in range(u.shape[0]):
        _soften_row(u[i], a[i], total, flush)


@line_function
def _soften_line(u, a, total, flush):
    distinct()
    zero = u.dtype.type(0)
    for x in range(u.size):
        y = exp(a[x])
        y = y if y > flush else zero
        u[x] = y
        total[x] += y


@line_function
def _scale_line(u, factor):
    distinct()
    for x in range(u.size):
        u[x] *= factor[x]


@compiled
def _soften_row(u, a, total, flush):
    clear(total)
    for label in range(u.shape[0]):
        _soften_line(u[label], a[label], total, flush)
    _invert_line(total)
    for label in range(u.shape[0]):
        _scale_line(u[label], total)


@compiled
def through_softmax(rows, u, u_bar):
    """rows += u ⊙ (ū − ⟨u, ū⟩): the cotangent of a = log u that the one of u leaves."""
    zero = rows.dtype.type(0)
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            inner, rest = zero, zero
            for label in range(rows.shape[1]):
                inner += u[i, label, x] * u_bar[i, label, x]
            for label in range(rows.shape[1]):
                rest += u[i, label, x] * (u_bar[i, label, x] - inner)
            for label in range(rows.shape[1]):
                rows[i, label, x] += u[i, label, x] * (u_bar[i, label, x] - inner - rest)


@compiled
def through_maximum(rows, a):
    """The cotangent of a before a − max a from the one after; equal maxima share."""
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            total = rows.dtype.type(0)
            highest = 0
            for label in range(rows.shape[1]):
                total += rows[i, label, x]
                highest += a[i, label, x] == 0
            if highest > 0:
                total /= rows.dtype.type(highest)
                for label in range(rows.shape[1]):
                    if a[i, label, x] == 0:
                        rows[i, label, x] -= total


@compiled
def inner_product(x, y):
    """⟨x, y⟩ in double precision."""
    total = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                total += float(x[i, j, k]) * float(y[i, j, k])
    return total


@compiled
def keep_edges(rows, edges, columns):
    """Clears the gradient of weights that belong to no pair of neighbours."""
    for r in range(rows.shape[0]):
        for label in range(rows.shape[1]):
            for e in range(rows.shape[2]):
                row = rows[r, label, e]
                if edges[e, r] < 0:
                    clear(row)
                for x in range(row.size):
                    row[x] *= columns[e, x]
