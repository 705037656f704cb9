"""Denoising with learned filters in place of finite differences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.checks import (
    require_finite,
    require_image,
    require_like,
    require_nonnegative,
    require_positive,
    require_range,
    require_whole,
)
from legato._support.files import replacing
from legato._support.lazy import lazy
from legato._support.memory import Memory, recall
from legato._support.precision import full_precision, out_of_autocast
from legato._support.tree import inner
from legato.algorithms import PrimalDual
from legato.errors import CheckpointError, InputError
from legato.functions import Box, SquaredDistance
from legato.geometry import Euclidean, Interval
from legato.gradients import GradientStrategy
from legato.nn._solve import LayerOutput, SolverLayer
from legato.nn.filter_bank import dct_basis, first_coefficients
from legato.nn.noise import noise_level
from legato.operators import Convolution
from legato.problems import Saddle

_KEY = "legato_analysis_denoiser"


@dataclass
class AnalysisDenoiserOutput(LayerOutput):
    """What :meth:`AnalysisDenoiser.solve` returns: x, and y = p (B, K, H, W) with |p_k| ≤ λ_k.

    >>> record = AnalysisDenoiser(filters=8, size=3, iterations=20).solve(torch.rand(1, 1, 8, 8))
    >>> record.x.shape, record.y.shape, record.gap.shape
    (torch.Size([1, 1, 8, 8]), torch.Size([1, 8, 8, 8]), torch.Size([1]))
    """

    image: Tensor

    @lazy
    def gap(self) -> Tensor:
        """The primal–dual gap of each image (B,), as a sum of terms that are ≥ 0."""
        with torch.no_grad():
            answers = self.problem.operator(self.x)
            rest = self.x - self.image + self.problem.operator.adjoint(self.y)
            slack = self.problem.penalty.values(answers, 1) - inner(answers, self.y, 1)
            return slack + 0.5 * inner(rest, rest, 1)


class AnalysisDenoiser(SolverLayer):
    r"""Denoising with K learned filters d_k and their weights λ_k.

    .. math:: x = \arg\min_x\; \tfrac12‖x − y‖² + \textstyle\sum_k ‖λ_k\,(d_k * x)‖₁

    Filters are combinations of the DCT basis without its constant, so their mean over each channel
    is zero whatever is learned; they start as that basis. λ_k = exp(·) is learned, too. Primal–dual
    steps are derived from a bound of the filters' norm, which is found by iteration: the derivative
    counts it as a constant, and ``solve(y).solution.constant_steps`` says so.

    Defaults: ``size=5``, ``channels=1``, ``iterations=100``, ``weight=0.02``, ``balance=0.3``.

    Args:
        filters (int, optional): K. Default: None, as many as the basis has, channels·(size² − 1)
        size (int): pixels across a filter. Default: 5
        channels (int): C, channels of an image. Default: 1
        iterations (int): primal–dual steps. Default: 100
        weight (float): every λ_k to start from. Default: 0.02
        conditioned (bool): λ_k = exp(·) σ^{s_k} with learned s_k, started at 1, for noise of
            standard deviation σ. Default: False
        interval (bool): dual steps in the geometry of |p| ≤ λ, whose iterates are smooth in the
            parameters, instead of projected ones. Default: False
        balance (float): the ratio of primal to dual steps. Default: 0.3
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - image y: (B, C, H, W)
        - sigma, only if conditioned: a number or (B,); None estimates it (:func:`noise_level`)

    Returns:
        Tensor: x (B, C, H, W).

    Reference: Peyré and Fadili (2011); Chen, Ranftl, Pock (2014).

    >>> denoiser = AnalysisDenoiser(filters=8, size=3, iterations=20)
    >>> clean = denoiser(torch.rand(1, 1, 16, 16))
    >>> clean.shape, denoiser.filters.shape
    (torch.Size([1, 1, 16, 16]), torch.Size([8, 1, 3, 3]))
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
        super().__init__(iterations, None, gradient)
        require_whole(size, "size", 2)
        require_whole(channels, "channels")
        filters = channels * (size * size - 1) if filters is None else filters
        require_whole(filters, "filters")
        require_positive(weight, "weight")
        require_positive(balance, "balance")
        self.size, self.channels = size, channels
        self.conditioned, self.interval, self.balance = conditioned, interval, balance
        self.coefficients = nn.Parameter(first_coefficients(filters, channels, size))
        self.log_weights = nn.Parameter(torch.full((filters,), math.log(weight)))
        self.powers = nn.Parameter(torch.ones(filters)) if conditioned else None
        self._memory: Memory = {}

    @property
    def basis(self) -> Tensor:
        """The DCT basis without its constant, (size² − 1, size, size)."""
        return dct_basis(self.size, self.coefficients)

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
            f"iterations={self.stop.iterations}, conditioned={self.conditioned}, "
            f"interval={self.interval}, gradient={self.gradient!r}"
        )

    def forward(self, image: Tensor, sigma: Tensor | float | None = None) -> Tensor:
        """Denoise images.

        Args:
            image (Tensor): y (B, C, H, W).
            sigma (Tensor or float, optional): the noise's standard deviation, a number or (B,), for
                a layer that is ``conditioned``. Default: None, estimated

        Returns:
            Tensor: x, like the image.
        """
        return self.solve(image, sigma).x

    def solve(
        self, image: Tensor, sigma: Tensor | float | None = None, x0: Any = None
    ) -> AnalysisDenoiserOutput:
        """The full record; ``x0`` is a first image (default: y), or an earlier solution's state."""
        image, sigma = out_of_autocast(image), out_of_autocast(sigma)
        with full_precision():
            self._require_image(image)
            w = self._weights_for(image, sigma)
            operator = Convolution(self.filters, "mirror")
            ball = Box(-w, w)
            problem = Saddle(operator, ball.conjugate(), nonsmooth=SquaredDistance(image))
            geometry = Interval(ball.lo, ball.hi) if self.interval else Euclidean()
            algorithm = PrimalDual(
                dual_geometry=geometry, balance=self.balance, norm=self._norm_for(operator, image)
            )
            done = self._solve(problem, algorithm, image if x0 is None else x0)
            attached = self.gradient.from_start and torch.is_grad_enabled()
            done.constant_steps = attached and self.coefficients.requires_grad
            return AnalysisDenoiserOutput(problem, done, image)

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
        require_range(image, "image")
        require_range(self.coefficients, "The denoiser's filters")
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
        require_nonnegative(level, "sigma")
        # Nothing smaller can be told from zero, where a power has no logarithm and an interval of
        # weights no interior.
        level = level.clamp(min=1e-6).reshape(-1, 1, 1, 1)
        return w * level ** self.powers.reshape(1, -1, 1, 1)

    def _norm_for(self, operator: Convolution, image: Tensor) -> Tensor:
        """The filters' norm. Finding it takes a third of a solve, so the last one is remembered."""
        norm = partial(operator.norm, image)
        return recall(self._memory, "norm", self.coefficients, norm, tuple(image.shape[1:]))

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write parameters and settings to a safetensors file of a few kilobytes."""
        _, save_file = _safetensors()
        tensors = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        with replacing(Path(path)) as temporary:
            save_file(tensors, str(temporary), metadata={_KEY: json.dumps(self.settings())})

    def settings(self) -> dict[str, Any]:
        """The arguments that make a layer like this one, but for its gradient."""
        return {
            "filters": len(self.log_weights), "size": self.size, "channels": self.channels,
            "iterations": self.stop.iterations, "conditioned": self.conditioned,
            "interval": self.interval, "balance": self.balance,
        }  # fmt: skip

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
