"""The two losses of a linear model: squares and logistic."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from scipy.special import expit

from legato.sklearn.groups import Vector


class LinearLoss(ABC):
    """ℓ(z, y) of a prediction z; ``value`` and its derivatives in z are for every sample."""

    quadratic = False

    @abstractmethod
    def value(self, z: Vector, y: Vector) -> Vector: ...

    @abstractmethod
    def slope(self, z: Vector, y: Vector) -> Vector: ...

    @abstractmethod
    def bend(self, z: Vector, y: Vector) -> Vector: ...

    @abstractmethod
    def intercept(self, y: Vector, weights: Vector) -> float:
        """The best constant prediction."""

    @abstractmethod
    def size(self, y: Vector, weights: Vector) -> float:
        """The size of ℓ′ for the best constant prediction: residuals are measured by it."""

    validation_factor = 1.0
    """What the validation loss is in units of ``value``."""


class Squares(LinearLoss):
    """ℓ = ½(z − y)²; validated by (z − y)², as scikit-learn's mean squared error is."""

    quadratic = True
    validation_factor = 2.0

    def value(self, z: Vector, y: Vector) -> Vector:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Vector, y: Vector) -> Vector:
        return z - y

    def bend(self, z: Vector, y: Vector) -> Vector:
        return np.ones_like(z)

    def intercept(self, y: Vector, weights: Vector) -> float:
        return float(weights @ y)

    def size(self, y: Vector, weights: Vector) -> float:
        return float(np.sqrt(weights @ (y * y)))


class LogLoss(LinearLoss):
    """ℓ = log(1 + e^z) − yz for y in {0, 1}."""

    def value(self, z: Vector, y: Vector) -> Vector:
        return np.logaddexp(0.0, z) - y * z

    def slope(self, z: Vector, y: Vector) -> Vector:
        return expit(z) - y

    def bend(self, z: Vector, y: Vector) -> Vector:
        return expit(z) * expit(-z)

    def intercept(self, y: Vector, weights: Vector) -> float:
        share = float(weights @ y)
        return float(np.log(share) - np.log1p(-share)) if 0 < share < 1 else 0.0

    def size(self, y: Vector, weights: Vector) -> float:
        return 1.0
