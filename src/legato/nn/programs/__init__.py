"""Quadratic and linear programs as layers."""

from legato.nn.programs.from_cvxpy import from_cvxpy
from legato.nn.programs.from_pyepo import from_pyepo
from legato.nn.programs.linear import (
    LPGD,
    Entropic,
    LinearGradient,
    LinearProgram,
    Perturbed,
    Ridge,
)
from legato.nn.programs.output import ProgramOutput
from legato.nn.programs.quadratic import QuadraticProgram
from legato.nn.programs.solve_qp import solve_qp
from legato.nn.programs.solver import ProgramStatus

__all__ = [
    "LPGD",
    "Entropic",
    "LinearGradient",
    "LinearProgram",
    "Perturbed",
    "ProgramOutput",
    "ProgramStatus",
    "QuadraticProgram",
    "Ridge",
    "from_cvxpy",
    "from_pyepo",
    "solve_qp",
]
