"""Layers: structured problems as thin nn.Modules."""

from legato.nn.analysis_denoiser import AnalysisDenoiser, AnalysisDenoiserOutput
from legato.nn.least_squares import (
    LeastSquaresOutput,
    NonNegativeLeastSquares,
    SimplexLeastSquares,
)
from legato.nn.matrix_game import MatrixGame, MatrixGameOutput
from legato.nn.noise import noise_level
from legato.nn.potts import Potts, PottsOutput, PottsState
from legato.nn.programs import (
    LPGD,
    Entropic,
    LinearGradient,
    LinearProgram,
    Perturbed,
    ProgramOutput,
    ProgramStatus,
    QuadraticProgram,
    Ridge,
    from_cvxpy,
    from_pyepo,
    solve_qp,
)
from legato.nn.reconstruction import (
    TGV,
    TV,
    ConvexRidges,
    ConvexSpline,
    DeepinvPrior,
    Filters,
    Reconstruction,
    ReconstructionOutput,
    Weight,
    WeightMap,
)
from legato.nn.segmentation import (
    ContrastWeights,
    FineFeatures,
    GlobalLayer,
    LearnedEdges,
    Scale,
    SimilarityWeights,
    SoftmaxLoss,
    UniformWeights,
)
from legato.nn.sparse_coding import SparseCoding, SparseCodingOutput
from legato.nn.total_variation import TotalVariation, TotalVariationOutput

__all__ = [
    "LPGD",
    "TGV",
    "TV",
    "AnalysisDenoiser",
    "AnalysisDenoiserOutput",
    "ContrastWeights",
    "ConvexRidges",
    "ConvexSpline",
    "DeepinvPrior",
    "Entropic",
    "Filters",
    "FineFeatures",
    "GlobalLayer",
    "LearnedEdges",
    "LeastSquaresOutput",
    "LinearGradient",
    "LinearProgram",
    "MatrixGame",
    "MatrixGameOutput",
    "NonNegativeLeastSquares",
    "Perturbed",
    "Potts",
    "PottsOutput",
    "PottsState",
    "ProgramOutput",
    "ProgramStatus",
    "QuadraticProgram",
    "Reconstruction",
    "ReconstructionOutput",
    "Ridge",
    "Scale",
    "SimilarityWeights",
    "SimplexLeastSquares",
    "SoftmaxLoss",
    "SparseCoding",
    "SparseCodingOutput",
    "TotalVariation",
    "TotalVariationOutput",
    "UniformWeights",
    "Weight",
    "WeightMap",
    "from_cvxpy",
    "from_pyepo",
    "noise_level",
    "solve_qp",
]
