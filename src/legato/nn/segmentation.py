"""Around the Potts layer of a segmentation network: weights, scale, the layer itself, a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legato._support.precision import full_precision, out_of_autocast
from legato.errors import InputError
from legato.gradients import GradientStrategy
from legato.nn.neighbourhood import Neighbours, offsets
from legato.nn.potts import Potts
from legato.operators import Differences


class UniformWeights(nn.Module):
    """The same weight everywhere: W = β, learned, positive.

    Reference: Section 8 of Ochs et al. (2016).

    Args:
        beta (float): the weight to start from. Default: 1

    Shape:
        - image and features: anything, they are not looked at.
        - output: (1, 1, 1, 1, 1), which fits all images.

    >>> UniformWeights(0.5)(torch.rand(2, 3, 8, 8)).item()
    0.5
    """

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not beta > 0:
            raise InputError(f"UniformWeights needs beta > 0, not {beta}.")
        self.log_beta = nn.Parameter(torch.tensor(math.log(beta)))

    def forward(self, image: Tensor, features: Sequence[Tensor] = ()) -> Tensor:
        """β, as weights for :class:`Potts`."""
        return self.log_beta.exp().expand(1, 1, 1, 1, 1)


class ContrastWeights(nn.Module):
    r"""Weights that are small across edges of the image, with learned strength and sharpness.

    .. math:: w = β\,(ε + (1 − ε) \exp(−κ‖∇I‖))

    β and κ are kept positive by softplus; ‖∇I‖ is the norm over channels for each direction.
    Reference: Boykov and Jolly (2001); Section 8 of Ochs et al. (2016).

    Args:
        beta (float): strength β to start from. Default: 1
        kappa (float): sharpness κ to start from. Default: 10
        epsilon (float): share of the strength that stays across the sharpest edge, in [0, 1].
            Default: 0.1
        neighbours (int or offsets): as of :class:`Potts`. Default: 4

    Shape:
        - image: (B, C, *spatial). Features are not looked at.
        - output: weights (B, 1, E, *spatial), for E directions.

    >>> ContrastWeights()(torch.rand(1, 3, 8, 8)).shape
    torch.Size([1, 1, 2, 8, 8])
    """

    def __init__(
        self,
        beta: float = 1.0,
        kappa: float = 10.0,
        epsilon: float = 0.1,
        neighbours: Neighbours = 4,
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

    def forward(self, image: Tensor, features: Sequence[Tensor] = ()) -> Tensor:
        """Weights (B, 1, E, *spatial) of an image (B, C, *spatial)."""
        if image.ndim < 4:
            raise InputError(f"image must have shape (B, C, *spatial), not {tuple(image.shape)}.")
        directions = offsets(image.ndim - 2, self.neighbours)
        square = Differences(offsets=directions)(image).square().sum(1, keepdim=True)
        # The root of 0 has no derivative; images are data, so a tiny shift does no harm.
        contrast = torch.sqrt(square + 1e-12)
        return self.beta * (self.epsilon + (1 - self.epsilon) * torch.exp(-self.kappa * contrast))


class SimilarityWeights(nn.Module):
    r"""Weights between pixels of similar colour, near and far, learned for each direction.

    .. math:: w_e = β_e\,(ε + (1 − ε) \exp(−‖C ∇_e I‖² / 2s_e²))

    β_e says how much the neighbours at offset e count, s_e how far their colours may be apart, and
    the matrix C which differences of colour matter: what the kernels of a fully connected CRF say,
    for the pairs that the offsets make.
    Reference: Krähenbühl and Koltun (2011).

    Args:
        channels (int): of the image. Default: 3
        beta (float): strength β to start from, of every direction. Default: 1
        width (float): width s to start from, in units of the image. Default: 0.1
        epsilon (float): share ε to start from, in (0, 1), of the strength that stays whatever the
            colours. Default: 0.02
        neighbours (int or offsets): as of :class:`Potts`, in the plane. Default: 4

    Shape:
        - image: (B, channels, H, W). Features are not looked at.
        - output: weights (B, 1, E, H, W), for E directions.

    >>> far = ((1, 0), (0, 1), (9, 0), (0, 9))
    >>> SimilarityWeights(neighbours=far)(torch.rand(1, 3, 16, 16)).shape
    torch.Size([1, 1, 4, 16, 16])
    """

    def __init__(
        self,
        channels: int = 3,
        beta: float = 1.0,
        width: float = 0.1,
        epsilon: float = 0.02,
        neighbours: Neighbours = 4,
    ) -> None:
        super().__init__()
        positive = all(0 < value < math.inf for value in (channels, beta, width))
        if not (positive and 0 < epsilon < 1):
            raise InputError(
                "SimilarityWeights needs channels, beta and width > 0 and 0 < epsilon < 1, not "
                f"{channels}, {beta}, {width} and {epsilon}."
            )
        self.directions = offsets(2, neighbours)
        count = len(self.directions)
        self.log_beta = nn.Parameter(torch.full((count,), math.log(beta)))
        self.log_width = nn.Parameter(torch.full((count,), math.log(width)))
        self.raw_epsilon = nn.Parameter(torch.tensor(math.log(epsilon / (1 - epsilon))))
        self.metric = nn.Parameter(torch.eye(channels))

    @property
    def beta(self) -> Tensor:
        return self.log_beta.exp()

    @property
    def width(self) -> Tensor:
        return self.log_width.exp()

    @property
    def epsilon(self) -> Tensor:
        return self.raw_epsilon.sigmoid()

    def forward(self, image: Tensor, features: Sequence[Tensor] = ()) -> Tensor:
        """Weights (B, 1, E, H, W) of an image (B, channels, H, W)."""
        channels = len(self.metric)
        if image.ndim != 4 or image.shape[1] != channels:
            raise InputError(
                f"image must have shape (B, {channels}, H, W), not {tuple(image.shape)}: channels "
                "says how many SimilarityWeights compares."
            )
        image = out_of_autocast(image)
        with full_precision():
            seen = torch.einsum("ij,bjhw->bihw", self.metric, image)
        square = Differences(offsets=self.directions)(seen).square().sum(1, keepdim=True)
        beta, width = (each.view(-1, 1, 1) for each in (self.beta, self.width))
        similar = torch.exp(-square / (2 * width**2))
        return beta * (self.epsilon + (1 - self.epsilon) * similar)


class FineFeatures(nn.Module):
    r"""Feature maps of several resolutions, joined at that of the image.

    .. math:: H = \mathrm{relu}(C\,\mathrm{relu}(\textstyle\sum_s P_s F_s))

    F_s are a network's maps, brought to the image's size, and F_0 is the image; P and C are 3×3
    convolutions. Reference: Xie and Tu, Holistically-nested edge detection (ICCV 2015).

    Args:
        channels (Sequence[int]): of each feature map, in their order.
        hidden (int): channels of H. Default: 32

    Shape:
        - image: (B, 3, H, W).
        - features: (B, C_s, h, w) each, of strides that are powers of two with sizes rounded up.
        - output: (B, hidden, H, W).

    >>> features = torch.rand(1, 4, 8, 8), torch.rand(1, 6, 4, 4)
    >>> FineFeatures((4, 6), hidden=5)(torch.rand(1, 3, 8, 8), features).shape
    torch.Size([1, 5, 8, 8])
    """

    def __init__(self, channels: Sequence[int], hidden: int = 32) -> None:
        super().__init__()
        self.project = nn.ModuleList(
            nn.Conv2d(count, hidden, 3, padding=1) for count in (3, *channels)
        )
        self.mix = nn.Conv2d(hidden, hidden, 3, padding=1)

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        """H (B, hidden, H, W) of an image and a network's feature maps."""
        if len(features) + 1 != len(self.project):
            raise InputError(
                f"This model was made for {len(self.project) - 1} feature maps, but the network "
                f"returned {len(features)}. Return as many from it, or use contrast weights."
            )
        size = image.shape[-2:]
        total = self.project[0](2 * image - 1)
        for project, feature in zip(list(self.project)[1:], features, strict=True):
            part = project(feature)
            if part.shape[-2:] != size:
                # Sizes were rounded up at each stride; an image of one row tells its stride by its
                # columns.
                ratio = max(-(-n // m) for n, m in zip(size, part.shape[-2:], strict=True))
                stride = 1 << (ratio - 1).bit_length()
                part = F.interpolate(
                    part, scale_factor=stride, mode="bilinear", align_corners=False
                )[..., : size[0], : size[1]]
            total = total + part
        return torch.relu(self.mix(torch.relu(total)))


class LearnedEdges(nn.Module):
    r"""Weights in (0, 1) from a network's own fine features, one per class and direction.

    .. math:: W = \mathrm{sigmoid}(C\,H)

    H are :class:`FineFeatures`, C a 3×3 convolution. Weights of at most 1 bound the operator's norm
    once and for all, so that the solver's steps depend on no batch: give ``max_weight=1`` to
    :class:`GlobalLayer`. Reference: Zheng et al. (2015), end-to-end learned pairwise terms.

    Args:
        channels (Sequence[int]): of each feature map of the network, in their order.
        classes (int): number of labels, or 1 for weights that all labels share.
        neighbours (int or offsets): as of :class:`Potts`. Default: 4
        hidden (int): channels of H. Default: 32
        initial (float): the weight to start from, the same everywhere. Default: 0.5

    Shape:
        - image: (B, 3, H, W).
        - features: those of :class:`FineFeatures`.
        - output: weights (B, classes, E, H, W), in float32 or float64 under autocast too.

    >>> LearnedEdges((4,), classes=3)(torch.rand(1, 3, 8, 8), [torch.rand(1, 4, 4, 4)]).shape
    torch.Size([1, 3, 2, 8, 8])
    """

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        neighbours: Neighbours = 4,
        hidden: int = 32,
        initial: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 < initial < 1:
            raise InputError(f"LearnedEdges starts from a weight in (0, 1), not {initial}.")
        self.classes = classes
        self.directions = len(offsets(2, neighbours))
        self.fine = FineFeatures(channels, hidden)
        self.head = nn.Conv2d(hidden, classes * self.directions, 3, padding=1)
        nn.init.zeros_(self.head.weight)  # starts as a uniform weight
        assert self.head.bias is not None
        nn.init.constant_(self.head.bias, math.log(initial / (1 - initial)))

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Weights (B, classes, E, H, W) of an image and a network's feature maps."""
        raw = out_of_autocast(self.head(self.fine(image, features)))
        return torch.sigmoid(raw).unflatten(1, (self.classes, self.directions))


class Scale(nn.Module):
    r"""The paper's multiplicative scaling layer, from logits to costs: c = −s · logits.

    Without coupling the layer is softmax(−Nτc), so s = 1/(Nτ) reproduces the network's own softmax:
    that is where it starts. The shape stays. Reference: Section 8.3 of Ochs et al. (2016).

    Defaults: ``iterations=100``, ``tau=8**-0.5``.

    Args:
        iterations (int): N of the Potts layer that follows. Default: 100
        tau (float): its primal step. Default: 1/√8

    >>> Scale(1, tau=1.0)(torch.tensor([5.0, -5.0])).tolist()
    [-5.0, 5.0]
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
        """Costs −s · logits, of the same shape."""
        return -self.scale * out_of_autocast(logits)


class GlobalLayer(nn.Module):
    r"""A log-softmax that knows its neighbours: logits to a segmentation with short outlines.

    .. math:: \log \arg\min_{u ∈ Δ}\; ⟨−s·logits, u⟩ + ‖W∇u‖₁, \quad W = weights(image, features)

    :class:`Scale`, weights and :class:`Potts` in one module: it takes the place of
    ``logits.log_softmax(1)`` in front of ``nn.NLLLoss``, and starts there for W = 0.
    Defaults: ``iterations=100``, ``neighbours=4``, ``balance=5.0``.
    Reference: Section 8 of Ochs et al. (2016).

    Args:
        weights (Module): one such as :class:`LearnedEdges`; ``weights(image, features)`` returns W
            (B, L, E, H, W), with axes of size one where it does not vary.
        iterations (int): of the solver. Default: 100
        neighbours (int or offsets): as of :class:`Potts`. Default: 4
        balance (float): ratio r of the solver's steps, τ = r/‖K‖ and σ = 1/(r‖K‖). Default: 5
        max_weight (float, optional): a bound on W, which fixes the steps. Default: None, they
            follow the largest weight of each image
        average (bool): return the mean of the iterates, not the last one. Default: False
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``
        kernel (str, optional): as of :class:`Potts`.

    Shape:
        - logits: (B, L, H, W).
        - image: (B, C, H, W).
        - features: as the weights need them.
        - inside: (B, H, W) bool. Pixels where it is False, as where a batch was padded, are cut
          off: no weight crosses into them.
        - output: log-probabilities (B, L, H, W).

    >>> layer = GlobalLayer(ContrastWeights(), iterations=20)
    >>> found = layer(torch.randn(1, 3, 8, 8), torch.rand(1, 3, 8, 8))
    >>> torch.nn.functional.nll_loss(found, torch.zeros(1, 8, 8, dtype=torch.long)).backward()
    """

    def __init__(
        self,
        weights: nn.Module,
        *,
        iterations: int = 100,
        neighbours: Neighbours = 4,
        balance: float = 5.0,
        max_weight: float | None = None,
        average: bool = False,
        gradient: GradientStrategy | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.directions = offsets(2, neighbours)
        unit = 2 * math.sqrt(len(self.directions))  # ‖K‖ for weights of 1
        self.potts = Potts(
            iterations,
            neighbours=neighbours,
            balance=balance,
            average=average,
            gradient=gradient,
            kernel=kernel,
            max_weight=max_weight,
        )
        self.scale = Scale(iterations, tau=balance / (unit * (max_weight or 1.0)))

    def forward(
        self,
        logits: Tensor,
        image: Tensor,
        features: Sequence[Tensor] = (),
        inside: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities (B, L, H, W) of logits (B, L, H, W).

        Args:
            logits (Tensor): scores of the labels.
            image (Tensor): (B, C, H, W), for the weights.
            features (Sequence[Tensor]): feature maps, for the weights that look at them.
            inside (Tensor, optional): (B, H, W) bool, False where a batch was padded.
        """
        return self.potts(*self.costs_and_weights(logits, image, features, inside))

    def costs_and_weights(
        self,
        logits: Tensor,
        image: Tensor,
        features: Sequence[Tensor] = (),
        inside: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What :class:`Potts` is given, from the arguments of :meth:`forward`."""
        weights = self.weights(image, features)
        if inside is None and self.potts.max_weight is None and weights.shape[-1] > 1:
            # Steps follow from the edges that there are, as where an image was padded.
            inside = logits.new_ones((1, *logits.shape[-2:]), dtype=torch.bool)
        if inside is not None:
            weights = weights * self._crossings(inside)
        return self.scale(logits), weights

    def _crossings(self, inside: Tensor) -> Tensor:
        """Whether each difference stays within the image: (B, 1, E, H, W)."""
        height, width = inside.shape[-2:]
        most = max(abs(step) for offset in self.directions for step in offset)
        padded = F.pad(inside, (most,) * 4)
        masks = [
            inside & padded[:, most + dy : most + dy + height, most + dx : most + dx + width]
            for dy, dx in self.directions
        ]
        return torch.stack(masks, 1)[:, None]


class SoftmaxLoss(nn.NLLLoss):
    r"""The paper's loss on probabilities u = exp(log-probabilities) (errata 12).

    .. math:: \log \sum_k e^{u_i^k} − u_i^{g_i}

    Bounded: with 3 labels it lies in [0.551445, 1.551445], so that a certain mistake teaches hardly
    anything; ``nn.NLLLoss`` is the healthier choice.
    Reference: Section 8.2 of Ochs et al. (2016).

    Args:
        weight, reduction, ignore_index, size_average, reduce: those of :class:`torch.nn.NLLLoss`.

    >>> certain = torch.tensor([[0.0, -99.0, -99.0]])
    >>> [round(SoftmaxLoss()(certain, torch.tensor([label])).item(), 6) for label in (0, 1)]
    [0.551445, 1.551445]
    """

    def forward(self, log_probabilities: Tensor, target: Tensor) -> Tensor:
        """The loss of log-probabilities (B, L, *spatial) and labels (B, *spatial)."""
        return super().forward(log_probabilities.exp().log_softmax(1), target)


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
