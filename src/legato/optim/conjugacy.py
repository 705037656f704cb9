"""How nonlinear conjugate gradients choose the next direction, d⁺ = −g⁺ + βd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from legato._support import tree
from legato.errors import InputError
from legato.optim.base import Vector


class Conjugacy(ABC):
    """A formula for β from the last gradient g, the last direction d and the new gradient."""

    @abstractmethod
    def beta(self, g: Vector, d: Vector, new: Vector) -> float:
        """β; 0 forgets the last direction."""


@dataclass(frozen=True)
class FletcherReeves(Conjugacy):
    r"""β = ‖g⁺‖²/‖g‖², which needs c₂ < ½ and restarts. Reference: Fletcher and Reeves (1964)."""

    def beta(self, g: Vector, d: Vector, new: Vector) -> float:
        return tree.dot(new, new) / tree.dot(g, g)


@dataclass(frozen=True)
class PolakRibiere(Conjugacy):
    r"""β = max(0, ⟨g⁺, g⁺ − g⟩/‖g‖²), "PR+". Reference: Gilbert and Nocedal (1992)."""

    def beta(self, g: Vector, d: Vector, new: Vector) -> float:
        return max(0.0, tree.dot(new, tree.tree_map(torch.sub, new, g)) / tree.dot(g, g))


@dataclass(frozen=True)
class HagerZhang(Conjugacy):
    r"""β = ⟨y − 2d‖y‖²/⟨d, y⟩, g⁺⟩/⟨d, y⟩ with y = g⁺ − g, bounded below by −1/(‖d‖ min(η, ‖g‖)).

    Every direction descends, ⟨d, g⟩ ≤ −⅞‖g‖². Reference: Hager and Zhang (2005).
    """

    eta: float = 0.01

    def __post_init__(self) -> None:
        if not self.eta > 0:
            raise InputError(f"HagerZhang needs η > 0, not {self.eta!r}.")

    def beta(self, g: Vector, d: Vector, new: Vector) -> float:
        y = tree.tree_map(torch.sub, new, g)
        dy = tree.dot(d, y)
        if dy == 0:
            return 0.0
        beta = (tree.dot(y, new) - 2 * tree.dot(y, y) * tree.dot(d, new) / dy) / dy
        least = -1 / (tree.length(d) * min(self.eta, tree.length(g)))
        return max(beta, least)
