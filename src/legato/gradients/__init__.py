"""Ways to differentiate an iteration, and the linear solvers behind some of them."""

from legato.gradients.base import Backward, GradientStrategy
from legato.gradients.conjugate_gradients import CG
from legato.gradients.fixed_point import FixedPoint, FixedPointGradient, Implicit, OneStep
from legato.gradients.forward import Forward
from legato.gradients.linear_solvers import (
    GMRES,
    BiCGStab,
    Direct,
    LinearResult,
    LinearSolver,
    Neumann,
    random_vector,
    spectral_radius,
)
from legato.gradients.linearisation import Linearisation
from legato.gradients.piggyback import Piggyback
from legato.gradients.unroll import Unroll

__all__ = [
    "CG",
    "GMRES",
    "Backward",
    "BiCGStab",
    "Direct",
    "FixedPoint",
    "FixedPointGradient",
    "Forward",
    "GradientStrategy",
    "Implicit",
    "LinearResult",
    "LinearSolver",
    "Linearisation",
    "Neumann",
    "OneStep",
    "Piggyback",
    "Unroll",
    "random_vector",
    "spectral_radius",
]
