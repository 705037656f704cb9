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
        ADMM as ADMM,
        AdaptiveBalance as AdaptiveBalance,
        Algorithm as Algorithm,
        Anderson as Anderson,
        Average as Average,
        Backtracking as Backtracking,
        DouglasRachford as DouglasRachford,
        ForwardBackward as ForwardBackward,
        HalfQuadratic as HalfQuadratic,
        Nesterov as Nesterov,
        Newton as Newton,
        PrimalDual as PrimalDual,
        Restart as Restart,
        Ruiz as Ruiz,
    )
    from legato.bilevel import fit as fit
    from legato.diagnostics import Diagnosis as Diagnosis, diagnose as diagnose
    from legato.energy import split as split
    from legato.engine import (
        Compiled as Compiled,
        Eager as Eager,
        Engine as Engine,
        Replayed as Replayed,
    )
    from legato.functions import (
        L1 as L1,
        AffineSet as AffineSet,
        AsymmetricL1 as AsymmetricL1,
        Box as Box,
        BoxSection as BoxSection,
        BregmanTerm as BregmanTerm,
        Denoiser as Denoiser,
        Equality as Equality,
        Function as Function,
        GroupL1 as GroupL1,
        Halfspaces as Halfspaces,
        Hinge as Hinge,
        Huber as Huber,
        KullbackLeibler as KullbackLeibler,
        L1Ball as L1Ball,
        L2Norm as L2Norm,
        LInfNorm as LInfNorm,
        MaxEntry as MaxEntry,
        Monotone as Monotone,
        Nuclear as Nuclear,
        NuclearBall as NuclearBall,
        Quantile as Quantile,
        SortedL1 as SortedL1,
        SparseGroupL1 as SparseGroupL1,
        SpectralBall as SpectralBall,
        SpectralNorm as SpectralNorm,
        TotalVariation1D as TotalVariation1D,
        IsotropicTV as IsotropicTV,
        L2Ball as L2Ball,
        LeastSquares as LeastSquares,
        Linear as Linear,
        LInfBall as LInfBall,
        Logistic as Logistic,
        NegativeEntropy as NegativeEntropy,
        NonNegative as NonNegative,
        NormMaximum as NormMaximum,
        PositiveSemidefinite as PositiveSemidefinite,
        Quadratic as Quadratic,
        SecondOrderCone as SecondOrderCone,
        Separable as Separable,
        Simplex as Simplex,
        SimplexNorm as SimplexNorm,
        Smooth as Smooth,
        SoftMaximum as SoftMaximum,
        SquaredDistance as SquaredDistance,
        Tsallis as Tsallis,
        SquaredNorm as SquaredNorm,
        Zero as Zero,
        mirror_prox as mirror_prox,
        prox as prox,
        register_prox as register_prox,
        registered_pairs as registered_pairs,
    )
    from legato.geometry import (
        Burg as Burg,
        Entropy as Entropy,
        Euclidean as Euclidean,
        Geometry as Geometry,
        Interval as Interval,
        Polyhedral as Polyhedral,
        Product as Product,
        Quartic as Quartic,
    )
    from legato.gradients import (
        CG as CG,
        GMRES as GMRES,
        MINRES as MINRES,
        BiCGStab as BiCGStab,
        Direct as Direct,
        FixedPoint as FixedPoint,
        Forward as Forward,
        GradientStrategy as GradientStrategy,
        Implicit as Implicit,
        Neumann as Neumann,
        OneStep as OneStep,
        Piggyback as Piggyback,
        Unroll as Unroll,
    )
    from legato.operators import (
        Blur as Blur,
        Convolution as Convolution,
        Downsample as Downsample,
        Fourier as Fourier,
        Mask as Mask,
        Radon as Radon,
        SecondDifferences as SecondDifferences,
        SymmetrisedGradient as SymmetrisedGradient,
        Sparse as Sparse,
        Wavelet as Wavelet,
        Dense as Dense,
        Diagonal as Diagonal,
        Differences as Differences,
        Identity as Identity,
        Operator as Operator,
        Stack as Stack,
    )
    from legato.problems import Composite as Composite, Saddle as Saddle, smoothed as smoothed
    from legato.running import Stop as Stop, Trace as Trace
    from legato.solving import Solution as Solution, solve as solve

try:
    __version__ = _metadata.version("legato")
except _metadata.PackageNotFoundError:  # a copy of the source on the path, not installed
    __version__ = "uninstalled"

# Where each public name lives.
_HOMES = {
    "algorithms": (
        "ADMM AdaptiveBalance Algorithm Anderson Average Backtracking DouglasRachford "
        "ForwardBackward HalfQuadratic Nesterov Newton PrimalDual Restart Ruiz"
    ),
    "bilevel": "fit",
    "diagnostics": "Diagnosis diagnose",
    "energy": "split",
    "engine": "Compiled Eager Engine Replayed",
    "functions": (
        "L1 AffineSet AsymmetricL1 Box BoxSection BregmanTerm Denoiser Equality Function GroupL1 "
        "Halfspaces Hinge Huber IsotropicTV KullbackLeibler L1Ball L2Ball L2Norm LeastSquares "
        "Linear LInfBall LInfNorm Logistic MaxEntry Monotone NegativeEntropy NonNegative "
        "NormMaximum Nuclear NuclearBall PositiveSemidefinite Quadratic Quantile SecondOrderCone "
        "Separable Simplex SimplexNorm Smooth SoftMaximum SortedL1 SparseGroupL1 SpectralBall "
        "SpectralNorm SquaredDistance SquaredNorm TotalVariation1D Tsallis Zero mirror_prox prox "
        "register_prox registered_pairs"
    ),
    "geometry": "Burg Entropy Euclidean Geometry Interval Polyhedral Product Quartic",
    "gradients": (
        "CG GMRES MINRES BiCGStab Direct FixedPoint Forward GradientStrategy Implicit Neumann "
        "OneStep Piggyback Unroll"
    ),
    "operators": (
        "Blur Convolution Dense Diagonal Differences Downsample Fourier Identity Mask Operator "
        "Radon SecondDifferences Sparse Stack SymmetrisedGradient Wavelet"
    ),
    "problems": "Composite Saddle smoothed",
    "running": "Stop Trace",
    "solving": "Solution solve",
}

__all__ = sorted(name for names in _HOMES.values() for name in names.split())

_PACKAGES = (*_HOMES, "errors", "nn", "optim", "testing")

if not TYPE_CHECKING:  # a module-level __getattr__ would make every misspelt name legal to checkers

    def __getattr__(name: str) -> Any:
        """The names of this module (PEP 562): all of them at once, from where they live.

        At once, because torch.compile follows attributes that are there, and no others.
        """
        if name in _PACKAGES:
            return importlib.import_module(f"legato.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'legato' has no attribute {name!r}")
        for home, names in _HOMES.items():
            module = importlib.import_module(f"legato.{home}")
            globals().update({one: getattr(module, one) for one in names.split()})
        return globals()[name]


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, *_PACKAGES})
