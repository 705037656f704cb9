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
_SWEEPS = 24
"""Steps of the projected gradient before the first guess."""
_TURNS = 10
"""Of as many pivots as there are rows, at most; each counts as a guess."""


@triton.jit
def _sign(v):
    return (v > 0).to(tl.int32) - (v < 0).to(tl.int32)


@triton.jit
def _swept(T, at, s, least):
    """T after row and column ``at`` have changed sides, and whether the pivot is more than least.

    s is 1 for a row that becomes active, −1 for one that was.
    """
    row = tl.sum(tl.where(at[:, None], T, 0.0), 0)
    pivot = tl.sum(tl.where(at, row, 0.0), 0)
    sound = pivot * s > least
    inverse = tl.where(sound, 1 / pivot, 0.0)
    across, both = at[:, None] | at[None, :], at[:, None] & at[None, :]
    inner = T - row[:, None] * (row * inverse)[None, :]
    T = tl.where(across, T * (s * inverse), inner)
    return tl.where(both, -inverse, T), sound.to(tl.int32)


@triton.jit
def _descended(E, t, lower, upper, sweeps):
    """ζ after accelerated steps of the projected gradient, for rows of length one."""
    step = 1 / tl.maximum(tl.max(tl.sum(tl.abs(E), 1), 0), 1.0)
    low, high, start = lower * step, upper * step, t * step
    zeta, before, count = tl.zeros_like(t), tl.zeros_like(t), 0.0
    for _ in range(sweeps):
        ahead = zeta + count / (count + 3) * (zeta - before)
        value = start + ahead - step * tl.sum(E * ahead[None, :], 1)
        before = zeta
        zeta = value - tl.minimum(tl.maximum(value, low), high)
        count += 1
    return zeta


@triton.jit
def _exchanged(T, end, centre, low, high, least, i, most, patience, WRONG, SIZE: tl.constexpr):
    """From a guess of the ends to the right ones, whether they are, and the guesses that took.

    All wrong rows change sides at once, while that makes them fewer.
    """
    active = tl.zeros((SIZE,), dtype=tl.int32)
    arrived, going, step, fewest, left = 0, 1, 0, SIZE + 1, patience
    while going == 1:
        sound = 1
        changing = tl.sum(((end != 0).to(tl.int32) != active).to(tl.int32), 0)
        while changing > 0:
            differs = (end != 0).to(tl.int32) != active
            at = i == tl.min(tl.where(differs, i, SIZE), 0)
            leaves = tl.sum(tl.where(at, active, 0), 0)
            bound = tl.sum(tl.where(at & (active == 0), least, 0.0), 0)
            T, possible = _swept(T, at, (1 - 2 * leaves).to(tl.float64), bound)
            sound = sound * possible
            active = tl.where(at, 1 - active, active)
            changing = tl.where(sound == 1, changing - 1, 0)
        step += 1
        held = tl.where(end > 0, high, low)
        moved = tl.sum(T * tl.where(end != 0, centre - held, 0.0)[None, :], 1)
        row = centre - moved
        rounding = WRONG * (1 + tl.abs(row))
        over = (row > high + rounding).to(tl.int32) - (row < low - rounding).to(tl.int32)
        stays = (end > 0) & (moved <= 0) | (end < 0) & (moved >= 0)
        target = tl.where(end != 0, tl.where(stays, end, 0), over)
        number = tl.sum((target != end).to(tl.int32), 0)
        left = tl.where(number < fewest, patience, left - 1)
        fewest = tl.minimum(number, fewest)
        arrived = sound * (number == 0).to(tl.int32)
        going = sound * (number > 0).to(tl.int32) * (left >= 0).to(tl.int32)
        going = going * (step < most).to(tl.int32)
        end = tl.where(going == 1, target, end)
    return end, arrived, step


@triton.jit
def _entered(T, centre, low, high, least, i, most, WRONG, SIZE: tl.constexpr):
    """The right ends from none, by one row after another; whether they are, and the pivots.

    The row that is violated most enters. Its multiplier grows until the row holds, and each that
    falls to zero on the way leaves; a row that depends on the active ones only makes them leave.
    Without any that can, no point satisfies the rows.
    """
    end = tl.zeros((SIZE,), dtype=tl.int32)
    nothing = tl.zeros_like(centre)
    which, side, arrived, going, step = SIZE, 0, 0, 1, 0
    force = tl.sum(nothing, 0)
    while going == 1:
        held = tl.where(end > 0, high, low)
        moved = tl.sum(T * tl.where(end != 0, centre - held, 0.0)[None, :], 1)
        row = centre - moved
        over = tl.maximum(row - high, low - row) / (1 + tl.abs(row))
        over = tl.where(end == 0, over, float("-inf"))
        worst = tl.max(over, 0)
        fresh = which == SIZE
        which = tl.where(fresh, tl.min(tl.where(over == worst, i, SIZE), 0), which)
        at = i == which
        above = tl.sum((at & (row > high)).to(tl.int32), 0)
        side = tl.where(fresh, 2 * above - 1, side)
        arrived = (fresh & (worst <= WRONG)).to(tl.int32)
        column = tl.sum(tl.where(at[None, :], T, 0.0), 1)
        now = moved + column * force
        missing = tl.sum(tl.where(at, centre - now - tl.where(side > 0, high, low), 0.0), 0)
        pivot = tl.sum(tl.where(at, column, 0.0), 0)
        independent = pivot > tl.sum(tl.where(at, least, 0.0), 0)
        full = side * missing / tl.where(independent, pivot, 1.0)
        full = tl.where(independent, full, float("inf"))
        rate = (side * end) * column
        falls = (end != 0) & (rate > 0)
        ratio = -end * now / tl.where(falls, rate, 1.0)
        ratio = tl.where(falls, ratio, float("inf"))
        first = tl.min(ratio, 0)
        enters = full <= first
        possible = tl.minimum(full, first) < float("inf")
        going = (1 - arrived) * possible.to(tl.int32)
        turns = tl.where(enters, which, tl.min(tl.where(ratio == first, i, SIZE), 0))
        sign = tl.where(enters, 1, -1)
        if going == 1:
            T, _ = _swept(T, i == turns, sign.to(tl.float64), 0.0)
            end = tl.where(i == turns, tl.where(enters, side, 0), end)
            force = tl.where(enters, 0.0, force + side * tl.maximum(first, 0.0))
            which = tl.where(enters, SIZE, which)
        step += 1
        going = going * (step < most).to(tl.int32)
    return end, arrived, step


@triton.jit(do_not_specialize=["limit", "patience"])
def _pivots(
    D, t, lower, upper, begin, ends, steps, M, limit, patience,
    WRONG: tl.constexpr, DEPENDENT: tl.constexpr, SWEEPS: tl.constexpr, TURNS: tl.constexpr,
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
    size = tl.load(D + instance * M * M + i * (M + 1), mask=inside, other=0.0)
    least = DEPENDENT * size
    arrived, total = 0, 0
    end = tl.zeros((SIZE,), dtype=tl.int32)
    if BEGUN:
        end = _sign(tl.load(begin + place, mask=inside, other=0.0))
        T = tl.load(entries, mask=within, other=0.0)
        end, arrived, total = _exchanged(
            T, end, centre, low, high, least, i, limit, patience, WRONG, SIZE
        )
    if (arrived == 0) & (total < limit):
        root = 1 / tl.sqrt(tl.where(size > 0, size, 1.0))
        E = tl.load(entries, mask=within, other=0.0) * root[:, None] * root[None, :]
        end = _sign(_descended(E, centre * root, low * root, high * root, SWEEPS))
        # Loaded again, here and below: to keep it beside E would cost registers.
        T = tl.load(entries, mask=within, other=0.0, cache_modifier=".cg")
        end, arrived, step = _exchanged(
            T, end, centre, low, high, least, i, limit - total, patience, WRONG, SIZE
        )
        total += step
    if (arrived == 0) & (total < limit):
        T = tl.load(entries, mask=within, other=0.0, cache_modifier=".cg")
        most = tl.minimum(limit - total, TURNS) * M
        end, arrived, step = _entered(T, centre, low, high, least, i, most, WRONG, SIZE)
        total += (step + M - 1) // M
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
        T, possible = _swept(T, i == k, 1.0, 0.0)
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
    wrong: float,
    dependent: float,
    patience: int,
) -> tuple[Tensor, Tensor]:
    """The active ends of every instance, and how many guesses it took; −that where none was right.

    Args:
        dual (Sequence[Tensor]): D, t, lower, upper; at most 64 rows.
        begin (Tensor, optional): ends to try first.
        limit (int): guesses, at most.
        wrong (float): what counts as violated, relative.
        dependent (float): the share of a pivot below which a row depends on the active ones.
        patience (int): blocks that may fail before rows enter one by one.
    """
    D, t, lower, upper = (value.contiguous() for value in dual)
    B, M = t.shape
    ends = torch.empty_like(t)
    steps = torch.empty(B, dtype=torch.long, device=t.device)
    size = _padded(M)
    first = t if begin is None else begin.to(t).contiguous()
    with _on(t.device):
        _pivots[(B,)](
            D, t, lower, upper, first, ends, steps, M, limit, patience,
            WRONG=wrong, DEPENDENT=dependent, SWEEPS=_SWEEPS, TURNS=_TURNS,
            BEGUN=begin is not None, SIZE=size, **_options(size),
        )  # fmt: skip
    return ends, steps
