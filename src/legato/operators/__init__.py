"""Linear operators K with their adjoints and norms."""

from legato.operators.adapters import from_deepinv, from_function, from_pylops, from_scipy
from legato.operators.as_complex import AsComplex
from legato.operators.base import Composition, Operator, as_operator, lanczos_norm
from legato.operators.blur import Blur
from legato.operators.convolution import Convolution
from legato.operators.dense import Dense
from legato.operators.diagonal import Diagonal, Identity
from legato.operators.differences import Differences
from legato.operators.fourier import Fourier
from legato.operators.part import Part, parts
from legato.operators.radon import Radon
from legato.operators.sampling import Downsample, Mask
from legato.operators.sparse import Sparse
from legato.operators.stack import Stack
from legato.operators.symmetrised import SecondDifferences, SymmetrisedGradient
from legato.operators.wavelet import Wavelet

__all__ = [
    "AsComplex",
    "Blur",
    "Composition",
    "Convolution",
    "Dense",
    "Diagonal",
    "Differences",
    "Downsample",
    "Fourier",
    "Identity",
    "Mask",
    "Operator",
    "Part",
    "Radon",
    "SecondDifferences",
    "Sparse",
    "Stack",
    "SymmetrisedGradient",
    "Wavelet",
    "as_operator",
    "from_deepinv",
    "from_function",
    "from_pylops",
    "from_scipy",
    "lanczos_norm",
    "parts",
]
