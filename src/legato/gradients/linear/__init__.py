"""Matrix-free solvers of (I − M)w = ξ, one a file."""

from legato.gradients.linear.base import Factored, LinearResult, LinearSolver, SaddleFactors
from legato.gradients.linear.bicgstab import BiCGStab
from legato.gradients.linear.cg import CG
from legato.gradients.linear.direct import Direct
from legato.gradients.linear.gmres import GMRES
from legato.gradients.linear.minres import MINRES
from legato.gradients.linear.neumann import Neumann
from legato.gradients.linear.spectrum import random_vector, spectral_radius

__all__ = [
    "CG",
    "GMRES",
    "MINRES",
    "BiCGStab",
    "Direct",
    "Factored",
    "LinearResult",
    "LinearSolver",
    "Neumann",
    "SaddleFactors",
    "random_vector",
    "spectral_radius",
]
