"""legato: learning through nonsmooth optimisation.

A *problem* is data, an *algorithm* is a map on states, a *gradient* is a way to differentiate the
iteration; :func:`solve` puts the three together.
"""

from importlib import metadata as _metadata

from legato.algorithms import (
    Algorithm,
    Average,
    Backtracking,
    ForwardBackward,
    Nesterov,
    Newton,
    PrimalDual,
)
from legato.bilevel import fit
from legato.diagnostics import Diagnosis, diagnose
from legato.energy import split
from legato.functions import (
    L1,
    AsymmetricL1,
    Box,
    BregmanTerm,
    Equality,
    Function,
    GroupL1,
    L2Ball,
    LeastSquares,
    Linear,
    LInfBall,
    Logistic,
    NegativeEntropy,
    NonNegative,
    Quadratic,
    Separable,
    Simplex,
    Smooth,
    SquaredDistance,
    SquaredNorm,
    Zero,
    mirror_prox,
    prox,
    register_prox,
    registered_pairs,
)
from legato.geometry import (
    Burg,
    Entropy,
    Euclidean,
    Geometry,
    Interval,
    Polyhedral,
    Product,
    Quartic,
)
from legato.gradients import (
    CG,
    GMRES,
    BiCGStab,
    Direct,
    FixedPoint,
    Forward,
    GradientStrategy,
    Implicit,
    Neumann,
    OneStep,
    Piggyback,
    Unroll,
)
from legato.operators import (
    Convolution,
    Dense,
    Diagonal,
    Differences,
    Identity,
    Operator,
    Stack,
)
from legato.problems import Composite, Saddle, smoothed
from legato.running import Stop, Trace
from legato.solving import Solution, solve

try:
    __version__ = _metadata.version("legato")
except _metadata.PackageNotFoundError:  # a copy of the source on the path, not installed
    __version__ = "uninstalled"

__all__ = [
    "CG",
    "GMRES",
    "L1",
    "Algorithm",
    "AsymmetricL1",
    "Average",
    "Backtracking",
    "BiCGStab",
    "Box",
    "BregmanTerm",
    "Burg",
    "Composite",
    "Convolution",
    "Dense",
    "Diagnosis",
    "Diagonal",
    "Differences",
    "Direct",
    "Entropy",
    "Equality",
    "Euclidean",
    "FixedPoint",
    "Forward",
    "ForwardBackward",
    "Function",
    "Geometry",
    "GradientStrategy",
    "GroupL1",
    "Identity",
    "Implicit",
    "Interval",
    "L2Ball",
    "LInfBall",
    "LeastSquares",
    "Linear",
    "Logistic",
    "NegativeEntropy",
    "Nesterov",
    "Neumann",
    "Newton",
    "NonNegative",
    "OneStep",
    "Operator",
    "Piggyback",
    "Polyhedral",
    "PrimalDual",
    "Product",
    "Quadratic",
    "Quartic",
    "Saddle",
    "Separable",
    "Simplex",
    "Smooth",
    "Solution",
    "SquaredDistance",
    "SquaredNorm",
    "Stack",
    "Stop",
    "Trace",
    "Unroll",
    "Zero",
    "diagnose",
    "fit",
    "mirror_prox",
    "prox",
    "register_prox",
    "registered_pairs",
    "smoothed",
    "solve",
    "split",
]
