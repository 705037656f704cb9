"""Total variation denoising as a layer."""

from legato.nn.total_variation.layer import TotalVariation, TotalVariationOutput

__all__ = ["TotalVariation", "TotalVariationOutput"]
