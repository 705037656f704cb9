"""The denoisers that the study learns, from one number to filters with a weight for each pixel."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from legato._support.files import replacing
from legato.algorithms import PrimalDual
from legato.errors import CheckpointError, InputError
from legato.functions import L1, SquaredDistance
from legato.gradients import GradientStrategy, Unroll
from legato.nn import AnalysisDenoiser, TotalVariation
from legato.operators import Convolution
from legato.solving import solve
from legato.studies.denoise.settings import LOWEST

_KEY = "legato_filters_with_maps"


class WeightMaps(nn.Module):
    """A small network from a noisy image to logarithms of weights, (B, maps, H, W).

    Four layers see 15×15 pixels; what they add to the given weights starts at zero.
    """

    def __init__(self, maps: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2, padding_mode="replicate"), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2, padding_mode="replicate"), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=3, dilation=3, padding_mode="replicate"), nn.ReLU(),
            nn.Conv2d(width, maps, 1),
        )  # fmt: skip
        last = self.layers[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(
        self, image: Tensor, sigma: Tensor | float, mean: Tensor | float | None = None
    ) -> Tensor:
        # Noise of deviation one around mean zero, whatever σ is, is what networks like to see.
        mean = image.mean((2, 3), keepdim=True) if mean is None else mean
        return self.layers((image - mean) / (4 * sigma))


class MappedTotalVariation(nn.Module):
    r"""Total variation whose weight a network reads off the noisy image, pixel by pixel.

    .. math:: u = \arg\min_u\; \tfrac12‖u − y‖² + \textstyle\sum λ(y)\,|∇u|
    """

    def __init__(self, weight: float, sigma: float, iterations: int = 100) -> None:
        super().__init__()
        self.sigma = sigma
        self.log_weight = nn.Parameter(torch.tensor(math.log(weight)))
        self.maps = WeightMaps(1)
        self.solver = TotalVariation(iterations, isotropic=True)

    def weights(self, image: Tensor) -> Tensor:
        """λ(y), (B, 1, H, W)."""
        return (self.log_weight + self.maps(image, self.sigma)).exp()

    def forward(self, image: Tensor) -> Tensor:
        return self.solver(image, self.weights(image))


class Analysis(nn.Module):
    """Learned filters d_k, each with one weight λ_k: :class:`legato.nn.AnalysisDenoiser`."""

    def __init__(self, denoiser: AnalysisDenoiser) -> None:
        super().__init__()
        self.denoiser = denoiser

    def forward(self, image: Tensor, sigma: Tensor | float | None = None) -> Tensor:
        return self.denoiser(image, sigma)


class MappedAnalysis(nn.Module):
    r"""Learned filters whose weights a network reads off the noisy image, pixel by pixel.

    .. math:: x = \arg\min_x\; \tfrac12‖x − y‖² + \textstyle\sum_k ‖λ_k(y)\,(d_k * x)‖₁

    For one σ, which is given here, or for all with filters that are ``conditioned``: σ is then an
    argument of every call.
    """

    def __init__(self, filters: AnalysisDenoiser, sigma: float | None = None) -> None:
        super().__init__()
        if filters.conditioned != (sigma is None):
            raise InputError("Give sigma where the filters are for one noise level, and only then.")
        self.sigma = sigma
        self.filters = filters
        self.maps = WeightMaps(len(filters.log_weights))
        self.gradient: GradientStrategy = Unroll()

    @property
    def size(self) -> int:
        """Pixels across a filter."""
        return self.filters.size

    def weights(
        self, image: Tensor, sigma: Tensor | float | None = None, mean: float | None = None
    ) -> Tensor:
        """λ(y), (B, K, H, W)."""
        level = self.sigma if sigma is None else sigma
        if level is None or (sigma is not None and self.sigma is not None):
            raise InputError("sigma is an argument of either the model or its call.")
        level = torch.as_tensor(level).to(image).reshape(-1, 1, 1, 1)
        first = self.filters.log_weights[:, None, None]
        if self.filters.powers is not None:
            first = first + self.filters.powers[:, None, None] * level.log()
        if self.sigma is None:
            # With less noise than the network has learned from, what it sees would be far larger.
            level = level.clamp(min=LOWEST / 255)
        return (first + self.maps(image, level, mean)).exp()

    def forward(
        self, image: Tensor, sigma: Tensor | float | None = None, mean: float | None = None
    ) -> Tensor:
        """Denoise; ``mean`` is that of the whole picture, where the image is a part of one."""
        K = Convolution(self.filters.filters, "mirror")
        energy = SquaredDistance(image) + L1(self.weights(image, sigma, mean)) @ K
        algorithm = PrimalDual(balance=self.filters.balance, norm=K.norm(image))
        stop = self.filters.stop
        value = solve(energy, algorithm, image, gradient=self.gradient, stop=stop).x
        assert isinstance(value, Tensor)
        return value

    def save(self, path: Path) -> None:
        """Write parameters and settings to a safetensors file."""
        tensors = {
            key: value.detach().cpu().contiguous() for key, value in self.state_dict().items()
        }
        metadata = {_KEY: json.dumps({"filters": self.filters.settings(), "sigma": self.sigma})}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> MappedAnalysis:
        """Read what :meth:`save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                settings = json.loads((file.metadata() or {})[_KEY])
            model = cls(AnalysisDenoiser(**settings["filters"]), settings["sigma"])
            model.load_state_dict(load_file(path))
        except Exception as error:  # safetensors has several kinds, and so has the system
            raise CheckpointError(
                f"{path} holds no filters with weights λ(y) ({error})."
            ) from error
        return model

    @staticmethod
    def wrote(path: Path) -> bool:
        """Whether a file is one of :meth:`save`."""
        try:
            with safe_open(path, "pt") as file:
                return _KEY in (file.metadata() or {})
        except Exception:  # what it is instead, another reader says
            return False


def first_weight(size: int, sigma: float = 1.0) -> float:
    """A weight to begin with: the size² filters that see a pixel share a threshold of 1.3 σ."""
    return 1.3 * sigma / size**2


def first_filters(
    filters: int, size: int, iterations: int, sigma: float | None, gradient: GradientStrategy
) -> AnalysisDenoiser:
    """What training starts from: the DCT, for one σ, or for all where it is None.

    With this balance of the steps 20 iterations go as far as 80 with the layer's own.
    """
    return AnalysisDenoiser(
        filters, size, iterations=iterations, balance=1.0, conditioned=sigma is None,
        weight=first_weight(size, 1.0 if sigma is None else sigma), gradient=gradient,
    )  # fmt: skip
