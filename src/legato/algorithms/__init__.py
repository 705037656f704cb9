"""Algorithms are maps on states."""

from legato.algorithms.admm import ADMM
from legato.algorithms.anderson import Anderson
from legato.algorithms.average import Average
from legato.algorithms.backtracking import Backtracking
from legato.algorithms.balance import AdaptiveBalance
from legato.algorithms.base import Algorithm, SplitStep
from legato.algorithms.douglas_rachford import DouglasRachford
from legato.algorithms.forward_backward import ForwardBackward
from legato.algorithms.half_quadratic import HalfQuadratic
from legato.algorithms.nesterov import Nesterov
from legato.algorithms.newton import Newton
from legato.algorithms.primal_dual import PrimalDual
from legato.algorithms.restart import Restart
from legato.algorithms.ruiz import Ruiz

__all__ = [
    "ADMM",
    "AdaptiveBalance",
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
    "Restart",
    "Ruiz",
    "SplitStep",
]
