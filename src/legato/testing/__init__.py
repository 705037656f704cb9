"""The laws that operators, functions, proxes, geometries, algorithms and gradients obey.

Call them on classes of your own: each check raises a :class:`~legato.errors.LawError` that says
which law is broken and what to look at, or returns a report with the measured numbers. The referee
for layers, yours or anybody's, :func:`check_layer`, returns a verdict on every law.
"""

from legato.testing.algorithms import check_algorithm
from legato.testing.functions import check_function
from legato.testing.geometry import check_geometry
from legato.testing.gradients import check_gradient
from legato.testing.layer import LayerReport, Verdict, check_layer
from legato.testing.operators import check_operator
from legato.testing.problems import SmallProblem, small_problems
from legato.testing.prox import check_prox
from legato.testing.report import Measured, Report

__all__ = [
    "LayerReport",
    "Measured",
    "Report",
    "SmallProblem",
    "Verdict",
    "check_algorithm",
    "check_function",
    "check_geometry",
    "check_gradient",
    "check_layer",
    "check_operator",
    "check_prox",
    "small_problems",
]
