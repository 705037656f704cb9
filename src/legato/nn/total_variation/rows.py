"""The dual FISTA iteration of total variation and its reverse sweep, row by row.

As in `potts.rows` several iterations are in flight: iteration j works on row t − jM at time t, M
being the reach of ∇ in rows, and updates its dual variable M rows behind. With a = p + β(p − p₋)

    primal(r):  a over p₋ in place, v = y − ∇ᵀa;     dual(r − M):  p⁺ = Π(a + α∇v) over a, in place

Images of one channel do both in one loop over the columns, all but their first and last rows.

The reverse sweep has the same shape: z̄ = Π'ᵀq over q and w = ∇ᵀz̄, then ā = z̄ − α∇w is shared out to
the two cotangents. Π clips in the anisotropic case, so all that its reverse needs to know of an
iteration is which entries were clipped, and to which side: two bits each, a byte a pixel. Where
entries are projected in groups it needs the point that was projected.

Arrays are (rows, channels, directions, columns), the columns padded to whole vectors. A missing
neighbour is a difference of something to itself, so p stays zero there, and never a branch.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
# mypy: disable-error-code="call-arg, import-untyped, var-annotated"

from __future__ import annotations

import math
from collections import namedtuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from legato.nn.fused.rows import (
    MARGIN_COLUMNS,
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
from legato.nn.fused.vector_math import distinct, flushed

BLOCK_ROWS = 4
"""Rows that an iteration advances before the next one has its turn: fewer leave the nearest cache
before they are needed again."""

_BYTE = ir.IntType(8)


Problem = namedtuple(
    "Problem",
    "image limits edges down across width zeros alpha flush grouped by_direction",
)
"""One image in rows, its λ, and how its entries are projected.

image (rows, channels, columns), limits (kinds of direction, rows or 1, columns). A neighbour
lies `down` rows below or, in the direction `across`, in the next column; `edges` says which
rows have one. Entries that are `grouped` are projected together over the channels and, unless
`by_direction`, over the directions. Cotangents below `flush` become zero rather than denormal.
"""


Tape = namedtuple("Tape", "codes points")
"""What was clipped, as codes, or where entries are grouped the points that were projected."""


Gradients = namedtuple("Gradients", "image limits waste")
"""Σ w of the image's gradient, to be multiplied by α, that of λ, and of margins (to no use)."""


Room = namedtuple("Room", "ring sums")
"""Where a thread works: lines of v (or w) for every iteration in flight, sums over groups."""


@intrinsic
def _code(typingctx, z, limit):
    """1 where z > limit, 2 where z < −limit, else 0: in eight bits, where Numba would take 64."""

    def codegen(context, builder, signature, args):
        z, high = args
        above = builder.zext(builder.fcmp_ordered(">", z, high), _BYTE)
        below = builder.zext(builder.fcmp_ordered("<", z, builder.fneg(high)), _BYTE)
        return builder.or_(above, builder.shl(below, ir.Constant(_BYTE, 1)))

    return types.uint8(z, z), codegen


@intrinsic
def _joined(typingctx, codes, code, shift):
    """codes | code << shift."""

    def codegen(context, builder, signature, args):
        return builder.or_(args[0], builder.shl(args[1], builder.trunc(args[2], _BYTE)))

    return types.uint8(types.uint8, types.uint8, types.int64), codegen


def _bit(builder, codes, shift, mask):
    shifted = builder.lshr(codes, builder.trunc(shift, _BYTE))
    return builder.icmp_unsigned(
        "!=", builder.and_(shifted, ir.Constant(_BYTE, mask)), ir.Constant(_BYTE, 0)
    )


@intrinsic
def _kept(typingctx, codes, shift, q):
    """q, or zero where the entry was clipped."""

    def codegen(context, builder, signature, args):
        zero = ir.Constant(args[2].type, 0.0)
        return builder.select(_bit(builder, args[0], args[1], 3), zero, args[2])

    return q(types.uint8, types.int64, q), codegen


@intrinsic
def _pushed(typingctx, codes, shift, q):
    """q where the entry was clipped from above, −q where from below, else zero."""

    def codegen(context, builder, signature, args):
        codes, shift, q = args
        zero = ir.Constant(q.type, 0.0)
        low = builder.select(_bit(builder, codes, shift, 2), builder.fneg(q), zero)
        return builder.select(_bit(builder, codes, shift, 1), q, low)

    return q(types.uint8, types.int64, q), codegen


@intrinsic
def _clipped(typingctx, z, limit):
    """z within ±limit, for limits that may be zero."""

    def codegen(context, builder, signature, args):
        z, high = args
        low = builder.fneg(high)
        z = builder.select(builder.fcmp_ordered("<", z, low), low, z)
        return builder.select(builder.fcmp_ordered(">", z, high), high, z)

    return z(z, z), codegen


# --- the iteration --------------------------------------------------------------------------------


@line_function
def _ahead_line(p, before, beta):
    distinct()
    for x in range(p.size):
        before[x] = p[x] + beta * (p[x] - before[x])


@line_function
def _spread_down(v, here, above):
    """v −= ∇ᵀ of one direction that leads down."""
    distinct()
    for x in range(v.size):
        v[x] += here[x] - above[x]


@line_function
def _spread_across(v, here):
    """v −= ∇ᵀ of the direction that leads to the next column."""
    distinct()
    left = v.dtype.type(0)
    for x in range(v.size):
        v[x] += here[x] - left
        left = here[x]


@compiled
def _primal_row(v, p, before, i, r, beta, problem):
    """a over p₋ and v = y − ∇ᵀa of one row; the column after the last repeats it."""
    channels, directions, columns = p.shape[1:]
    down = problem.down
    for c in range(channels):
        line = shifted(v[c], 0, columns)
        copy_line(line, problem.image[r, c])
        for e in range(directions):
            here = before[i, c, e]
            _ahead_line(p[i, c, e], here, beta)
            if e == problem.across:
                _spread_across(line, here)
            else:
                inside = i >= down[e]
                _spread_down(line, here, before[i - down[e], c, e] if inside else problem.zeros)
        v[c, MARGIN_COLUMNS + problem.width] = v[c, MARGIN_COLUMNS + problem.width - 1]


@inlined
def _outside(square, limit, one):
    """Whether a point with this |z|² lies outside its ball of radius λ, and |z| if it does."""
    outside = square > limit * limit
    return outside, math.sqrt(square if outside else one)


@line_function
def _step_line(v, y, p, before, above, here, beside, limit, limit_across, codes, points, numbers):
    """a and v of one row, and Π(a + α∇v) of the row above, for two directions.

    With `limit_across` the projection clips, and leaves in `codes` what was clipped; without it
    discs have the radius `limit`, and the projected points are left in `points`. Numba removes the
    branches on what is None.
    """
    distinct()
    down, across, before_down, before_across = p.down, p.across, before.down, before.across
    above_down, above_across = above.down, above.across
    alpha, beta = numbers
    left, one = v.dtype.type(0), v.dtype.type(1)
    for x in range(v.size):
        a = down[x] + beta * (down[x] - before_down[x])
        b = across[x] + beta * (across[x] - before_across[x])
        before_down[x] = a
        before_across[x] = b
        below = y[x] + (a - above_down[x]) + (b - left)
        left = b
        v[x] = below
        a = above_down[x] + alpha * (below - here[x])
        b = above_across[x] + alpha * (beside[x] - here[x])
        if limit_across is not None:
            above_down[x] = _clipped(a, limit[x])
            above_across[x] = _clipped(b, limit_across[x])
            if codes is not None:
                codes[x] = _joined(_code(a, limit[x]), _code(b, limit_across[x]), 2)
        else:
            if points is not None:
                points.down[x] = a
                points.across[x] = b
            outside, size = _outside(a * a + b * b, limit[x], one)
            factor = limit[x] / size
            factor = factor if outside else one
            above_down[x] = a * factor
            above_across[x] = b * factor


@line_function
def _both_rows(p, before, i, r, v, codes, points, keep, beta, sums, problem):
    """The primal update of row r and the dual one of the row above at once: two directions, one
    channel."""
    columns, depth, limits = p.shape[3], v.shape[0], problem.limits
    at = (r - 1) % limits.shape[1]
    line, y = shifted(v[r % depth, 0], 0, columns), problem.image[r, 0]
    here = shifted(v[(r - 1) % depth, 0], 0, columns)
    beside = shifted(v[(r - 1) % depth, 0], 1, columns)
    now, last = Pair(p[i, 0, 0], p[i, 0, 1]), Pair(before[i, 0, 0], before[i, 0, 1])
    above = Pair(before[i - 1, 0, 0], before[i - 1, 0, 1])
    limit, other = limits[0, at], limits[1 % limits.shape[0], at]
    numbers = (problem.alpha, beta)
    if not problem.grouped and keep:
        _step_line(line, y, now, last, above, here, beside, limit, other, codes, None, numbers)
    elif not problem.grouped:
        _step_line(line, y, now, last, above, here, beside, limit, other, None, None, numbers)
    elif keep:
        # By way of the cache: written directly, the tape's old contents would be read first.
        found = Pair(sums[0, 0], sums[1, 0])
        _step_line(line, y, now, last, above, here, beside, limit, None, None, found, numbers)
        stream_line(points[0, 0], found.down)
        stream_line(points[0, 1], found.across)
    else:
        _step_line(line, y, now, last, above, here, beside, limit, None, None, None, numbers)
    end = MARGIN_COLUMNS + problem.width
    v[r % depth, 0, end] = v[r % depth, 0, end - 1]


@line_function
def _rise_line(a, here, there, alpha):
    """a + α∇v, for one direction."""
    distinct()
    for x in range(a.size):
        a[x] += alpha * (there[x] - here[x])


@line_function
def _clip_line(z, limit, codes, shift):
    """Π by clipping, for one direction; leaves in `codes`, unless None, what was clipped."""
    distinct()
    for x in range(z.size):
        if codes is not None:
            codes[x] = _joined(codes[x], _code(z[x], limit[x]), shift)
        z[x] = _clipped(z[x], limit[x])


@line_function
def _add_square(square, z):
    distinct()
    for x in range(z.size):
        square[x] += z[x] * z[x]


@line_function
def _factor_line(square, limit):
    """min(1, λ/|z|) from |z|²."""
    distinct()
    one = square.dtype.type(1)
    for x in range(square.size):
        outside, size = _outside(square[x], limit[x], one)
        factor = limit[x] / size
        square[x] = factor if outside else one


@compiled
def _dual_row(a, v, r, codes, points, keep, sums, problem):
    """p⁺ = Π(a + α∇v) of one row, over a."""
    channels, directions, columns = a.shape
    depth, limits = v.shape[0], problem.limits
    grouped, by_direction, alpha = problem.grouped, problem.by_direction, problem.alpha
    # One index at a time: a slice along the directions would leave lines with a stride.
    kinds, at = limits.shape[0], r % limits.shape[1]
    if grouped:
        clear(sums)
    elif keep:
        for x in range(columns):
            codes[x] = 0
    for c in range(channels):
        here = shifted(v[r % depth, c], 0, columns)
        for e in range(directions):
            z = a[c, e]
            if e == problem.across:
                _rise_line(z, here, shifted(v[r % depth, c], 1, columns), alpha)
            elif problem.edges[e, r]:
                below = shifted(v[(r + problem.down[e]) % depth, c], 0, columns)
                _rise_line(z, here, below, alpha)
            if grouped:
                _add_square(sums[0, e if by_direction else 0], z)
                if keep:
                    stream_line(points[c, e], z)
            else:
                limit = limits[e % kinds, at]
                if keep:
                    _clip_line(z, limit, codes, 2 * e)
                else:
                    _clip_line(z, limit, None, 0)
    if grouped:
        for g in range(directions if by_direction else 1):
            _factor_line(sums[0, g], limits[g % kinds, at])
        for c in range(channels):
            for e in range(directions):
                scale_line(a[c, e], sums[0, e if by_direction else 0])


@compiled
def forward_steps(p, before, span, betas, problem, tape, keep, room):
    """As many iterations as there are betas, on the rows that a band owns, in place: after an odd
    number of them p and p₋ have changed places.

    The rows beyond are a margin that shrinks by the reach of ∇ with every iteration; only owned
    rows are written to the tape.
    """
    count, rows = span.count, problem.edges.shape[1]
    ring, sums = room
    depth = ring.shape[1]
    reach = depth - 1
    low, high, grouped = span.low, span.high, problem.grouped
    simple = p.shape[1] == 1 and p.shape[2] == 2 and not (grouped and problem.by_direction)
    clear(ring)
    for begin in range(max(0, low - count * reach), rows + count * reach + 1, BLOCK_ROWS):
        if begin - count * reach >= high:
            break
        for j in range(count):
            for t in range(begin, begin + BLOCK_ROWS):
                r = t - j * reach
                start = max(0, low - (count - 1 - j) * reach)
                stop = min(rows, high + (count - 1 - j) * reach)
                now, new = (p, before) if j % 2 == 0 else (before, p)
                behind, i = r - reach, r - span.first
                ahead = max(0, start - reach) <= r < min(rows, stop + reach)
                follows = start <= behind < stop
                noted = keep and low <= behind < high
                code, point = noted and not grouped, noted and grouped
                codes = tape.codes[j if code else 0, behind if code else 0]
                points = tape.points[j if point else 0, behind if point else 0]
                if simple and ahead and follows:
                    _both_rows(
                        now, new, i, r, ring[j], codes, points, noted, betas[j], sums, problem
                    )
                    continue
                if ahead:
                    _primal_row(ring[j, r % depth], now, new, i, r, betas[j], problem)
                if follows:
                    a = new[i - reach]
                    _dual_row(a, ring[j], behind, codes, points, noted, sums, problem)


@compiled
def residual(u, image, p, first, last, down, across):
    """u = y − ∇ᵀp for first ≤ r < last, of whole images in rows."""
    channels, directions = p.shape[1:3]
    for r in range(first, last):
        for c in range(channels):
            copy_line(u[r, c], image[r, c])
            for e in range(directions):
                if e == across:
                    _spread_across(u[r, c], p[r, c, e])
                elif r >= down[e]:
                    _spread_down(u[r, c], p[r, c, e], p[r - down[e], c, e])
                else:
                    add_line(u[r, c], p[r, c, e])


# --- the reverse sweep ----------------------------------------------------------------------------


@line_function
def _unclip_lines(w, q, above, codes, bar, bar_across):
    """z̄ over q for two directions at once, and w = ∇ᵀz̄.

    Adds to the gradient of λ: to `bar`, unless that is None, and for the direction across to
    `bar_across`, unless both share λ.
    """
    distinct()
    down, across = q.down, q.across
    left = w.dtype.type(0)
    for x in range(w.size):
        if bar is not None:
            if bar_across is not None:
                bar[x] += _pushed(codes[x], 0, down[x])
                bar_across[x] += _pushed(codes[x], 2, across[x])
            else:
                bar[x] += _pushed(codes[x], 0, down[x]) + _pushed(codes[x], 2, across[x])
        y = _kept(codes[x], 0, down[x])
        z = _kept(codes[x], 2, across[x])
        down[x] = y
        across[x] = z
        w[x] = above[x] - y + left - z
        left = z


@line_function
def _unshrink_lines(w, q, above, point, limit, bar):
    """z̄ = (λ/|z|)(q − n⟨n, q⟩) where z left its disc, q elsewhere; n = z/|z|; and w = ∇ᵀz̄."""
    distinct()
    down, across, point_down, point_across = q.down, q.across, point.down, point.across
    zero, one = w.dtype.type(0), w.dtype.type(1)
    left = zero
    for x in range(w.size):
        y, z = point_down[x], point_across[x]
        outside, size = _outside(y * y + z * z, limit[x], one)
        inverse = one / size
        y = y * inverse
        z = z * inverse
        along = y * down[x] + z * across[x]
        along = along if outside else zero
        factor = limit[x] * inverse
        factor = factor if outside else one
        bar[x] += along
        y = factor * (down[x] - along * y)
        z = factor * (across[x] - along * z)
        down[x] = y
        across[x] = z
        w[x] = above[x] - y + left - z
        left = z


@line_function
def _unclip_line(q, codes, shift, bar):
    """z̄ over q for one direction; adds to the gradient of λ unless that is None."""
    distinct()
    for x in range(q.size):
        if bar is not None:
            bar[x] += _pushed(codes[x], shift, q[x])
        q[x] = _kept(codes[x], shift, q[x])


@line_function
def _add_products(square, dot, point, q):
    distinct()
    for x in range(q.size):
        square[x] += point[x] * point[x]
        dot[x] += point[x] * q[x]


@line_function
def _turn_line(square, dot, limit, bar):
    """From |z|² and ⟨z, q⟩ the factors of z̄ = s q − m z; adds ⟨z, q⟩/|z| to the gradient of λ."""
    distinct()
    zero, one = square.dtype.type(0), square.dtype.type(1)
    for x in range(square.size):
        outside, size = _outside(square[x], limit[x], one)
        inverse = one / size
        along = dot[x] * inverse
        along = along if outside else zero
        factor = limit[x] * inverse
        factor = factor if outside else one
        bar[x] += along
        square[x] = factor
        dot[x] = factor * along * inverse


@line_function
def _unshrink_line(q, point, factor, pull):
    distinct()
    for x in range(q.size):
        q[x] = factor[x] * q[x] - pull[x] * point[x]


@line_function
def _reverse_primal_row(w, q, i, r, codes, points, bar, weigh, sums, problem):
    """z̄ = Π'ᵀq over q and w = ∇ᵀz̄ of one row; adds to the gradient of λ if `weigh`."""
    channels, directions, columns = q.shape[1:]
    limits, down, zeros, end = (
        problem.limits,
        problem.down,
        problem.zeros,
        MARGIN_COLUMNS + problem.width,
    )
    grouped, by_direction = problem.grouped, problem.by_direction
    # One index at a time: a slice along the directions would leave lines with a stride.
    kinds, at = limits.shape[0], r % limits.shape[1]
    if directions == 2 and channels == 1 and not (grouped and by_direction):
        line = shifted(w[0], 0, columns)
        above = q[i - 1, 0, 0] if i >= 1 else zeros
        both = Pair(q[i, 0, 0], q[i, 0, 1])
        if grouped:
            found = Pair(points[0, 0], points[0, 1])
            _unshrink_lines(line, both, above, found, limits[0, at], bar[0])
        elif not weigh:
            _unclip_lines(line, both, above, codes, None, None)
        elif bar.shape[0] == 2:
            _unclip_lines(line, both, above, codes, bar[0], bar[1])
        else:
            _unclip_lines(line, both, above, codes, bar[0], None)
        w[0, end] = w[0, end - 1]
        return
    if grouped:
        clear(sums)
        for c in range(channels):
            for e in range(directions):
                g = e if by_direction else 0
                _add_products(sums[0, g], sums[1, g], points[c, e], q[i, c, e])
        for g in range(directions if by_direction else 1):
            _turn_line(sums[0, g], sums[1, g], limits[g % kinds, at], bar[g % bar.shape[0]])
    for c in range(channels):
        line = shifted(w[c], 0, columns)
        clear(line)
        for e in range(directions):
            here = q[i, c, e]
            if grouped:
                g = e if by_direction else 0
                _unshrink_line(here, points[c, e], sums[0, g], sums[1, g])
            elif weigh:
                _unclip_line(here, codes, 2 * e, bar[e % bar.shape[0]])
            else:
                _unclip_line(here, codes, 2 * e, None)
            # ∇ᵀ has the opposite sign of what is spread to v.
            if e == problem.across:
                _gather_across(line, here)
            else:
                inside = i >= down[e]
                _spread_down(line, q[i - down[e], c, e] if inside else zeros, here)
        w[c, end] = w[c, end - 1]


@line_function
def _gather_across(w, here):
    """w += ∇ᵀ of the direction that leads to the next column."""
    distinct()
    left = w.dtype.type(0)
    for x in range(w.size):
        w[x] += left - here[x]
        left = here[x]


@inlined
def _shared_out(q, before, rise, alpha, beta, flush):
    """The cotangents of p and p₋ from z̄ and ∇w."""
    a = flushed(q - alpha * rise, flush)
    return before + (a + beta * a), -beta * a


@line_function
def _share_lines(q, before, here, below, beside, alpha, beta, flush):
    """The cotangents of p and p₋ from z̄ and w, for two directions at once."""
    distinct()
    down, across, before_down, before_across = q.down, q.across, before.down, before.across
    for x in range(here.size):
        y, z = _shared_out(down[x], before_down[x], below[x] - here[x], alpha, beta, flush)
        down[x] = y
        before_down[x] = z
        y, z = _shared_out(across[x], before_across[x], beside[x] - here[x], alpha, beta, flush)
        across[x] = y
        before_across[x] = z


@line_function
def _share_line(q, before, here, there, alpha, beta, flush):
    """The same, for one direction."""
    distinct()
    for x in range(q.size):
        y, z = _shared_out(q[x], before[x], there[x] - here[x], alpha, beta, flush)
        q[x] = y
        before[x] = z


@line_function
def _reverse_dual_row(q, before, w, r, beta, problem):
    """From z̄ to the cotangents of p and p₋: ā = z̄ − α∇w, (1 + β)ā and −βā."""
    channels, directions, columns = q.shape
    depth, edges, down = w.shape[0], problem.edges, problem.down
    alpha, flush = problem.alpha, problem.flush
    for c in range(channels):
        line = w[r % depth, c]
        here, beside = shifted(line, 0, columns), shifted(line, 1, columns)
        if directions == 2:
            below = shifted(w[(r + 1) % depth, c], 0, columns) if edges[0, r] else here
            _share_lines(
                Pair(q[c, 0], q[c, 1]), Pair(before[c, 0], before[c, 1]), here, below, beside,
                alpha, beta, flush,
            )  # fmt: skip
            continue
        for e in range(directions):
            there = beside
            if e != problem.across:
                there = shifted(w[(r + down[e]) % depth, c], 0, columns) if edges[e, r] else here
            _share_line(q[c, e], before[c, e], here, there, alpha, beta, flush)


@compiled
def reverse_steps(q, before, span, betas, problem, tape, bars, weigh, room):
    """As many iterations of the reverse sweep as there are betas, in place."""
    count, rows = span.count, problem.edges.shape[1]
    ring, sums = room
    depth = ring.shape[1]
    reach = depth - 1
    channels, columns = q.shape[1], q.shape[3]
    low, high, grouped = span.low, span.high, problem.grouped
    clear(ring)
    for begin in range(max(0, low - count * reach), rows + count * reach + 1, BLOCK_ROWS):
        if begin - count * reach >= high:
            break
        for j in range(count):
            for t in range(begin, begin + BLOCK_ROWS):
                k = count - 1 - j
                r = t - j * reach
                start = max(0, low - k * reach)
                stop = min(rows, high + k * reach)
                i = r - span.first
                if max(0, start - reach) <= r < min(rows, stop + reach):
                    owned = low <= r < high
                    _reverse_primal_row(
                        ring[j, r % depth], q, i, r,
                        tape.codes[0 if grouped else k, 0 if grouped else r],
                        tape.points[k if grouped else 0, r if grouped else 0],
                        bars.limits[r] if owned else bars.waste, weigh, sums, problem,
                    )  # fmt: skip
                    if owned:
                        for c in range(channels):
                            line = shifted(ring[j, r % depth, c], 0, columns)
                            add_line(bars.image[r, c], line)
                behind = r - reach
                if start <= behind < stop:
                    above = i - reach
                    _reverse_dual_row(q[above], before[above], ring[j], behind, betas[k], problem)


@compiled
def push_difference(q, u_bar, width, edges, first, last, down, across):
    """q −= ∇ū for first ≤ r < last: what arrives at p through u = y − ∇ᵀp."""
    channels, directions = q.shape[1:3]
    for r in range(first, last):
        for c in range(channels):
            here = u_bar[r, c]
            for e in range(directions):
                if e == across:
                    line = q[r, c, e]
                    for x in range(width - 1):
                        line[x] -= here[x + 1] - here[x]
                elif edges[e, r]:
                    _rise_line(q[r, c, e], here, u_bar[r + down[e], c], q.dtype.type(-1))


@compiled
def keep_edges(rows, edges, width, across):
    """Clears what belongs to no pair of neighbours, in (rows, channels, directions, columns)."""
    for r in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            for e in range(rows.shape[2]):
                line = rows[r, c, e]
                if e != across and not edges[e, r]:
                    clear(line)
                if e == across:
                    line[width - 1] = 0
                for x in range(width, line.size):
                    line[x] = 0
