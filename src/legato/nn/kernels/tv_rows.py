"""The dual FISTA iteration of total variation and its reverse sweep, row by row.

As in `potts_rows` several iterations are in flight: iteration j works on row t − jM at time t, M
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
# mypy: disable-error-code="call-arg, import-untyped"

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from legato.nn.kernels.numba_rows import (
    MARGIN,
    clear,
    compiled,
    copy_line,
    line_function,
    shifted,
    stream_line,
)
from legato.nn.kernels.vector_math import distinct

BLOCK = 4
"""Rows that an iteration advances before the next one has its turn: fewer leave the nearest cache
before they are needed again."""

_BYTE = ir.IntType(8)


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
def _primal_row(v, y, p, before, i, r, width, beta, down, across, zeros):
    """a over p₋ and v = y − ∇ᵀa of one row; the column after the last repeats it."""
    channels, directions, columns = p.shape[1:]
    for c in range(channels):
        line = shifted(v[c], 0, columns)
        copy_line(line, y[c])
        for e in range(directions):
            here = before[i, c, e]
            _ahead_line(p[i, c, e], here, beta)
            if e == across:
                _spread_across(line, here)
            else:
                inside = i >= down[e] and r >= down[e]
                _spread_down(line, here, before[i - down[e], c, e] if inside else zeros)
        v[c, MARGIN + width] = v[c, MARGIN + width - 1]


@line_function
def _advance_and_clip(
    v, y, down, across, before_down, before_across, above_down, above_across, here, beside,
    limit_down, limit_across, alpha, beta,
):  # fmt: skip
    """a and v of one row, and Π(a + α∇v) by clipping of the row above, for two directions."""
    distinct()
    left = v.dtype.type(0)
    for x in range(v.size):
        a = down[x] + beta * (down[x] - before_down[x])
        b = across[x] + beta * (across[x] - before_across[x])
        before_down[x] = a
        before_across[x] = b
        below = y[x] + (a - above_down[x]) + (b - left)
        left = b
        v[x] = below
        above_down[x] = _clipped(above_down[x] + alpha * (below - here[x]), limit_down[x])
        above_across[x] = _clipped(above_across[x] + alpha * (beside[x] - here[x]), limit_across[x])


@line_function
def _advance_and_clip_and_note(
    v, y, down, across, before_down, before_across, above_down, above_across, here, beside,
    limit_down, limit_across, alpha, beta, codes,
):  # fmt: skip
    """The same, leaving in `codes` what was clipped."""
    distinct()
    left = v.dtype.type(0)
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
        above_down[x] = _clipped(a, limit_down[x])
        above_across[x] = _clipped(b, limit_across[x])
        codes[x] = _joined(_code(a, limit_down[x]), _code(b, limit_across[x]), 2)


@line_function
def _advance_and_shrink(
    v, y, down, across, before_down, before_across, above_down, above_across, here, beside,
    limit, alpha, beta,
):  # fmt: skip
    """a and v of one row, and Π(a + α∇v) onto discs of the row above, for two directions."""
    distinct()
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
        square = a * a + b * b
        outside = square > limit[x] * limit[x]
        factor = limit[x] / math.sqrt(square if outside else one)
        factor = factor if outside else one
        above_down[x] = a * factor
        above_across[x] = b * factor


@line_function
def _advance_and_shrink_and_note(
    v, y, down, across, before_down, before_across, above_down, above_across, here, beside,
    limit, alpha, beta, tape_down, tape_across,
):  # fmt: skip
    """The same, leaving the projected points on the tape."""
    distinct()
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
        tape_down[x] = a
        tape_across[x] = b
        square = a * a + b * b
        outside = square > limit[x] * limit[x]
        factor = limit[x] / math.sqrt(square if outside else one)
        factor = factor if outside else one
        above_down[x] = a * factor
        above_across[x] = b * factor


@compiled
def _both_rows(
    y, p, before, i, r, width, limits, alpha, beta, v, codes, points, keep, grouped, sums
):  # fmt: skip
    """The primal update of row r and the dual one of the row above at once: two directions, one
    channel."""
    columns, depth = p.shape[3], v.shape[0]
    kinds, at = limits.shape[0], (r - 1) % limits.shape[1]
    line = shifted(v[r % depth, 0], 0, columns)
    here = shifted(v[(r - 1) % depth, 0], 0, columns)
    beside = shifted(v[(r - 1) % depth, 0], 1, columns)
    down, across = p[i, 0, 0], p[i, 0, 1]
    before_down, before_across = before[i, 0, 0], before[i, 0, 1]
    above_down, above_across = before[i - 1, 0, 0], before[i - 1, 0, 1]
    first, second = limits[0, at], limits[1 % kinds, at]
    if not grouped and keep:
        _advance_and_clip_and_note(
            line, y, down, across, before_down, before_across, above_down, above_across, here,
            beside, first, second, alpha, beta, codes,
        )  # fmt: skip
    elif not grouped:
        _advance_and_clip(
            line, y, down, across, before_down, before_across, above_down, above_across, here,
            beside, first, second, alpha, beta,
        )  # fmt: skip
    elif keep:
        # By way of the cache: written directly, the tape's old contents would be read first.
        _advance_and_shrink_and_note(
            line, y, down, across, before_down, before_across, above_down, above_across, here,
            beside, first, alpha, beta, sums[0, 0], sums[1, 0],
        )  # fmt: skip
        stream_line(points[0, 0], sums[0, 0])
        stream_line(points[0, 1], sums[1, 0])
    else:
        _advance_and_shrink(
            line, y, down, across, before_down, before_across, above_down, above_across, here,
            beside, first, alpha, beta,
        )  # fmt: skip
    v[r % depth, 0, MARGIN + width] = v[r % depth, 0, MARGIN + width - 1]


@line_function
def _rise_line(a, here, there, alpha):
    """a + α∇v, for one direction."""
    distinct()
    for x in range(a.size):
        a[x] += alpha * (there[x] - here[x])


@line_function
def _clip_line(z, limit):
    distinct()
    for x in range(z.size):
        z[x] = _clipped(z[x], limit[x])


@line_function
def _note_line(codes, z, limit, shift):
    distinct()
    for x in range(z.size):
        codes[x] = _joined(codes[x], _code(z[x], limit[x]), shift)


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
        outside = square[x] > limit[x] * limit[x]
        factor = limit[x] / math.sqrt(square[x] if outside else one)
        square[x] = factor if outside else one


@line_function
def _scale_line(z, factor):
    distinct()
    for x in range(z.size):
        z[x] *= factor[x]


@compiled
def _dual_row(
    a, v, r, edges, limits, alpha, down, across, codes, points, keep, grouped, by_direction, sums
):  # fmt: skip
    """p⁺ = Π(a + α∇v) of one row, over a. `grouped`: entries are projected together over the
    channels and, unless `by_direction`, over the directions."""
    channels, directions, columns = a.shape
    depth = v.shape[0]
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
            if e == across:
                _rise_line(z, here, shifted(v[r % depth, c], 1, columns), alpha)
            elif edges[e, r]:
                _rise_line(z, here, shifted(v[(r + down[e]) % depth, c], 0, columns), alpha)
            if grouped:
                _add_square(sums[0, e if by_direction else 0], z)
                if keep:
                    stream_line(points[c, e], z)
            else:
                limit = limits[e % kinds, at]
                if keep:
                    _note_line(codes, z, limit, 2 * e)
                _clip_line(z, limit)
    if grouped:
        for g in range(directions if by_direction else 1):
            _factor_line(sums[0, g], limits[g % kinds, at])
        for c in range(channels):
            for e in range(directions):
                _scale_line(a[c, e], sums[0, e if by_direction else 0])


@compiled
def advance(
    p, before, first_row, own, width, image, limits, edges, betas, alpha, down, across,
    codes, points, keep, grouped, by_direction, zeros, ring, sums,
):  # fmt: skip
    """As many iterations as there are betas, on the rows `own` of a band that starts at
    `first_row`, in place: after an odd number of them p and p₋ have changed places.

    The rows beyond `own` are a margin that shrinks by the reach of ∇ with every iteration; only
    rows of `own` are written to the tape, which is `codes` or, where entries are grouped, `points`.
    """
    count, rows = betas.size, edges.shape[1]
    depth = ring.shape[1]
    reach = depth - 1
    low, high = own
    simple = p.shape[1] == 1 and p.shape[2] == 2 and not (grouped and by_direction)
    clear(ring)
    for begin in range(max(0, low - count * reach), rows + count * reach + 1, BLOCK):
        if begin - count * reach >= high:
            break
        for j in range(count):
            for t in range(begin, begin + BLOCK):
                r = t - j * reach
                start = max(0, low - (count - 1 - j) * reach)
                stop = min(rows, high + (count - 1 - j) * reach)
                now, new = (p, before) if j % 2 == 0 else (before, p)
                behind = r - reach
                ahead = max(0, start - reach) <= r < min(rows, stop + reach)
                follows = start <= behind < stop
                noted = keep and low <= behind < high
                code, point = noted and not grouped, noted and grouped
                some_codes = codes[j if code else 0, behind if code else 0]
                some_points = points[j if point else 0, behind if point else 0]
                if simple and ahead and follows:
                    _both_rows(
                        image[r, 0], now, new, r - first_row, r, width, limits, alpha, betas[j],
                        ring[j], some_codes, some_points, noted, grouped, sums,
                    )  # fmt: skip
                    continue
                if ahead:
                    _primal_row(
                        ring[j, r % depth], image[r], now, new, r - first_row, r, width, betas[j],
                        down, across, zeros,
                    )  # fmt: skip
                if follows:
                    _dual_row(
                        new[behind - first_row], ring[j], behind, edges, limits, alpha, down,
                        across, some_codes, some_points, noted, grouped, by_direction, sums,
                    )  # fmt: skip


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
                    _add_line(u[r, c], p[r, c, e])


@line_function
def _add_line(total, x_line):
    distinct()
    for x in range(total.size):
        total[x] += x_line[x]


# --- the reverse sweep ----------------------------------------------------------------------------


@line_function
def _unclip_lines(w, down, across, above, codes):
    """z̄ over q for two directions at once, and w = ∇ᵀz̄."""
    distinct()
    left = w.dtype.type(0)
    for x in range(w.size):
        y = _kept(codes[x], 0, down[x])
        z = _kept(codes[x], 2, across[x])
        down[x] = y
        across[x] = z
        w[x] = above[x] - y + left - z
        left = z


@line_function
def _unclip_and_weigh_lines(w, down, across, above, codes, bar_down, bar_across):
    """The same, adding to the gradient of λ for each direction."""
    distinct()
    left = w.dtype.type(0)
    for x in range(w.size):
        bar_down[x] += _pushed(codes[x], 0, down[x])
        bar_across[x] += _pushed(codes[x], 2, across[x])
        y = _kept(codes[x], 0, down[x])
        z = _kept(codes[x], 2, across[x])
        down[x] = y
        across[x] = z
        w[x] = above[x] - y + left - z
        left = z


@line_function
def _unclip_and_weigh_both_lines(w, down, across, above, codes, bar):
    """The same, where both directions share λ."""
    distinct()
    left = w.dtype.type(0)
    for x in range(w.size):
        bar[x] += _pushed(codes[x], 0, down[x]) + _pushed(codes[x], 2, across[x])
        y = _kept(codes[x], 0, down[x])
        z = _kept(codes[x], 2, across[x])
        down[x] = y
        across[x] = z
        w[x] = above[x] - y + left - z
        left = z


@line_function
def _unshrink_lines(w, down, across, above, point_down, point_across, limit, bar):
    """z̄ = (λ/|z|)(q − n⟨n, q⟩) where z left its disc, q elsewhere; n = z/|z|; and w = ∇ᵀz̄."""
    distinct()
    zero, one = w.dtype.type(0), w.dtype.type(1)
    left = zero
    for x in range(w.size):
        y, z = point_down[x], point_across[x]
        square = y * y + z * z
        outside = square > limit[x] * limit[x]
        inverse = one / math.sqrt(square if outside else one)
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
def _unclip_line(q, codes, shift):
    distinct()
    for x in range(q.size):
        q[x] = _kept(codes[x], shift, q[x])


@line_function
def _weigh_line(bar, q, codes, shift):
    distinct()
    for x in range(q.size):
        bar[x] += _pushed(codes[x], shift, q[x])


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
        outside = square[x] > limit[x] * limit[x]
        inverse = one / math.sqrt(square[x] if outside else one)
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


@compiled
def _reverse_primal_row(
    w, q, i, r, width, limits, codes, points, bar, weigh, grouped, by_direction, down, across,
    zeros, sums,
):  # fmt: skip
    """z̄ = Π'ᵀq over q and w = ∇ᵀz̄ of one row; adds to the gradient of λ if `weigh`."""
    channels, directions, columns = q.shape[1:]
    # One index at a time: a slice along the directions would leave lines with a stride.
    kinds, at = limits.shape[0], r % limits.shape[1]
    if directions == 2 and channels == 1 and not (grouped and by_direction):
        line = shifted(w[0], 0, columns)
        above = q[i - 1, 0, 0] if i >= 1 and r >= 1 else zeros
        here, beside = q[i, 0, 0], q[i, 0, 1]
        if grouped:
            _unshrink_lines(
                line, here, beside, above, points[0, 0], points[0, 1], limits[0, at], bar[0]
            )
        elif not weigh:
            _unclip_lines(line, here, beside, above, codes)
        elif bar.shape[0] == 2:
            _unclip_and_weigh_lines(line, here, beside, above, codes, bar[0], bar[1])
        else:
            _unclip_and_weigh_both_lines(line, here, beside, above, codes, bar[0])
        w[0, MARGIN + width] = w[0, MARGIN + width - 1]
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
            else:
                if weigh:
                    _weigh_line(bar[e % bar.shape[0]], here, codes, 2 * e)
                _unclip_line(here, codes, 2 * e)
            # ∇ᵀ has the opposite sign of what is spread to v.
            if e == across:
                _gather_across(line, here)
            else:
                inside = i >= down[e] and r >= down[e]
                _spread_down(line, q[i - down[e], c, e] if inside else zeros, here)
        w[c, MARGIN + width] = w[c, MARGIN + width - 1]


@line_function
def _gather_across(w, here):
    """w += ∇ᵀ of the direction that leads to the next column."""
    distinct()
    left = w.dtype.type(0)
    for x in range(w.size):
        w[x] += left - here[x]
        left = here[x]


@line_function
def _share_lines(down, across, before_down, before_across, here, below, beside, alpha, beta, flush):
    """The cotangents of p and p₋ from z̄ and w, for two directions at once."""
    distinct()
    zero = down.dtype.type(0)
    for x in range(down.size):
        a = down[x] - alpha * (below[x] - here[x])
        b = across[x] - alpha * (beside[x] - here[x])
        a = a if abs(a) > flush else zero
        b = b if abs(b) > flush else zero
        down[x] = before_down[x] + (a + beta * a)
        across[x] = before_across[x] + (b + beta * b)
        before_down[x] = -beta * a
        before_across[x] = -beta * b


@line_function
def _share_line(q, before, here, there, alpha, beta, flush):
    """The same, for one direction."""
    distinct()
    zero = q.dtype.type(0)
    for x in range(q.size):
        a = q[x] - alpha * (there[x] - here[x])
        a = a if abs(a) > flush else zero
        q[x] = before[x] + (a + beta * a)
        before[x] = -beta * a


@compiled
def _reverse_dual_row(q, before, w, r, edges, alpha, beta, flush, down, across):
    """From z̄ to the cotangents of p and p₋: ā = z̄ − α∇w, (1 + β)ā and −βā."""
    channels, directions, columns = q.shape
    depth = w.shape[0]
    for c in range(channels):
        line = w[r % depth, c]
        here, beside = shifted(line, 0, columns), shifted(line, 1, columns)
        if directions == 2:
            _share_lines(
                q[c, 0], q[c, 1], before[c, 0], before[c, 1], here,
                shifted(w[(r + 1) % depth, c], 0, columns) if edges[0, r] else here,
                beside, alpha, beta, flush,
            )  # fmt: skip
            continue
        for e in range(directions):
            there = beside
            if e != across:
                there = shifted(w[(r + down[e]) % depth, c], 0, columns) if edges[e, r] else here
            _share_line(q[c, e], before[c, e], here, there, alpha, beta, flush)


@compiled
def retreat(
    q, before, first_row, own, width, limits, edges, betas, alpha, flush, down, across,
    codes, points, image_bar, limit_bar, weigh, grouped, by_direction, zeros, ring, sums, waste,
):  # fmt: skip
    """As many iterations of the reverse sweep as there are betas, in place.

    `image_bar` collects Σ w, to be multiplied by α. Rows of the margin leave the gradients of their
    λ in `waste`.
    """
    count, rows = betas.size, edges.shape[1]
    depth = ring.shape[1]
    reach = depth - 1
    channels, columns = q.shape[1], q.shape[3]
    low, high = own
    clear(ring)
    for begin in range(max(0, low - count * reach), rows + count * reach + 1, BLOCK):
        if begin - count * reach >= high:
            break
        for j in range(count):
            for t in range(begin, begin + BLOCK):
                k = count - 1 - j
                r = t - j * reach
                start = max(0, low - k * reach)
                stop = min(rows, high + k * reach)
                if max(0, start - reach) <= r < min(rows, stop + reach):
                    owned = low <= r < high
                    _reverse_primal_row(
                        ring[j, r % depth], q, r - first_row, r, width, limits,
                        codes[0 if grouped else k, 0 if grouped else r],
                        points[k if grouped else 0, r if grouped else 0],
                        limit_bar[r] if owned else waste, weigh, grouped, by_direction, down,
                        across, zeros, sums,
                    )  # fmt: skip
                    if owned:
                        for c in range(channels):
                            _add_line(image_bar[r, c], shifted(ring[j, r % depth, c], 0, columns))
                behind = r - reach
                if start <= behind < stop:
                    i = behind - first_row
                    _reverse_dual_row(
                        q[i],
                        before[i],
                        ring[j],
                        behind,
                        edges,
                        alpha,
                        betas[k],
                        flush,
                        down,
                        across,
                    )


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
