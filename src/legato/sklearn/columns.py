"""The columns that have ever been in a working set, and their products."""

from __future__ import annotations

import numpy as np

from legato.sklearn.design import Design
from legato.sklearn.groups import Indices
from legato.sklearn.quadratic import Matrix


class Columns:
    """Columns of X̃ written out as they are needed, with X̃ᵀΩX̃ kept where it does not change."""

    def __init__(self, design: Design, *, products: bool) -> None:
        self.design, self.products = design, products
        self.place = np.full(design.shape[1], -1, dtype=np.intp)
        self.known = np.empty(0, dtype=np.intp)
        self.block = np.empty((design.shape[0], 0), order="F")
        self.gram = np.empty((0, 0))

    def _require(self, features: Indices) -> Indices:
        new = features[self.place[features] < 0]
        if len(new):
            old, size = len(self.known), len(self.known) + len(new)
            self._reserve(size)
            self.block[:, old:size] = self.design.columns(new)
            if self.products:
                weighted = self.design.weights[:, None] * self.block[:, old:size]
                self.gram[:size, old:size] = self.block[:, :size].T @ weighted
                self.gram[old:size, :old] = self.gram[:old, old:size].T
            self.place[new] = np.arange(old, size)
            self.known = np.concatenate([self.known, new])
        return self.place[features]

    def _reserve(self, size: int) -> None:
        """Room for columns, doubled when it runs out, so that growing costs little."""
        room = self.block.shape[1]
        if size <= room:
            return
        more, old = min(max(2 * room, size, 64), self.design.shape[1]), len(self.known)
        block = np.empty((self.design.shape[0], more), order="F")
        block[:, :old] = self.block[:, :old]
        self.block = block
        if self.products:
            gram = np.empty((more, more))
            gram[:old, :old] = self.gram[:old, :old]
            self.gram = gram

    def of(self, features: Indices) -> Matrix:
        """X̃ restricted to some features."""
        place = self._require(features)  # may replace the block
        return self.block[:, place]

    def gram_of(self, features: Indices) -> Matrix:
        """X̃ᵀΩX̃ restricted to some features."""
        place = self._require(features)
        return self.gram[np.ix_(place, place)]
