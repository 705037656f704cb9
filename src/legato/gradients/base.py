"""The contract of a gradient strategy, and what it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from legato.algorithms import Algorithm
from legato.errors import GradientError
from legato.running import Run, Stop, Trace


@dataclass
class Backward:
    """What happened in the backward pass; empty until ``.backward()`` has run.

    ``residual`` is ‖ξ − (I − A_x)ᵀv‖/‖ξ‖ for the fixed-point family, and the share of the cotangent
    that truncation dropped for ``Unroll``.
    Reference: errata of Ochs et al. (2016): a certificate ‖v − v*‖ ≤ ‖r‖/(1 − ρ).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit())
    >>> solution.x.sum().backward()
    >>> report = solution.backward
    >>> report.converged, report.residual < 1e-5, report.bound < 1e-4
    (True, True, True)
    """

    residual: float | None = None
    iterations: int | None = None
    spectral_radius: float | None = None
    converged: bool | None = None

    @property
    def bound(self) -> float | None:
        """‖v − v*‖/‖ξ‖ as estimated by residual/(1 − ρ), infinite where ρ ≥ 1, None where unknown.

        It bounds the error where A_x is normal, and where not it can be too small by the factor
        that :func:`legato.diagnose` measures; ask that for a certified bound.
        """
        if self.residual is None or self.spectral_radius is None:
            return None
        room = 1 - self.spectral_radius
        return self.residual / room if room > 0 else float("inf")


class GradientStrategy(ABC):
    r"""A way to differentiate an iteration; passed to :func:`legato.solve`.

    .. math:: \frac{dL}{dθ} = \left(\frac{dx}{dθ}\right)^⊤ ξ, \qquad ξ = ∇_x L

    Reference: Section 4 of Ochs et al. (2016).

    >>> issubclass(lg.Unroll, lg.GradientStrategy), issubclass(lg.Implicit, lg.GradientStrategy)
    (True, True)
    """

    @abstractmethod
    def differentiate(
        self,
        problem: Any,
        algorithm: Algorithm,
        state: Any,
        stop: Stop,
        trace: Trace | None,
        report: Backward,
    ) -> Run:
        """Iterate from ``state`` and return a run whose state is attached to the graph."""


def refuse_second_derivatives() -> None:
    """Called in a backward pass that cannot itself be differentiated."""
    if torch.is_grad_enabled():
        raise GradientError(
            "Second derivatives (create_graph=True) go through Unroll() only: the other strategies "
            "compute the first one without a graph. Use gradient=Unroll()."
        )
