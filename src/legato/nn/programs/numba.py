"""Inverses and active sets of many small programs on a CPU: the loops of ``dual``, compiled.

An instance is a task, and its work arrays are its lane's. The first guess comes from coordinate
descent here, which is faster where steps follow each other and rows that do not move cost nothing.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
# mypy: disable-error-code="call-arg"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from legato.nn.fused.workers import Workers

_CHUNKS = 8
"""Tasks per thread: instances differ in how long they take."""
_SWEEPS = 30
"""Sweeps before the first guess."""
_GOOD = 1e-15
"""A system solved up to here, relative, needs no further refinement."""
_TURNS = 10
"""Of as many pivots as there are rows, at most; each counts as a guess."""
_STEADY = 3
"""An active set is tried early if so many sweeps have not changed it."""

workers = Workers()
compiled = njit(
    cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy", _nrt=False
)


@compiled
def _factor(M, n, least):
    """The Cholesky factor in place, the reciprocals of its diagonal on the diagonal.

    False where a pivot is less than such a share of its diagonal.
    """
    for i in range(n):
        for j in range(i):
            total = M[i, j]
            for k in range(j):
                total -= M[i, k] * M[j, k]
            M[i, j] = total * M[j, j]
        pivot, bound = M[i, i], least * M[i, i]
        for k in range(i):
            pivot -= M[i, k] * M[i, k]
        if not pivot > bound:
            return False
        M[i, i] = 1 / np.sqrt(pivot)
    return True


@compiled
def _solve(L, n, v):
    """v ← (LLᵀ)⁻¹v."""
    for i in range(n):
        total = v[i]
        for k in range(i):
            total -= L[i, k] * v[k]
        v[i] = total * L[i, i]
    for i in range(n - 1, -1, -1):
        v[i] *= L[i, i]
        for k in range(i):
            v[k] -= L[i, k] * v[i]


@compiled
def _invert(Q, H, sound, low, high, L, R):
    """Inverses of the positive definite among Q, instance by instance; zero where it is not."""
    n = Q.shape[1]
    for b in range(low, high):
        for i in range(n):
            for j in range(n):
                H[b, i, j] = 0
                R[i, j] = 0
                L[i, j] = Q[b, i, j]
        sound[b] = _factor(L, n, 0.0)
        if not sound[b]:
            continue
        for i in range(n):  # R = L⁻¹: each row is a sum of the rows before it
            for k in range(i):
                factor = -L[i, k] * L[i, i]
                for j in range(k + 1):
                    R[i, j] += factor * R[k, j]
            R[i, i] = L[i, i]
        for k in range(n):  # H = RᵀR
            for i in range(k + 1):
                factor = R[k, i]
                for j in range(i + 1):
                    H[b, i, j] += factor * R[k, j]
        for i in range(n):
            for j in range(i):
                H[b, j, i] = H[b, i, j]


@compiled
def _sweep(D, t, lower, upper, zeta, row):
    """One round of coordinate descent; how many signs it changed."""
    changed = 0
    for i in range(t.size):
        if D[i, i] <= 0:
            continue
        alone = row[i] + D[i, i] * zeta[i]
        new = (alone - min(max(alone, lower[i]), upper[i])) / D[i, i]
        move = new - zeta[i]
        if move != 0:
            changed += (new > 0) != (zeta[i] > 0) or (new < 0) != (zeta[i] < 0)
            zeta[i] = new
            for j in range(t.size):
                row[j] -= move * D[i, j]
    return changed


@compiled
def _at(D, t, lower, upper, dependent, zeta, row, order, part, right):
    """ζ and Cx with the rows at their ends that ζ's signs name; False where that is singular."""
    M, k = t.size, 0
    for i in range(M):
        if zeta[i] != 0:
            order[k] = i
            k += 1
    for i in range(k):
        for j in range(i + 1):
            part[i, j] = D[order[i], order[j]]
        at = order[i]
        right[i] = t[at] - (upper[at] if zeta[at] > 0 else lower[at])
    if not _factor(part, k, dependent):
        return False
    _solve(part, k, right)
    for i in range(M):
        row[i] = t[i]
    for i in range(k):
        for j in range(M):
            row[j] -= right[i] * D[order[i], j]
    for i in range(k):
        zeta[order[i]] = right[i]
    return True


@compiled
def _exchange(
    D, t, lower, upper, limit, wrong, dependent, patience, ends, zeta, row, order, part, right
):  # fmt: skip
    """From the ends that ζ's signs name to the right ones: the guesses that took, or −that."""
    M = t.size
    fewest, left = M + 1, patience
    for step in range(1, limit + 1):
        for i in range(M):
            ends[i] = np.sign(zeta[i])
        if not _at(D, t, lower, upper, dependent, zeta, row, order, part, right):
            return -step
        count = 0
        for i in range(M):
            size = wrong * (1 + abs(row[i]))
            # order[i] is free now: the end at which row i belongs.
            if ends[i] != 0:
                order[i] = 0 if ends[i] * zeta[i] < 0 else ends[i]
            else:
                order[i] = (row[i] > upper[i] + size) - (row[i] < lower[i] - size)
            count += order[i] != ends[i]
        if count == 0:
            return step
        left = patience if count < fewest else left - 1
        fewest = min(fewest, count)
        if left < 0:
            return -step
        for i in range(M):
            zeta[i] = order[i]
    return -limit


@compiled
def _swept(T, at, s):
    """T after row and column ``at`` have changed sides: s is 1 for one that becomes active."""
    M, inverse = T.shape[0], 1 / T[at, at]
    for i in range(M):
        if i != at:
            factor = T[i, at] * inverse
            for j in range(M):
                if j != at:
                    T[i, j] -= factor * T[at, j]
    for j in range(M):
        T[at, j] *= s * inverse
        T[j, at] = T[at, j]
    T[at, at] = -inverse


@compiled
def _enter(D, t, lower, upper, limit, wrong, dependent, ends, value, T):
    """The right ends from none, by one row after another: the pivots that took, or −that.

    The row that is violated most enters. Its multiplier grows until the row holds, and each that
    falls to zero on the way leaves; a row that depends on the active ones only makes them leave.
    Without any that can, no point satisfies the rows.
    """
    M = t.size
    at, side, force, full = -1, 0.0, 0.0, 0.0
    for i in range(M):
        ends[i] = 0
        for j in range(M):
            T[i, j] = D[i, j]
    for step in range(1, limit + 1):
        for i in range(M):
            value[i] = 0.0
        for j in range(M):
            if ends[j] != 0:
                held = t[j] - (upper[j] if ends[j] > 0 else lower[j])
                for i in range(M):
                    value[i] += T[j, i] * held
        if at < 0:
            most = wrong
            for i in range(M):
                if ends[i] == 0:
                    row = t[i] - value[i]
                    over = max(row - upper[i], lower[i] - row) / (1 + abs(row))
                    if over > most:
                        most, at, side = over, i, 1.0 if row > upper[i] else -1.0
            if at < 0:
                return step
        missing = t[at] - (upper[at] if side > 0 else lower[at]) - value[at] - T[at, at] * force
        full = np.inf
        if T[at, at] > dependent * D[at, at]:
            full = side * missing / T[at, at]
        least, out = np.inf, -1
        for i in range(M):
            rate = side * ends[i] * T[at, i]
            if rate > 0:
                ratio = -ends[i] * (value[i] + T[at, i] * force) / rate
                if ratio < least:
                    least, out = ratio, i
        if full <= least and full < np.inf:
            ends[at] = side
            _swept(T, at, 1.0)
            at, force = -1, 0.0
        elif out >= 0:
            ends[out] = 0
            _swept(T, out, -1.0)
            force += side * max(least, 0.0)
        else:
            return -step
    return -limit


@compiled
def _pivot(
    D, t, lower, upper, begin, limit, wrong, dependent, patience, ends, work, order, part
):  # fmt: skip
    """All guesses, negative without success: from ``begin``, unless empty; by sweeps; from none."""
    zeta, row, right = work[0], work[1], work[2]
    total = 0
    for attempt in range(2):
        if attempt == 0:
            if not begin.size:
                continue
            for i in range(t.size):
                zeta[i] = begin[i]
        else:
            for i in range(t.size):
                zeta[i], row[i] = 0, t[i]
            steady = 0
            for _ in range(_SWEEPS):
                changed = _sweep(D, t, lower, upper, zeta, row)
                steady = steady + 1 if changed == 0 else 0
                if steady == _STEADY:
                    break
        taken = _exchange(
            D, t, lower, upper, limit - total, wrong, dependent, patience, ends,
            zeta, row, order, part, right,
        )  # fmt: skip
        total += abs(taken)
        if taken > 0:
            return total
        if total >= limit:
            return -total
    M = t.size
    taken = _enter(
        D, t, lower, upper, min(limit - total, _TURNS) * M, wrong, dependent, ends, row, part
    )  # fmt: skip
    total += (abs(taken) + M - 1) // M
    return total if taken > 0 else -total


@compiled
def _pivots(
    D, t, lower, upper, begin, limit, wrong, dependent, patience,
    ends, steps, low, high, work, order, part,
):  # fmt: skip
    for b in range(low, high):
        steps[b] = _pivot(
            D[b], t[b], lower[b], upper[b], begin[b], limit, wrong, dependent, patience,
            ends[b], work, order, part,
        )  # fmt: skip


@compiled
def _add(M, v, factor, out):
    """out += factor·Mv."""
    for i in range(M.shape[0]):
        total = 0.0
        for j in range(M.shape[1]):
            total += M[i, j] * v[j]
        out[i] += factor * total


@compiled
def _add_transposed(M, v, factor, out):
    """out += factor·Mᵀv."""
    for i in range(M.shape[0]):
        scale = factor * v[i]
        for j in range(M.shape[1]):
            out[j] += scale * M[i, j]


@compiled
def _largest(v):
    size = 0.0
    for i in range(v.size):
        size = max(size, abs(v[i]))
    return size


@compiled
def _refined(Q, A, W, H, Y, S, Z, counts, right, out, missing, rounds, good, low, high, work):
    """(x, y, z) = KKT⁻¹ (right) by the inverses of its parts, refined until little is missing."""
    n, p = Q.shape[1], A.shape[1]
    for b in range(low, high):
        k = counts[b]
        rows, inverse = W[b, :k], Z[b, :k, :k]
        for i in range(out.shape[1]):
            out[b, i] = 0
            work[0, i] = right[b, i] if i < n + p + k else 0
        x, y, z = out[b, :n], out[b, n : n + p], out[b, n + p : n + p + k]
        r_x, r_y, r_z = work[0, :n], work[0, n : n + p], work[0, n + p : n + p + k]
        size = good * _largest(work[0])
        pull, d_z, held = work[1, :n], work[2, :k], work[3, :k]
        for _ in range(rounds + 1):
            # z = Z(W(Hr + Yr_y) − r_z), then x and y for what is left of r_x.
            pull[:], d_z[:], held[:] = 0, 0, 0
            _add(H[b], r_x, 1.0, pull)
            _add(Y[b], r_y, 1.0, pull)
            _add(rows, pull, 1.0, held)
            for i in range(k):
                held[i] -= r_z[i]
            _add(inverse, held, 1.0, d_z)
            for i in range(n):
                pull[i] = r_x[i]
            _add_transposed(rows, d_z, -1.0, pull)
            _add(H[b], pull, 1.0, x)
            _add(Y[b], r_y, 1.0, x)
            _add_transposed(Y[b], pull, 1.0, y)
            _add(S[b], r_y, -1.0, y)
            for i in range(k):
                z[i] += d_z[i]
            for i in range(n + p + k):
                work[0, i] = right[b, i]
            _add(Q[b], x, -1.0, r_x)
            _add_transposed(A[b], y, -1.0, r_x)
            _add_transposed(rows, z, -1.0, r_x)
            _add(A[b], x, -1.0, r_y)
            _add(rows, x, -1.0, r_z)
            missing[b] = _largest(work[0])
            if missing[b] <= size:
                break


def _in_chunks(size: int, run) -> None:
    if size == 0:
        return
    threads = torch.get_num_threads()
    chunks = min(size, _CHUNKS * threads if threads > 1 else 1)
    workers(lambda i, lane: run(i * size // chunks, (i + 1) * size // chunks), chunks, threads)


def inverses(Q: Tensor) -> tuple[Tensor, Tensor]:
    """Q⁻¹ for every instance, zero where Q is not positive definite, and where it is."""
    H, n = torch.empty_like(Q, memory_format=torch.contiguous_format), Q.shape[-1]
    sound = torch.empty(Q.shape[0], dtype=torch.bool)
    given, out, flags = Q.contiguous().numpy(), H.numpy(), sound.numpy()

    def run(low: int, high: int) -> None:
        _invert(given, out, flags, low, high, np.empty((n, n)), np.empty((n, n)))

    _in_chunks(Q.shape[0], run)
    return H, sound


def active_ends(
    dual: Sequence[Tensor],
    begin: Tensor | None,
    limit: int,
    wrong: float,
    dependent: float,
    patience: int,
) -> tuple[Tensor, Tensor]:
    """The active ends of every instance, and how many guesses it took; −that where none was right.

    Args:
        dual (Sequence[Tensor]): D, t, lower, upper.
        begin (Tensor, optional): ends to try first.
        limit (int): guesses, at most.
        wrong (float): what counts as violated, relative.
        dependent (float): the share of a pivot below which a row depends on the active ones.
        patience (int): blocks that may fail before rows enter one by one.
    """
    t = dual[1]
    B, M = t.shape
    ends, steps = (
        torch.empty_like(t, memory_format=torch.contiguous_format),
        torch.empty(B, dtype=torch.long),
    )
    first = t.new_empty(B, 0) if begin is None else begin
    given = [value.contiguous().numpy() for value in (*dual, first)]
    out, counts = ends.numpy(), steps.numpy()

    def run(low: int, high: int) -> None:
        work, order, part = np.empty((3, M)), np.empty(M, np.int64), np.empty((M, M))
        _pivots(
            *given, limit, wrong, dependent, patience, out, counts, low, high, work, order, part
        )

    _in_chunks(B, run)
    return ends, steps


def refined(parts: Sequence[Tensor], counts: Tensor, right: Tensor, rounds: int) -> Any:
    """The solutions (B, n + p + k) for such right-hand sides, and what they miss.

    Args:
        parts (Sequence[Tensor]): Q, A, W, H, Y, S, Z.
        counts (Tensor): how many rows of W are real.
        right (Tensor): (B, n + p + k).
        rounds (int): refinements, at most.
    """
    out, missing = torch.empty_like(right), right.new_empty(right.shape[0])
    given = [part.contiguous().numpy() for part in (*parts, counts, right)]
    done = out.numpy(), missing.numpy()

    def run(low: int, high: int) -> None:
        _refined(*given, *done, rounds, _GOOD, low, high, np.empty((4, right.shape[1])))

    _in_chunks(right.shape[0], run)
    return out, missing
