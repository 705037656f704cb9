"""What was measured: an operator, its data, how noisy they are, and a picture without a prior."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from legato.console.files import DataError
from legato.nn import noise_level
from legato.operators import Blur, Fourier, Operator, Radon
from legato.studies.reconstruct.projections import Projections

_GAUSSIAN_MEDIAN = 0.6744897501960817
"""The median of |z| for a standard normal z."""
_ROUNDING = 0.29 / 255
"""σ of what rounding to 8 bits adds: no picture is taken for cleaner."""


@dataclass(frozen=True)
class Measured:
    """Data of an operator, in units in which the brightest of the picture is about 1.

    ``sigma`` is that of an entry of y (of a complex one: the root of E|n|²), ``weight`` the λ of
    total variation that goes with it, ``seen`` which entries were measured, ``unit`` and
    ``scale`` what leads back to the numbers of the file, of the picture and of the data.
    """

    operator: Operator
    y: Tensor
    before: Tensor
    sigma: float
    weight: float
    unit: float = 1.0
    scale: float = 1.0
    seen: Tensor | None = None
    notes: list[str] = field(default_factory=list)

    def misfit(self, x: Tensor) -> float:
        """The root of the mean of |Ax − y|² over what was measured, in units of σ."""
        error = (self.operator(x) - self.y).abs().square()
        share = 1.0 if self.seen is None else float(self.seen.float().mean())
        return math.sqrt(float(error.mean()) / share) / self.sigma


def blurred(channels: Tensor, kernel: Tensor, sigma: float | None) -> Measured:
    """Of the channels (C, H, W) of a blurred picture; beyond its border it is taken as mirrored."""
    sizes = tuple(channels.shape[-2:])
    if any(k > n for k, n in zip(kernel.shape, sizes, strict=True)):
        raise DataError(
            f"The kernel, {_size(tuple(kernel.shape))}, is larger than the picture, "
            f"{_size(sizes)} pixels. Crop the kernel to where it is not 0, or swap the two files."
        )
    if min(sizes) < 3:
        raise DataError(f"A picture of {_size(sizes)} pixels is too small: at least 3×3.")
    y = channels[:, None]
    level = float(noise_level(y).mean()) if sigma is None else sigma
    level = max(level, _ROUNDING)
    # λ for four pictures, two kernels and σ of 2 to 20 of 255: within 0.2 dB of the best for each.
    return Measured(Blur(kernel, "mirror"), y, y, level, 0.7 * level**1.5)


def kspace(
    data: Tensor, mask: Tensor | None, coils: Tensor | None, sigma: float | None
) -> Measured:
    """Of k-space (C, rows, columns), with zeros where nothing was measured."""
    data = data[None] if data.ndim == 2 else data
    seen = (data != 0).any(0) if mask is None else mask
    if not bool(seen.any()):
        raise DataError("Every number of the k-space is 0: nothing was measured.")
    peak = float((data * seen).abs().amax())
    if peak == 0:
        raise DataError(
            "Every number of the k-space is 0 where the mask says that it was measured: the mask "
            "belongs to other data, or to another order of frequencies (numpy.fft.fftshift)."
        )
    data = data / peak  # its squares are numbers, then
    notes = [f"{float(seen.float().mean()):.0%} of k-space"]
    centred = _is_centred(data)
    notes.append(f"frequency zero {'in the middle' if centred else 'first'}")
    if centred:  # so is the picture, then
        data, seen = (torch.fft.ifftshift(t, (-2, -1)) for t in (data, seen))
        data = data * _moves_to_the_middle(data)
    data = data * seen
    if coils is None and len(data) > 1:
        width = _calibration(seen)
        if width < 8:
            raise DataError(
                f"The middle of k-space is not fully measured ({width}×{width} frequencies), so "
                "coil maps cannot be read off it. Give them: --coils maps.npy, coils × rows × "
                "columns."
            )
        coils = coil_maps(data, width)
        notes.append(f"coil maps from {width}×{width} frequencies")
    operator = Fourier(None if bool(seen.all()) else seen, coils)
    before = operator.adjoint(data if coils is not None else data[0])
    unit = float(before.abs().amax())
    if unit == 0:
        raise DataError(
            "The coil maps see nothing of what was measured: their picture is 0. They belong to "
            "other data, or are in another order of rows and columns."
        )
    y = (data if coils is not None else data[0]) / unit
    level = sigma / (unit * peak) if sigma is not None else _outer_noise(y, seen)
    level = max(level, 1e-6)
    there = seen.expand(y.shape)
    weight = 0.1 * level  # of a fifth of real k-space, hidden, this predicts most
    before, scale = before[None] / unit, unit * peak
    return Measured(operator, y[None], before, level, weight, scale, scale, there, notes)


def coil_maps(data: Tensor, width: int) -> Tensor:
    """Images of the lowest frequencies, with norm one over the coils of each pixel.

    Reference: Pruessmann et al. (1999), for maps as ratios of images.
    """
    window = torch.ones((), device=data.device)
    for size in data.shape[-2:]:
        n = torch.fft.fftfreq(size, 1 / size, device=data.device)
        line = torch.cos(torch.pi * n / width).clamp(min=0) ** 2 * (n.abs() < width / 2)
        window = window[..., None] * line
    low = torch.fft.ifft2(data * window, norm="ortho")
    size = low.abs().square().sum(0, keepdim=True).sqrt()
    return low / size.clamp(min=1e-6 * float(size.amax()))


def _moves_to_the_middle(data: Tensor) -> Tensor:
    """What frequencies are multiplied with, so that pixel 0 of a picture becomes its middle."""
    factor = torch.ones((), dtype=data.dtype, device=data.device)
    for n in data.shape[-2:]:
        turns = torch.arange(n, device=data.device) * (n // 2) / n
        factor = factor[..., None] * torch.polar(torch.ones_like(turns), -2 * torch.pi * turns)
    return factor


def _is_centred(data: Tensor) -> bool:
    """Whether the middle of k-space holds more than its corner, where torch.fft has zero."""
    energy = data.abs().square().sum(0)
    middle = torch.fft.ifftshift(energy)
    reach = [max(1, n // 16) for n in energy.shape]

    def near_corner(t: Tensor) -> float:
        rolled = torch.roll(t, (reach[0], reach[1]), (-2, -1))
        return float(rolled[: 2 * reach[0] + 1, : 2 * reach[1] + 1].sum())

    return near_corner(middle) > near_corner(energy)


def _calibration(seen: Tensor) -> int:
    """The side of the largest square of measured frequencies around zero, at most 24."""
    rows, columns = seen.shape[-2:]
    for width in range(min(24, rows, columns), 0, -1):
        n = torch.arange(-(width // 2), (width + 1) // 2)
        if bool(seen[n % rows][:, n % columns].all()):
            return width
    return 0


def _outer_noise(y: Tensor, seen: Tensor) -> float:
    """σ by the median of |y|² over the fifth of what was measured that is farthest from zero."""
    f = [torch.fft.fftfreq(n, device=y.device) for n in seen.shape[-2:]]
    radius = (f[0][:, None] ** 2 + f[1] ** 2).sqrt().expand(seen.shape)
    far = seen & (radius >= torch.quantile(radius[seen].double(), 0.8).to(radius))
    power = y.abs().square()[..., far]
    return math.sqrt(float(power.median()) / math.log(2))


def sinogram(
    data: Tensor, angles: tuple[float, ...], size: int | None, sigma: float | None
) -> Measured:
    """Of parallel beams (angles, detectors), the angles in radians."""
    detectors = data.shape[1]
    size = detectors if size is None else size
    operator = Projections.of(Radon(angles, size, detectors), data.device)
    if operator.size == math.inf:
        raise DataError(f"No ray of the sinogram meets a picture of {size}×{size} pixels.")
    before = filtered_back_projection(operator, data)
    unit = float(torch.quantile(before.flatten()[:: max(1, before.numel() // 10**6)], 0.999))
    if not unit > 0:
        raise DataError("The sinogram has no positive part: there is nothing to reconstruct.")
    y = data / (operator.size * unit)
    level = _row_noise(y) if sigma is None else sigma / (operator.size * unit)
    level = max(level, 1e-6)
    notes = [f"{len(angles)} angles, {size}×{size} pixels"]
    # For two pictures, 40 angles and two noises: the best of λ/σ = 0.02, 0.05, 0.1 and 0.2.
    weight = 0.1 * level
    scale = operator.size * unit
    return Measured(operator, y[None], before[None] / unit, level, weight, unit, scale, None, notes)


def filtered_back_projection(operator: Projections, data: Tensor) -> Tensor:
    """Back-projection of rays filtered by the ramp's samples.

    Reference: Kak and Slaney (1988), Chapter 3.
    """
    rays = data.shape[-1]
    n = torch.arange(-rays + 1, rays, device=data.device)
    ramp = torch.where(n % 2 != 0, -1 / (math.pi * torch.where(n == 0, 1, n)) ** 2, 0.0)
    ramp[rays - 1] = 0.25
    spectrum = torch.fft.rfft(ramp.to(data), 3 * rays)
    filtered = torch.fft.irfft(torch.fft.rfft(data, 3 * rays) * spectrum, 3 * rays)
    filtered = filtered[..., rays - 1 : 2 * rays - 1]
    return operator.adjoint(filtered) * (operator.size * math.pi / data.shape[-2])


def _row_noise(y: Tensor) -> float:
    """σ by the median of third differences along the detectors, which see little of a picture."""
    if y.shape[-1] < 8:
        return 0.0
    third = y.diff(n=3, dim=-1).abs()
    return float(third.flatten().median()) / math.sqrt(20) / _GAUSSIAN_MEDIAN


def _size(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, reversed(sizes)))
