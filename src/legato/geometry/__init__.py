"""Legendre functions ψ with their mirror maps ∇ψ and ∇ψ*."""

from legato.geometry.base import Geometry
from legato.geometry.burg import Burg
from legato.geometry.entropy import Entropy
from legato.geometry.euclidean import Euclidean
from legato.geometry.interval import Interval
from legato.geometry.polyhedral import Polyhedral
from legato.geometry.product import Product
from legato.geometry.quartic import Quartic

__all__ = [
    "Burg",
    "Entropy",
    "Euclidean",
    "Geometry",
    "Interval",
    "Polyhedral",
    "Product",
    "Quartic",
]
