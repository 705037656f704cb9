"""Ways to differentiate an iteration, and the linear solvers behind some of them."""

from legato.gradients.base import Backward, GradientStrategy, Linearisation, Task
from legato.gradients.fixed_point import FixedPoint, FixedPointGradient, Implicit, OneStep
from legato.gradients.forward import Forward
from legato.gradients.linear import (
    CG,
    GMRES,
    MINRES,
    BiCGStab,
    Direct,
    Factored,
    LinearResult,
    LinearSolver,
    Neumann,
    SaddleFactors,
    random_vector,
    spectral_radius,
)
from legato.gradients.piggyback import Piggyback
from legato.gradients.unroll import Unroll

__all__ = [
    "CG",
    "GMRES",
    "MINRES",
    "Backward",
    "BiCGStab",
    "Direct",
    "Factored",
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
    "SaddleFactors",
    "Task",
    "Unroll",
    "random_vector",
    "spectral_radius",
]
