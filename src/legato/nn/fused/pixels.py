"""What Triton kernels on grids share: reading the table of addresses, and the pixels of a program.

`C`, for which a kernel is compiled, has at least the fields `volume` (three axes, not two),
`tile_y`, `tile_x` and `wide` (addresses need 64 bits).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(table, place, dtype: tl.constexpr):
    return tl.load(table + place).to(tl.pointer_type(dtype))


@triton.jit
def place(image, down, across, extent, C: tl.constexpr):
    """Of a tile, given which image (or slice) it is of and how many tiles it lies down and across:
    the image, its pixels' coordinates and index, which are inside, and D·H·W.

    Pixels beyond the border repeat the last ones, so loads need no masks.
    """
    D, H, W = extent
    z = 0
    if C.volume:
        z = image % D
        image = image // D
    lane = tl.arange(0, C.tile_y * C.tile_x)
    y = down * C.tile_y + lane // C.tile_x
    x = across * C.tile_x + lane % C.tile_x
    inside = (y < H) & (x < W)
    y = tl.minimum(y, H - 1)
    x = tl.minimum(x, W - 1)
    n = (z * H + y) * W + x
    S = D * H * W
    if C.wide:
        # Addresses in 64 bits take twice the registers.
        n = n.to(tl.int64)
        S = S.to(tl.int64)
    return image.to(tl.int64), (z, y, x), n, inside, S
