"""Images from what an operator saw of them: the layer, its regularisers, and their weights."""

from legato.nn.reconstruction.convex_spline import ConvexSpline
from legato.nn.reconstruction.layer import Reconstruction, ReconstructionOutput
from legato.nn.reconstruction.prior import DeepinvPrior
from legato.nn.reconstruction.regularisers import TGV, TV, ConvexRidges, Filters
from legato.nn.reconstruction.weights import Weight, WeightMap

__all__ = [
    "TGV",
    "TV",
    "ConvexRidges",
    "ConvexSpline",
    "DeepinvPrior",
    "Filters",
    "Reconstruction",
    "ReconstructionOutput",
    "Weight",
    "WeightMap",
]
