"""Weights of a regulariser: learned numbers, learned maps, or what a network reads off an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from legato._support.checks import holds, require_positive, require_whole
from legato.errors import InputError


class Weight(nn.Module):
    """Learned positive weights that do not depend on the image, λ = exp(·).

    Args:
        value (float or Tensor): λ to start from: a number, or a map that broadcasts to what it
            weighs, such as (H, W) for total variation.

    Shape:
        - image: any; it is not looked at
        - output: that of ``value``

    >>> weight = Weight(0.1)
    >>> weight(torch.rand(1, 1, 8, 8)).round(decimals=3)
    tensor(0.1000, grad_fn=<...>)
    """

    def __init__(self, value: float | Tensor) -> None:
        super().__init__()
        start = torch.as_tensor(value).detach().clone()
        start = start if start.is_floating_point() else start.float()
        if not holds((start > 0) & torch.isfinite(start)):
            raise InputError(f"weight must be positive and finite, not {value!r}.")
        self.log = nn.Parameter(start.log())

    def forward(self, image: Tensor) -> Tensor:
        """λ; the image is not looked at."""
        return self.log.exp()


class WeightMap(nn.Module):
    r"""Weights for each pixel, which a small network reads off a first image.

    .. math:: λ(y) = \exp(a + N_θ(x^0(y)))

    Its layers see 5 + 2·Σ ``dilations`` pixels each way; what they add to the learned logarithms a
    starts at zero, so that training begins with one weight a map. Complex images are seen by their
    modulus.

    Args:
        maps (int): how many: 1 for total variation, K for K filters. Default: 1
        weight (float or Tensor): λ to start from, a number or one for each map. Default: 0.01
        level (float): what counts as a large deviation in the first image, such as a few times the
            noise's; the network sees the image in this unit. Default: 0.2
        width (int): channels of its layers. Default: 32
        dilations (sequence of int): of the layers of 3×3 weights that follow the first one of 5×5.
            Default: (2, 3), four layers that see 15×15 pixels

    Shape:
        - image: (B, 1, H, W)
        - output: λ, (B, maps, H, W)

    Reference: Kofler et al. (2023), *Learning regularization parameter-maps for variational image
    reconstruction using deep neural networks and algorithm unrolling*.

    >>> WeightMap(weight=0.05)(torch.rand(2, 1, 16, 16)).shape
    torch.Size([2, 1, 16, 16])
    """

    def __init__(
        self, maps: int = 1, weight: float | Tensor = 0.01, *, level: float = 0.2, width: int = 32,
        dilations: Sequence[int] = (2, 3),
    ) -> None:  # fmt: skip
        super().__init__()
        require_whole(maps, "maps")
        require_whole(width, "width")
        for dilation in dilations:
            require_whole(dilation, "dilations")
        require_positive(level, "level")
        self.level = level
        start = torch.as_tensor(weight, dtype=torch.get_default_dtype()).detach()
        if not holds((start > 0) & torch.isfinite(start)):
            raise InputError(f"weight must be positive and finite, not {weight!r}.")
        if start.numel() not in (1, maps):
            raise InputError(f"weight has {start.numel()} entries: give one, or one for each of "
                             f"the {maps} maps.")  # fmt: skip
        self.log = nn.Parameter(start.log().flatten().expand(maps).clone()[:, None, None])
        between = [part for d in dilations for part in (_conv(width, width, 3, d), nn.ReLU())]
        self.layers = nn.Sequential(
            _conv(1, width, 5, 1), nn.ReLU(), *between, nn.Conv2d(width, maps, 1)
        )
        last = self.layers[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, image: Tensor) -> Tensor:
        """λ (B, maps, H, W) for a first image (B, 1, H, W)."""
        seen = image.abs() if image.is_complex() else image
        if seen.ndim != 4 or seen.shape[1] != 1:
            raise InputError(
                f"WeightMap reads images of shape (B, 1, H, W), not {tuple(image.shape)}. Turn "
                "channels into a batch, or write a module of your own: it takes the first image "
                "and returns positive weights."
            )
        middle = seen.mean((2, 3), keepdim=True)
        return (self.log + self.layers((seen - middle) / self.level)).exp()


def as_weight(weight: float | Tensor | nn.Module) -> nn.Module:
    """A number or a map is learned as it is; a module is asked for each image."""
    return weight if isinstance(weight, nn.Module) else Weight(weight)


def _conv(before: int, after: int, size: int, dilation: int) -> nn.Conv2d:
    reach = dilation * (size // 2)
    return nn.Conv2d(
        before, after, size, padding=reach, dilation=dilation, padding_mode="replicate"
    )
