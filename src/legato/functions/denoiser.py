"""Plug and play: a network in the place of a prox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import as_number, require_tensor_or_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function
from legato.functions.l2_norm import MOST_AXES
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class Denoiser(Function):
    r"""A network as a prox, prox(y) = D(y) whatever the step: plug and play.

    There is no function behind most networks: it has no value, and **no algorithm promises to
    converge**. Fixed points exist and attract where D − 1 is Lipschitz with a small constant;
    ``expansion`` measures what a point shows of it. Unrolled, ``Unroll()`` differentiates what
    was computed either way; as an equilibrium, ``Implicit()`` says where the iteration does not
    contract. With other weights in every iteration, call ``algorithm.step(problem, state)`` with
    another problem each time. Reference: Venkatakrishnan, Bouman, Wohlberg (2013); Ryu, Liu, Wang,
    Chen, Wang, Yin (2019) for convergence.

    Args:
        module: an nn.Module or any callable y ↦ D(y), or (y, σ) ↦ D(y, σ).
        sigma: σ, a number or a tensor, where the module takes it.

    >>> smooth = lg.Blur(torch.tensor([0.25, 0.5, 0.25]))
    >>> data = lg.LeastSquares(lg.Mask(torch.tensor([True, False, True])), torch.ones(3))
    >>> lg.solve(data + lg.Denoiser(smooth), lg.HalfQuadratic(10.0), stop=lg.Stop(500)).x.round()
    tensor([1., 1., 1.])
    """

    convex: ClassVar[bool] = False
    takes_complex: ClassVar[bool] = True

    module: Callable[..., Tensor]
    sigma: Tensor | float | None = None

    def __post_init__(self) -> None:
        if not callable(self.module):
            raise InputError(f"A Denoiser holds a module, not {type(self.module).__name__}.")
        if self.sigma is not None:
            require_tensor_or_number(self.sigma, "sigma of Denoiser")

    def denoised(self, y: Tensor) -> Tensor:
        """D(y)."""
        found = self.module(y) if self.sigma is None else self.module(y, self.sigma)
        if not isinstance(found, Tensor) or found.shape != y.shape or found.dtype != y.dtype:
            kind = f"{found.dtype} of {tuple(found.shape)}" if isinstance(found, Tensor) else "none"
            raise InputError(
                f"The module of Denoiser made {kind} of a tensor {y.dtype} of {tuple(y.shape)}: it "
                "has to keep both."
            )
        return found

    def summands(self, x: Var) -> Tensor:
        raise InputError(
            "A Denoiser has no value: there is no function behind a network. Look at the residual "
            "of the solution instead of its objective."
        )

    def prox_couples(self) -> tuple[int, ...]:
        return tuple(range(-MOST_AXES, 0))

    def expansion(self, y: Tensor, iterations: int = 30) -> float:
        r"""The factor by which D − 1 stretches small changes of y, by power iteration.

        .. math:: ‖D'(y) − 1‖_2 ≤ \mathrm{Lip}(D − 1)

        A measured lower bound of the Lipschitz constant, at one point. Douglas–Rachford and ADMM
        are known to converge where the constant is below 1 and the data term is strongly convex
        enough; above 1 nothing is known.
        """
        from torch.func import jvp, vjp

        point = y.detach()

        def residual(t: Tensor) -> Tensor:
            return self.denoised(t) - t

        chance = torch.Generator().manual_seed(0)
        kind = torch.complex64 if y.is_complex() else torch.float32
        v = torch.randn(y.shape, generator=chance, dtype=kind, device="cpu").to(point)
        size = 0.0
        for _ in range(iterations):
            v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
            image = jvp(residual, (point,), (v,))[1]
            size = as_number(torch.linalg.vector_norm(image))
            if size == 0:
                return 0.0
            v = vjp(residual, point)[1](image)[0]
        return size


@register_prox(Denoiser, Euclidean)
def _(g: Denoiser, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    return g.denoised(y)
