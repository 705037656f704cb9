"""What the total-variation kernels in Triton share: slots of their table, λ, groups of entries.

Every kernel takes a table of addresses, the strides of λ over (batch, channel, direction, z, y, x),
the extent (depth, height, width) and a `Case`, for which it is compiled. Channels that are not
coupled are images of their own, so `channels` is one for them.
"""

# Triton knows no starred expressions.
# ruff: noqa: RUF005
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from legato.nn.fused.pixels import look_up, place
from legato.nn.fused.replay import make_slots

# fmt: off
(
    IMAGE, WEIGHT,
    FIRST, SECOND, THIRD,  # p, p₋ and p⁺ take turns
    START, START_BEFORE, TAPE, VALUE,
    # From here on for the reverse sweep.
    Z_BAR, OTHER_Z_BAR,  # of an iteration and of the one before it, in turn
    LATER, IMAGE_BAR, WEIGHT_BAR, START_BAR, END_VALUE_BAR, END_DUAL_BAR, END_BEFORE_BAR,
    *_,
) = make_slots()
# fmt: on


@dataclass(frozen=True)
class Case:
    """What a kernel is compiled for.

    Pixels tile_y × tile_x, one a thread. `grouped` entries are projected together, over the
    channels and, unless `by_direction`, over the directions, and the tape holds the points that
    were projected; others are clipped, and the tape holds two bits a direction. `kinds` is the
    number of directions that λ tells apart, `of_batch` of images to one entry of the batch. With
    `overlap` an iteration's constant part starts before the iteration before it has ended.
    """

    channels: Any  # a constexpr as Triton's loops want it, and so are the next two
    directions: Any
    kinds: Any
    volume: bool
    grouped: bool
    by_direction: bool
    of_batch: int
    dtype: Any
    tape: Any
    tile_y: int
    tile_x: int
    wide: bool
    overlap: bool
    alpha: float
    keep: bool = False
    weigh: bool = False


@triton.jit
def as_number(bits, C: tl.constexpr):
    """A number that travels as the bits of a double: Triton takes Python's floats for float32."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(C.dtype)


@triton.jit
def own_pixels(extent, C: tl.constexpr):
    """What `place` says of this program's tile.

    Programs that run at the same time lie side by side, then below each other, then in the next
    image: what they read together lies together in memory.
    """
    _depth, height, width = extent
    across = (width + C.tile_x - 1) // C.tile_x
    down = (height + C.tile_y - 1) // C.tile_y
    tile = tl.program_id(0)
    return place(tile // (across * down), tile // across % down, tile % across, extent, C)


@triton.jit
def beside(at, extent, C: tl.constexpr):
    """Per direction the step to the next pixel, and whether there is one ahead and one behind."""
    D, H, W = extent
    z, y, x = at
    if C.volume:
        z = z + 0 * y
        return (H * W, W, 1), (z + 1 < D, y + 1 < H, x + 1 < W), (z > 0, y > 0, x > 0)
    else:
        return (W, 1), (y + 1 < H, x + 1 < W), (y > 0, x > 0)


@triton.jit
def limits_at(table, image, at, strides, C: tl.constexpr):
    """λ of these pixels for every direction."""
    z, y, x = at
    weight = look_up(table, WEIGHT, C.dtype)
    weight += image // C.of_batch * strides[0] + image % C.of_batch * strides[1]
    weight += z * strides[3] + y * strides[4] + x * strides[5]
    limits = (tl.load(weight),)
    for e in tl.static_range(1, C.directions):
        if C.kinds > 1:
            limits = limits + (tl.load(weight + e * strides[2]),)
        else:
            limits = limits + (limits[0],)
    return limits


@triton.jit
def inner(a, b, e: tl.constexpr, C: tl.constexpr):
    """⟨a, b⟩ over the group to which direction e belongs."""
    total = a[e] * b[e]
    for c in tl.static_range(C.channels):
        for f in tl.static_range(C.directions):
            if (f == e or not C.by_direction) and not (c == 0 and f == e):
                total += a[c * C.directions + f] * b[c * C.directions + f]
    return total


@triton.jit
def inverse_norm(square, limit):
    """Whether a point with this |z|² lies outside its ball of radius λ, and 1/|z| if it does."""
    outside = square > limit * limit
    return outside, tl.rsqrt(tl.where(outside, square, 1))
