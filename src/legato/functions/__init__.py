"""The terms of an energy, their algebra, and the table of proxes."""

from legato.functions.affine import Equality, Linear, Zero
from legato.functions.algebra import Composed, Conjugate, Scaled, Shifted, Sum
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.functions.kernels import BregmanTerm, NegativeEntropy, SquaredDistance, SquaredNorm
from legato.functions.l0 import L0
from legato.functions.norms import L1, AsymmetricL1, GroupL1
from legato.functions.prox import mirror_prox, prox, register_prox, registered_pairs
from legato.functions.sets import Box, L2Ball, LInfBall, NonNegative, Simplex
from legato.functions.smooth import LeastSquares, Logistic, Quadratic, Smooth
from legato.functions.smoothing import LogBarrier, SmoothAbsolute
from legato.functions.variation import IsotropicTV

__all__ = [
    "L0",
    "L1",
    "AsymmetricL1",
    "Box",
    "BregmanTerm",
    "Composed",
    "Conjugate",
    "Equality",
    "Function",
    "GroupL1",
    "IsotropicTV",
    "L2Ball",
    "LInfBall",
    "LeastSquares",
    "Linear",
    "LogBarrier",
    "Logistic",
    "NegativeEntropy",
    "NonNegative",
    "Quadratic",
    "Scaled",
    "Separable",
    "Shifted",
    "Simplex",
    "Smooth",
    "SmoothAbsolute",
    "SquaredDistance",
    "SquaredNorm",
    "Sum",
    "Zero",
    "mirror_prox",
    "prox",
    "register_prox",
    "registered_pairs",
]
