"""Linear operators K with their adjoints and norms."""

from legato.operators.base import Composition, Operator, as_operator, lanczos_norm
from legato.operators.convolution import Convolution
from legato.operators.dense import Dense
from legato.operators.diagonal import Diagonal, Identity
from legato.operators.differences import Differences
from legato.operators.stack import Stack

__all__ = [
    "Composition",
    "Convolution",
    "Dense",
    "Diagonal",
    "Differences",
    "Identity",
    "Operator",
    "Stack",
    "as_operator",
    "lanczos_norm",
]
