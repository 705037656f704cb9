"""Optimisers with torch's conventions (``lr``, ``momentum``, groups, schedulers) and a prox."""

from legato.optim.base import DescentOptimizer
from legato.optim.conjugacy import FletcherReeves, HagerZhang, PolakRibiere
from legato.optim.heavy_ball import HeavyBall
from legato.optim.ipiano import IPiano
from legato.optim.line_search import StrongWolfe
from legato.optim.nonlinear_cg import NonlinearCG
from legato.optim.proximal_gradient import ProximalGradient
from legato.optim.rules import (
    ConstantStep,
    LipschitzSearch,
    NonConvexStep,
    SearchedStep,
    VariableMomentum,
)

__all__ = [
    "ConstantStep",
    "DescentOptimizer",
    "FletcherReeves",
    "HagerZhang",
    "HeavyBall",
    "IPiano",
    "LipschitzSearch",
    "NonConvexStep",
    "NonlinearCG",
    "PolakRibiere",
    "ProximalGradient",
    "SearchedStep",
    "StrongWolfe",
    "VariableMomentum",
]
