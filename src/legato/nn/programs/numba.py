"""Inverses and active sets of many small programs on a CPU: the loops of ``dual``, compiled.

An instance is a task, and its work arrays are its lane's. The first guess comes from coordinate
descent here, which is faster where steps follow each other and rows that do not move cost nothing.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from legato.nn.fused.workers import Workers

_CHUNKS = 8
"""Tasks per thread: instances differ in how long they take."""
_SWEEPS = 30
_STEADY = 2
"""Sweeps after which an active set that has not changed is tried."""

workers = Workers()
compiled = njit(
    cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy", _nrt=False
)


@compiled
def _factor(M, n):
    """The Cholesky factor in place, the reciprocals of its diagonal on the diagonal."""
    for i in range(n):
        for j in range(i):
            total = M[i, j]
            for k in range(j):
                total -= M[i, k] * M[j, k]
            M[i, j] = total * M[j, j]
        pivot = M[i, i]
        for k in range(i):
            pivot -= M[i, k] * M[i, k]
        if not pivot > 0:
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
        sound[b] = _factor(L, n)
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
def _at(D, t, lower, upper, zeta, row, order, part, right):
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
    if not _factor(part, k):
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
def _pivot(D, t, lower, upper, limit, wrong_size, patience, ends, zeta, row, order, part, right):
    """The active ends of one instance, and the guesses it took; negative where none was right."""
    M = t.size
    for i in range(M):
        zeta[i], row[i] = 0, t[i]
    steady = 0
    for _ in range(_SWEEPS):
        steady = steady + 1 if _sweep(D, t, lower, upper, zeta, row) == 0 else 0
        if steady == _STEADY:
            break
    fewest, left = M + 1, patience
    for step in range(1, limit + 1):
        for i in range(M):
            ends[i] = np.sign(zeta[i])
        if not _at(D, t, lower, upper, zeta, row, order, part, right):
            return -step
        count, last = 0, -1
        for i in range(M):
            size = wrong_size * (1 + abs(row[i]))
            # order[i] is free now: what row i would become, its own end where it is right.
            if ends[i] != 0:
                order[i] = 0 if ends[i] * zeta[i] < 0 else ends[i]
            else:
                order[i] = (row[i] > upper[i] + size) - (row[i] < lower[i] - size)
            if order[i] != ends[i]:
                count, last = count + 1, i
        if count == 0:
            return step
        left = patience if count < fewest else left - 1
        fewest = min(fewest, count)
        for i in range(M):
            zeta[i] = order[i] if left >= 0 or i == last else ends[i]
    return -limit


@compiled
def _pivots(D, t, lower, upper, limit, wrong, patience, ends, steps, low, high, work, order, part):
    for b in range(low, high):
        steps[b] = _pivot(
            D[b], t[b], lower[b], upper[b], limit, wrong, patience, ends[b],
            work[0], work[1], order, part, work[2],
        )  # fmt: skip


def _in_chunks(size: int, run) -> None:
    threads = torch.get_num_threads()
    chunks = min(size, _CHUNKS * threads if threads > 1 else 1)
    workers(lambda i, lane: run(i * size // chunks, (i + 1) * size // chunks), chunks, threads)


def inverses(Q: Tensor) -> tuple[Tensor, Tensor]:
    """Q⁻¹ for every instance, zero where Q is not positive definite, and where it is."""
    H, n = torch.empty_like(Q, memory_format=torch.contiguous_format), Q.shape[-1]
    sound = torch.empty(Q.shape[0], dtype=torch.bool)
    given, out, flags = Q.numpy(), H.numpy(), sound.numpy()

    def run(low: int, high: int) -> None:
        _invert(given, out, flags, low, high, np.empty((n, n)), np.empty((n, n)))

    _in_chunks(Q.shape[0], run)
    return H, sound


def active_ends(
    D: Tensor, t: Tensor, lower: Tensor, upper: Tensor, limit: int, wrong: float, patience: int
) -> tuple[Tensor, Tensor]:
    """The active ends of every instance, and how many guesses it took; −that where none was right.

    Args:
        D (Tensor): (B, M, M).
        t (Tensor): (B, M).
        lower (Tensor): (B, M), likewise upper.
        upper (Tensor): as lower.
        limit (int): guesses, at most.
        wrong (float): what counts as violated, relative.
        patience (int): blocks that may fail before single rows are exchanged.
    """
    B, M = t.shape
    ends, steps = torch.empty_like(t), torch.empty(B, dtype=torch.long)
    given = [value.contiguous().numpy() for value in (D, t, lower, upper)]
    out, counts = ends.numpy(), steps.numpy()

    def run(low: int, high: int) -> None:
        work, order, part = np.empty((3, M)), np.empty(M, np.int64), np.empty((M, M))
        _pivots(*given, limit, wrong, patience, out, counts, low, high, work, order, part)

    _in_chunks(B, run)
    return ends, steps
