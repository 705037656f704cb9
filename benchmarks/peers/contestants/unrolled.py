"""The primal–dual iteration written by hand and left to autograd."""

from __future__ import annotations

from contract import Contestant, Data, Methods
from torch import Tensor

from contestants.torch_side import contestant, primal_dual


def _unrolled(problem: str, iterations: int):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            def solve(theta: Tensor) -> Tensor:
                step, (u, p) = primal_dual(problem, t, theta)
                for _ in range(iterations):
                    u, p = step(u, p)
                return u

            return solve

        return contestant(problem, data, prepare)

    return build


METHODS: Methods = {
    problem: {f"{n} iterations": _unrolled(problem, n) for n in counts}
    for problem, counts in {"potts64": (100, 1000), "potts256": (100, 300)}.items()
}
