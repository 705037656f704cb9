"""Sparse coding with a learned dictionary as a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from legato.algorithms import ForwardBackward, Nesterov
from legato.errors import InputError
from legato.functions import L1, AsymmetricL1, LeastSquares
from legato.gradients import GradientStrategy
from legato.nn.inputs import cheap_to_read, require_finite, require_like, watch_gradient
from legato.nn.lower_level import require_stop, require_strategy, solve_lower_level
from legato.operators import Dense
from legato.problems import Composite
from legato.solving import Solution


@dataclass
class SparseCodingOutput:
    """What :class:`SparseCoding` returns; all but the gap is attached to the graph.

    ``value`` is z (…, atoms); ``solution`` is what :func:`legato.solve` reported, its ``backward``
    filled by ``.backward()``. The other fields are the data of the ``problem`` that was solved.
    Reference: :class:`SparseCoding`.

    >>> output = SparseCoding(5, 3, iterations=500)(torch.randn(4, 3))
    >>> output.reconstruction.shape, bool(output.gap.max() < 1e-2)
    (torch.Size([4, 3]), True)
    """

    x: Tensor
    signals: Tensor
    dictionary: Tensor
    weight: Tensor
    problem: Composite
    solution: Solution

    @property
    def reconstruction(self) -> Tensor:
        """Dz (…, features)."""
        return self.x @ self.dictionary.mT

    @cached_property
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


class SparseCoding(nn.Module):
    r"""Codes z of few non-zero entries that explain a signal y by a learned dictionary D.

    .. math:: z = \arg\min_z\; \tfrac12‖y − Dz‖² + λ‖z‖₁ \quad (z ≥ 0 \text{ if nonnegative})

    Atoms are the columns of D; they have norm one whatever is learned, for λ could be evaded by
    long ones. λ = exp(·) is learned, started at ``weight``. Accelerated forward–backward steps from
    z = 0, their size held fixed in the derivative; ``gradient`` is any strategy (default Unroll).
    A ``tol`` that ``iterations`` do not reach is warned about. ``forward`` maps (…, features) to an
    output with ``value`` (…, atoms). Reference: Olshausen and Field (1996); Mairal, Bach, Ponce
    (2012), task-driven dictionary learning.

    >>> coder = SparseCoding(atoms=5, features=3, weight=0.5, nonnegative=True)
    >>> codes = coder(torch.randn(4, 3)).x
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
        super().__init__()
        for name, value in (("atoms", atoms), ("features", features)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a positive whole number, not {value!r}.")
        if not 0 < weight < math.inf:
            raise InputError(f"weight must be positive and finite, not {weight!r}.")
        self.stop = require_stop(iterations, tol, "SparseCoding")
        self.gradient = require_strategy(gradient)
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
            f"iterations={self.stop.iterations}, tol={self.stop.tol}, gradient={self.gradient!r}"
        )

    def forward(self, signals: Tensor) -> SparseCodingOutput:
        features = self.directions.shape[0]
        if not isinstance(signals, Tensor) or signals.shape[-1:] != (features,):
            found = tuple(signals.shape) if isinstance(signals, Tensor) else type(signals).__name__
            raise InputError(f"signals must have shape (…, {features}), not {found}.")
        if signals.numel() == 0:
            raise InputError(f"signals of shape {tuple(signals.shape)} are empty: nothing to code.")
        require_like(self.directions, signals, "The dictionary", of="signals")
        require_finite(signals, "signals")
        require_finite(self.directions, "The dictionary")
        require_finite(self.log_weight, "The logarithm of the weight")
        D = watch_gradient(self.dictionary, "the dictionary")
        w = watch_gradient(self.weight, "the weight")
        penalty = AsymmetricL1(-math.inf, w) if self.nonnegative else L1(w)
        data = watch_gradient(signals, "signals")
        problem = Composite(LeastSquares(Dense(D), data), penalty)
        algorithm = ForwardBackward(inertia=Nesterov())
        done = solve_lower_level(
            problem, algorithm, None, self.gradient, self.stop, type(self).__name__
        )
        return SparseCodingOutput(done.x, signals, D, w, problem, done)


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
