"""Penalties of singular values: any penalty of entries, and weights that grow as values fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from legato._support.checks import holds, require_nonnegative, require_tensor
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.axes import OfMatrices
from legato.functions.base import Function
from legato.functions.k_support import KSupport, L0BallEnvelope
from legato.functions.l0 import L0Ball
from legato.functions.prox import mirror_prox, register_prox
from legato.functions.singular_values import moved_singular_values, shrunk
from legato.functions.smooth import Smooth
from legato.functions.spectral import require_matrices, singular_values
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class OfSingularValues(OfMatrices):
    r"""A penalty of the singular values of matrices, the last two axes of x.

    .. math:: g(x) = f(σ(x)), \qquad \mathrm{prox}_{αg}(U Σ Vᴴ) = U\, \mathrm{prox}_{αf}(Σ)\, Vᴴ

    f is a term of single entries that grows with |x_i|, as :class:`L0`, :class:`MCP`,
    :class:`LogSum` or :class:`~legato.L1` with one weight; or :class:`L0Ball`, a limit on the rank,
    :class:`L0BallEnvelope`, or :class:`KSupport`, whose sum with ``Linear(-m)`` is, up to a
    constant, the convex envelope of ½‖x − m‖² on matrices of rank k. It is convex where f is. At
    ties, where singular values are on a kink, the derivative of the prox is that of f along them.
    Reference: Lewis (1995); Larsson and Olsson (2016) for the last.

    >>> g = legato.functions.OfSingularValues(legato.functions.L0Ball(1))
    >>> g.prox(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
    tensor([[3., 0.],
            [0., 0.]])
    """

    takes_complex: ClassVar[bool] = True

    function: Function

    def __post_init__(self) -> None:
        f = self.function
        if not isinstance(f, Function) or not f.of_moduli:
            raise InputError(
                f"OfSingularValues takes a term of moduli, e.g. functions.MCP(), not {f!r}: what "
                "becomes of singular values must not depend on signs."
            )
        if isinstance(f, _OF_THE_LAST_AXIS):
            if f.dim != -1:
                raise InputError(
                    f"OfSingularValues applies {f!r} to a vector of singular values: dim is −1."
                )
        elif f.coupled != 0:
            raise InputError(
                f"OfSingularValues knows terms of single entries, L0Ball, L0BallEnvelope and "
                f"KSupport, not {f!r}."
            )
        shape = f.weight_shape()
        if shape and shape[-1] != 1:
            raise InputError(
                f"{f!r} has {shape[-1]} weights, but OfSingularValues treats all singular values "
                "alike. WeightedNuclear has one for each."
            )

    def summands(self, x: Var) -> Tensor:
        require_matrices(self, x)
        return self.function.summands(singular_values(x)).sum(-1)[..., None, None]


_OF_THE_LAST_AXIS = (L0Ball, L0BallEnvelope, KSupport)


@register_prox(OfSingularValues, Euclidean)
def _(g: OfSingularValues, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y)
    f, step = g.function, _of_vectors(alpha)

    def moved(S: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(f, KSupport | L0BallEnvelope):
            return f.moved(S, step)

        def prox(s: Tensor) -> Tensor:
            return mirror_prox(f, geometry, s, step)

        found = prox(S)
        if isinstance(f, L0Ball):
            return found, (found != 0).to(S.dtype)
        # The Jacobian is diagonal. Smooth differentiates inside all transforms, too.
        return found, Smooth(prox).grad(S.detach())

    return moved_singular_values(y, moved)


@dataclass(frozen=True, eq=False, repr=False)
class WeightedNuclear(OfMatrices):
    r"""The weighted nuclear norm of matrices, which spares the largest singular values.

    .. math:: g(x) = \sum_i w_i σ_i(x), \qquad w_1 ≤ w_2 ≤ …, \quad σ_1 ≥ σ_2 ≥ …

    Not convex, but for equal weights: a solver finds a stationary point. The prox is
    U max(Σ − αw, 0) Vᴴ; where singular values are equal and weights are not, there are others.
    Reference: Gaïffas and Lecué (2011); Gu, Zhang, Zuo, Feng (2014).

    >>> g = legato.functions.WeightedNuclear(torch.tensor([0.0, 1.0]))
    >>> g.prox(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
    tensor([[ 3.,  0.],
            [ 0., -1.]])
    """

    convex: ClassVar[bool] = False
    nonnegative: ClassVar[tuple[str, ...]] = ("weights",)
    takes_complex: ClassVar[bool] = True

    weights: Tensor

    def __post_init__(self) -> None:
        require_tensor(self.weights, "The weights of WeightedNuclear")
        require_nonnegative(self.weights, "The weights of WeightedNuclear")
        if self.weights.ndim == 0:
            raise InputError(
                "WeightedNuclear takes a weight for each singular value; Nuclear takes one."
            )
        if not holds(self.weights.diff(dim=-1) >= 0):
            raise InputError(
                "The weights of WeightedNuclear must not decrease: with larger weights for larger "
                "singular values the prox is another one."
            )

    def summands(self, x: Var) -> Tensor:
        require_matrices(self, x)
        values = singular_values(x)
        return (self._fitting(values) * values).sum(-1)[..., None, None]

    def _fitting(self, values: Tensor) -> Tensor:
        if self.weights.shape[-1] != values.shape[-1]:
            raise InputError(
                f"{self!r} has {self.weights.shape[-1]} weights for matrices of "
                f"{values.shape[-1]} singular values."
            )
        return self.weights


@register_prox(WeightedNuclear, Euclidean)
def _(g: WeightedNuclear, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y)
    step = _of_vectors(alpha)

    return moved_singular_values(y, lambda S: shrunk(S, step * g._fitting(S)))


def _of_vectors(alpha: Any) -> Any:
    """A step for each matrix, against its vector of singular values."""
    return alpha[..., 0] if isinstance(alpha, Tensor) and alpha.ndim > 1 else alpha
