"""Where the Potts layer's weights come from, and how its cost is scaled."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legato.errors import InputError
from legato.nn.neighbourhood import offsets
from legato.operators import Differences


class ContrastWeights(nn.Module):
    r"""Weights that are small across edges of the image, with learned strength and sharpness.

    .. math:: w = β\,(ε + (1 − ε) \exp(−κ‖∇I‖))

    β and κ are kept positive by softplus; ‖∇I‖ is the norm over channels for each direction.
    ``forward(image)`` maps (B, C, *spatial) to (B, 1, E, *spatial).
    Reference: Boykov and Jolly (2001); Section 7 of Ochs et al. (2016).
    """

    def __init__(
        self, beta: float = 1.0, kappa: float = 10.0, epsilon: float = 0.1, neighbours: int = 4
    ) -> None:
        super().__init__()
        if not (beta > 0 and kappa > 0 and 0 <= epsilon <= 1):
            raise InputError(
                "ContrastWeights needs beta > 0, kappa > 0 and 0 ≤ epsilon ≤ 1, not "
                f"{beta}, {kappa}, {epsilon}."
            )
        self.raw_beta = nn.Parameter(torch.tensor(_inverse_softplus(beta)))
        self.raw_kappa = nn.Parameter(torch.tensor(_inverse_softplus(kappa)))
        self.epsilon = epsilon
        self.neighbours = neighbours

    @property
    def beta(self) -> Tensor:
        return F.softplus(self.raw_beta)

    @property
    def kappa(self) -> Tensor:
        return F.softplus(self.raw_kappa)

    def forward(self, image: Tensor) -> Tensor:
        if image.ndim < 4:
            raise InputError(f"image must have shape (B, C, *spatial), not {tuple(image.shape)}.")
        directions = offsets(image.ndim - 2, self.neighbours)
        square = Differences(offsets=directions)(image).square().sum(1, keepdim=True)
        # The root of 0 has no derivative; images are data, so a tiny shift does no harm.
        contrast = torch.sqrt(square + 1e-12)
        return self.beta * (self.epsilon + (1 - self.epsilon) * torch.exp(-self.kappa * contrast))


class LearnedWeights(nn.Module):
    r"""A small convolutional head that predicts the weights from features.

    .. math:: W = \mathrm{softplus}(\mathrm{conv}_2(\mathrm{relu}(\mathrm{conv}_1(features))))

    ``forward(features)`` maps (B, C, H, W) to (B, 1 or labels, E, H, W), started near ``initial``.
    Reference: Zheng et al. (2015), end-to-end learned pairwise terms.
    """

    def __init__(
        self,
        channels: int,
        hidden: int = 32,
        labels: int = 1,
        neighbours: int = 4,
        initial: float = 1.0,
    ) -> None:
        super().__init__()
        if min(channels, hidden, labels) < 1 or not initial > 0:
            raise InputError("LearnedWeights needs positive sizes and a positive initial weight.")
        self.labels = labels
        self.directions = len(offsets(2, neighbours))
        self.first = nn.Conv2d(channels, hidden, 3, padding=1)
        self.second = nn.Conv2d(hidden, labels * self.directions, 3, padding=1)
        nn.init.zeros_(self.second.weight)  # starts as a uniform weight
        nn.init.constant_(self.second.bias, _inverse_softplus(initial))  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        raw = self.second(torch.relu(self.first(features)))
        # Under autocast the convolutions end in half precision, in which no solver computes.
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        return F.softplus(raw).unflatten(1, (self.labels, self.directions))


class Scale(nn.Module):
    r"""The paper's multiplicative scaling layer, from logits to costs: c = −s · logits.

    Without coupling the layer is softmax(−Nτc), so s = 1/(Nτ) reproduces the network's own softmax:
    that is where it starts. ``forward(logits)`` keeps the shape.
    Reference: Section 7.3 of Ochs et al. (2016).
    """

    def __init__(self, iterations: int = 100, tau: float = 8**-0.5) -> None:
        super().__init__()
        if iterations < 1 or not tau > 0:
            raise InputError("Scale needs a positive number of iterations and a positive tau.")
        self.log_scale = nn.Parameter(torch.tensor(-math.log(iterations * tau)))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def forward(self, logits: Tensor) -> Tensor:
        return -self.scale * logits


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
