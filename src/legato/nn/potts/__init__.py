"""The Potts model: multi-label segmentation as a layer."""

from legato.nn.potts.layer import Potts, PottsOutput, PottsState

__all__ = ["Potts", "PottsOutput", "PottsState"]
