"""Layers: structured problems as thin nn.Modules."""

from legato.nn.analysis_denoiser import AnalysisDenoiser, AnalysisDenoiserOutput
from legato.nn.losses import log_loss, softmax_loss
from legato.nn.noise import noise_level
from legato.nn.potts import Potts, PottsOutput, PottsState
from legato.nn.total_variation import TotalVariation, TotalVariationOutput
from legato.nn.weights import ContrastWeights, LearnedWeights, Scale

__all__ = [
    "AnalysisDenoiser",
    "AnalysisDenoiserOutput",
    "ContrastWeights",
    "LearnedWeights",
    "Potts",
    "PottsOutput",
    "PottsState",
    "Scale",
    "TotalVariation",
    "TotalVariationOutput",
    "log_loss",
    "noise_level",
    "softmax_loss",
]
