"""What can be wrong with a derivative that is exact otherwise: no range, no side."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.checks import as_number
from legato._support.telling import tell
from legato.errors import InexactGradientWarning, NonContractiveWarning
from legato.gradients.base import Linearisation
from legato.gradients.linear import LinearResult
from legato.gradients.ties import may_be_tied
from legato.gradients.unseen import holds_unseen

_LEFT = 1e-6
"""Share of a cotangent that may lie outside the range of the system."""
_TIED = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Relative distances from a kink that a solve cannot tell from 0."""


def warn_if_undetermined(result: LinearResult, linearisation: Linearisation) -> None:
    r"""Where ξ leaves the range of Newton's system, the loss sees what is not unique.

    .. math:: (I − J)^⊤ v = ξ \text{ has a solution} \iff ξ ⊥ \{d : Jd = d\}

    A dual that is not unique does no harm to a loss of x. Reference: the Fredholm alternative.
    """
    limit = max(_LEFT, 1e3 * torch.finfo(result.solution.dtype).eps)
    if not result.residual <= limit:
        tell(
            f"A part of relative size {result.residual:.2g} of the cotangent lies outside the "
            "range of Newton's system: what the loss sees of the solution is not unique, or not "
            "determined to the digits of this precision, and the gradient is one of many. Make "
            "the solution unique, e.g. by adding SquaredNorm, or use float64.",
            NonContractiveWarning,
        )
    elif may_be_tied(linearisation.problem) and holds_unseen(linearisation, result):
        tell(
            "The fixed-point equation leaves the gradient open: what is learned holds a weight of "
            "exactly 0 or equal columns, and only a part of its gradient is determined. Make the "
            "solution unique, or keep weights above 0.",
            NonContractiveWarning,
        )


def warn_if_on_a_kink(linearisation: Linearisation, xi: Tensor) -> None:
    """Say where complementarity is not strict, for algorithms that end at a solution."""
    margin = linearisation.algorithm.margin(linearisation.problem, linearisation.state)
    if margin is None:
        return
    seen = (xi != 0).any(-1).reshape(-1)
    margin = margin.reshape(-1)
    if margin.numel() == seen.numel():
        margin = torch.where(seen, margin, torch.inf)
    least = as_number(margin.amin())
    if least <= _TIED.get(xi.dtype, 1e-9):
        tell(
            f"Complementarity is not strict: the solution lies on a kink of its prox, up to a "
            f"relative distance of {least:.1e}. It has a derivative on each side, and this "
            "gradient is one of them. Move the weights or the data a little, or take it as a "
            "one-sided derivative.",
            InexactGradientWarning,
        )
