"""A cost for each label from colours alone: no network, no training data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from legato.errors import InputError

_SAMPLE = 4096
_ROUNDS = 25
_FLOOR = 0.02
"""The smallest s, in parts of the full range: below, differences are noise rather than colour."""


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
    means = _typical_colours(colours, labels)
    square = torch.cdist(colours, means).square()
    variance = square.min(1).values.mean() / 3
    cost = square / (2 * variance.clamp(min=_FLOOR**2))
    return cost.T.reshape(1, labels, *image.shape[1:]).contiguous()


def _typical_colours(colours: Tensor, labels: int) -> Tensor:
    """The k-means (L, 3) of colours (N, 3), from dark to bright; the same for the same colours."""
    sample = colours[:: max(1, len(colours) // _SAMPLE)]
    means = _spread_out(sample, labels)
    for _ in range(_ROUNDS):
        member = F.one_hot(torch.cdist(sample, means).argmin(1), labels).to(sample)
        count = member.sum(0)[:, None]
        # A mean that no colour is nearest to stays where it is.
        means = torch.where(count > 0, member.T @ sample / count.clamp(min=1), means)
    return means[means.sum(1).argsort()]


def _spread_out(sample: Tensor, labels: int) -> Tensor:
    """Where k-means starts: quantiles of the brightness. Outliers have no say, unlike extremes."""
    order = sample[sample.sum(1).argsort()]
    places = (torch.arange(labels, dtype=torch.float64) + 0.5) / labels * len(order)
    return order[places.long()]
