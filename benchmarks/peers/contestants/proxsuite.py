"""proxsuite: batches of dense quadratic programs through QPLayer."""

from __future__ import annotations

from typing import Any

import torch
from contract import Contestant, Data, Methods
from proxsuite.torch.qplayer import QPFunction
from torch import Tensor

from contestants.torch_side import contestant

TIGHT = {"eps_backward": 1e-9, "rho_backward": 1e-9, "mu_backward": 1e-9}


def _constraints(n: int, on_simplex: bool) -> tuple[Tensor, ...]:
    """A, b, G, l, u of {x ≥ 0} with or without Σx = 1."""
    eye = torch.eye(n, dtype=torch.float64)
    equality = (torch.ones(1, n).double(), torch.ones(1).double()) if on_simplex else ()
    empty = (torch.zeros(0, n).double(), torch.zeros(0).double())
    low, high = torch.zeros(n).double(), torch.full((n,), 1e20).double()
    return (*(equality or empty), eye, low, high)


def _quadratic(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        n = data["x"].shape[-1]
        bounds = _constraints(n, on_simplex=problem != "nnls")

        def program(Q: Tensor, p: Tensor) -> Tensor:
            return QPFunction(**settings)(Q, p, *bounds)[0]

        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            if problem == "simplex_projection":
                eye = torch.eye(n, dtype=torch.float64)
                return lambda theta: program(eye, -theta)
            if problem == "simplex_least_squares":
                Q = t["A"].mT @ t["A"]
                return lambda theta: program(Q, -torch.einsum("bmn,bm->bn", t["A"], theta))
            return lambda A, b: program(A.mT @ A, -torch.einsum("bmn,bm->bn", A, b))

        return contestant(problem, data, prepare)

    return build


METHODS: Methods = {
    problem: {
        "QPLayer, default": _quadratic(problem, {}),
        "QPLayer, backward tolerances 1e-9": _quadratic(problem, TIGHT),
    }
    for problem in ("simplex_projection", "simplex_least_squares", "nnls")
}
