"""legato: learning through nonsmooth optimisation.

A *problem* is data, an *algorithm* is a map on states, a *gradient* is a way to differentiate the
iteration; :func:`solve` puts the three together. Nothing is imported before the first name is used:
the command line answers without torch.
"""

from __future__ import annotations

import importlib
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; at run time __getattr__ imports on demand
    from legato.algorithms import (
        Algorithm,
        Average,
        Backtracking,
        ForwardBackward,
        Nesterov,
        Newton,
        PrimalDual,
    )
    from legato.diagnostics import Diagnosis, diagnose
    from legato.functions import (
        L1,
        AsymmetricL1,
        Box,
        Function,
        GroupL1,
        Kernel,
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
    from legato.optim import fit
    from legato.problems import Composite, Saddle
    from legato.running import Stop, Trace
    from legato.smoothing import smoothed
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
    "Burg",
    "Composite",
    "Convolution",
    "Dense",
    "Diagnosis",
    "Diagonal",
    "Differences",
    "Direct",
    "Entropy",
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
    "Kernel",
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
]

_PACKAGES = (
    "algorithms", "diagnostics", "errors", "functions", "geometry", "gradients", "nn", "operators",
    "optim", "problems", "running", "smoothing", "solving",
)  # fmt: skip
_HOMES = tuple(name for name in _PACKAGES if name not in ("errors", "nn"))

if not TYPE_CHECKING:  # a module-level __getattr__ would make every misspelt name legal to checkers

    def __getattr__(name: str) -> Any:
        """The names of this module (PEP 562): all of them at once, from the packages they are in.

        At once, because torch.compile follows attributes that are there, and no others.
        """
        if name in _PACKAGES:
            return importlib.import_module(f"legato.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'legato' has no attribute {name!r}")
        for home in _HOMES:
            module = importlib.import_module(f"legato.{home}")
            globals().update({n: getattr(module, n) for n in __all__ if hasattr(module, n)})
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
