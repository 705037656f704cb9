"""Optimisers for the upper level, and the loop around them."""

from legato.optim.base import DescentOptimizer
from legato.optim.checkpoint import Checkpoint
from legato.optim.conjugacy import FletcherReeves, HagerZhang, PolakRibiere
from legato.optim.fit import fit
from legato.optim.heavy_ball import HeavyBall
from legato.optim.history import Fit, History, Record
from legato.optim.inexact import HOAG, MAID
from legato.optim.ipiano import IPiano
from legato.optim.l0 import L0
from legato.optim.level import Level
from legato.optim.line_search import StrongWolfe
from legato.optim.nonlinear_cg import NonlinearCG
from legato.optim.proximal_gradient import ProximalGradient
from legato.optim.rules import Backtracking, Constant, NonConvex, Search, VariableInertia
from legato.optim.stopping import Until

__all__ = [
    "HOAG",
    "L0",
    "MAID",
    "Backtracking",
    "Checkpoint",
    "Constant",
    "DescentOptimizer",
    "Fit",
    "FletcherReeves",
    "HagerZhang",
    "HeavyBall",
    "History",
    "IPiano",
    "Level",
    "NonConvex",
    "NonlinearCG",
    "PolakRibiere",
    "ProximalGradient",
    "Record",
    "Search",
    "StrongWolfe",
    "Until",
    "VariableInertia",
    "fit",
]
