"""Inverses and active sets of many small programs on a GPU: one launch for all instances.

These are the loops of ``dual``; an instance is a program of the kernel, and its matrix stays in
registers. A guess is a principal pivot
transform of D: with the active rows 𝒜 swept, T holds −D_𝒜𝒜⁻¹ and D_𝒜̄𝒜 D_𝒜𝒜⁻¹, so that one product
with T gives the multipliers of active rows and the values of the others, and a row that enters or
leaves costs one update of rank one. What rounding does to T along the way does no harm: points are
judged afterwards by systems made anew. Reference: Tsatsomeros (2000), *Principal pivot transforms:
properties and applications*.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, attr-defined"

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato.nn.fused.replay import INTERPRETED

_OPTIONS = {16: {"num_warps": 1}, 32: {"num_warps": 4}, 64: {"num_warps": 16, "maxnreg": 128}}
"""By the number of rows: so many warps that a matrix fits into their registers."""
_TURNS = 4
"""Turns of sweeps and exchanges; each has _MORE times as many sweeps as the one before."""
_SWEEPS, _MORE = 24, 5


@triton.jit
def _sign(v):
    return (v > 0).to(tl.int32) - (v < 0).to(tl.int32)


@triton.jit
def _swept(T, at, s):
    """T after row and column ``at`` have changed sides, and whether that was possible.

    s is 1 for a row that becomes active, −1 for one that was.
    """
    row = tl.sum(tl.where(at[:, None], T, 0.0), 0)
    pivot = tl.sum(tl.where(at, row, 0.0), 0)
    sound = pivot * s > 0
    inverse = tl.where(sound, 1 / pivot, 0.0)
    across, both = at[:, None] | at[None, :], at[:, None] & at[None, :]
    inner = T - row[:, None] * (row * inverse)[None, :]
    T = tl.where(across, T * (s * inverse), inner)
    return tl.where(both, -inverse, T), sound.to(tl.int32)


@triton.jit
def _descended(E, t, lower, upper, zeta, before, count, sweeps):
    """Accelerated steps of the projected gradient for rows of length one."""
    step = 1 / tl.maximum(tl.max(tl.sum(tl.abs(E), 1), 0), 1.0)
    low, high, start = lower * step, upper * step, t * step
    for _ in range(sweeps):
        ahead = zeta + count / (count + 3) * (zeta - before)
        value = start + ahead - step * tl.sum(E * ahead[None, :], 1)
        before = zeta
        zeta = value - tl.minimum(tl.maximum(value, low), high)
        count += 1
    return zeta, before, count


@triton.jit(do_not_specialize=["limit", "turn", "patience"])
def _pivots(
    D, t, lower, upper, begin, ends, steps, M, limit, turn, patience,
    WRONG: tl.constexpr, TURNS: tl.constexpr, SWEEPS: tl.constexpr, MORE: tl.constexpr,
    BEGUN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The right ends of one instance, and how many guesses it took; −that where none was right."""
    instance = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    inside = i < M
    entries = D + instance * M * M + i[:, None] * M + i[None, :]
    within = inside[:, None] & inside[None, :]
    place = instance * M + i
    centre = tl.load(t + place, mask=inside, other=0.0)
    low = tl.load(lower + place, mask=inside, other=float("-inf"))
    high = tl.load(upper + place, mask=inside, other=float("inf"))
    zeta = tl.zeros((SIZE,), dtype=tl.float64)
    before = tl.zeros((SIZE,), dtype=tl.float64)
    count = tl.zeros((SIZE,), dtype=tl.float64)
    end = tl.zeros((SIZE,), dtype=tl.int32)
    arrived, total, attempt, sweeps = 0, 0, 0, SWEEPS
    while (arrived == 0) & (attempt < TURNS) & (total < limit):
        if BEGUN and attempt == 0:
            end = _sign(tl.load(begin + place, mask=inside, other=0.0))
        else:
            E = tl.load(entries, mask=within, other=0.0)
            size = tl.sum(tl.where(i[:, None] == i[None, :], E, 0.0), 1)
            root = 1 / tl.sqrt(tl.where(size > 0, size, 1.0))
            E = E * root[:, None] * root[None, :]
            zeta, before, count = _descended(
                E, centre * root, low * root, high * root, zeta, before, count, sweeps
            )
            end = _sign(zeta)
            sweeps *= MORE
        # Loaded again: to keep it beside E would cost registers.
        T = tl.load(entries, mask=within, other=0.0, cache_modifier=".cg")
        active = tl.zeros((SIZE,), dtype=tl.int32)
        going, step, fewest, left = 1, 0, SIZE + 1, patience
        most = tl.maximum(tl.minimum(limit - total, turn), 1)
        while going == 1:
            sound = 1
            changing = tl.sum(((end != 0).to(tl.int32) != active).to(tl.int32), 0)
            while changing > 0:
                differs = (end != 0).to(tl.int32) != active
                at = i == tl.min(tl.where(differs, i, SIZE), 0)
                leaves = tl.sum(tl.where(at, active, 0), 0)
                T, possible = _swept(T, at, (1 - 2 * leaves).to(tl.float64))
                sound = sound * possible
                active = tl.where(at, 1 - active, active)
                changing -= 1
            step += 1
            held = tl.where(end > 0, high, low)
            moved = tl.sum(T * tl.where(end != 0, centre - held, 0.0)[None, :], 1)
            row = centre - moved
            rounding = WRONG * (1 + tl.abs(row))
            over = (row > high + rounding).to(tl.int32) - (row < low - rounding).to(tl.int32)
            stays = (end > 0) & (moved <= 0) | (end < 0) & (moved >= 0)
            target = tl.where(end != 0, tl.where(stays, end, 0), over)
            wrong = target != end
            number = tl.sum(wrong.to(tl.int32), 0)
            left = tl.where(number < fewest, patience, left - 1)
            fewest = tl.minimum(number, fewest)
            arrived = sound * (number == 0).to(tl.int32)
            going = sound * (number > 0).to(tl.int32) * (step < most).to(tl.int32)
            last = tl.max(tl.where(wrong, i, -1), 0)
            moving = wrong & ((left >= 0) | (i == last)) & (going == 1)
            end = tl.where(moving, target, end)
        total += step
        attempt += 1
    tl.store(ends + place, end.to(tl.float64), mask=inside)
    tl.store(steps + instance, tl.where(arrived == 1, total, -total).to(tl.int64))


@triton.jit
def _invert(M, inverse, sound, n, SIZE: tl.constexpr):
    """The inverse of one instance by pivots on its diagonal, all positive where M is definite."""
    instance = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    entries = instance * n * n + i[:, None] * n + i[None, :]
    within = (i[:, None] < n) & (i[None, :] < n)
    T = tl.load(M + entries, mask=within, other=0.0)
    definite = 1
    for k in range(n):
        T, possible = _swept(T, i == k, 1.0)
        definite = definite * possible
    tl.store(inverse + entries, tl.where(definite == 1, -T, 0.0), mask=within)
    tl.store(sound + instance, definite.to(tl.int8))


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels go to the current device, which need not be that of the data."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _options(size: int) -> dict[str, int]:
    return {} if INTERPRETED else _OPTIONS[size]


def _padded(size: int) -> int:
    return max(min(_OPTIONS), triton.next_power_of_2(size))


def inverses(M: Tensor) -> tuple[Tensor, Tensor]:
    """M⁻¹ for every instance, zero where M is not positive definite, and where it is."""
    B, n = M.shape[:2]
    M, inverse = M.contiguous(), torch.empty(B, n, n, dtype=M.dtype, device=M.device)
    sound, size = torch.empty(B, dtype=torch.int8, device=M.device), _padded(n)
    with _on(M.device):
        _invert[(B,)](M, inverse, sound, n, SIZE=size, **_options(size))
    return inverse, sound.bool()


def active_ends(
    dual: Sequence[Tensor],
    begin: Tensor | None,
    limit: int,
    turn: int,
    wrong: float,
    patience: int,
) -> tuple[Tensor, Tensor]:
    """The active ends of every instance, and how many guesses it took; −that where none was right.

    Args:
        dual (Sequence[Tensor]): D, t, lower, upper; at most 64 rows.
        begin (Tensor, optional): ends to try first.
        limit (int): guesses, at most.
        turn (int): guesses between two turns of sweeps, at most.
        wrong (float): what counts as violated, relative.
        patience (int): blocks that may fail before single rows are exchanged.
    """
    D, t, lower, upper = (value.contiguous() for value in dual)
    B, M = t.shape
    ends = torch.empty_like(t)
    steps = torch.empty(B, dtype=torch.long, device=t.device)
    size = _padded(M)
    first = t if begin is None else begin.to(t).contiguous()
    with _on(t.device):
        _pivots[(B,)](
            D, t, lower, upper, first, ends, steps, M, limit, turn, patience,
            WRONG=wrong, TURNS=_TURNS + (begin is not None), SWEEPS=_SWEEPS, MORE=_MORE,
            BEGUN=begin is not None, SIZE=size, **_options(size),
        )  # fmt: skip
    return ends, steps
