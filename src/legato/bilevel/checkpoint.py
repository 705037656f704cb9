"""Saving a fit, so that it can be taken up with the same numbers, and by the same fit only."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from legato._support.files import replacing
from legato._support.telling import tell
from legato.errors import CheckpointError, CheckpointWarning, InputError

_FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit is saved; a fit that finds the file takes it up from there.

    Saved are parameters, optimiser, lower-level solutions, tolerances, history and torch's random
    state, so that a resumed fit gives the same numbers as one that was never stopped. The file is
    replaced as a whole or not at all. Delete it to start over.

    Args:
        path: The file.
        every: The number of steps after which it is written again.
        probe: To tell that a file belongs to another problem, the first loss is computed again;
            False leaves this out, for losses that are random in ways torch's seed does not govern.

    >>> import pathlib, tempfile
    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "fit.pt"
    ...     result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], lg.optim.IPiano, 3,
    ...                     checkpoint=lg.bilevel.Checkpoint(file))
    ...     file.exists()
    True
    """

    path: str | os.PathLike[str]
    every: int = 1
    probe: bool = True

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"Checkpoint: every must be a positive number, not {self.every!r}.")

    def save(self, content: dict[str, Any]) -> None:
        """Write atomically; a failure warns and leaves the last good file in place."""
        path = Path(self.path)
        buffer = io.BytesIO()  # torch, writing by itself, would not say why a disk refuses
        torch.save({"format": _FORMAT, **content}, buffer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(buffer.getbuffer())
        except OSError as error:
            tell(
                f"The checkpoint {path} could not be written ({error}). The fit goes on, and the "
                "last good checkpoint, if there was one, is untouched.",
                CheckpointWarning,
            )

    def load(
        self, fingerprint: dict[str, Any], loss_at: Callable[[dict[str, Any]], float]
    ) -> dict[str, Any] | None:
        """The content of the file, or None where there is none; the file of another fit is refused.

        Args:
            fingerprint: What is written beside the fit to tell it from others.
            loss_at: Computes the loss at the saved fit's start.
        """
        content = self._read()
        if content is None:
            return None
        for what, mine in fingerprint.items():
            theirs = content["fingerprint"][what]
            if theirs != mine:
                raise self._foreign(f"its {what} is {theirs}, not {mine}")
        if self.probe:
            start, expected = content["origin"], content["first_loss"]
            found, eps = loss_at(start), torch.finfo(start["params"][0].dtype).eps
            if not abs(found - expected) <= 100 * math.sqrt(eps) * max(abs(expected), abs(found)):
                raise self._foreign(
                    f"its first loss was {expected:.9g}, but this loss is {found:.9g} at the same "
                    "parameters (if it is random by design, use Checkpoint(…, probe=False))"
                )
        return content

    def _read(self) -> dict[str, Any] | None:
        path = Path(self.path)
        if not path.exists():
            return None
        try:
            content: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be read ({error}): it is damaged or no checkpoint "
                "of a fit. Delete it to start over."
            ) from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(
                f"{path} is not a checkpoint of a fit in the format of this version. Choose "
                "another path, or delete it to start over."
            )
        return content

    def _foreign(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint {self.path} belongs to another problem: {why}. Choose another path, "
            "or delete the file to start over."
        )


def random_state() -> dict[str, Any]:
    """The state of torch's random numbers on all devices in use."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state(), "cuda": []}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Go back to a state of :func:`random_state`."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
