"""Denoising with learned filters in place of finite differences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.files import replacing
from legato._support.precision import full_precision
from legato.algorithms import PrimalDual
from legato.errors import CheckpointError, InputError
from legato.functions import Box, Linear, SquaredNorm
from legato.geometry import Euclidean, Geometry, Interval
from legato.gradients import GradientStrategy, Unroll
from legato.nn.inputs import require_finite, require_image, require_iterations, require_like
from legato.nn.noise import noise_level
from legato.operators import Convolution
from legato.problems import Saddle
from legato.running import Stop
from legato.solving import solve

_KEY = "legato_analysis_denoiser"


@dataclass
class AnalysisDenoiserOutput:
    """What :class:`AnalysisDenoiser` returns; all but the gap is attached to the graph.

    ``value`` is x, the last iterate; ``dual`` is p (B, K, H, W), |p_k| ≤ λ_k; ``problem`` is what
    was solved, without the constant ½‖y‖². Reference: :class:`AnalysisDenoiser`.
    """

    x: Tensor
    y: Tensor
    problem: Saddle
    image: Tensor

    @cached_property
    def gap(self) -> Tensor:
        """The primal–dual gap, summed over the batch, as a sum of terms that are ≥ 0."""
        with torch.no_grad():
            answers = self.problem.operator(self.x)
            rest = self.x - self.image + self.problem.operator.adjoint(self.y)
            slack = self.problem.dual.conjugate(answers) - (answers * self.y).sum()
            return slack + 0.5 * rest.square().sum()


class AnalysisDenoiser(nn.Module):
    r"""Denoising with K learned filters d_k and their weights λ_k.

    .. math:: x = \arg\min_x\; \tfrac12‖x − y‖² + \textstyle\sum_k ‖λ_k\,(d_k * x)‖₁

    Filters are combinations of the DCT basis without its constant, so their mean over each channel
    is zero whatever is learned; they start as that basis, and λ_k = exp(·) as ``weight``. With
    ``conditioned``, λ_k = exp(·) σ^{s_k} with learned s_k, started at one: then ``forward`` takes
    the noise's ``sigma``, a number or one per image, or estimates it (:func:`noise_level`).
    ``interval`` takes dual steps in the geometry of |p| ≤ λ, whose iterates are smooth in the
    parameters; else they are projected. Steps are derived from a bound of the filters' norm,
    detached. ``gradient`` is any strategy (default Unroll). ``forward`` maps (B, C, H, W) to an
    output with ``value``. Reference: Peyré and Fadili (2011); Chen, Ranftl, Pock (2014).
    """

    def __init__(
        self,
        filters: int | None = None,
        size: int = 5,
        *,
        channels: int = 1,
        iterations: int = 100,
        weight: float = 0.02,
        conditioned: bool = False,
        interval: bool = False,
        balance: float = 0.3,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__()
        require_iterations(iterations, "AnalysisDenoiser")
        for name, value in (("size", size), ("channels", channels)):
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < 1 + (name == "size")
            ):
                low = 2 if name == "size" else 1
                raise InputError(f"{name} must be a whole number, at least {low}, not {value!r}.")
        most = channels * (size * size - 1)
        filters = most if filters is None else filters
        if isinstance(filters, bool) or not isinstance(filters, int) or filters < 1:
            raise InputError(f"filters must be a positive number of filters, not {filters!r}.")
        for name, number in (("weight", weight), ("balance", balance)):
            if not 0 < number < math.inf:
                raise InputError(f"{name} must be positive and finite, not {number!r}.")
        if gradient is not None and not isinstance(gradient, GradientStrategy):
            raise InputError(f"gradient must be a strategy such as Unroll(), not {gradient!r}.")
        self.size, self.channels, self.iterations = size, channels, iterations
        self.conditioned, self.interval, self.balance = conditioned, interval, balance
        self.gradient = Unroll() if gradient is None else gradient
        self.coefficients = nn.Parameter(_first_coefficients(filters, channels, size).float())
        self.log_weights = nn.Parameter(torch.full((filters,), math.log(weight)))
        self.powers = nn.Parameter(torch.ones(filters)) if conditioned else None
        self._norm: tuple[Any, Tensor] | None = None

    @property
    def basis(self) -> Tensor:
        """The DCT basis without its constant, (size² − 1, size, size)."""
        return _basis_like(self.size, self.coefficients.dtype, self.coefficients.device)

    @property
    def filters(self) -> Tensor:
        """The filters d (K, C, size, size)."""
        return torch.einsum("kcb,bij->kcij", self.coefficients, self.basis)

    @property
    def weights(self) -> Tensor:
        """λ (K,), for σ = 1 if conditioned."""
        return self.log_weights.exp()

    @torch.no_grad()
    def set_filters(self, filters: Tensor, weights: Tensor | float | None = None) -> None:
        """Take filters (K, C, size, size) of mean zero, and λ (K,) or one number."""
        shape = (len(self.log_weights), self.channels, self.size, self.size)
        if tuple(filters.shape) != shape:
            raise InputError(f"filters must have shape {shape}, not {tuple(filters.shape)}.")
        filters = filters.to(self.coefficients)
        require_finite(filters, "filters")
        mean = filters.mean((2, 3)).abs().max()
        if mean > 1e-5 * filters.abs().max():
            raise InputError(
                f"filters must have mean zero over each channel, but one has {float(mean):g}: it "
                "would pull the image towards zero. Subtract the means."
            )
        self.coefficients.copy_(torch.einsum("kcij,bij->kcb", filters, self.basis))
        if weights is not None:
            values = torch.as_tensor(weights).to(self.log_weights).expand_as(self.log_weights)
            if not bool((values > 0).all() and torch.isfinite(values).all()):
                raise InputError("weights must be positive and finite.")
            self.log_weights.copy_(values.log())

    def extra_repr(self) -> str:
        return (
            f"filters={len(self.log_weights)}, size={self.size}, channels={self.channels}, "
            f"iterations={self.iterations}, conditioned={self.conditioned}, "
            f"interval={self.interval}, gradient={self.gradient!r}"
        )

    def forward(self, image: Tensor, sigma: Tensor | float | None = None) -> AnalysisDenoiserOutput:
        with full_precision():
            self._require_image(image)
            w = self._weights_for(image, sigma)
            operator = Convolution(self.filters, "mirror")
            problem = Saddle(operator, Box(-w, w), nonsmooth=SquaredNorm() + Linear(-image))
            geometry: Geometry = Euclidean()
            if self.interval:
                ball = problem.dual
                assert isinstance(ball, Box)
                geometry = Interval(ball.lo, ball.hi)
            algorithm = PrimalDual(
                dual_geometry=geometry, balance=self.balance, norm=self._norm_for(operator, image)
            )
            stop = Stop(self.iterations)
            done = solve(problem, algorithm, image, gradient=self.gradient, stop=stop)
            assert isinstance(done.y, Tensor)
            return AnalysisDenoiserOutput(done.x, done.y, problem, image)

    def _require_image(self, image: Tensor) -> None:
        require_image(image, volumes=False)
        if image.shape[1] != self.channels:
            raise InputError(
                f"image has {image.shape[1]} channel(s), but the filters are for {self.channels}. "
                "Denoise channels as a batch, image.reshape(-1, 1, H, W), or make an "
                f"AnalysisDenoiser(channels={image.shape[1]})."
            )
        if min(image.shape[-2:]) < self.size:
            raise InputError(
                f"image of {tuple(image.shape[-2:])} pixels is smaller than the filters, "
                f"{self.size}×{self.size}. Take a larger image or a smaller size."
            )
        require_like(self.coefficients, image, "The denoiser")
        require_finite(self.coefficients, "The denoiser's filters")
        require_finite(self.log_weights, "The denoiser's weights")

    def _weights_for(self, image: Tensor, sigma: Tensor | float | None) -> Tensor:
        w = self.weights.reshape(1, -1, 1, 1)
        if self.powers is None:
            if sigma is not None:
                raise InputError(
                    "This denoiser knows one noise level: make it with conditioned=True to give "
                    "it sigma."
                )
            return w
        if sigma is None:
            sigma = noise_level(image)
        level = torch.as_tensor(sigma, dtype=image.dtype, device=image.device).reshape(-1)
        if level.numel() not in (1, image.shape[0]):
            raise InputError(
                f"sigma has {level.numel()} entries: give a number, or one for each of the "
                f"{image.shape[0]} images."
            )
        require_finite(level, "sigma")
        if not bool((level >= 0).all()):
            raise InputError(f"sigma must be non-negative, not {float(level.min()):g}.")
        # Nothing smaller can be told from zero, where a power has no logarithm and an interval of
        # weights no interior.
        level = level.clamp(min=1e-6).reshape(-1, 1, 1, 1)
        return w * level ** self.powers.reshape(1, -1, 1, 1)

    def _norm_for(self, operator: Convolution, image: Tensor) -> Tensor:
        """The filters' norm, computed again only when filters or images have changed in kind."""
        c = self.coefficients
        key = (c._version, c.data_ptr(), c.dtype, c.device, image.shape[1:])
        if self._norm is None or self._norm[0] != key:
            self._norm = (key, operator.norm(image))
        return self._norm[1]

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write parameters and settings to a safetensors file of a few kilobytes."""
        _, save_file = _safetensors()
        settings = {
            "filters": len(self.log_weights), "size": self.size, "channels": self.channels,
            "iterations": self.iterations, "conditioned": self.conditioned,
            "interval": self.interval, "balance": self.balance,
        }  # fmt: skip
        tensors = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        with replacing(Path(path)) as temporary:
            save_file(tensors, str(temporary), metadata={_KEY: json.dumps(settings)})

    @classmethod
    def load(
        cls, path: str | Path, *, gradient: GradientStrategy | None = None
    ) -> AnalysisDenoiser:
        """Read what :meth:`save` wrote."""
        safe_open, _ = _safetensors()
        try:
            with safe_open(str(path), "pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors has several kinds, and so has the system
            raise CheckpointError(f"The denoiser {path} cannot be read ({error}).") from error
        if _KEY not in metadata:
            raise CheckpointError(f"{path} holds tensors, but not those of an AnalysisDenoiser.")
        try:
            denoiser = cls(**json.loads(metadata[_KEY]), gradient=gradient)
            denoiser.to(tensors["coefficients"].dtype).load_state_dict(tensors)
        except (TypeError, KeyError, RuntimeError, InputError) as error:
            raise CheckpointError(f"The denoiser {path} is damaged ({error}).") from error
        return denoiser


@cache
def _basis_like(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The basis where it is used: not a buffer, which .double() would leave in 24 bits."""
    return _dct_basis(size).to(device, dtype)


def _dct_basis(size: int) -> Tensor:
    """The orthonormal DCT-II basis without its constant, (size² − 1, size, size), in float64."""
    n = torch.arange(size, dtype=torch.float64)
    lines = torch.cos(math.pi / size * n[:, None] * (n[None] + 0.5)) * math.sqrt(2 / size)
    lines[0] /= math.sqrt(2)
    products = torch.einsum("ai,bj->abij", lines, lines).reshape(-1, size, size)[1:]
    # Rounding leaves a mean of 1e-17, which a network would not see, but zero is zero.
    return products - products.mean((1, 2), keepdim=True)


def _first_coefficients(filters: int, channels: int, size: int) -> Tensor:
    """The basis itself, channel frequency by channel frequency; further filters are random."""
    n = torch.arange(channels, dtype=torch.float64)
    colours = torch.cos(math.pi / channels * n[:, None] * (n[None] + 0.5))
    colours /= colours.norm(dim=1, keepdim=True)
    count = size * size - 1
    eye = torch.eye(count, dtype=torch.float64)
    whole = torch.einsum("fc,kb->fkcb", colours, eye).reshape(channels * count, channels, count)
    extra = filters - len(whole)
    if extra <= 0:
        return whole[:filters]
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(extra, channels, count, generator=generator, dtype=torch.float64)
    return torch.cat((whole, random / random.flatten(1).norm(dim=1)[:, None, None]))


def _safetensors() -> tuple[Any, Any]:
    try:
        from safetensors import safe_open
        from safetensors.torch import save_file
    except ImportError as error:
        raise InputError(
            "Saving and loading a denoiser needs safetensors: pip install safetensors. "
            "torch.save(denoiser.state_dict(), …) works without."
        ) from error
    return safe_open, save_file
