"""The clean layers: what a referee must let pass, kinks, ties, scales and couplings included."""

from testing.seeded.case import Clean
from testing.seeded.clean_algebra import ALGEBRA
from testing.seeded.clean_images import IMAGES
from testing.seeded.clean_legato import LEGATO
from testing.seeded.clean_pointwise import POINTWISE
from testing.seeded.clean_solvers import SOLVERS
from testing.seeded.clean_vectors import VECTORS

CLEAN: tuple[Clean, ...] = (*POINTWISE, *VECTORS, *ALGEBRA, *IMAGES, *SOLVERS, *LEGATO)
