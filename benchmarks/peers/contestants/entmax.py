"""entmax: sparsemax is the projection onto the simplex."""

from __future__ import annotations

from contract import Contestant, Data, Methods
from entmax import sparsemax

from contestants.torch_side import contestant


def _sparsemax(data: Data) -> Contestant:
    return contestant("simplex_projection", data, lambda t: lambda theta: sparsemax(theta, dim=-1))


METHODS: Methods = {"simplex_projection": {"sparsemax": _sparsemax}}
