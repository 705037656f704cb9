"""Linear operators K with their adjoints and norms."""

from legato.operators.base import Operator, lanczos_norm
from legato.operators.convolution import Convolution
from legato.operators.dense import Dense
from legato.operators.diagonal import Diagonal, Identity
from legato.operators.differences import Differences
from legato.operators.stack import Stack

__all__ = [
    "Convolution",
    "Dense",
    "Diagonal",
    "Differences",
    "Identity",
    "Operator",
    "Stack",
    "lanczos_norm",
]
