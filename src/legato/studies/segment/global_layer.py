"""The segmentation model after a network: scale, weights, Potts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legato.errors import InputError
from legato.gradients import Unroll
from legato.nn import ContrastWeights, Potts, PottsOutput, Scale
from legato.nn.kernels.neighbourhood import offsets
from legato.studies.segment.fine_features import FineFeatures, FineScores
from legato.studies.segment.networks import Scores


class UniformWeights(nn.Module):
    """The same weight everywhere: W = β, learned, positive."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.log_beta = nn.Parameter(torch.tensor(math.log(beta)))

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        return self.log_beta.exp().expand(1, 1, 1, 1, 1)


class ImageContrast(nn.Module):
    """Weights that are small across edges of the image, for every direction."""

    def __init__(self, neighbours: int = 4, beta: float = 1.0, kappa: float = 10.0) -> None:
        super().__init__()
        self.contrast = ContrastWeights(beta, kappa, neighbours=neighbours)

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        return self.contrast(image)


class LearnedEdges(nn.Module):
    r"""Weights in (0, 1) from the network's own fine features, one per class and direction.

    .. math:: W = \mathrm{sigmoid}(C\,H)

    H are :class:`FineFeatures`, C a 3×3 convolution. Weights of at most 1 bound the operator's norm
    once and for all, so that the solver's steps depend on no batch.
    """

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        neighbours: int = 4,
        hidden: int = 32,
        initial: float = 0.5,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.directions = len(offsets(2, neighbours))
        self.fine = FineFeatures(channels, hidden)
        self.head = nn.Conv2d(hidden, classes * self.directions, 3, padding=1)
        nn.init.zeros_(self.head.weight)  # starts as a uniform weight
        assert self.head.bias is not None
        nn.init.constant_(self.head.bias, math.log(initial / (1 - initial)))

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        raw = self.head(self.fine(image, features)).float()
        return torch.sigmoid(raw).unflatten(1, (self.classes, self.directions))


class GlobalLayer(nn.Module):
    """Logits to a segmentation that is short where its weights are large.

    ``weights(image, features)`` returns W, with axes (B, L, E, H, W) or one.
    ``bounded`` says that W never exceeds 1, which fixes the solver's steps. Pixels outside the
    image (``inside`` False, where a batch was padded) are cut off: no weight crosses into them.
    """

    def __init__(
        self,
        weights: nn.Module,
        *,
        iterations: int = 100,
        neighbours: int = 4,
        balance: float = 5.0,
        bounded: bool = False,
        average: bool = False,
        last: int | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.directions = offsets(2, neighbours)
        norm = 2 * math.sqrt(len(self.directions))
        self.potts = Potts(
            iterations,
            neighbours=neighbours,
            balance=balance,
            average=average,
            gradient=Unroll(last=last),
            kernel=kernel,
            tau=balance / norm if bounded else None,
            sigma=1 / (balance * norm) if bounded else None,
        )
        self.scale = Scale(iterations, tau=balance / norm)

    def forward(self, image: Tensor, scores: Scores, inside: Tensor | None = None) -> PottsOutput:
        weights = self.weights(image, scores.features)
        if inside is not None:
            weights = weights * self._crossings(inside)
        return self.potts(self.scale(scores.logits.float()), weights)

    def _crossings(self, inside: Tensor) -> Tensor:
        """Whether each difference stays within the image: (B, 1, E, H, W)."""
        height, width = inside.shape[-2:]
        padded = F.pad(inside, (1, 1, 1, 1))
        masks = []
        for dy, dx in self.directions:
            neighbour = padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
            masks.append(inside & neighbour)
        return torch.stack(masks, 1)[:, None]


class Segmentation(NamedTuple):
    """A network's scores and, where there is a global layer, its output."""

    scores: Scores
    output: PottsOutput | None

    @property
    def probabilities(self) -> Tensor:
        if self.output is not None:
            return self.output.probabilities
        return self.scores.logits.float().softmax(1)

    @property
    def labels(self) -> Tensor:
        return self.probabilities.argmax(1)


class Segmenter(nn.Module):
    """A network, with or without the global layer after it.

    ``network`` is any module that maps images (B, 3, H, W) in [0, 1] to logits (B, L, H, W), or to
    :class:`Scores`; ``refine`` adds to its logits what its fine features say.
    """

    def __init__(
        self,
        network: nn.Module,
        layer: GlobalLayer | None = None,
        refine: FineScores | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.refine = refine
        self.layer = layer

    def forward(self, image: Tensor, inside: Tensor | None = None) -> Segmentation:
        scores = self.network(image)
        if not isinstance(scores, Scores):
            scores = Scores(scores)
        if scores.logits.shape[-2:] != image.shape[-2:]:
            raise InputError(
                f"The network returned logits of size {tuple(scores.logits.shape[-2:])} for images "
                f"of size {tuple(image.shape[-2:])}; upsample them in the network."
            )
        if self.refine is not None:
            finer = scores.logits.float() + self.refine(image, scores.features)
            scores = scores._replace(logits=finer)
        output = None if self.layer is None else self.layer(image, scores, inside)
        return Segmentation(scores, output)
