"""Algorithms are maps on states."""

from legato.algorithms.admm import ADMM
from legato.algorithms.anderson import Anderson
from legato.algorithms.backtracking import Backtracking
from legato.algorithms.base import Algorithm, SplitStep
from legato.algorithms.douglas_rachford import DouglasRachford
from legato.algorithms.forward_backward import ForwardBackward, Nesterov
from legato.algorithms.half_quadratic import HalfQuadratic
from legato.algorithms.newton import Newton
from legato.algorithms.primal_dual import Average, PrimalDual

__all__ = [
    "ADMM",
    "Algorithm",
    "Anderson",
    "Average",
    "Backtracking",
    "DouglasRachford",
    "ForwardBackward",
    "HalfQuadratic",
    "Nesterov",
    "Newton",
    "PrimalDual",
    "SplitStep",
]
