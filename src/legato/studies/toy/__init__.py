"""The paper's one-dimensional example: six ways to differentiate a nonsmooth solution map."""

from legato.studies.toy.example import SETS, Toy
from legato.studies.toy.methods import BACK_ITERATED, FORWARD, METHODS, Estimate, Method, estimate
from legato.studies.toy.study import SetResults, Settings, ToyResults, run

__all__ = [
    "BACK_ITERATED",
    "FORWARD",
    "METHODS",
    "SETS",
    "Estimate",
    "Method",
    "SetResults",
    "Settings",
    "Toy",
    "ToyResults",
    "estimate",
    "run",
]
