"""Algorithms are maps on states."""

from legato.algorithms.backtracking import Backtracking
from legato.algorithms.base import Algorithm, SplitStep
from legato.algorithms.forward_backward import ForwardBackward, Nesterov
from legato.algorithms.newton import Newton
from legato.algorithms.primal_dual import Average, PrimalDual

__all__ = [
    "Algorithm",
    "Average",
    "Backtracking",
    "ForwardBackward",
    "Nesterov",
    "Newton",
    "PrimalDual",
    "SplitStep",
]
