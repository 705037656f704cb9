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


@torch.no_grad()
def noise_level(image: Tensor) -> Tensor:
    r"""The standard deviation σ of white Gaussian noise in each image of a batch, (B,).

    .. math:: σ ≈ \frac{\mathrm{median}\,|N * y|}{0.6745\,‖N‖₂}, \qquad
              N = \begin{pmatrix} 1 & −2 & 1 \\ −2 & 4 & −2 \\ 1 & −2 & 1 \end{pmatrix}

    N is the difference of two Laplacians, blind to edges along the axes and to what is bilinear.
    Texture is left out by taking the median over the flattest quarter of the image; a smooth image
    without noise gives zero.

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
    row = torch.tensor([1.0, -2.0, 1.0], dtype=image.dtype, device=image.device)
    mask = torch.outer(row, row) / 6  # ‖N‖₂ = 6
    planes = image.flatten(0, 1).unsqueeze(1)
    size = F.conv2d(planes, mask[None, None]).abs().reshape(image.shape[0], -1)
    smooth = F.avg_pool2d(F.pad(planes, (_BLUR // 2,) * 4, mode="replicate"), _BLUR, 1)
    across = (smooth[..., 1:-1, 2:] - smooth[..., 1:-1, :-2]).abs()
    down = (smooth[..., 2:, 1:-1] - smooth[..., :-2, 1:-1]).abs()
    slope = (across + down).reshape(image.shape[0], -1)
    count = max(1, int(_FLAT * slope.shape[1]))
    flattest = slope.topk(count, dim=1, largest=False, sorted=False).indices
    # torch's median is the lower of the two in the middle, which is good enough for thousands.
    return size.gather(1, flattest).median(1).values / _GAUSSIAN_MEDIAN
