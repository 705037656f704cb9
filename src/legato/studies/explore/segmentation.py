"""One picture, segmented with and without a length penalty, and how the solver got there."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from legato.errors import InputError
from legato.nn import ContrastWeights, Potts, PottsOutput, PottsState
from legato.studies.explore.colour_model import colour_cost

_POINTS_PER_OCTAVE = 2


class Range(NamedTuple):
    """What a control may be set to."""

    least: float
    most: float


RANGES = {
    "labels": Range(2, 8),
    "smoothness": Range(0, 10),
    "contrast": Range(0, 50),
    "iterations": Range(1, 1000),
}


@dataclass(frozen=True)
class Controls:
    """L labels; β and κ of :class:`legato.nn.ContrastWeights`; iterations of the layer."""

    labels: int = 4
    smoothness: float = 3.0
    contrast: float = 10.0
    iterations: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), RANGES[field.name]
            if not (math.isfinite(value) and least <= value <= most):
                raise InputError(f"{field.name} lies between {least} and {most}, not {value}.")
        for name in ("labels", "iterations"):
            if getattr(self, name) != int(getattr(self, name)):
                raise InputError(f"{name} is a whole number, not {getattr(self, name)}.")


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


def segment_picture(image: Tensor, controls: Controls) -> Segmentation:
    r"""Segment an image (3, H, W) in [0, 1] by colour, alone and with the Potts layer.

    .. math:: \arg\min_l c_l(x) \quad\text{against}\quad \min_{u ∈ Δ} ⟨c, u⟩ + ‖W∇u‖₁

    Reference: Section 7 of Ochs et al. (2016).
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
            output = Potts(place - done)(cost, weights, state)
            state, done = output.state, place
            energy.append(float(output.energy) / image[0].numel())
            gap.append(float(output.gap) / image[0].numel())
        cheapest, found = cost.argmin(1), output.probabilities.argmax(1)
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
    octaves = math.log2(iterations)
    steps = max(1, math.ceil(octaves * _POINTS_PER_OCTAVE))
    return sorted({round(2 ** (octaves * k / steps)) for k in range(steps + 1)})


def outline_length(labels: Tensor) -> int:
    """How many pairs of neighbouring pixels differ."""
    across, down = labels.diff(dim=1), labels.diff(dim=0)
    return int((across != 0).sum() + (down != 0).sum())


def _energy(output: PottsOutput, labels: Tensor) -> float:
    """The energy of a label map (1, H, W) in the problem that was solved."""
    u = F.one_hot(labels, output.cost.shape[1]).movedim(-1, 1).to(output.cost)
    return float(output.problem.objective(u))
