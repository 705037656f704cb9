"""Which gradient should I use here, and can I trust it?"""

from legato.diagnostics.adjoint import Adjoint
from legato.diagnostics.complementarity import Margin
from legato.diagnostics.examine import diagnose
from legato.diagnostics.measure import Row
from legato.diagnostics.memory import PeakMemory, peak_bytes
from legato.diagnostics.reference import Reference
from legato.diagnostics.report import Diagnosis, Facts, Finding, Recommendation, Sign
from legato.diagnostics.uniqueness import Uniqueness

__all__ = [
    "Adjoint",
    "Diagnosis",
    "Facts",
    "Finding",
    "Margin",
    "PeakMemory",
    "Recommendation",
    "Reference",
    "Row",
    "Sign",
    "Uniqueness",
    "diagnose",
    "peak_bytes",
]
