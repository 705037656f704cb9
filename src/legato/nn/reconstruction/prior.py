"""Regularisers in the shape that deepinv asks of a prior."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from legato._support.checks import require_whole
from legato.errors import InputError
from legato.functions import Function
from legato.functions.prox import has_prox
from legato.geometry import Euclidean
from legato.gradients import GradientStrategy
from legato.nn.reconstruction.layer import Reconstruction
from legato.operators import Identity


class DeepinvPrior(nn.Module):
    r"""A regulariser of legato with the methods of a prior of deepinv, which need not be installed.

    .. math:: \mathrm{prox}_{γR}(x) = \arg\min_z\; \tfrac12‖z − x‖^2 + γ R_θ(z)

    The prox is in closed form where R has one, else by a primal–dual method, differentiable by
    ``gradient``. Weights that a network reads off an image are read off the x that is passed.
    :class:`TGV`, itself a minimum, has a prox and no value.

    Default: ``iterations=100``.

    Args:
        regulariser (Module): :class:`TV`, :class:`TGV`, :class:`Filters`,
            :class:`ConvexRidges`, or one of your own, as for :class:`Reconstruction`.
        iterations (int): of a prox that has no closed form. Default: 100
        gradient (GradientStrategy, optional): how to differentiate it. Default: ``Unroll()``

    Shape:
        - x: (B, C, H, W); ``fn`` gives (B,)

    Reference: Tachella et al. (2025), *DeepInverse: A Python package for solving imaging inverse
    problems with deep learning*.

    >>> prior = DeepinvPrior(TV(0.1))
    >>> x = torch.rand(2, 1, 8, 8)
    >>> prior(x).shape, bool((prior(prior.prox(x, gamma=0.5)) < prior(x)).all())
    (torch.Size([2]), True)
    """

    explicit_prior = True

    def __init__(
        self,
        regulariser: nn.Module,
        *,
        iterations: int = 100,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__()
        require_whole(iterations, "iterations")
        self.regulariser, self.iterations = regulariser, iterations
        self.layer = Reconstruction(
            Identity(), _Multiple(regulariser), first=_itself, iterations=iterations,
            balance=1.0, gradient=gradient,
        )  # fmt: skip

    def _term(self, x: Tensor) -> Function:
        term = self.regulariser(x)
        assert isinstance(term, Function)
        return term

    def forward(self, x: Tensor, *parameters: object) -> Tensor:
        """R(x) for each image; parameters are not looked at, θ belongs to the regulariser."""
        return self._term(x).values(x, 1)

    def fn(self, x: Tensor, *parameters: object) -> Tensor:
        """R(x) for each image."""
        return self(x)

    def grad(self, x: Tensor, *parameters: object) -> Tensor:
        """∇R(x), where R is smooth."""
        found = self._term(x).grad(x)
        assert isinstance(found, Tensor)
        return found

    def prox(self, x: Tensor, *parameters: object, gamma: float | Tensor = 1.0) -> Tensor:
        """The proximal point of x with step γ."""
        if not bool(torch.as_tensor(gamma).detach().min() >= 0):
            raise InputError(f"gamma must be at least 0, not {gamma!r}.")
        term = self._term(x)
        if has_prox(term, Euclidean()):
            found = term.prox(x, gamma)
            assert isinstance(found, Tensor)
            return found
        multiple = self.layer.regulariser
        assert isinstance(multiple, _Multiple)
        multiple.gamma = gamma
        return self.layer(x)

    def prox_conjugate(
        self, x: Tensor, *parameters: object, gamma: float = 1.0, lamb: float = 1.0
    ) -> Tensor:
        """The proximal point of (lamb·R)*, by Moreau's identity."""
        return x - gamma * self.prox(x / gamma, gamma=lamb / gamma)


class _Multiple(nn.Module):
    """γR for a number γ that is set."""

    def __init__(self, regulariser: nn.Module) -> None:
        super().__init__()
        self.regulariser = regulariser
        self.gamma: float | Tensor = 1.0

    def forward(self, image: Tensor) -> Function:
        gamma = self.gamma
        gamma = gamma.reshape(()) if isinstance(gamma, Tensor) else float(gamma)
        found: Function = gamma * self.regulariser(image)
        return found


def _itself(y: Tensor) -> Tensor:
    return y
