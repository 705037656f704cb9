"""Smooth and prox-friendly functions, and the table of proxes."""

from legato.functions.base import (
    Function,
    Kernel,
    Linear,
    NegativeEntropy,
    Separable,
    SquaredNorm,
    Sum,
    Zero,
)
from legato.functions.l0 import L0
from legato.functions.prox import (
    mirror_prox,
    prox,
    register_prox,
    registered_pairs,
    strong_convexity,
)
from legato.functions.smooth import LeastSquares, Logistic, Quadratic, Smooth
from legato.functions.terms import (
    L1,
    AsymmetricL1,
    Box,
    GroupL1,
    L2Ball,
    LInfBall,
    NonNegative,
    Simplex,
)

__all__ = [
    "L0",
    "L1",
    "AsymmetricL1",
    "Box",
    "Function",
    "GroupL1",
    "Kernel",
    "L2Ball",
    "LInfBall",
    "LeastSquares",
    "Linear",
    "Logistic",
    "NegativeEntropy",
    "NonNegative",
    "Quadratic",
    "Separable",
    "Simplex",
    "Smooth",
    "SquaredNorm",
    "Sum",
    "Zero",
    "mirror_prox",
    "prox",
    "register_prox",
    "registered_pairs",
    "strong_convexity",
]
