"""Chance and numbers: what a random recipe is made of.

All numbers have three digits, so that a recipe can be read.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def three_digits(values: Any) -> Any:
    array = np.asarray(values, float)
    return (
        np.vectorize(lambda v: float(f"{v:.3g}"))(array).tolist() if array.size else array.tolist()
    )


class Chance:
    """Random choices of one recipe, and the entries of its θ."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.theta: dict[str, Any] = {}
        self.ordered: list[list[str]] = []
        self.sizes = self._sizes()
        shapes: list[list[int]] = [[3], [4], [5], [6], [8], [2, 3], [3, 2], [2, 4]]
        self.shape = self.choose(shapes, [2, 3, 3, 2, 1, 1, 1, 1])

    # --- chance -----------------------------------------------------------------------------------

    def choose(self, options: Any, weights: Any = None) -> Any:
        p = None if weights is None else np.asarray(weights, float) / sum(weights)
        return options[int(self.rng.choice(len(options), p=p))]

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _sizes(self) -> list[float] | None:
        if self.happens(0.55):
            return None
        count = self.choose([1, 2, 3], [1, 3, 1])
        if self.happens(0.5):
            return [1.0] * count
        return [float(self.choose([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6])) for _ in range(count)]

    # --- numbers ----------------------------------------------------------------------------------

    def tensor(
        self, name: str, shape: Any, kind: str = "free", degree: int = 0,
        batched: bool | None = None, values: Any = None,
    ) -> str:  # fmt: skip
        """A new entry of θ. ``degree``: how it grows with the size of an element."""
        count = 0 if self.sizes is None else len(self.sizes)
        if batched is None:
            batched = count > 0 and (degree > 0 or self.happens(0.3))
        full = (count, *shape) if batched else tuple(shape)
        if values is not None:
            array = np.broadcast_to(values, full).copy()
        elif kind == "free":
            array = self.rng.normal(size=full)
        else:
            array = self.rng.uniform(0.3, 1.0, size=full)
        if batched and degree:
            sizes = np.asarray(self.sizes).reshape(-1, *[1] * len(shape))
            array = array * sizes**degree
        label = f"{name}{len(self.theta)}"
        self.theta[label] = {"value": three_digits(array), "kind": kind, "batched": bool(batched)}
        return label

    def weight(
        self, name: str, shape: Any, scale: float, degree: int = 1, zeros: bool = True
    ) -> Any:
        """A number or a tensor ≥ 0: one for all entries or one each, sometimes with zeros."""
        alike = self.sizes is None or len(set(self.sizes)) == 1 == self.sizes[0]
        if self.happens(0.15) and alike:
            return float(f"{scale * self.rng.uniform(0.3, 1):.3g}")
        own = self.choose([(), (1,) * len(shape), tuple(shape)], [2, 1, 2])
        if self.sizes is not None and own == ():
            own = (1,) * len(shape)
        count = 0 if self.sizes is None else len(self.sizes)
        batched = count > 0 and (degree > 0 or self.happens(0.3))
        full = (count, *own) if batched else own
        values = scale * self.rng.uniform(0.3, 1.0, size=full)
        if zeros and self.happens(0.12):
            values = np.where(self.rng.random(full) < 0.4, 0.0, values)
        return self.tensor(name, own, "nonnegative", degree, batched, values)

    def matrix(self, name: str, rows: int, columns: int, batched: bool | None = None) -> str:
        """Of norm about 1 and a condition number that is mostly small."""
        if batched is None:
            # Its batch axes broadcast against those of x, of which an image has one more.
            batched = self.sizes is not None and len(self.shape) == 1 and self.happens(0.15)
        condition = self.choose([1.5, 3.0, 10.0, 100.0], [3, 4, 2, 0.5])
        count = len(self.sizes or [1]) if batched else 1
        made = []
        for _ in range(count):
            left, _, right = np.linalg.svd(
                self.rng.normal(size=(rows, columns)), full_matrices=False
            )
            values = np.logspace(0, -np.log10(condition), min(rows, columns))
            made.append(left * values @ right)
        values = np.stack(made) if batched else made[0]
        return self.tensor(name, (rows, columns), batched=batched, values=values)
