"""The referee for any differentiable layer: one law a file, each with a verdict in words."""

from legato.testing.layer.check import check_layer
from legato.testing.layer.verdict import LayerReport, Verdict

__all__ = ["LayerReport", "Verdict", "check_layer"]
