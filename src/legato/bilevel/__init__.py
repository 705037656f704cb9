"""The outer loop: fit, the inner solver, tolerances that adapt, checkpoints and histories."""

from legato.bilevel.checkpoint import Checkpoint
from legato.bilevel.fit import fit
from legato.bilevel.history import Fit, History, Record
from legato.bilevel.inexact import HOAG, MAID
from legato.bilevel.inner import InnerSolver
from legato.bilevel.stopping import Until

__all__ = [
    "HOAG",
    "MAID",
    "Checkpoint",
    "Fit",
    "History",
    "InnerSolver",
    "Record",
    "Until",
    "fit",
]
