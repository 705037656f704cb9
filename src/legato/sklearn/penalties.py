"""Groups of features, and from the upper level's variables to their penalties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Groups:
    r"""``of[j]`` is the group of feature j; where every group is one feature, ‖w_g‖ is |w_j|.

    .. math:: Ω(w) = \sum_g a_g ‖w_g‖_2

    ``positive`` adds w ≥ 0, for groups of one feature. Reference: Yuan and Lin (2006), *Model
    selection and estimation in regression with grouped variables*.
    """

    of: Indices
    count: int
    positive: bool = False

    @staticmethod
    def singletons(features: int, positive: bool = False) -> Groups:
        return Groups(np.arange(features), features, positive)

    @property
    def single(self) -> bool:
        return self.count == len(self.of)

    def norms(self, w: Vector) -> Vector:
        """‖w_g‖ for every group."""
        if self.single:
            return np.abs(w)
        return np.sqrt(np.bincount(self.of, w * w, self.count))

    def pulls(self, gradient: Vector) -> Vector:
        """How strongly a gradient pulls each group away from zero: ‖∇_g‖, or max(−∇_g, 0)."""
        return np.maximum(-gradient, 0.0) if self.positive else self.norms(gradient)

    def dots(self, v: Vector, w: Vector) -> Vector:
        """⟨v_g, w_g⟩ for every group."""
        return v * w if self.single else self.sums(v * w)

    def sums(self, values: Vector) -> Vector:
        """Σ_{j ∈ g} of a number for each feature."""
        return np.bincount(self.of, values, self.count).astype(np.float64, copy=False)

    def spread(self, values: Vector) -> Vector:
        """A number for each group, handed to its features."""
        return values if self.single else values[self.of]

    def directions(self, w: Vector) -> Vector:
        """w_g/‖w_g‖, and 0 where w_g = 0."""
        if self.single:
            return np.sign(w)
        norms = self.spread(self.norms(w))
        return np.divide(w, norms, out=np.zeros_like(w), where=norms > 0)

    def features(self, which: NDArray[np.bool_]) -> Indices:
        """The features of some of the groups."""
        return np.flatnonzero(which if self.single else which[self.of])

    def among(self, features: Indices) -> tuple[Groups, Indices]:
        """The groups of some features, renumbered, and their old numbers."""
        if self.single:
            return Groups.singletons(len(features), self.positive), features
        old, of = np.unique(self.of[features], return_inverse=True)
        if len(old) == len(features):  # keep the order of the features: group i is feature i
            return Groups.singletons(len(features)), self.of[features]
        return Groups(of, len(old)), old


@dataclass(frozen=True)
class Weights:
    """The penalty Σ_g a_g‖w_g‖ + ½ Σ_j b_j w_j² in the scale of the data as given."""

    a: Vector
    b: Vector


@dataclass(frozen=True)
class Penalties:
    r"""Positive penalties α = exp(θ), each shared by the groups that ``index`` sends to it.

    .. math:: a_g = r\, c_g\, e^{θ_{k(g)}}, \qquad b_j = (1 − r)\, e^{θ_{k(j)}}

    c_g is ``factor`` and r the share of the L1 part, 1 for the lasso. Where r is tuned, θ has one
    more entry, log(r/(1 − r)).
    """

    groups: Groups
    index: Indices
    count: int
    factor: Vector
    l1_ratio: float | None = 1.0

    @property
    def size(self) -> int:
        """The number of variables."""
        return self.count + (self.l1_ratio is None)

    def ratio(self, theta: Vector) -> float:
        return float(expit(theta[-1])) if self.l1_ratio is None else self.l1_ratio

    def alpha(self, theta: Vector) -> Vector:
        return np.exp(theta[: self.count])

    def common(self, log_alpha: float, ratio: float = 0.5) -> Vector:
        """θ for one penalty everywhere."""
        theta = np.full(self.size, log_alpha)
        if self.l1_ratio is None:
            theta[-1] = np.log(ratio) - np.log1p(-ratio)
        return theta

    def weights(self, theta: Vector) -> Weights:
        alpha, r = self.alpha(theta)[self.index], self.ratio(theta)
        return Weights(r * self.factor * alpha, self.groups.spread((1 - r) * alpha))

    def pull_back(self, theta: Vector, da: Vector, db: Vector) -> Vector:
        """dL/dθ from dL/da and dL/db."""
        alpha, r = self.alpha(theta)[self.index], self.ratio(theta)
        ridge = db if self.groups.single else self.groups.sums(db)
        along = alpha * (r * self.factor * da + (1 - r) * ridge)
        gradient = Groups(self.index, self.count).sums(along)
        if self.l1_ratio is not None:
            return gradient
        change = float((alpha * (self.factor * da - ridge)).sum()) * r * (1 - r)
        return np.append(gradient, change)
