"""Quadratic and linear programs as layers."""

from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.quadratic import QuadraticProgram
from legato.nn.programs.solver import ProgramStatus

__all__ = ["ProgramOutput", "ProgramStatus", "QuadraticProgram"]
