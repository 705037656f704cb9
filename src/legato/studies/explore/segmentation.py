"""One picture segmented by colours, alone and with a length penalty, and the way there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from legato.errors import InputError
from legato.nn import ContrastWeights, Potts, PottsOutput, PottsState
from legato.studies.explore.controls import SegmentationControls

_COLOURS_SAMPLED = 4096
_MEANS_ROUNDS = 25
_LEAST_DEVIATION = 0.02
"""The smallest s, in parts of the full range: below, differences are noise rather than colour."""


@dataclass(frozen=True)
class Segmentation:
    """Label maps (H, W), the weights' picture, and curves along the iterations, all per pixel.

    The smallest energy lies between ``energy`` − ``gap`` and ``energy`` at every iteration.
    """

    cost_only: Tensor
    potts: Tensor
    weights: Tensor
    iterations: list[int]
    energy: list[float]
    gap: list[float]
    cost_only_energy: float
    cost_only_length: int
    potts_length: int


def segment_picture(image: Tensor, controls: SegmentationControls) -> Segmentation:
    r"""Segment an image (3, H, W) in [0, 1] by colour, alone and with the Potts layer.

    .. math:: \arg\min_l c_l(x) \quad\text{against}\quad \min_{u ∈ Δ} ⟨c, u⟩ + ‖W∇u‖₁

    Reference: Section 8 of Ochs et al. (2016).
    """
    with torch.no_grad():
        cost = colour_cost(image, controls.labels)
        weights = coupling(image[None], controls.smoothness, controls.contrast)
        places = looked_at(controls.iterations)
        energy, gap = [], []
        state: PottsState | None = None
        done = 0
        for place in places:
            # The state carries on exactly where it stopped: the curve is that of one solve.
            output = Potts(place - done).solve(cost, weights, state)
            state, done = output.state, place
            energy.append(float(output.energy) / image[0].numel())
            gap.append(float(output.gap) / image[0].numel())
        cheapest, found = cost.argmin(1), output.x.argmax(1)
        return Segmentation(
            cost_only=cheapest[0],
            potts=found[0],
            weights=weights.expand(1, 1, 2, *image.shape[1:])[0, 0].mean(0),
            iterations=places,
            energy=energy,
            gap=gap,
            cost_only_energy=_energy(output, cheapest) / image[0].numel(),
            cost_only_length=outline_length(cheapest[0]),
            potts_length=outline_length(found[0]),
        )


def coupling(image: Tensor, smoothness: float, contrast: float) -> Tensor:
    """The weights W; β = 0 uncouples the pixels, κ = 0 makes all borders equally expensive."""
    if smoothness == 0 or contrast == 0:
        return image.new_full((1, 1, 1, 1, 1), smoothness)
    weights: Tensor = ContrastWeights(smoothness, contrast)(image)
    return weights


def looked_at(iterations: int) -> list[int]:
    """About two iterations an octave from the first to the last."""
    steps = max(1, math.ceil(2 * math.log2(iterations)))
    return sorted({round(iterations ** (k / steps)) for k in range(steps + 1)})


def outline_length(labels: Tensor) -> int:
    """How many pairs of neighbouring pixels differ."""
    across, down = labels.diff(dim=1), labels.diff(dim=0)
    return int((across != 0).sum() + (down != 0).sum())


def _energy(output: PottsOutput, labels: Tensor) -> float:
    """The energy of a label map (1, H, W) in the problem that was solved."""
    u = F.one_hot(labels, output.cost.shape[1]).movedim(-1, 1).to(output.cost)
    return float(output.problem.objective(u))


def colour_cost(image: Tensor, labels: int) -> Tensor:
    r"""Costs (1, L, H, W) of an image (3, H, W) in [0, 1]: distances to L typical colours.

    .. math:: c_l(x) = \frac{‖I(x) − m_l‖^2}{2 s^2}

    The m_l are the k-means of the colours, from dark to bright, and s² is the mean variance about
    them for each channel. Reference: Lloyd (1982).
    """
    if image.ndim != 3 or image.shape[0] != 3 or image.numel() == 0:
        raise InputError(f"A picture has shape (3, H, W), not {tuple(image.shape)}.")
    if labels < 2:
        raise InputError(f"A segmentation needs at least 2 labels, not {labels}.")
    colours = image.flatten(1).T
    square = torch.cdist(colours, _typical_colours(colours, labels)).square()
    variance = square.min(1).values.mean() / 3
    cost = square / (2 * variance.clamp(min=_LEAST_DEVIATION**2))
    return cost.T.reshape(1, labels, *image.shape[1:]).contiguous()


def _typical_colours(colours: Tensor, labels: int) -> Tensor:
    """The k-means (L, 3) of colours (N, 3), from dark to bright; the same for the same colours."""
    sample = colours[:: max(1, len(colours) // _COLOURS_SAMPLED)]
    # Start at quantiles of the brightness: outliers have no say in them, unlike in extremes.
    places = (torch.arange(labels, dtype=torch.float64) + 0.5) / labels * len(sample)
    means = sample[sample.sum(1).argsort()][places.long()]
    for _ in range(_MEANS_ROUNDS):
        member = F.one_hot(torch.cdist(sample, means).argmin(1), labels).to(sample)
        count = member.sum(0)[:, None]
        # A mean that no colour is nearest to stays where it is.
        means = torch.where(count > 0, member.T @ sample / count.clamp(min=1), means)
    return means[means.sum(1).argsort()]
