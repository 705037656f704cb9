"""Norms of operators without negative entries, bounded from both sides."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.operators.base import Operator, lanczos_norm

_ROUNDS = 40
"""Operators whose largest singular values are apart take about five."""


@torch.no_grad()
def perron_norm(operator: Operator, like: Tensor, accuracy: float = 1e-3) -> Tensor:
    r"""An upper bound of ‖K‖, mostly ``accuracy`` above it, for K without negative entries.

    .. math:: \frac{⟨x, K^*K x⟩}{⟨x, x⟩} ≤ ‖K‖^2 ≤ \max_i \frac{(K^*K x)_i}{x_i}
              \quad\text{for every } x > 0

    Power iteration from a constant x brings both ends together; nothing is left to chance. Should
    they be more than 1 % apart after forty rounds, as for blocks that hardly touch each other,
    :func:`lanczos_norm` decides. Computed in the dtype of ``like``: best in double precision.
    Reference: Collatz (1942); Wielandt (1950).

    >>> K = lg.Dense(torch.tensor([[1.0, 2.0], [0.0, 2.0]], dtype=torch.float64))
    >>> perron_norm(K, torch.zeros(2, dtype=torch.float64)).round(decimals=2)
    tensor(2.9200, dtype=torch.float64)
    """
    rounding = 1 + 1e-6  # so that it stays a bound in single precision, too
    x = torch.ones_like(like)
    for _ in range(_ROUNDS):
        image = operator(x)
        back = operator.adjoint(image)
        # What no row sees has the ratio 0/0: it does not count.
        seen = back != 0
        above = torch.where(seen, back / torch.where(seen, x, 1.0), 0.0).amax()
        if not bool((above > 0) & torch.isfinite(above)):
            return above
        below = image.square().sum() / x.square().sum()
        if bool(above <= below * (1 + accuracy) ** 2):
            return above.sqrt() * rounding
        x = back / back.amax()
    if bool(above <= below * 1.01**2):
        return above.sqrt() * rounding
    return lanczos_norm(operator, like)
