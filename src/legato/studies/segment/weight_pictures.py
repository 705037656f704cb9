"""What a model has learned about edges, as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from legato.errors import InputError
from legato.studies.segment.data import Dataset, Sample
from legato.studies.segment.global_layer import Segmenter
from legato.studies.segment.networks import Scores


@torch.no_grad()
def weight_pictures(
    model: Segmenter, samples: Dataset | Sequence[Sample], device: torch.device | str
) -> dict[str, Tensor]:
    """The mean weight around each pixel, (H, W) uint8 by name; 255 is the largest it can be."""
    layer = model.layer
    if layer is None:
        raise InputError("This model has no global layer, hence no weights to show.")
    model = model.to(device).eval()
    found = {}
    for index in range(len(samples)):
        sample = samples[index]
        image = sample.image[None].to(device).float() / 255
        scores = model.network(image)
        features = scores.features if isinstance(scores, Scores) else ()
        weights = layer.weights(image, features).float().mean((0, 1, 2))
        # Learned weights lie in (0, 1); others are shown in units of their largest.
        top = 1.0 if layer.potts.tau is not None else float(weights.max())
        picture = (255 * weights / top).round().clamp(0, 255).to(torch.uint8)
        found[sample.name] = picture.expand(sample.labels.shape).cpu()
    return found
