"""Layers that reconstruct images from what an operator saw of them, as subjects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import legato as lg
from legato import nn as lnn
from metamorphic.subject import Inputs, Numbers, Subject


def _draw(n: Numbers) -> Inputs:
    return {"y": n.normal(1, 1, 6, 7).cumsum(-1)}


def _subject(name: str, regulariser: Callable[[], nn.Module], *covers: str, **more: Any) -> Subject:
    def make(dtype: torch.dtype | None = None) -> nn.Module:
        dtype = dtype or torch.get_default_dtype()
        # Parameters of one seed, without moving the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            # Digits that every precision has: a kernel is data, and rounded data are others.
            kernel = torch.tensor([[0.0, 2.0, 0.0], [2.0, 8.0, 3.0], [0.0, 1.0, 0.0]], dtype=dtype)
            layer = lnn.Reconstruction(
                lg.Blur(kernel / 16), regulariser(), iterations=30, balance=3.0, **more
            )
        return layer.to(dtype)

    def build(t: Inputs) -> nn.Module:
        return make(t["y"].dtype)

    return Subject(
        f"Reconstruction, {name}", "layer", _draw, build, lambda layer, t: layer(t["y"]),
        make=make, covers=covers, batched=("y",), has_batch=True,
    )  # fmt: skip


def reconstruction_subjects() -> list[Subject]:
    return [
        _subject("TV", lambda: lnn.TV(0.1), "Weight"),
        _subject("TV, λ(y)", lambda: lnn.TV(lnn.WeightMap(weight=0.1, width=4)), "WeightMap"),
        _subject("TGV", lambda: lnn.TGV(0.1, 0.1)),
        _subject("Filters", lambda: lnn.Filters(4, size=3, weight=0.1), ridge=0.1),
        _subject(
            "ridges", lambda: lnn.ConvexRidges(4, size=3, intervals=10, reach=3.0), "ConvexSpline"
        ),
    ]
