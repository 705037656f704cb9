"""Losses, norms over axes, terms of sequences and of matrices, and what is not convex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato import functions as fn
from metamorphic.subject import Inputs, Numbers

Draw = Callable[[Numbers], Inputs]
SETS = (
    "AffineSet", "BoxSection", "GroupL0Ball", "Halfspaces", "Hankel", "L0Ball", "L1Ball",
    "L1Sphere", "L2Sphere", "Monotone",
    "NuclearBall", "PositiveSemidefinite", "SecondOrderCone", "SpectralBall",
)  # fmt: skip
ENTRIES = {"permuted": {"x": (-1,)}}
LABELS = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)


def _vector(n: Numbers) -> Inputs:
    return {"x": n.normal(4), "w": n.uniform(low=0.1, high=0.8)}


def _positive(n: Numbers) -> Inputs:
    return {"x": n.uniform(4, low=0.2, high=1.5), "w": n.uniform(4, low=0.5, high=3.0)}


def _matrix(n: Numbers) -> Inputs:
    return {"x": n.normal(3, 4), "w": n.uniform(low=0.1, high=0.8)}


def _square(n: Numbers) -> Inputs:
    return {"x": n.normal(3, 3)}


def _flat(n: Numbers) -> Inputs:
    return {"x": n.normal(4), "A": n.normal(2, 4), "b": n.normal(2)}


def _half(n: Numbers) -> Inputs:
    return {"x": n.normal(4), "a": n.normal(4), "beta": n.normal()}


def _falling(w: Tensor) -> Tensor:
    return w * torch.tensor([2.0, 1.5, 0.7, 0.1], dtype=w.dtype)


def _rising(w: Tensor) -> Tensor:
    return w * torch.tensor([0.0, 0.5, 2.0], dtype=w.dtype)


def more_terms() -> dict[str, tuple[Draw, Callable[[Inputs], Any], dict[str, Any]]]:
    """Draw, function of the inputs, facts; all of them have a prox."""
    return {
        "Huber": (_vector, lambda t: lg.Huber(t["w"], 0.7), ENTRIES),
        "Quantile": (_vector, lambda t: lg.Quantile(0.3, t["w"]), ENTRIES),
        "Hinge": (_vector, lambda t: lg.Hinge(LABELS.to(t["x"].dtype), t["w"]), {}),
        "KullbackLeibler": (_positive, lambda t: lg.KullbackLeibler(t["w"], 0.1),
                            {"permuted": {"x": (-1,), "w": (-1,)}}),
        "L2Norm": (_vector, lambda t: lg.L2Norm(t["w"], (-1,)), ENTRIES),
        "LInfNorm": (_vector, lambda t: lg.LInfNorm(t["w"]), ENTRIES),
        "MaxEntry": (_vector, lambda t: lg.MaxEntry(t["w"]), ENTRIES),
        "L1Ball": (_vector, lambda t: lg.L1Ball(t["w"]), ENTRIES),
        "SortedL1": (_vector, lambda t: lg.SortedL1(_falling(t["w"])), ENTRIES),
        "SparseGroupL1": (_vector, lambda t: lg.SparseGroupL1(t["w"], 0.3), ENTRIES),
        "Successive": (_vector, lambda t: fn.Successive(lg.L1(t["w"]), lg.Box(-1.0, 1.0)), ENTRIES),
        "AffineSet": (_flat, lambda t: lg.AffineSet(t["A"], t["b"]), {}),
        "Halfspaces": (_half, lambda t: lg.Halfspaces(t["a"], t["beta"]),
                       {"permuted": {"x": (-1,), "a": (-1,)}}),
        "PositiveSemidefinite": (_square, lambda t: lg.PositiveSemidefinite(), {}),
        "SecondOrderCone": (lambda n: {"x": n.normal(4)}, lambda t: lg.SecondOrderCone(), {}),
        "Monotone": (lambda n: {"x": n.normal(4)}, lambda t: lg.Monotone(), {}),
        "TotalVariation1D": (_vector, lambda t: lg.TotalVariation1D(t["w"]), {}),
        "Nuclear": (_matrix, lambda t: lg.Nuclear(t["w"]), ENTRIES),
        "SpectralBall": (_matrix, lambda t: lg.SpectralBall(t["w"]), ENTRIES),
        "SpectralNorm": (_matrix, lambda t: lg.SpectralNorm(t["w"]), ENTRIES),
        "NuclearBall": (_matrix, lambda t: lg.NuclearBall(t["w"]), ENTRIES),
        "Hankel": (lambda n: {"x": n.normal(3, 4)}, lambda t: fn.Hankel(), {}),
        "BoxSection": (_vector, lambda t: lg.BoxSection(t["w"]), ENTRIES),
        "L0Ball": (lambda n: {"x": n.normal(4)}, lambda t: fn.L0Ball(2), ENTRIES),
        "MCP": (_vector, lambda t: fn.MCP(t["w"]), ENTRIES),
        "SCAD": (_vector, lambda t: fn.SCAD(t["w"]), ENTRIES),
        "LogSum": (_vector, lambda t: fn.LogSum(t["w"]), ENTRIES),
        "ExponentialType": (_vector, lambda t: fn.ExponentialType(t["w"]), ENTRIES),
        "Geman": (_vector, lambda t: fn.Geman(t["w"]), ENTRIES),
        "TruncatedQuadratic": (_vector, lambda t: fn.TruncatedQuadratic(t["w"]), ENTRIES),
        "GroupL0Ball": (lambda n: {"x": n.normal(3, 4)}, lambda t: fn.GroupL0Ball(2), ENTRIES),
        "KSupport": (_vector, lambda t: fn.KSupport(2, t["w"]), ENTRIES),
        "L0BallEnvelope": (_vector, lambda t: fn.L0BallEnvelope(2, t["w"]), ENTRIES),
        "OfSingularValues": (_matrix, lambda t: fn.OfSingularValues(fn.MCP(t["w"])), ENTRIES),
        "WeightedNuclear": (_matrix, lambda t: fn.WeightedNuclear(_rising(t["w"])), ENTRIES),
        "L1Sphere": (_vector, lambda t: fn.L1Sphere(t["w"]), ENTRIES),
        "L2Sphere": (_vector, lambda t: fn.L2Sphere(t["w"]), ENTRIES),
    }  # fmt: skip
