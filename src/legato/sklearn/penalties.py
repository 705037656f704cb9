"""From the upper level's variables to the penalties of the lower level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from legato.sklearn.groups import Groups, Indices, Vector
from legato.sklearn.lower_level import Weights


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
