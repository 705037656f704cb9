"""The terms of an energy, their algebra, and the table of proxes."""

from legato.functions import compositions as compositions  # whose proxes join the table
from legato.functions.affine import Equality, Linear, Zero
from legato.functions.algebra import Composed, Conjugate, Scaled, Shifted, Sum
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.functions.box_section import BoxSection
from legato.functions.concave import ExponentialType, Geman, TruncatedQuadratic
from legato.functions.cones import PositiveSemidefinite, SecondOrderCone
from legato.functions.denoiser import Denoiser, DenoiserResidual
from legato.functions.entmax import SoftMaximum, Tsallis
from legato.functions.flats import AffineSet, Halfspaces, Hankel
from legato.functions.k_support import KSupport, L0BallEnvelope
from legato.functions.kernels import BregmanTerm, NegativeEntropy, SquaredDistance, SquaredNorm
from legato.functions.l0 import L0, GroupL0Ball, L0Ball
from legato.functions.l2_norm import L2Norm
from legato.functions.largest import L1Ball, LInfNorm, MaxEntry
from legato.functions.losses import Hinge, Huber, Quantile
from legato.functions.monotone import Monotone
from legato.functions.nonconvex import MCP, SCAD, LogSum
from legato.functions.normmax import NormMaximum, SimplexNorm
from legato.functions.norms import L1, AsymmetricL1, GroupL1
from legato.functions.of_singular_values import OfSingularValues, WeightedNuclear
from legato.functions.poisson import KullbackLeibler
from legato.functions.prox import mirror_prox, prox, register_prox, registered_pairs
from legato.functions.sets import Box, L2Ball, LInfBall, NonNegative, Simplex
from legato.functions.smooth import LeastSquares, Logistic, Quadratic, Smooth
from legato.functions.smoothing import LogBarrier, SmoothAbsolute
from legato.functions.sorted_l1 import SortedL1
from legato.functions.sparse_group import SparseGroupL1
from legato.functions.spectral import Nuclear, NuclearBall, SpectralBall, SpectralNorm
from legato.functions.spheres import L1Sphere, L2Sphere
from legato.functions.sums import Successive
from legato.functions.variation import IsotropicTV
from legato.functions.variation_1d import TotalVariation1D

__all__ = [
    "L0",
    "L1",
    "MCP",
    "SCAD",
    "AffineSet",
    "AsymmetricL1",
    "Box",
    "BoxSection",
    "BregmanTerm",
    "Composed",
    "Conjugate",
    "Denoiser",
    "DenoiserResidual",
    "Equality",
    "ExponentialType",
    "Function",
    "Geman",
    "GroupL0Ball",
    "GroupL1",
    "Halfspaces",
    "Hankel",
    "Hinge",
    "Huber",
    "IsotropicTV",
    "KSupport",
    "KullbackLeibler",
    "L0Ball",
    "L0BallEnvelope",
    "L1Ball",
    "L1Sphere",
    "L2Ball",
    "L2Norm",
    "L2Sphere",
    "LInfBall",
    "LInfNorm",
    "LeastSquares",
    "Linear",
    "LogBarrier",
    "LogSum",
    "Logistic",
    "MaxEntry",
    "Monotone",
    "NegativeEntropy",
    "NonNegative",
    "NormMaximum",
    "Nuclear",
    "NuclearBall",
    "OfSingularValues",
    "PositiveSemidefinite",
    "Quadratic",
    "Quantile",
    "Scaled",
    "SecondOrderCone",
    "Separable",
    "Shifted",
    "Simplex",
    "SimplexNorm",
    "Smooth",
    "SmoothAbsolute",
    "SoftMaximum",
    "SortedL1",
    "SparseGroupL1",
    "SpectralBall",
    "SpectralNorm",
    "SquaredDistance",
    "SquaredNorm",
    "Successive",
    "Sum",
    "TotalVariation1D",
    "TruncatedQuadratic",
    "Tsallis",
    "WeightedNuclear",
    "Zero",
    "mirror_prox",
    "prox",
    "register_prox",
    "registered_pairs",
]
