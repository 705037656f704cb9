"""Many penalties: legato's outer loop on the logarithms of the penalties."""

from __future__ import annotations

import warnings

import numpy as np
import torch

import legato as lg
from legato.bilevel import History, InnerSolver, Record, Until
from legato.errors import FailedStepWarning, NoInfluenceError
from legato.optim import IPiano
from legato.sklearn.criterion import Criterion
from legato.sklearn.groups import Vector
from legato.sklearn.path import OuterPath

PATIENCE = 5
"""Steps without a lower judgement after which an outer loop with a judge ends."""


def descend(
    criterion: Criterion,
    theta: Vector,
    path: OuterPath,
    *,
    lowest: Vector,
    highest: Vector,
    steps: int,
    tol: float,
) -> None:
    r"""Minimise the criterion over θ by iPiano within a box, and write every step to the path.

    .. math:: \min_θ\, C(θ) \quad\text{with}\quad
              \log α_{\min} ≤ θ_k ≤ \log α_{\max}

    Inertia helps on long valleys, the box keeps every penalty in the range in which the lower level
    was found to be solvable, and a step is taken only if the loss falls as its gradient promises,
    which a wrong gradient would not pass. Ends where the loss falls by less than ``tol`` (relative)
    three times in a row, or the judge has seen nothing better for five steps.
    """
    variable = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    first = len(path)

    def loss(inner: InnerSolver) -> torch.Tensor:
        value, gradient, _ = criterion(variable.detach().numpy())
        slope = torch.from_numpy(gradient)
        return value + (slope * (variable - variable.detach())).sum()

    def judged_until(history: History) -> str | None:
        judgements = path.judged[first:]
        if len(judgements) and not np.isnan(judgements).any():
            since = len(judgements) - 1 - int(np.argmin(judgements))
            if since >= PATIENCE:
                return f"the rows kept for early stopping saw nothing better for {since} steps"
        return settled(history)

    settled = Until(decrease=tol, patience=3)

    def note(record: Record) -> None:
        value, gradient, _ = criterion(variable.detach().numpy())
        size = float(np.linalg.norm(gradient))
        path.add(value, variable.detach().numpy(), size, criterion.judged())

    value, gradient, _ = criterion(theta)
    path.add(value, theta, float(np.linalg.norm(gradient)), criterion.judged())
    box = lg.Box(torch.from_numpy(lowest), torch.from_numpy(highest))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = lg.fit(
                loss,
                variable,
                lambda params: IPiano(params, prox=box),
                steps,
                until=judged_until,
                callback=note,
            )
            path.reason = result.reason
        except NoInfluenceError:
            path.reason = "no penalty changes the validation loss: all coefficients are zero"
    for warning in caught:
        # A search that ends at a kink is an end like others; it is said in the path's reason.
        if not issubclass(warning.category, FailedStepWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    own = slice(first, None)
    scores = path.loss[own] if np.isnan(path.judged[own]).any() else path.judged[own]
    path.chosen = first + int(np.argmin(scores))
