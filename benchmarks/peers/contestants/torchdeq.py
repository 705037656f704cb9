"""torchdeq: the same primal–dual step, its fixed point found and differentiated by the library.

The module is called like the library; ``import torchdeq`` is absolute and finds the latter.
"""

from __future__ import annotations

from typing import Any

from contract import Contestant, Data, Methods
from torch import Tensor
from torchdeq import get_deq

from contestants.torch_side import contestant, primal_dual


def _equilibrium(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        seen: dict[str, Any] = {}

        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            deq = get_deq(**settings)

            def solve(theta: Tensor) -> Tensor:
                step, start = primal_dual(problem, t, theta)
                (point,), info = deq(step, start)
                seen.update(info)
                return point[0]

            return solve

        def tells() -> str:
            kept = {name: float(value.max()) for name, value in seen.items() if value.numel()}
            return ", ".join(f"{name} {value:.3g}" for name, value in kept.items())

        return contestant(problem, data, prepare, tells=tells)

    return build


def _methods(problem: str, forward: int, backward: int) -> dict[str, Any]:
    long = {"f_max_iter": forward, "f_tol": 1e-10, "b_max_iter": backward, "b_tol": 1e-10}
    return {
        "default (Jacobian-free)": _equilibrium(problem, {}),
        "ift, otherwise default": _equilibrium(problem, {"ift": True}),
        f"Jacobian-free, {forward} iterations": _equilibrium(problem, long),
        f"ift, {forward} and {backward} iterations": _equilibrium(problem, long | {"ift": True}),
        "ift, Anderson": _equilibrium(
            problem,
            {
                "ift": True, "f_solver": "anderson", "b_solver": "anderson",
                "f_max_iter": forward // 4, "f_tol": 1e-10,
                "b_max_iter": backward // 4, "b_tol": 1e-10,
            },
        ),
    }  # fmt: skip


METHODS: Methods = {
    "tv1d": _methods("tv1d", 4000, 4000),
    "tv2d": _methods("tv2d", 2000, 2000),
    "tv2d_isotropic": _methods("tv2d_isotropic", 1000, 1000),
    "potts64": _methods("potts64", 1000, 1000),
    "potts256": _methods("potts256", 500, 500),
}
