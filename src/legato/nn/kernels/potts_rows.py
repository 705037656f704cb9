"""The Potts iteration and its reverse sweep, row by row, several iterations in flight.

Rows of the image (of the volume, for three axes) are the unit. Iteration j works on row t − jM at
time t, M being the reach of ∇ in rows: its primal update of that row needs the dual one iteration
back at that row and M above, which iteration j − 1 has just finished; its dual update follows M
rows behind. So a window of the image goes through many iterations while it stays in the cache, in
place and without doing anything twice:

    for t:  for j:  primal(j, t − jM);  dual(j, t − jM − M)

Arrays are (rows, labels[, directions], columns) so that everything about a row lies together, with
the columns padded to whole vectors. Missing neighbours are zero weights, never branches in a loop.
Inner loops touch few arrays each, because LLVM gives up on a loop that needs more than eight
overlap checks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"

from __future__ import annotations

from numba import njit

from legato.nn.kernels.vector_math import exp, log, tanh

MARGIN = 16
"""Columns on either side of a ring's rows, so that x ± 1 needs no test."""

# Without the run-time's reference counts: every slice would pay two atomic operations, on counters
# that all threads share.
_options = {"fastmath": {"contract"}, "error_model": "numpy", "_nrt": False}
_compiled = njit(cache=True, nogil=True, **_options)
_inlined = njit(inline="always", **_options)


@_inlined
def _weight_row(weights, zeros, row):
    """The weights of a row; a negative index means that the neighbour is missing."""
    if row < 0:
        return zeros
    return weights[row]


@_inlined
def _shifted(line, shift, columns):
    """A ring's line as seen from `shift` columns further left, its margins cut off.

    A slice, because Numba tests every index of the form x + shift for being negative, and the loop
    around such a test does not vectorise.
    """
    return line[MARGIN + shift : MARGIN + shift + columns]


@_compiled
def _copy(row, source):
    for x in range(row.size):
        row[x] = source[x]


@_compiled
def _clear(rows):
    flat = rows.reshape(rows.size)
    for x in range(flat.size):
        flat[x] = 0


@_compiled
def _add_to(sums, values, factor):
    """sums += factor · values, in double precision whatever the values are."""
    for x in range(values.size):
        sums[x] += factor * values[x]


@_compiled
def _adjoint_row(
    total, start, values, saturate, weights, zeros, edges, r, label, ring, base, down, right,
):  # fmt: skip
    """total = start + Kᵀ(values), or start + Kᵀ tanh(values), at row r.

    Leaves W·values in the ring for the rows below. The first direction always points down.
    """
    columns = total.size
    above = _shifted(ring[base[0] + r % down[0], label], -right[0], columns)
    for x in range(columns):
        total[x] = start[x] + above[x]
    for e in range(1, down.size):
        if down[e] > 0:
            above = _shifted(ring[base[e] + r % down[e], label], -right[e], columns)
            for x in range(columns):
                total[x] += above[x]
    for e in range(down.size):
        line = ring[base[e] + r % max(down[e], 1), label]
        row = _shifted(line, 0, columns)
        w = _weight_row(weights[e], zeros, edges[e, r])
        here = values[e]
        if saturate:
            for x in range(columns):
                y = w[x] * tanh(here[x])
                row[x] = y
                total[x] -= y
        else:
            for x in range(columns):
                y = w[x] * here[x]
                row[x] = y
                total[x] -= y
        if down[e] == 0:
            left = _shifted(line, -right[e], columns)
            for x in range(columns):
                total[x] += left[x]


@_compiled
def _primal_row(
    a, u, cost, b, tape, mean, weights, zeros, edges, r, tau, shrink, flush,
    ring, base, down, right, lead, work,
):  # fmt: skip
    """aᵏ⁺¹ and uᵏ⁺¹ of one row, and 2uᵏ⁺¹ − uᵏ for the dual update that follows."""
    labels, columns = a.shape
    total, top = work[labels], work[labels + 1]
    zero, one = a.dtype.type(0), a.dtype.type(1)
    for label in range(labels):
        _adjoint_row(
            total, cost[label], b[label], True, weights[label % weights.shape[0]], zeros, edges,
            r, label, ring, base, down, right,
        )  # fmt: skip
        row = a[label]
        if label == 0:
            for x in range(columns):
                value = (row[x] - tau * total[x]) * shrink
                row[x] = value
                top[x] = value
        else:
            for x in range(columns):
                value = (row[x] - tau * total[x]) * shrink
                row[x] = value
                top[x] = value if value > top[x] else top[x]
    _clear(total)
    for label in range(labels):
        row, power = a[label], work[label]
        for x in range(columns):
            value = row[x] - top[x]
            row[x] = value
            y = exp(value)
            y = y if y > flush else zero
            power[x] = y
            total[x] += y
    for x in range(columns):
        total[x] = one / total[x]
    for label in range(labels):
        power, old, extrapolated = work[label], u[label], _shifted(lead[label], 0, columns)
        for x in range(columns):
            new = power[x] * total[x]
            extrapolated[x] = new + new - old[x]
            old[x] = new
    if tape.size > 0:
        for label in range(labels):
            _copy(tape[label], u[label])
    if mean.size > 0:
        for label in range(labels):
            row, new = mean[label], u[label]
            for x in range(columns):
                row[x] += new[x]


@_compiled
def _dual_row(b, weights, zeros, edges, r, sigma, lead, down, right):
    """bᵏ⁺¹ = bᵏ + σK(2uᵏ⁺¹ − uᵏ) of one row."""
    labels, directions, columns = b.shape
    depth = lead.shape[0]
    for label in range(labels):
        here = _shifted(lead[r % depth, label], 0, columns)
        for e in range(directions):
            if edges[e, r] < 0:
                continue
            there = _shifted(lead[(r + down[e]) % depth, label], right[e], columns)
            w = weights[label % weights.shape[0], e, edges[e, r]]
            row = b[label, e]
            for x in range(columns):
                row[x] += sigma * w[x] * (there[x] - here[x])


@_compiled
def advance(
    a, u, b, first_row, own, count, cost, tape, mean, nothing, weights, zeros, edges,
    tau, sigma, shrink, flush, base, down, right, ring, lead, work,
):  # fmt: skip
    """`count` iterations on the rows `own` of a band that starts at `first_row`, in place.

    The rows beyond `own` are a margin that shrinks by the reach of ∇ with every iteration; only
    rows of `own` are written to the tape and the mean.
    """
    rows = edges.shape[1]
    reach = lead.shape[1] - 1
    low, high = own
    _clear(ring)
    _clear(lead)
    depth = lead.shape[1]
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - (count - 1) * reach - reach >= high:
            break
        for j in range(count):
            r = t - j * reach
            start = max(0, low - (count - 1 - j) * reach)
            stop = min(rows, high + (count - 1 - j) * reach)
            if start - reach <= r < start and r >= 0:
                i = r - first_row
                for label in range(a.shape[1]):
                    _adjoint_row(
                        work[0], zeros, b[i, label], True, weights[label % weights.shape[0]],
                        zeros, edges, r, label, ring[j], base, down, right,
                    )  # fmt: skip
            elif start <= r < min(rows, stop + reach):
                i = r - first_row
                owned = low <= r < high
                _primal_row(
                    a[i], u[i], cost[r], b[i],
                    tape[j, r] if owned and tape.shape[0] > 0 else nothing,
                    mean[r] if owned and mean.shape[0] > 0 else nothing,
                    weights, zeros, edges, r, tau, shrink, flush,
                    ring[j], base, down, right, lead[j, r % depth], work,
                )  # fmt: skip
            if start <= r - reach < stop:
                _dual_row(
                    b[r - reach - first_row], weights, zeros, edges, r - reach, sigma,
                    lead[j], down, right,
                )  # fmt: skip


@_compiled
def _reverse_primal_row(
    s, g, q, u, u_before, mean_bar, cost_bar, cost, weights, zeros, edges, r, sigma, shrink, flush,
    log_weight, force_weight, owned, ring, base, down, right, lead, slope, work, sums,
):  # fmt: skip
    """The cotangent of aᵏ⁺¹ of one row, scaled by 1/(1 + τε); adds to the gradient of the cost."""
    labels, columns = s.shape
    total, inner, dot = work[labels], work[labels + 1], work[labels + 2]
    zero = s.dtype.type(0)
    _clear(inner)
    _clear(dot)
    for label in range(labels):
        _adjoint_row(
            total, zeros, q[label], False, weights[label % weights.shape[0]], zeros, edges,
            r, label, ring, base, down, right,
        )  # fmt: skip
        u_bar, before = work[label], g[label]
        for x in range(columns):
            u_bar[x] = sigma * (total[x] + total[x] - before[x])
            before[x] = total[x]
        if mean_bar.size > 0:
            extra = mean_bar[label]
            for x in range(columns):
                u_bar[x] += extra[x]
        probability, old = u[label], u_before[label]
        extrapolated = _shifted(lead[label], 0, columns)
        for x in range(columns):
            inner[x] += probability[x] * u_bar[x]
        for x in range(columns):
            y = probability[x] + probability[x] - old[x]
            extrapolated[x] = y
            dot[x] += total[x] * y
    if owned:
        _add_to(sums[0], dot, 1.0)
    for label in range(labels):
        row, u_bar, probability = s[label], work[label], u[label]
        line, gradient = _shifted(slope[label], 0, columns), cost_bar[label]
        for x in range(columns):
            y = probability[x]
            u_bar[x] = (y if y > flush else zero) * (u_bar[x] - inner[x])
        for x in range(columns):
            value = (row[x] + u_bar[x]) * shrink
            value = value if abs(value) > flush else zero
            row[x] = value
            line[x] = value
        if owned:
            for x in range(columns):
                gradient[x] += row[x]
    if owned and log_weight != 0:
        _clear(dot)
        tiny = flush * flush
        for label in range(labels):
            row, probability = work[label], u[label]
            for x in range(columns):
                y = probability[x]
                dot[x] += row[x] * log(y if y > tiny else tiny)
        _add_to(sums[2], dot, log_weight)
        _clear(dot)
        for label in range(labels):
            row, here = s[label], cost[label]
            for x in range(columns):
                dot[x] += row[x] * here[x]
        _add_to(sums[3], dot, force_weight)


@_compiled
def _reverse_dual_row(
    b, q, weight_bar, weights, zeros, edges, r, tau, sigma, flush, force_weight, owned,
    lead, slope, down, right, work, sums,
):  # fmt: skip
    """Rebuilds bᵏ from bᵏ⁺¹ and takes the cotangent of one to that of the other."""
    labels, directions, columns = b.shape
    depth = lead.shape[0]
    zero, one = b.dtype.type(0), b.dtype.type(1)
    saturated, change, dot = work[0], work[1], work[2]
    _clear(dot)
    for label in range(labels):
        here = _shifted(lead[r % depth, label], 0, columns)
        here_slope = _shifted(slope[r % depth, label], 0, columns)
        for e in range(directions):
            if edges[e, r] < 0:
                continue
            next_row = (r + down[e]) % depth
            there = _shifted(lead[next_row, label], right[e], columns)
            there_slope = _shifted(slope[next_row, label], right[e], columns)
            w = weights[label % weights.shape[0], e, edges[e, r]]
            dual, cotangent = b[label, e], q[label, e]
            for x in range(columns):
                y = dual[x] - sigma * w[x] * (there[x] - here[x])
                dual[x] = y
                saturated[x] = tanh(y)
            if owned:
                gradient = weight_bar[label % weight_bar.shape[0], e]
                for x in range(columns):
                    rise = sigma * (there[x] - here[x])
                    fall = tau * (there_slope[x] - here_slope[x])
                    gradient[x] += cotangent[x] * rise - saturated[x] * fall
            for x in range(columns):
                change[x] = tau * w[x] * (there_slope[x] - here_slope[x])
            for x in range(columns):
                y = change[x]
                p = saturated[x]
                dot[x] += p * y
                value = cotangent[x] - (one - p * p) * y
                cotangent[x] = value if abs(value) > flush else zero
    if owned:
        _add_to(sums[1], dot, force_weight)


@_compiled
def retreat(
    s, g, q, b, first_row, own, count, last, tape, mean_bar, nothing, cost_bar, weight_bar, cost,
    weights, zeros, edges, tau, sigma, shrink, flush, growth,
    base, down, right, ring, lead, slope, work, sums,
):  # fmt: skip
    """`count` iterations of the reverse sweep, from iterate `last` down, in place.

    `tape[i]` holds the primal iterate last − count + i. `growth` is ετ/(1 + τε): with ε > 0 the
    gradient of τ weighs what iteration k contributes by 1 + k·growth (see `step_gradients`).
    """
    rows = edges.shape[1]
    reach = lead.shape[1] - 1
    low, high = own
    _clear(ring)
    _clear(lead)
    _clear(slope)
    depth = lead.shape[1]
    for t in range(max(0, low - count * reach), rows + count * reach + 1):
        if t - (count - 1) * reach - reach >= high:
            break
        for j in range(count):
            r = t - j * reach
            start = max(0, low - (count - 1 - j) * reach)
            stop = min(rows, high + (count - 1 - j) * reach)
            k = last - 1 - j
            force_weight = 1 + k * growth
            log_weight = (k + 1) * growth
            if start - reach <= r < start and r >= 0:
                i = r - first_row
                for label in range(s.shape[1]):
                    _adjoint_row(
                        work[0], zeros, q[i, label], False, weights[label % weights.shape[0]],
                        zeros, edges, r, label, ring[j], base, down, right,
                    )  # fmt: skip
            elif start <= r < min(rows, stop + reach):
                i = r - first_row
                _reverse_primal_row(
                    s[i], g[i], q[i], tape[count - j, r], tape[count - j - 1, r],
                    mean_bar[r] if mean_bar.shape[0] > 0 else nothing,
                    cost_bar[r], cost[r], weights, zeros, edges, r, sigma, shrink, flush,
                    log_weight, force_weight, low <= r < high,
                    ring[j], base, down, right, lead[j, r % depth], slope[j, r % depth], work, sums,
                )  # fmt: skip
            if start <= r - reach < stop:
                i = r - reach
                _reverse_dual_row(
                    b[i - first_row], q[i - first_row], weight_bar[i],
                    weights, zeros, edges, i, tau, sigma, flush, force_weight, low <= i < high,
                    lead[j], slope[j], down, right, work, sums,
                )  # fmt: skip


@_compiled
def exchange(field, first_rows, owned, bands, depth):
    """Copies the rows that neighbouring bands of an image own into each other's margins."""
    tasks = field.shape[0]
    for task in range(tasks):
        low, high = owned[task]
        if task % bands > 0:
            above = task - 1
            start = max(owned[above, 0], low - depth)
            for r in range(start, low):
                _copy(field[task, r - first_rows[task]], field[above, r - first_rows[above]])
        if task % bands < bands - 1:
            below = task + 1
            stop = min(owned[below, 1], high + depth)
            for r in range(high, stop):
                _copy(field[task, r - first_rows[task]], field[below, r - first_rows[below]])


@_compiled
def load(rows, first_row, source, factor):
    """rows[r] = factor · source[:, first_row + r], as far as the source goes; pads with zeros."""
    planes, height, width = source.shape
    for i in range(min(rows.shape[0], height - first_row)):
        for plane in range(planes):
            row, line = rows[i, plane], source[plane, first_row + i]
            for x in range(width):
                row[x] = factor * line[x]
            for x in range(width, row.size):
                row[x] = 0


@_compiled
def store(target, rows, first_row, own, factor):
    """target[:, r] = factor · rows[r − first_row] for the rows r of `own`."""
    planes, _, width = target.shape
    low, high = own
    for r in range(low, high):
        for plane in range(planes):
            line, row = target[plane, r], rows[r - first_row, plane]
            for x in range(width):
                line[x] = factor * row[x]


@_compiled
def recentre(rows):
    """Subtracts the maximum over the labels, in place."""
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            top = rows[i, 0, x]
            for label in range(1, rows.shape[1]):
                top = max(top, rows[i, label, x])
            for label in range(rows.shape[1]):
                rows[i, label, x] -= top


@_compiled
def soften(rows):
    """Turns mirror variables into probabilities, u = softmax(a), in place."""
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            top = rows[i, 0, x]
            for label in range(1, rows.shape[1]):
                top = max(top, rows[i, label, x])
            total = rows.dtype.type(0)
            for label in range(rows.shape[1]):
                power = exp(rows[i, label, x] - top)
                rows[i, label, x] = power
                total += power
            for label in range(rows.shape[1]):
                rows[i, label, x] /= total


@_compiled
def through_softmax(rows, u, u_bar):
    """rows += u ⊙ (ū − ⟨u, ū⟩): the cotangent of a = log u that the one of u leaves."""
    for i in range(rows.shape[0]):
        for x in range(rows.shape[2]):
            inner = rows.dtype.type(0)
            for label in range(rows.shape[1]):
                inner += u[i, label, x] * u_bar[i, label, x]
            for label in range(rows.shape[1]):
                rows[i, label, x] += u[i, label, x] * (u_bar[i, label, x] - inner)


@_compiled
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


@_compiled
def inner_product(x, y):
    """⟨x, y⟩ in double precision."""
    total = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                total += float(x[i, j, k]) * float(y[i, j, k])
    return total


@_compiled
def keep_edges(rows, edges, columns):
    """Clears the gradient of weights that belong to no pair of neighbours."""
    for r in range(rows.shape[0]):
        for label in range(rows.shape[1]):
            for e in range(rows.shape[2]):
                row = rows[r, label, e]
                if edges[e, r] < 0:
                    _clear(row)
                for x in range(row.size):
                    row[x] *= columns[e, x]
