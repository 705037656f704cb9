"""A network in the place of a prox, plug and play, or of a gradient, RED."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import as_number, require_nonnegative, require_tensor_or_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function
from legato.functions.l2_norm import MOST_AXES
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


class _Network(Function):
    """What holds a module D: no function is behind it, and so no value."""

    convex: ClassVar[bool] = False
    potential: ClassVar[bool] = False
    takes_complex: ClassVar[bool] = True

    module: Callable[..., Tensor]
    sigma: Tensor | float | None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not callable(self.module):
            raise InputError(f"A {name} holds a module, not {type(self.module).__name__}.")
        if self.sigma is not None:
            require_tensor_or_number(self.sigma, f"sigma of {name}")

    def denoised(self, y: Tensor) -> Tensor:
        """D(y)."""
        found = self.module(y) if self.sigma is None else self.module(y, self.sigma)
        if not isinstance(found, Tensor) or found.shape != y.shape or found.dtype != y.dtype:
            kind = f"{found.dtype} of {tuple(found.shape)}" if isinstance(found, Tensor) else "none"
            raise InputError(
                f"The module of {type(self).__name__} made {kind} of a tensor {y.dtype} of "
                f"{tuple(y.shape)}: it has to keep both."
            )
        return found

    def summands(self, x: Var) -> Tensor:
        raise InputError(
            f"A {type(self).__name__} has no value: there is no function behind a network. Look at "
            "the residual of the solution instead of its objective, and give an algorithm a step "
            "instead of a line search."
        )

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


@dataclass(frozen=True, eq=False, repr=False)
class Denoiser(_Network):
    r"""A network as a prox, prox(y) = D(y) whatever the step: plug and play.

    There is no function behind most networks: it has no value, and **no algorithm promises to
    converge**. Fixed points exist and attract where D − 1 is Lipschitz with a small constant;
    ``expansion`` measures what a point shows of it. Momentum, Nesterov(restart=True), and the dual
    prox y − σD(y/σ) of :class:`PrimalDual` ask for more still, a D that is the prox of some convex
    function; the residual of the solution tells. Unrolled, ``Unroll()`` differentiates what
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

    module: Callable[..., Tensor]
    sigma: Tensor | float | None = None

    def prox_couples(self) -> tuple[int, ...]:
        return tuple(range(-MOST_AXES, 0))


@dataclass(frozen=True, eq=False, repr=False)
class DenoiserResidual(_Network):
    r"""A network in the place of a gradient: regularisation by denoising, RED.

    .. math:: ∇f(x) = w\,igl(x − D(x)igr)

    It is the gradient of ½w⟨x, x − D(x)⟩ only where D scales with x and its Jacobian is symmetric,
    which those of networks are not: it has no value, and **no algorithm promises to converge**.
    Where D does not expand distances, 1 − D has the Lipschitz constant 2, and plain steps of
    1/(L + 2w) find a zero of all gradients, if there is one, with L of the other, convex smooth
    terms. Nothing is known of momentum. ``expansion`` measures D − 1 at a point.
    Reference: Romano, Elad, Milanfar (2017); Reehorst and Schniter (2019).

    Args:
        module: an nn.Module or any callable y ↦ D(y), or (y, σ) ↦ D(y, σ).
        weight: w, a number or a tensor that broadcasts against x.
        sigma: σ, a number or a tensor, where the module takes it.
        constant: a Lipschitz constant of the gradient, if one is known, for an automatic step: 2w
            where D does not expand distances. Without it give the algorithm a step.

    >>> smooth = lg.Blur(torch.tensor([0.25, 0.5, 0.25]))
    >>> data = lg.LeastSquares(lg.Mask(torch.tensor([True, False, True])), torch.ones(3))
    >>> energy = data + lg.functions.DenoiserResidual(smooth, 0.5, constant=1.0)
    >>> lg.solve(energy, stop=lg.Stop(500)).x.round(decimals=3)
    tensor([1., 1., 1.])
    """

    module: Callable[..., Tensor]
    weight: Tensor | float = 1.0
    sigma: Tensor | float | None = None
    constant: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_nonnegative(self.weight, "The weight of DenoiserResidual")

    def grad(self, x: Var) -> Var:
        return self.weight * (x - self.denoised(x))

    def lipschitz(self) -> float | None:
        return self.constant


@register_prox(Denoiser, Euclidean)
def _(g: Denoiser, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    return g.denoised(y)
