"""Which gradient should I use here, and can I trust it?"""

from legato.diagnose.adjoint import Adjoint
from legato.diagnose.complementarity import Margin
from legato.diagnose.examine import diagnose
from legato.diagnose.measure import Row
from legato.diagnose.memory import PeakMemory, peak_bytes
from legato.diagnose.reference import Reference
from legato.diagnose.report import Diagnosis, Facts, Finding, Recommendation, Sign
from legato.diagnose.uniqueness import Uniqueness

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
