"""Sparse coding with a learned dictionary as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.checks import (
    cheap_to_read,
    describe,
    require_finite,
    require_like,
    require_positive,
    require_range,
    require_whole,
)
from legato._support.lazy import lazy
from legato._support.precision import out_of_autocast
from legato.algorithms import ForwardBackward, Nesterov
from legato.errors import InputError
from legato.functions import L1, AsymmetricL1, LeastSquares
from legato.gradients import GradientStrategy
from legato.nn._solve import LayerOutput, SolverLayer
from legato.operators import Dense
from legato.problems import Composite


@dataclass
class SparseCodingOutput(LayerOutput):
    """What :meth:`SparseCoding.solve` returns: x is z (…, atoms); y, D and λ are what was solved.

    >>> record = SparseCoding(5, 3, iterations=500).solve(torch.randn(4, 3))
    >>> record.reconstruction.shape, bool(record.gap.max() < 1e-2)
    (torch.Size([4, 3]), True)
    """

    signals: Tensor
    dictionary: Tensor
    weight: Tensor

    @property
    def reconstruction(self) -> Tensor:
        """Dz (…, features)."""
        return self.x @ self.dictionary.mT

    @lazy
    def gap(self) -> Tensor:
        """By at most this each signal's energy is too large (…,): residuals, scaled, are dual."""
        with torch.no_grad():
            rest = self.signals - self.reconstruction
            answers = rest @ self.dictionary
            if isinstance(self.problem.nonsmooth, L1):
                answers = answers.abs()
            top = answers.amax(-1, keepdim=True).clamp(min=0)
            scale = (self.weight / torch.where(top > 0, top, torch.ones_like(top))).clamp(max=1)
            dual = rest * torch.where(top > 0, scale, torch.ones_like(scale))
            primal = 0.5 * rest.square().sum(-1) + self.weight * self.x.abs().sum(-1)
            return primal - (self.signals * dual).sum(-1) + 0.5 * dual.square().sum(-1)


class SparseCoding(SolverLayer):
    r"""Codes z of few non-zero entries that explain a signal y by a learned dictionary D.

    .. math:: z = \arg\min_z\; \tfrac12‖y − Dz‖² + λ‖z‖₁ \quad (z ≥ 0 \text{ if nonnegative})

    Atoms are the columns of D; they have norm one whatever is learned, for λ could be evaded by
    long ones. λ = exp(·) is learned, too.

    Defaults: ``weight=0.1``, ``iterations=100``.

    Args:
        atoms (int): columns of D.
        features (int): rows of D, the length of a signal.
        weight (float): λ to start from. Default: 0.1
        nonnegative (bool): ask for z ≥ 0. Default: False
        iterations (int): accelerated forward–backward steps from z = 0, at most. Default: 100
        tol (float, optional): stop once the residual is at most this; a warning says where
            ``iterations`` do not reach it. Default: None, all iterations
        gradient (GradientStrategy, optional): how to differentiate. Default: ``Unroll()``

    Shape:
        - signals y: (…, features)

    Returns:
        Tensor: the codes z (…, atoms).

    Reference: Olshausen and Field (1996); Mairal, Bach, Ponce (2012), task-driven dictionary
    learning.

    >>> coder = SparseCoding(atoms=5, features=3, weight=0.5, nonnegative=True)
    >>> codes = coder(torch.randn(4, 3))
    >>> codes.shape, bool((codes >= 0).all())
    (torch.Size([4, 5]), True)
    """

    def __init__(
        self,
        atoms: int,
        features: int,
        *,
        weight: float = 0.1,
        nonnegative: bool = False,
        iterations: int = 100,
        tol: float | None = None,
        gradient: GradientStrategy | None = None,
    ) -> None:
        super().__init__(iterations, tol, gradient)
        require_whole(atoms, "atoms")
        require_whole(features, "features")
        require_positive(weight, "weight")
        self.nonnegative = bool(nonnegative)
        self.directions = nn.Parameter(nn.functional.normalize(torch.randn(features, atoms), dim=0))
        self.log_weight = nn.Parameter(torch.tensor(math.log(weight)))

    @property
    def dictionary(self) -> Tensor:
        """D (features, atoms), of columns of norm one."""
        return self.directions / _norms(self.directions, "directions")

    @property
    def weight(self) -> Tensor:
        """λ."""
        return self.log_weight.exp()

    @torch.no_grad()
    def set_dictionary(self, dictionary: Tensor) -> None:
        """Take the directions of atoms (features, atoms), e.g. of some of the signals."""
        if dictionary.shape != self.directions.shape:
            raise InputError(
                f"dictionary must have shape (features, atoms) = {tuple(self.directions.shape)}, "
                f"not {tuple(dictionary.shape)}."
            )
        dictionary = dictionary.to(self.directions)
        require_finite(dictionary, "dictionary")
        self.directions.copy_(dictionary / _norms(dictionary, "dictionary"))

    def extra_repr(self) -> str:
        features, atoms = self.directions.shape
        return (
            f"atoms={atoms}, features={features}, nonnegative={self.nonnegative}, "
            f"{self._settings()}"
        )

    def forward(self, signals: Tensor) -> Tensor:
        """Code signals.

        Args:
            signals (Tensor): y (…, features).

        Returns:
            Tensor: the codes z (…, atoms).
        """
        return self.solve(signals).x

    def solve(self, signals: Tensor, x0: Any = None) -> SparseCodingOutput:
        """The full record; ``x0`` are first codes (…, atoms), or an earlier solution's state."""
        signals = out_of_autocast(signals)
        features = self.directions.shape[0]
        if not isinstance(signals, Tensor) or signals.shape[-1:] != (features,):
            raise InputError(f"signals must have shape (…, {features}), not {describe(signals)}.")
        if signals.numel() == 0:
            raise InputError(f"signals of shape {tuple(signals.shape)} are empty: nothing to code.")
        require_like(self.directions, signals, "The dictionary", of="signals")
        require_range(signals, "signals")
        require_range(self.directions, "The dictionary")
        require_finite(self.log_weight, "The logarithm of the weight")
        D, w = self.dictionary, self.weight
        penalty = AsymmetricL1(-math.inf, w) if self.nonnegative else L1(w)
        problem = Composite(LeastSquares(Dense(D), signals), penalty)
        done = self._solve(problem, ForwardBackward(inertia=Nesterov()), x0)
        return SparseCodingOutput(problem, done, signals, D, w)


def _norms(atoms: Tensor, name: str) -> Tensor:
    norms = torch.linalg.vector_norm(atoms, dim=0, keepdim=True)
    if cheap_to_read(norms) and not bool((norms.detach() > 0).all()):
        zero = (norms.detach()[0] == 0).nonzero().flatten().tolist()
        raise InputError(
            f"Atom {zero[0]} of the {name} is zero ({len(zero)} of {norms.numel()} are): it has no "
            "direction, and any code would do. Leave it out, or draw it anew, e.g. "
            "set_dictionary(torch.randn(features, atoms))."
        )
    return norms
