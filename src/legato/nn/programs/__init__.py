"""Quadratic and linear programs as layers."""

from legato.nn.programs.linear import LPGD, LinearGradient, LinearProgram, Ridge
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.quadratic import QuadraticProgram
from legato.nn.programs.solver import ProgramStatus

__all__ = [
    "LPGD",
    "LinearGradient",
    "LinearProgram",
    "ProgramOutput",
    "ProgramStatus",
    "QuadraticProgram",
    "Ridge",
]
