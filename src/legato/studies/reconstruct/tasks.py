"""What is reconstructed: blurred pictures, sinograms and k-space, simulated on clean ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato.algorithms import Algorithm, PrimalDual
from legato.errors import InputError
from legato.functions import Function, register_prox
from legato.geometry import Euclidean
from legato.nn.reconstruction.spectral import SpectralLeastSquares, filtered
from legato.operators import Blur, Identity, Operator, Radon

BALANCE = 30.0
"""Primal to dual steps, for pictures in [0, 1] and weights of about 0.01."""
DIFFERENCES = math.sqrt(8.0)
"""A bound of ‖∇‖."""


class Task:
    """An operator with its noise, and what the methods need of it."""

    name: str
    size: int | None = None  # of the pictures, where the operator asks for one
    level: float  # what the networks take for a large deviation

    operator: Operator

    def simulate(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        """Data for pictures (B, 1, H, W); noise is drawn on the device of the generator."""
        raise NotImplementedError

    def term(self, y: Tensor) -> Function:
        """½‖Ax − y‖² with a proximal map."""
        raise NotImplementedError

    def first(self, y: Tensor) -> Tensor:
        """A picture by a linear method, (A*A + ε)⁻¹A*y."""
        raise NotImplementedError

    def plain(self, y: Tensor) -> Tensor:
        """The row of the table that knows no regulariser."""
        raise NotImplementedError

    def algorithm(self, norm: float | Tensor) -> Algorithm[Any, Any]:
        """Primal–dual steps for a regulariser behind an operator of this norm."""
        return PrimalDual(balance=BALANCE, norm=norm)


@dataclass
class Denoising(Task):
    """White noise alone."""

    sigma: float = 25 / 255
    name: str = "denoise"

    def __post_init__(self) -> None:
        self.operator, self.level = Identity(), 0.2

    def simulate(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(clean.shape, generator=generator, device=generator.device).to(clean)
        return clean + self.sigma * noise


@dataclass
class Deblurring(Task):
    """A circular blur and white noise."""

    name: str
    kernel: Tensor
    sigma: float = 7.65 / 255
    ridge: float = 0.02
    operator: Blur = field(init=False)

    def __post_init__(self) -> None:
        self.operator, self.level = Blur(self.kernel), 0.2

    def simulate(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(clean.shape, generator=generator, device=generator.device).to(clean)
        return self.operator(clean) + self.sigma * noise

    def term(self, y: Tensor) -> Function:
        return SpectralLeastSquares(self.operator, y)

    def first(self, y: Tensor) -> Tensor:
        return self._tikhonov(y, self.ridge)

    def plain(self, y: Tensor) -> Tensor:
        return self._tikhonov(y, self.ridge)

    def _tikhonov(self, y: Tensor, ridge: float) -> Tensor:
        return self.term(y).prox(torch.zeros_like(y), 1 / ridge)


class FactoredLeastSquares(Function):
    """½‖Ax − y‖² for a matrix, with the prox of one step whose inverse is at hand."""

    def __init__(self, tomography: Tomography, y: Tensor) -> None:
        self.matrix, self.inverse = tomography.matrix, tomography.inverse
        self.y, self.step = y, tomography.step
        self.back = (y.flatten(-2) @ self.matrix).unflatten(-1, (tomography.size, tomography.size))

    def summands(self, x: Tensor) -> Tensor:
        seen = (x.flatten(-2) @ self.matrix.mT).unflatten(-1, self.y.shape[-2:])
        return 0.5 * (seen - self.y) ** 2

    @property
    def coupled(self) -> int:
        return 2

    def prox_couples(self) -> tuple[int, ...]:
        return -2, -1

    def start(self) -> Tensor:
        return torch.zeros_like(self.back)


@register_prox(FactoredLeastSquares, Euclidean)
def _(g: FactoredLeastSquares, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    """(A*A + 1/α)⁻¹(A*y + v/α), for the α of the inverse."""
    right = g.back + y / g.step
    return (right.flatten(-2) @ g.inverse).reshape(y.shape)


class Tomography(Task):
    """Parallel beams, photon counts, and the logarithms of these as data.

    The operator is a matrix: pictures are small and seen ten thousand times.
    """

    def __init__(
        self, name: str, angles: int, size: int = 128, photons: float = 4e3, darkest: float = 3.0,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.name, self.size, self.level = name, size, 0.2
        self.photons, self.darkest = photons, darkest
        radon = Radon(tuple(math.pi * k / angles for k in range(angles)), size)
        self.radon = radon
        matrix = radon.matrix(device=device)
        self.norm = float(radon.norm())
        self.matrix = matrix / self.norm
        self.length = float(matrix.sum(1).amax())  # of the longest ray
        self.rays = (angles, matrix.shape[0] // angles)
        self.step = BALANCE / DIFFERENCES
        gram = self.matrix.mT @ self.matrix
        gram.diagonal().add_(1 / self.step)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        self.operator = Identity()

    def simulate(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        """−log(counts/photons), in units in which ‖A‖ = 1."""
        seen = (clean.flatten(-2) @ self.matrix.mT).unflatten(-1, self.rays)
        absorbed = seen * (self.norm * self.darkest / self.length)
        expected = self.photons * torch.exp(-absorbed)
        counts = torch.poisson(expected.to(generator.device), generator=generator)
        counts = counts.clamp(min=1).to(clean)
        return -(counts / self.photons).log() * (self.length / self.norm / self.darkest)

    def term(self, y: Tensor) -> Function:
        return FactoredLeastSquares(self, y)

    def first(self, y: Tensor) -> Tensor:
        back = (y.flatten(-2) @ self.matrix) @ self.inverse
        return back.unflatten(-1, (self.size, self.size))

    def plain(self, y: Tensor) -> Tensor:
        """Filtered back-projection, the ramp by its samples (Kak and Slaney, Chapter 3)."""
        rays = y.shape[-1]
        n = torch.arange(-rays + 1, rays, device=y.device)
        ramp = torch.where(n % 2 == 1, -1 / (math.pi * n.clamp(min=1)) ** 2, 0.0)
        ramp = torch.where(n < 0, ramp.flip(0), ramp)
        ramp[rays - 1] = 0.25
        spectrum = torch.fft.rfft(ramp.to(y), 3 * rays)
        filtered = torch.fft.irfft(torch.fft.rfft(y, 3 * rays) * spectrum, 3 * rays)
        filtered = filtered[..., rays - 1 : 2 * rays - 1]
        back = (filtered.flatten(-2) @ self.matrix).unflatten(-1, (self.size, self.size))
        return back * (self.norm**2 * math.pi / self.rays[0])

    def algorithm(self, norm: float | Tensor) -> Algorithm[Any, Any]:
        """The primal step is that of the inverse; the dual one follows, a norm at a time."""
        return PrimalDual(tau=self.step, norm=norm)


class FourierLeastSquares(Function):
    r"""Least squares behind some frequencies of a real picture, whose prox divides its spectrum.

    .. math:: g(x) = \tfrac12‖M(ℱx − y)‖², \qquad \mathrm{prox}_{αg}(v) =
              ℱ^{-1}\frac{ℱv + α\,ℱb}{1 + α m}, \quad b = \mathrm{Re}\,ℱ^*My

    m is the mean of the mask M at a frequency and its negative, which a real picture links.
    """

    def __init__(self, scan: Cartesian, y: Tensor) -> None:
        self.scan, self.y = scan, y
        self.back = scan.back(y)
        self.spectrum = torch.fft.rfft2(self.back)

    def summands(self, x: Tensor) -> Tensor:
        seen = torch.fft.fft2(x, norm="ortho") * self.scan.mask
        return 0.5 * (seen - self.y).abs() ** 2

    @property
    def coupled(self) -> int:
        return 2

    def prox_couples(self) -> tuple[int, ...]:
        return -2, -1

    def start(self) -> Tensor:
        return torch.zeros_like(self.back)


@register_prox(FourierLeastSquares, Euclidean)
def _(g: FourierLeastSquares, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    inverse = 1 / (1 + alpha * g.scan.symbol)
    return filtered(y, inverse, alpha * inverse * g.spectrum, (-2, -1))


class Cartesian(Task):
    """Some lines of k-space, white noise on both parts, and one coil whose map is one.

    A quarter of the columns: the lowest frequencies, and others drawn by chance, fewer further out.
    """

    def __init__(
        self, name: str, size: int = 128, kept: int = 4, sigma: float = 0.02, ridge: float = 0.02,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.name, self.size, self.level = name, size, 0.2
        self.sigma, self.ridge = sigma, ridge
        frequency = torch.fft.fftfreq(size).abs() * size
        low = frequency <= max(1, round(0.04 * size))
        chances = torch.where(low, 0.0, (frequency + 1.0) ** -1)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.multinomial(chances, size // kept - int(low.sum()), generator=generator)
        self.mask = low.index_fill(0, drawn, True).to(device, torch.get_default_dtype())
        negative = self.mask.flip(0).roll(1)
        self.symbol = (0.5 * (self.mask + negative))[: size // 2 + 1]
        self.operator = Identity()

    def simulate(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn((*clean.shape, 2), generator=generator, device=generator.device)
        seen = torch.fft.fft2(clean, norm="ortho")
        return self.mask * (seen + self.sigma * torch.view_as_complex(noise).to(seen))

    def back(self, y: Tensor) -> Tensor:
        """Re ℱ*My, the zero-filled picture."""
        return torch.fft.ifft2(self.mask * y, norm="ortho").real

    def term(self, y: Tensor) -> Function:
        return FourierLeastSquares(self, y)

    def first(self, y: Tensor) -> Tensor:
        return self.term(y).prox(torch.zeros_like(y.real), 1 / self.ridge)

    def plain(self, y: Tensor) -> Tensor:
        return self.back(y)


def gaussian(width: float, radius: int = 8) -> Tensor:
    """A Gaussian kernel."""
    n = torch.arange(-radius, radius + 1.0)
    line = torch.exp(-(n**2) / (2 * width**2))
    kernel = line[:, None] * line
    return kernel / kernel.sum()


def motion(length: int = 15, degrees: float = 30.0) -> Tensor:
    """A straight line through the middle of a kernel, each point spread over four pixels."""
    kernel = torch.zeros(length + 2, length + 2)
    middle, angle = (length + 1) / 2, math.radians(degrees)
    for t in torch.linspace(-(length - 1) / 2, (length - 1) / 2, 8 * length).tolist():
        row, column = middle - t * math.sin(angle), middle + t * math.cos(angle)
        i, j = math.floor(row), math.floor(column)
        for a in (0, 1):
            for b in (0, 1):
                weight = (1 - abs(row - i - a)) * (1 - abs(column - j - b))
                kernel[min(i + a, length + 1), min(j + b, length + 1)] += weight
    return kernel / kernel.sum()


TASKS = ("deblur-gauss", "deblur-motion", "ct-60", "ct-30", "mri-4")
"""The tasks by name."""


def make_task(name: str, device: torch.device, size: int = 128) -> Task:
    """A task on a device; ``size`` is the side of the pictures of tomography."""
    if name == "deblur-gauss":
        return Deblurring(name, gaussian(1.6).to(device))
    if name == "deblur-motion":
        return Deblurring(name, motion().to(device))
    if name in ("ct-60", "ct-30"):
        return Tomography(name, int(name[3:]), size, device=device)
    if name == "mri-4":
        return Cartesian(name, size, device=device)
    raise InputError(f"There is no task {name!r}; the tasks are {', '.join(TASKS)}.")
