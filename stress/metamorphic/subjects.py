"""All subjects, and which public names they try."""

from __future__ import annotations

from functools import cache

import legato as lg
from metamorphic.layers import layer_subjects
from metamorphic.learning import learning_subjects
from metamorphic.parts import part_subjects
from metamorphic.solves import solve_subjects
from metamorphic.subject import Subject, public_types


@cache
def subjects() -> tuple[Subject, ...]:
    return (*layer_subjects(), *solve_subjects(), *part_subjects(), *learning_subjects())


def by_name(kind: str, name: str) -> Subject:
    return next(s for s in subjects() if s.kind == kind and s.name == name)


MODULES = ("algorithms", "bilevel", "functions", "geometry", "gradients", "nn", "operators",
           "optim", "problems", "solving", "energy", "running", "sklearn")  # fmt: skip

BASES = {"Algorithm", "DescentOptimizer", "Function", "Geometry", "GradientStrategy", "Operator"}
"""Classes to be derived from; their children are the subjects."""
RECORDS = {
    "AnalysisDenoiserOutput", "Diagnosis", "Fit", "History", "LeastSquaresOutput",
    "MatrixGameOutput", "OuterPath", "PottsOutput", "PottsState", "Record", "Solution",
    "ProgramOutput", "ProgramStatus", "ReconstructionOutput", "SparseCodingOutput",
    "TotalVariationOutput", "Trace",
}  # fmt: skip
"""What others return."""
INNER = {
    "Backward", "Checkpoint", "Factored", "FixedPointGradient", "LinearResult", "LinearSolver",
    "Linearisation", "SaddleFactors", "SplitStep", "Task", "random_vector", "spectral_radius",
}  # fmt: skip
"""What strategies and algorithms are made of; Checkpoint is tried by the kills."""
TABLES = {
    "DeepinvPrior", "diagnose", "from_deepinv", "from_function", "from_pylops", "from_scipy",
    "register_prox", "registered_pairs",
}  # fmt: skip
"""What looks at problems, adds to a table or wraps others' operators: it computes nothing."""
ENGINES = {"Engine", "Eager", "Replayed", "Compiled"}
"""How a solve runs; the tests of engines compare them on every subject of their own."""
PROGRAMS = {
    "Entropic", "LPGD", "LinearGradient", "LinearProgram", "Perturbed", "QuadraticProgram", "Ridge",
    "from_cvxpy", "from_pyepo", "solve_qp",
}  # fmt: skip
"""Layers that solve programs; tests of their own hold them against such laws."""
SPLITTINGS = {
    "ADMM", "Anderson", "Denoiser", "DenoiserResidual", "DouglasRachford", "HalfQuadratic", "Part",
    "parts",
}  # fmt: skip
"""Of some problems only, of tuples, and a network: by laws of their own, in test_splittings.py."""
EXCEPTIONS = SPLITTINGS | BASES | RECORDS | INNER | TABLES | ENGINES | PROGRAMS
"""Declared, so that a new public name is either a subject or listed here on purpose."""


def public_names() -> set[str]:
    import importlib

    names = set(lg.__all__)
    for module in MODULES:
        names |= set(getattr(importlib.import_module(f"legato.{module}"), "__all__", ()))
    return names


def covered() -> set[str]:
    """Names that some subject is made of, or says that it calls."""
    found: set[str] = set()
    for subject in subjects():
        found |= set(subject.covers)
        found |= set(public_types(subject.build(subject.inputs(0))))
    # Made by functions of their own names, or by the splitting of an energy.
    makers = {
        "SquaredNorm": "BregmanTerm", "NegativeEntropy": "BregmanTerm", "IsotropicTV": "GroupL1",
    }  # fmt: skip
    return found | {name for name, what in makers.items() if what in found}
