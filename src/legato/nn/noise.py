"""How noisy is an image?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from legato._support.checks import require_image
from legato.errors import InputError

_FLAT = 0.25
"""The share of pixels that count: those around which the blurred image changes least."""
_BLUR = 5
"""Pixels across of that blur, which leaves next to nothing of what N sees of the noise."""
_GAUSSIAN_MEDIAN = 0.6744897501960817
"""The median of |z| for a standard normal z."""
_CLIPPED = 1e-3
"""The share of pixels exactly at one end from which on an image counts as clipped there."""
_REACH = 1.5
"""How many σ away from an end a window counts: noise is nearly whole there, and flat parts stay."""
_ROUNDS = 3
"""How often σ is estimated anew away from the ends that it tells."""
_ENOUGH = 0.01
"""The share of windows that have to be left for an estimate without the others."""


@torch.no_grad()
def noise_level(image: Tensor) -> Tensor:
    r"""The standard deviation σ of white Gaussian noise in each image of a batch, (B,).

    .. math:: σ ≈ \frac{\mathrm{median}\,|N * y|}{0.6745\,‖N‖₂}, \qquad
              N = \begin{pmatrix} 1 & −2 & 1 \\ −2 & 4 & −2 \\ 1 & −2 & 1 \end{pmatrix}

    N is the difference of two Laplacians, blind to edges along the axes and to what is bilinear.
    Texture is left out by taking the median over the flattest quarter of the image; a smooth image
    without noise gives zero. Noise that was clipped, as to 0 and 255 in a file, is weaker near the
    ends: where many pixels lie exactly at one, windows within 1.5σ of it are left out.

    Fine texture looks like noise. Over 200 photographs the estimate lies between 0.97 and 1.11 of
    the truth for σ = 25 of 255, clipped or not, between 0.93 and 1.03 for 50, and between 0.96 and
    1.43 for 10 (``benchmarks/results/noise_level_cpu.json``).
    The constants were chosen on twenty of these; of 162 others the estimate is between 0.97 and
    1.11 of the truth at σ = 25 (``benchmarks/results/noise_level_held_out_cpu.json``).

    Args:
        image (Tensor): (B, C, H, W), at least 3×3; all channels count together.

    Returns:
        Tensor: σ (B,).

    Reference: Immerkær (1996); Donoho and Johnstone (1994) for the median; Tai and Yang (2008) for
    leaving out what is not flat.

    >>> noisy = 0.5 + 0.1 * torch.randn(2, 1, 64, 64)
    >>> noise_level(noisy).round(decimals=1)
    tensor([0.1000, 0.1000])
    """
    require_image(image, volumes=False)
    if min(image.shape[-2:]) < 3:
        raise InputError(
            f"noise_level needs images of at least 3×3 pixels, not {tuple(image.shape[-2:])}."
        )
    sizes, slopes, blurred = _windows(image)
    sigma = _flattest_median(sizes, slopes, torch.ones_like(slopes, dtype=torch.bool))
    low, high = _ends(image)
    for _ in range(_ROUNDS):  # windows near an end are known once σ is, and σ once they are
        reach = _REACH * sigma[:, None]
        inside = (blurred > low[:, None] + reach) & (blurred < high[:, None] - reach)
        sigma = torch.maximum(sigma, _flattest_median(sizes, slopes, inside))
    return sigma


def _windows(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every 3×3 window of each channel |N * y|/‖N‖₂, how steep and how bright it is, (B, n)."""
    row = torch.tensor([1.0, -2.0, 1.0], dtype=image.dtype, device=image.device)
    mask = torch.outer(row, row) / 6  # ‖N‖₂ = 6
    planes = image.flatten(0, 1).unsqueeze(1)
    size = F.conv2d(planes, mask[None, None]).abs()
    smooth = F.avg_pool2d(F.pad(planes, (_BLUR // 2,) * 4, mode="replicate"), _BLUR, 1)
    across = (smooth[..., 1:-1, 2:] - smooth[..., 1:-1, :-2]).abs()
    down = (smooth[..., 2:, 1:-1] - smooth[..., :-2, 1:-1]).abs()
    batch = image.shape[0]
    middle = smooth[..., 1:-1, 1:-1]
    return size.reshape(batch, -1), (across + down).reshape(batch, -1), middle.reshape(batch, -1)


def _ends(image: Tensor) -> tuple[Tensor, Tensor]:
    """The values that an image was clipped to, (B,) each; infinite where it was not.

    Clipping leaves many pixels that are exactly the smallest, or the largest; noise leaves one.
    """
    values = image.flatten(1)
    low, high = values.amin(1), values.amax(1)
    least = _CLIPPED * values.shape[1]

    def clipped(end: Tensor) -> Tensor:
        return ((values == end[:, None]).sum(1) > least) & (values.shape[1] * _CLIPPED >= 1)

    nowhere = torch.full_like(low, torch.inf)
    return torch.where(clipped(low), low, -nowhere), torch.where(clipped(high), high, nowhere)


def _flattest_median(sizes: Tensor, slopes: Tensor, counted: Tensor) -> Tensor:
    """σ by the median over the flattest quarter of the windows that count; 0 where too few do."""
    count = (_FLAT * counted.sum(1)).long().clamp(min=1)
    most = max(1, int(_FLAT * slopes.shape[1]))
    order = slopes.where(counted, torch.inf).topk(most, dim=1, largest=False).indices
    within = torch.arange(most, device=slopes.device) < count[:, None]
    # torch's median is the lower of the two in the middle, which is good enough for thousands.
    found = sizes.gather(1, order).where(within, torch.nan).nanmedian(1).values
    enough = counted.sum(1) >= _ENOUGH * slopes.shape[1]
    return torch.where(enough, found / _GAUSSIAN_MEDIAN, torch.zeros_like(found))
