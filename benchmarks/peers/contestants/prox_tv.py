"""prox_tv: exact total variation, without derivatives."""

from __future__ import annotations

from typing import Any

import prox_tv
from contract import Contestant, Data, Methods


def _line(data: Data) -> Contestant:
    y, weight = data["y"].copy(), float(data["theta"][0])
    return Contestant(lambda: prox_tv.tv1_1d(y, weight), None, "solution only")


def _plane(iterations: int):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        y, weight = data["y"].copy(), float(data["theta"][0])

        def solve() -> Any:
            return prox_tv.tv1_2d(y, weight, n_threads=1, max_iters=iterations)

        return Contestant(solve, None, "solution only")

    return build


METHODS: Methods = {
    "tv1d": {"tv1_1d": _line},
    "tv2d": {"tv1_2d, default": _plane(0), "tv1_2d, 1000 iterations": _plane(1000)},
}
