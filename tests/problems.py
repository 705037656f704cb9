"""The small problems of legato.testing, sorted by what the tests ask of them."""

from __future__ import annotations

import torch
from torch import Tensor

import legato as lg
from legato.testing import SmallProblem, small_problems

Theta = tuple[Tensor, ...]

PROBLEMS = small_problems()
ISOLATED = [name for name, p in PROBLEMS.items() if p.isolated]
SADDLES = [n for n in ISOLATED if isinstance(PROBLEMS[n].make(*PROBLEMS[n].parameters), lg.Saddle)]
SPLITTINGS = [name for name, p in PROBLEMS.items() if not isinstance(p.algorithm, lg.Newton)]
"""Those solved by the paper's algorithms, whose state is a point."""


def by_name(name: str) -> SmallProblem:
    return PROBLEMS[name]


A, TARGET, _ = by_name("lasso").parameters
POSITIVE_TARGET = by_name("nnls").parameters[1]
MIXTURE = by_name("simplex projected").parameters[1]
SIGNAL = by_name("tv 1d").parameters[0]
PAYOFF = by_name("game").parameters[0]


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative_error(found: Tensor, truth: Tensor) -> float:
    """‖found − truth‖/‖truth‖ in double precision."""
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm())
