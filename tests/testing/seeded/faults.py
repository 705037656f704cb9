"""The seeded faults: layers that look right, each with one thing wrong of the kind that ships."""

from testing.seeded.case import Fault
from testing.seeded.fault_batches import BATCHES
from testing.seeded.fault_formulas import FORMULAS
from testing.seeded.fault_indices import INDICES
from testing.seeded.fault_numbers import NUMBERS
from testing.seeded.fault_solvers import SOLVERS
from testing.seeded.fault_state import STATE

FAULTS: tuple[Fault, ...] = (*FORMULAS, *INDICES, *SOLVERS, *BATCHES, *STATE, *NUMBERS)
