"""What legato makes of a recipe: a solution with its gradient and its words, or an error."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import legato as lg
from legato.errors import LegatoWarning
from oracle.cones import Array
from oracle.recipes import Recipe, build

DEVICE = os.environ.get("LEGATO_STRESS_DEVICE", "cpu")
"""Where legato solves; the oracle stays on the CPU."""


@dataclass
class Attempt:
    """What legato did: a solution with its gradient, or an error."""

    solution: Any = None
    x: list[Array] = field(default_factory=list)
    gradient: dict[str, Array] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    error: Exception | None = None
    told: bool = False


def attempt(recipe: Recipe) -> Attempt:
    """Solve and differentiate a recipe; everything that is said is written down."""
    done = Attempt()
    # Naming the default device, too, sends every call through Python: a third of the time.
    elsewhere = nullcontext() if DEVICE == "cpu" else torch.device(DEVICE)
    with warnings.catch_warnings(record=True) as said, elsewhere:
        warnings.simplefilter("always")
        try:
            case = build(recipe)
            found = lg.solve(
                case.problem, case.algorithm, case.x0, gradient=case.gradient, stop=case.stop
            )
            learned = case.learned
            loss = case.loss(found.x)
            if learned and loss.requires_grad:
                grads = torch.autograd.grad(loss, list(learned.values()), allow_unused=True)
            else:
                grads = (None,) * len(learned)
            done.solution = found
            done.gradient = {
                name: np.zeros(t.shape) if g is None else g.double().cpu().numpy()
                for (name, t), g in zip(learned.items(), grads, strict=True)
            }
        except Exception as error:  # which kind it is is part of the verdict
            done.error = error
    done.said = [
        f"{w.category.__name__}: {w.message}" for w in said if issubclass(w.category, LegatoWarning)
    ]
    if done.error is None:
        parts = found.x if isinstance(found.x, tuple) else (found.x,)
        done.x = [p.detach().double().cpu().numpy() for p in parts]
        done.told = bool(done.said) or _flagged(found, recipe)
    return done


def _flagged(found: Any, recipe: Recipe) -> bool:
    """Whether the solution or its backward report says that something is not as asked for."""
    if found.converged is not None and not bool(torch.as_tensor(found.converged).all()):
        return True
    report = found.backward
    if report.converged is False:
        return True
    by_design = recipe["gradient"]["name"] in ("OneStep", "FixedPoint", "Unroll")
    return by_design and report.residual is not None and report.residual > 1e-3
