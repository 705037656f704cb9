"""What a contestant is. Read in every environment: NumPy and the standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

REGRESSIONS = ("lasso", "elastic_net", "weighted_lasso", "ridge", "logistic")
"""Problems whose loss is ½‖Vx − v‖²; that of the others is ½‖x − target‖²."""

Data = dict[str, Any]


@dataclass
class Contestant:
    """A problem ready to be solved by one method of one library.

    ``solve`` returns x without preparing for a derivative; ``gradient`` solves as well and returns
    x and the loss's gradient, one array for each parameter or one of all numbers, or is None where
    the library has no derivative. Results stay where they were computed; ``flat`` reads them.
    ``note`` is what a reader should know, ``tells`` what the library reports about the last call.
    """

    solve: Callable[[], Any]
    gradient: Callable[[], tuple[Any, Any]] | None
    note: str = ""
    tells: Callable[[], str] | None = None


def flat(found: Any) -> Any:
    """All numbers of an array, or of several, as one vector in float64 on the host."""
    parts = found if isinstance(found, list | tuple) else (found,)
    on_host = (part.cpu() if hasattr(part, "cpu") else part for part in parts)
    return np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in on_host])


Methods = dict[str, dict[str, Callable[[Data], Contestant]]]


def parameters(problem: str) -> tuple[str, ...]:
    """Names of the arrays that are differentiated, in the order of the flat gradient."""
    return ("A", "b") if problem == "nnls" else ("theta",)
