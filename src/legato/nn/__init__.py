"""Layers: structured problems as thin nn.Modules."""

from legato.nn.analysis_denoiser import AnalysisDenoiser, AnalysisDenoiserOutput
from legato.nn.least_squares import (
    LeastSquaresOutput,
    NonNegativeLeastSquares,
    SimplexLeastSquares,
)
from legato.nn.losses import log_loss, softmax_loss
from legato.nn.matrix_game import MatrixGame, MatrixGameOutput
from legato.nn.noise import noise_level
from legato.nn.potts import Potts, PottsOutput, PottsState
from legato.nn.sparse_coding import SparseCoding, SparseCodingOutput
from legato.nn.total_variation import TotalVariation, TotalVariationOutput
from legato.nn.weights import ContrastWeights, LearnedWeights, Scale

__all__ = [
    "AnalysisDenoiser",
    "AnalysisDenoiserOutput",
    "ContrastWeights",
    "LearnedWeights",
    "LeastSquaresOutput",
    "MatrixGame",
    "MatrixGameOutput",
    "NonNegativeLeastSquares",
    "Potts",
    "PottsOutput",
    "PottsState",
    "Scale",
    "SimplexLeastSquares",
    "SparseCoding",
    "SparseCodingOutput",
    "TotalVariation",
    "TotalVariationOutput",
    "log_loss",
    "noise_level",
    "softmax_loss",
]
