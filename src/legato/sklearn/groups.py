"""Features in groups: the norms that a group lasso penalises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Groups:
    r"""``of[j]`` is the group of feature j; where every group is one feature, ‖w_g‖ is |w_j|.

    .. math:: Ω(w) = \sum_g a_g ‖w_g‖_2

    Reference: Yuan and Lin (2006), *Model selection and estimation in regression with grouped
    variables*.
    """

    of: Indices
    count: int

    @staticmethod
    def singletons(features: int) -> Groups:
        return Groups(np.arange(features), features)

    @property
    def single(self) -> bool:
        return self.count == len(self.of)

    def norms(self, w: Vector) -> Vector:
        """‖w_g‖ for every group."""
        if self.single:
            return np.abs(w)
        return np.sqrt(np.bincount(self.of, w * w, self.count))

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
            return Groups.singletons(len(features)), features
        old, of = np.unique(self.of[features], return_inverse=True)
        if len(old) == len(features):  # keep the order of the features: group i is feature i
            return Groups.singletons(len(features)), self.of[features]
        return Groups(of, len(old)), old
