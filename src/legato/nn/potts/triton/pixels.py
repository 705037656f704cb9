"""What the Potts kernels in Triton share: the slots of their table, and the edges of pixels.

Every kernel takes a table of addresses, the strides of the weights over (batch, label, direction,
z, y, x), the extent (depth, height, width) and a `Case`, for which it is compiled.
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
    COST, WEIGHTS, TAU, SIGMA,
    EPSILON,  # the bits of the number itself
    START_DUAL, TAPE, MIRROR, FINAL_U, MEAN, START_MIRROR, FINAL_DUAL,
    # From here on for the reverse sweep, in which MEAN holds a cotangent.
    BAR, OTHER_BAR, REST_BAR, COST_BAR, WEIGHT_BAR, DUAL_BAR, STEPS_BAR, LEFT_BAR,
    END_MIRROR_BAR, END_DUAL_BAR, END_U_BAR,
) = make_slots()
# fmt: on


@dataclass(frozen=True)
class Case:
    """What a kernel is compiled for.

    Pixels tile_y × tile_x, one a thread. With `held` all labels stay in registers, else a loop
    visits them, `unroll` at a time; with `overlap` an iteration's constant part starts before the
    iteration before it has ended. The tape's unit is 1/scale.
    """

    labels: Any  # a constexpr as Triton's loops want it, and so are the directions
    directions: Any
    volume: bool
    offsets: tuple[tuple[Any, ...], ...]  # (dz, dy, dx) of each direction, constexprs too
    by_label: bool
    epsilon: bool
    dtype: Any
    fixed: Any
    tile_y: int
    tile_x: int
    wide: bool
    held: bool
    unroll: int
    overlap: bool
    scale: float = 1.0
    warm: bool = False
    average: bool = False
    steps: bool = False
    to_dual: bool = False

    @property
    def shared(self) -> bool:
        """Whether all labels have the same weights."""
        return not self.by_label


@triton.jit
def shrinkage(table, tau, C: tl.constexpr):
    """1/(1 + τε)."""
    shrink = tau * 0 + 1
    if C.epsilon:
        epsilon = tl.load(table + EPSILON).to(tl.float64, bitcast=True).to(C.dtype)
        shrink = 1 / (1 + tau * epsilon)
    return shrink


@triton.jit
def direction(e: tl.constexpr, C: tl.constexpr):
    """The steps (dz, dy, dx) of direction e."""
    return C.offsets[e][0], C.offsets[e][1], C.offsets[e][2]


@triton.jit
def own_pixels(extent, C: tl.constexpr):
    """What `place` says of this program's tile."""
    return place(tl.program_id(0), tl.program_id(1), tl.program_id(2), extent, C)


@triton.jit
def neighbours(n, at, extent, C: tl.constexpr):
    """Per direction the pixels ahead and behind, and whether they exist.

    A missing neighbour is the pixel itself: its differences vanish and its address is good.
    """
    D, H, W = extent
    z, y, x = at
    ahead = ()
    behind = ()
    leaves = ()
    arrives = ()
    for e in tl.static_range(C.directions):
        dz, dy, dx = direction(e, C)
        jump = (dz * H + dy) * W + dx
        leave = (z + dz < D) & (y + dy < H) & (x + dx < W) & (x + dx >= 0)
        arrive = (z >= dz) & (y >= dy) & (x >= dx) & (x - dx < W)
        ahead = ahead + (tl.where(leave, n + jump, n),)
        behind = behind + (tl.where(arrive, n - jump, n),)
        leaves = leaves + (leave,)
        arrives = arrives + (arrive,)
    return (ahead, behind), (leaves, arrives)


@triton.jit
def weights_at(table, image, at, strides, C: tl.constexpr):
    z, y, x = at
    here = z * strides[3] + y * strides[4] + x * strides[5]
    return look_up(table, WEIGHTS, C.dtype) + image * strides[0] + here


@triton.jit
def edge_weights(weights, exists, strides, C: tl.constexpr):
    """The weights of the edges that leave and that arrive, in turn; zero where there is none."""
    leaves, arrives = exists
    w = ()
    for e in tl.static_range(C.directions):
        dz, dy, dx = direction(e, C)
        back = dz * strides[3] + dy * strides[4] + dx * strides[5]
        own = tl.load(weights + e * strides[2], mask=leaves[e], other=0)
        arriving = tl.load(weights + e * strides[2] - back, mask=arrives[e], other=0)
        w = w + (own, arriving)
    return w


@triton.jit
def lookahead(now, before, n):
    """Zᵏ + uᵏ at the pixels n."""
    z = tl.load(now + n)
    return z + (z - tl.load(before + n))
