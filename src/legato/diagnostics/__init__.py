"""Which gradient should I use here, and can I trust it?"""

from legato.diagnostics.examine import diagnose
from legato.diagnostics.margin import Margin
from legato.diagnostics.measure import PeakMemory, Row, peak_bytes
from legato.diagnostics.outlook import Outlook
from legato.diagnostics.reference import Reference
from legato.diagnostics.report import Diagnosis
from legato.diagnostics.uniqueness import Uniqueness
from legato.diagnostics.verdict import Facts, Finding, Recommendation, Symptom

__all__ = [
    "Diagnosis",
    "Facts",
    "Finding",
    "Margin",
    "Outlook",
    "PeakMemory",
    "Recommendation",
    "Reference",
    "Row",
    "Symptom",
    "Uniqueness",
    "diagnose",
    "peak_bytes",
]
