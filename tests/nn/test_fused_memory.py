"""Where the row kernels keep their fields: memory that is used again, bands that share margins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

rows = pytest.importorskip("legato.nn.fused.rows")

from legato.nn.fused.buffer_pool import POOLED_FROM_BYTES, BufferPool  # noqa: E402


def test_released_memory_is_used_again_where_it_is_large_enough() -> None:
    pool, numbers = BufferPool(1 << 30), 4 * POOLED_FROM_BYTES // 8

    def place(count: int) -> int:
        array = pool.take((count,), np.dtype(np.float64))
        array.fill(1.0)
        assert array.shape == (count,)
        return array.ctypes.data  # the array itself is given back

    first = place(numbers)
    larger = pool.take((numbers + 8,), np.dtype(np.float64))  # by one cache line
    assert larger.size == numbers + 8
    assert place(numbers) == first


@pytest.mark.parametrize("how", ["compiled", "interpreted"])
def test_margins_are_the_rows_of_the_neighbours(how: str) -> None:
    """Two images of 9 rows in three bands each; as Python, every index is checked."""
    exchange: Any = rows.exchange if how == "compiled" else rows.exchange.py_func
    height, bands, depth = 9, 3, 2
    owned = np.array([(0, 3), (3, 6), (6, 9)] * 2)
    first, last = np.maximum(owned[:, 0] - depth, 0), np.minimum(owned[:, 1] + depth, height)
    field = np.full((6, int((last - first).max()), 16), -1.0)
    for task, (low, high) in enumerate(owned):
        for r in range(low, high):
            field[task, r - first[task]] = 100 * (task // bands) + r
    exchange(field, first, owned, bands, depth)
    for task in range(6):
        for r in range(first[task], last[task]):
            assert (field[task, r - first[task]] == 100 * (task // bands) + r).all(), (task, r)
