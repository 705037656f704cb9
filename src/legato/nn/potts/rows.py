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
from collections import namedtuple

from legato.nn.fused.rows import (
    Pair,
    add_line,
    clear,
    compiled,
    copy_line,
    inlined,
    line_function,
    scale_line,
    shifted,
    stream_line,
)
from legato.nn.fused.vector_math import distinct, exp, exp_twice, flushed, tanh

Problem = namedtuple(
    "Problem",
    "cost weights zeros edges base down right across tau sigma shrink epsilon tiny flush",
)
"""One image in rows, its weights, and the steps.

cost (rows, labels, columns), weights (labels or 1, directions, rows or 1, columns); `edges` has
for every direction and row the row of its weights, negative where the neighbour is missing.
A neighbour lies `down` rows and `right` columns away, its ring of rows starts at `base`, and
`across` is the direction that leads to the next column. Probabilities below `tiny` and
cotangents below `flush` become zero rather than denormal.
"""


Iterates = namedtuple("Iterates", "a u b")
"""a, u = softmax(a) and b of a band."""


Cotangents = namedtuple("Cotangents", "s slope g q b u")
"""Of a band: s of a, the last Kᵀq as g, and q of b; with them b and, for ε > 0, u.

`slope` is s, flat and with margins at its ends.
"""


Gradients = namedtuple("Gradients", "cost weights waste sums")
"""Of an image's cost and weights; of its margins' weights (to no use), and sums for σ and τ."""


ForwardRoom = namedtuple("ForwardRoom", "ring lead power lines")
ReverseRoom = namedtuple("ReverseRoom", "ring lead u_bar before lines")
"""Where a thread works: W·tanh(b) (or W·q) of the rows above, 2u⁺ − u, rows and lines."""


@inlined
def _weight_row(weights, zeros, row):
    """The weights of a row; a negative index means that the neighbour is missing."""
    if row < 0:
        return zeros
    return weights[row]


@inlined
def _weights(problem, w, r):
    """The weights of row r towards the row below and the next column."""
    across = problem.across
    return Pair(
        _weight_row(w[0], problem.zeros, problem.edges[0, r]),
        _weight_row(w[across], problem.zeros, problem.edges[across, r]),
    )


@line_function
def _add_to(sums, values):
    """sums += values, in double precision whatever the values are; the values become zero."""
    distinct()
    for x in range(values.size):
        sums[x] += values[x]
        values[x] = 0


@compiled
def _fill_ring(values, saturate, r, ring, problem):
    """Leaves W·values, or W·tanh(values), of row r in the ring for the rows below."""
    labels, directions, columns = values.shape
    down, weights = problem.down, problem.weights
    for label in range(labels):
        for e in range(directions):
            if down[e] > 0:
                line = shifted(ring[problem.base[e] + r % down[e], label], 0, columns)
                w = weights[label % weights.shape[0], e]
                w = _weight_row(w, problem.zeros, problem.edges[e, r])
                here = values[label, e]
                for x in range(columns):
                    line[x] = w[x] * (tanh(here[x]) if saturate else here[x])


@line_function
def _own_line(total, row, here, weights, saturate):
    """row = W·here, or W·tanh(here); total −= row."""
    distinct()
    for x in range(total.size):
        y = weights[x] * (tanh(here[x]) if saturate else here[x])
        row[x] = y
        total[x] -= y


@compiled
def _others(total, start, values, saturate, w, r, label, ring, problem):
    """total = start + Kᵀ(values), or start + Kᵀ tanh(values), at row r, for all directions but the
    first and the one across; leaves W·values in the ring for the rows below."""
    columns = total.size
    copy_line(total, start)
    for e in range(1, problem.down.size):
        if e == problem.across:
            continue
        down = problem.down[e]
        line = ring[problem.base[e] + (r % down if down > 0 else 0), label]
        row, before = shifted(line, 0, columns), shifted(line, -problem.right[e], columns)
        weights = _weight_row(w[e], problem.zeros, problem.edges[e, r])
        if down > 0:  # what the row above left there, before it is overwritten
            add_line(total, before)
        _own_line(total, row, values[e], weights, saturate)
        if down == 0:
            add_line(total, before)


# --- the iteration --------------------------------------------------------------------------------


@line_function
def _force_line(a, top, start, above, b, w, tau, shrink):
    """a − τ(start + Kᵀ tanh b), shrunk, and its maximum with `top`; W tanh b for the row below."""
    distinct()
    b_down, b_across, w_down, w_across = b.down, b.across, w.down, w.across
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
def _power_line(a, power, top, total, tiny):
    """a − top, and its exponential, added to the total."""
    distinct()
    for x in range(a.size):
        value = a[x] - top[x]
        a[x] = value
        y = flushed(exp(value), tiny)
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
def _primal_row(a, u, b, r, ring, lead, room, problem):
    """aᵏ⁺¹ and uᵏ⁺¹ of one row, and 2uᵏ⁺¹ − uᵏ for the dual update that follows."""
    labels, columns = a.shape
    power, total, top = room.power, room.lines[0], room.lines[1]
    for x in range(columns):
        top[x] = -math.inf
    for label in range(labels):
        w = problem.weights[label % problem.weights.shape[0]]
        start = problem.cost[r, label]
        if problem.down.size > 2:
            _others(total, start, b[label], True, w, r, label, ring, problem)
            start = total
        _force_line(
            a[label], top, start, shifted(ring[r % problem.down[0], label], 0, columns),
            Pair(b[label, 0], b[label, problem.across]), _weights(problem, w, r),
            problem.tau, problem.shrink,
        )  # fmt: skip
    clear(total)
    for label in range(labels):
        _power_line(a[label], power[label], top, total, problem.tiny)
    _invert_line(total)
    for label in range(labels):
        _lead_line(u[label], power[label], total, shifted(lead[label], 0, columns))


@line_function
def _dual_line(b, w, here, below, beside, sigma):
    """b + σK(lead) of one line."""
    distinct()
    b_down, b_across, w_down, w_across = b.down, b.across, w.down, w.across
    for x in range(here.size):
        b_down[x] += sigma * w_down[x] * (below[x] - here[x])
        b_across[x] += sigma * w_across[x] * (beside[x] - here[x])


@line_function
def _dual_line_of(b, w, here, there, sigma):
    """The same, for one direction."""
    distinct()
    for x in range(b.size):
        b[x] += sigma * w[x] * (there[x] - here[x])


@compiled
def _dual_row(b, r, lead, problem):
    """bᵏ⁺¹ = bᵏ + σK(2uᵏ⁺¹ − uᵏ) of one row."""
    labels, directions, columns = b.shape
    depth, down, across = lead.shape[0], problem.down, problem.across
    for label in range(labels):
        w = problem.weights[label % problem.weights.shape[0]]
        here = shifted(lead[r % depth, label], 0, columns)
        _dual_line(
            Pair(b[label, 0], b[label, across]), _weights(problem, w, r),
            here, shifted(lead[(r + down[0]) % depth, label], 0, columns),
            shifted(lead[r % depth, label], 1, columns), problem.sigma,
        )  # fmt: skip
        for e in range(1, directions):
            if e != across and problem.edges[e, r] >= 0:
                there = shifted(lead[(r + down[e]) % depth, label], problem.right[e], columns)
                _dual_line_of(b[label, e], w[e, problem.edges[e, r]], here, there, problem.sigma)


@compiled
def forward_steps(band, problem, span, tape, tape_mirror, mean, room):
    """Iterations on the rows that a band owns, in place.

    The rows beyond are a margin that shrinks by the reach of ∇ with every iteration; only owned
    rows are written to the tape (u, or a with `tape_mirror`) and added to the mean.
    """
    a, u, b = band
    rows = problem.edges.shape[1]
    depth = room.lead.shape[1]
    reach = depth - 1
    low, high, count = span.low, span.high, span.count
    clear(room.ring)
    clear(room.lead)
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - (count - 1) * reach - reach >= high:
            break
        for j in range(count):
            r = t - j * reach
            start = max(0, low - (count - 1 - j) * reach)
            stop = min(rows, high + (count - 1 - j) * reach)
            i = r - span.first
            if start - reach <= r < start and r >= 0:
                _fill_ring(b[i], True, r, room.ring[j], problem)
            elif start <= r < min(rows, stop + reach):
                lead = room.lead[j, r % depth]
                _primal_row(a[i], u[i], b[i], r, room.ring[j], lead, room, problem)
                if low <= r < high:
                    if tape.shape[0] > 0:
                        row, source = tape[j, r], a[i] if tape_mirror else u[i]
                        stream_line(row.reshape(row.size), source.reshape(source.size))
                    if mean.shape[0] > 0:
                        add_line(mean[r].reshape(mean[r].size), u[i].reshape(u[i].size))
            if start <= r - reach < stop:
                _dual_row(b[i - reach], r - reach, room.lead[j], problem)


# --- the reverse sweep ----------------------------------------------------------------------------


@line_function
def _cotangent_line(
    g, u_bar, inner, dot, lead, q_above, w_above, q, w, start, extra, u, before, sigma
):
    """ū = σ(2Kᵀq − the last Kᵀq) + extra; adds to ⟨u, ū⟩ and, as `dot`, to the gradient of σ."""
    distinct()
    q_down, q_across, w_down, w_across = q.down, q.across, w.down, w.across
    left = g.dtype.type(0)
    for x in range(g.size):
        across = w_across[x] * q_across[x]
        total = start[x] + w_above[x] * q_above[x] - w_down[x] * q_down[x] - across + left
        left = across
        y = sigma * (total + total - g[x]) + extra[x]
        g[x] = total
        u_bar[x] = y
        inner[x] += u[x] * y
        ahead = u[x] + u[x] - before[x]
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
def _slope_line(s, u_bar, u, rest, shrink, flush, cost_bar, pair):
    """The cotangent of a, v = (s + u ⊙ (ū − ⟨u, ū⟩))/(1 + τε).

    Adds v to the gradient of the cost unless that is None, and if `pair` is one the v before it.
    """
    distinct()
    for x in range(s.size):
        before = s[x]
        value = (before + flushed(u[x], flush) * (u_bar[x] - rest[x])) * shrink
        value = flushed(value, flush)
        s[x] = value
        if cost_bar is not None:
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


@inlined
def _reverse_edge(b, q, w, rise, fall, one, four, flush):
    """bᵏ, its cotangent, and what the weight and τ receive, from the values one iteration later."""
    y = b - w * rise
    e = exp_twice(y)
    d = one / (e + one)
    p = (e - one) * d
    change = w * fall
    return y, flushed(q - four * (e * d) * d * change, flush), q * rise - p * fall, p * change


@line_function
def _reverse_dual_line(b, q, w, bar, here, below, beside, v_here, v_below, v_beside, dot, problem):
    """bᵏ from bᵏ⁺¹, the cotangent of one from that of the other; adds to the gradients of the
    weights and, as `dot`, of τ."""
    distinct()
    b_down, q_down, w_down, bar_down = b.down, q.down, w.down, bar.down
    b_across, q_across, w_across, bar_across = b.across, q.across, w.across, bar.across
    tau, sigma, flush = problem.tau, problem.sigma, problem.flush
    one, four = dot.dtype.type(1), dot.dtype.type(4)
    for x in range(dot.size):
        rise, fall = sigma * (below[x] - here[x]), tau * (v_below[x] - v_here[x])
        y, value, share, first = _reverse_edge(
            b_down[x], q_down[x], w_down[x], rise, fall, one, four, flush
        )
        b_down[x] = y
        q_down[x] = value
        bar_down[x] += share
        rise, fall = sigma * (beside[x] - here[x]), tau * (v_beside[x] - v_here[x])
        y, value, share, second = _reverse_edge(
            b_across[x], q_across[x], w_across[x], rise, fall, one, four, flush
        )
        b_across[x] = y
        q_across[x] = value
        bar_across[x] += share
        dot[x] += first + second


@line_function
def _reverse_dual_line_of(b, q, w, bar, here, there, v_here, v_there, dot, problem):
    """The same, for one direction."""
    distinct()
    tau, sigma, flush = problem.tau, problem.sigma, problem.flush
    one, four = dot.dtype.type(1), dot.dtype.type(4)
    for x in range(dot.size):
        rise, fall = sigma * (there[x] - here[x]), tau * (v_there[x] - v_here[x])
        y, value, share, total = _reverse_edge(b[x], q[x], w[x], rise, fall, one, four, flush)
        b[x] = y
        q[x] = value
        bar[x] += share
        dot[x] += total


@inlined
def _field_line(field, flat, row, label, shift):
    """A line of a field that is `flat` but for margins at its two ends, from `shift` columns
    further left.

    At the ends of a line this looks into other lines, where the weight is zero.
    """
    labels, columns = field.shape[1:]
    start = (flat.size - field.size) // 2 + (row * labels + label) * columns + shift
    return flat[start : start + columns]


@line_function
def _reverse_dual_lines(b, q, bar, w, r, i, label, lead, s, slope, dot, problem):
    """Rebuilds bᵏ from bᵏ⁺¹ and takes the cotangent of one to that of the other: row r, one label.

    Row r is row i of the band, and its v are in `slope`.
    """
    directions, columns = b.shape[1:]
    depth, edges, across = lead.shape[0], problem.edges, problem.across
    line = lead[r % depth, label]
    here, v_here = shifted(line, 0, columns), _field_line(s, slope, i, label, 0)
    # Without a neighbour below, any line will do: its weight is zero.
    below = problem.down[0] if edges[0, r] >= 0 else 0
    _reverse_dual_line(
        Pair(b[label, 0], b[label, across]), Pair(q[label, 0], q[label, across]),
        _weights(problem, w, r), Pair(bar[0], bar[across]),
        here, shifted(lead[(r + below) % depth, label], 0, columns), shifted(line, 1, columns),
        v_here, _field_line(s, slope, i + below, label, 0),
        _field_line(s, slope, i, label, 1), dot, problem,
    )  # fmt: skip
    for e in range(1, directions):
        if e != across and edges[e, r] >= 0:
            down, right = problem.down[e], problem.right[e]
            _reverse_dual_line_of(
                b[label, e], q[label, e], w[e, edges[e, r]], bar[e],
                here, shifted(lead[(r + down) % depth, label], right, columns),
                v_here, _field_line(s, slope, i + down, label, right), dot, problem,
            )  # fmt: skip


@compiled
def reverse_steps(band, problem, span, tape, mean_bar, bars, to_steps, room):
    """Iterations of the reverse sweep, in place.

    `tape[i]` holds the primal iterate i, of which count + 1 are needed: u, or with ε > 0 a, from
    which u is computed again and kept. Only with `to_steps` do the sums for the gradients of σ and
    τ mean anything.

    A line of the dual of one iteration is followed at once by that of the primal of the next.
    """
    s, slope, g, q, b, u = band
    labels, columns = s.shape[1:]
    weights, zeros, edges = problem.weights, problem.zeros, problem.edges
    down, across = problem.down, problem.across
    rows = edges.shape[1]
    ring, lead, u_bar, before, lines = room
    depth = lead.shape[1]
    reach = depth - 1
    low, high, count = span.low, span.high, span.count
    clear(ring)
    clear(lead)
    one, zero = s.dtype.type(1), s.dtype.type(0)
    inner, total, unused, dots = lines[0], lines[1], lines[2], lines[3:6]
    clear(dots)
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - count * reach >= high:
            break
        for j in range(count + 1):
            # The dual of iteration j − 1 and the primal of iteration j, both in row r.
            r = t - j * reach
            i = r - span.first
            margin = (count - 1 - j) * reach
            start, stop = max(0, low - margin), min(rows, high + margin)
            primal = j < count and start <= r < min(rows, stop + reach)
            dual = j > 0 and max(0, start - reach) <= r < min(rows, high + margin + reach)
            owned = low <= r < high
            new = old = before
            if primal:
                new, old = tape[count - j, r], tape[count - j - 1, r]
                if problem.epsilon > 0:
                    _soften_row(before, old, total, problem.tiny)
                    new, old = u[i], before
                clear(inner)
            for label in range(labels if primal or dual else 0):
                w = weights[label % weights.shape[0]]
                if dual:
                    bar = bars.weights[r] if owned else bars.waste
                    _reverse_dual_lines(
                        b[i], q[i], bar[label % bar.shape[0]], w, r, i, label, lead[j - 1], s,
                        slope, dots[1] if owned else unused, problem,
                    )  # fmt: skip
                if not primal:
                    continue
                begin = zeros
                if down.size > 2:
                    _others(total, zeros, q[i, label], False, w, r, label, ring[j], problem)
                    begin = total
                above = r - down[0]
                _cotangent_line(
                    g[i, label], u_bar[label], inner, dots[0] if owned else unused,
                    shifted(lead[j, r % depth, label], 0, columns),
                    q[i - down[0], label, 0] if above >= 0 else zeros,
                    _weight_row(w[0], zeros, edges[0, above]) if above >= 0 else zeros,
                    Pair(q[i, label, 0], q[i, label, across]), _weights(problem, w, r), begin,
                    mean_bar[r, label] if mean_bar.shape[0] > 0 else zeros,
                    new[label], old[label], problem.sigma,
                )  # fmt: skip
            if to_steps and dual and owned:
                _add_to(bars.sums[1], dots[1])
            if not primal:
                if j < count and max(0, start - reach) <= r < start and down.size > 2:
                    _fill_ring(q[i], False, r, ring[j], problem)
                continue
            if to_steps and owned:
                _add_to(bars.sums[0], dots[0])
            clear(total)
            for label in range(labels):
                _centre_line(u_bar[label], new[label], inner, total)
            for label in range(labels):
                # The gradient of the cost is fetched for two iterations at a time.
                if owned and (j % 2 == 1 or j == count - 1):
                    _slope_line(
                        s[i, label], u_bar[label], new[label], total, problem.shrink,
                        problem.flush, bars.cost[r, label], one if j % 2 == 1 else zero,
                    )  # fmt: skip
                else:
                    _slope_line(
                        s[i, label], u_bar[label], new[label], total, problem.shrink,
                        problem.flush, None, zero,
                    )  # fmt: skip
            if problem.epsilon > 0:
                if to_steps and owned:
                    a, cost, epsilon = tape[count - j, r], problem.cost[r], problem.epsilon
                    clear(total)
                    for label in range(labels):
                        _mean_force_line(total, new[label], cost[label], a[label], epsilon)
                    for label in range(labels):
                        _force_sum_line(dots[2], s[i, label], cost[label], a[label], total, epsilon)
                    _add_to(bars.sums[2], dots[2])
                copy_line(new.reshape(new.size), before.reshape(before.size))


# --- where a solve begins and ends ----------------------------------------------------------------


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
def soften(u, a, total, tiny):
    """u = softmax(a) of mirror variables whose maximum over the labels is zero."""
    for i in range(u.shape[0]):
        _soften_row(u[i], a[i], total, tiny)


@line_function
def _soften_line(u, a, total, tiny):
    distinct()
    for x in range(u.size):
        y = flushed(exp(a[x]), tiny)
        u[x] = y
        total[x] += y


@compiled
def _soften_row(u, a, total, tiny):
    clear(total)
    for label in range(u.shape[0]):
        _soften_line(u[label], a[label], total, tiny)
    _invert_line(total)
    for label in range(u.shape[0]):
        scale_line(u[label], total)


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
