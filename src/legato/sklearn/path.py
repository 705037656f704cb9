"""What the outer loop leaves behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato.sklearn.groups import Vector


@dataclass
class OuterPath:
    """Every point of the outer loop: validation loss, penalties, slope, seconds since its start.

    ``judged`` is the loss on the rows kept for early stopping, NaN without; ``chosen`` is the index
    of the point that was taken, ``reason`` says why the loop ended.
    """

    penalties: int
    losses: list[float] = field(default_factory=list)
    thetas: list[Vector] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    judgements: list[float] = field(default_factory=list)
    chosen: int = 0
    reason: str = ""
    begun: float = field(default_factory=time.perf_counter)

    def add(self, loss: float, theta: Vector, slope: float, judged: float | None = None) -> None:
        self.losses.append(loss)
        self.thetas.append(np.array(theta))
        self.slopes.append(slope)
        self.clock.append(time.perf_counter() - self.begun)
        self.judgements.append(np.nan if judged is None else judged)

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def loss(self) -> NDArray[np.float64]:
        return np.array(self.losses)

    @property
    def alpha(self) -> NDArray[np.float64]:
        """The penalties, one row a point."""
        return np.exp(np.array(self.thetas)[:, : self.penalties])

    @property
    def slope(self) -> NDArray[np.float64]:
        """dC/dlog α for one penalty, the norm of the gradient in log α for many."""
        return np.array(self.slopes)

    @property
    def seconds(self) -> NDArray[np.float64]:
        return np.array(self.clock)

    @property
    def judged(self) -> NDArray[np.float64]:
        return np.array(self.judgements)
