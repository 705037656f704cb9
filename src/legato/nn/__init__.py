"""Layers: structured problems as thin nn.Modules."""

from legato.nn.losses import log_loss, softmax_loss
from legato.nn.potts import Potts, PottsOutput, PottsState
from legato.nn.weights import ContrastWeights, LearnedWeights, Scale

__all__ = [
    "ContrastWeights",
    "LearnedWeights",
    "Potts",
    "PottsOutput",
    "PottsState",
    "Scale",
    "log_loss",
    "softmax_loss",
]
