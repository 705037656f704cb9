"""What the next step of a fit depends on: taken down after every step, put back where one fails."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from legato._support import tree
from legato.bilevel.checkpoint import random_state
from legato.bilevel.history import History
from legato.bilevel.inner import InnerSolver
from legato.optim import DescentOptimizer


@dataclass
class FitState:
    """Parameters, optimiser, inner solver and history of a fit.

    ``first_change`` is the length of the first move, which tolerances may refer to, and
    ``finished`` tells that a stopping rule was met.
    """

    params: tuple[Tensor, ...]
    optimizer: Optimizer
    inner: InnerSolver = field(default_factory=InnerSolver)
    history: History = field(default_factory=History)
    first_change: float | None = None
    finished: bool = False

    def snapshot(self) -> dict[str, Any]:
        """Plain data that no later step changes."""
        return {
            "params": tree.copy(self.params),
            "optimizer": self._own(self.optimizer.state_dict()),
            "inner": self.inner.state_dict(),
            "records": len(self.history),
            "first_change": self.first_change,
            "random": random_state(),
            "finished": self.finished,
        }

    def restore(self, saved: dict[str, Any], *, keep_inner: bool = False) -> None:
        """Go back to a snapshot, perhaps without the solutions of the inner solver."""
        tree.write(self.params, tuple(saved["params"]))
        self.optimizer.load_state_dict(self._own(saved["optimizer"]))
        if not keep_inner:
            self.inner.load_state_dict(saved["inner"])
        del self.history.records[saved["records"] :]
        self.first_change = saved["first_change"]

    def _own(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state that no step changes: our optimisers replace tensors, others write to them."""
        return state if isinstance(self.optimizer, DescentOptimizer) else copy.deepcopy(state)
