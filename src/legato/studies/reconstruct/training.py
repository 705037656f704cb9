"""Adam on random windows for as long as there is, a step at a time or replayed as a CUDA graph."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from legato.errors import DivergenceError
from legato.studies.denoise.training import patch_loss
from legato.studies.reconstruct.windows import Windows

Progress = Callable[[str], None]
_WARM = 3
"""Steps before a graph is captured: what is allocated and chosen once is so by then."""
_WATCHED = 20
"""Steps between two looks at the clock, each of which waits for the device."""


class Stepping:
    """Steps of Adam on the loss of a batch, whose learning rate can be set between them.

    On a GPU a step is captured in a CUDA graph once some were made: the hundreds of small
    operations of an unrolled solve then cost no time of the host.
    """

    def __init__(
        self, loss: Callable[[Tensor, Tensor], Tensor], groups: list[dict[str, Any]], like: Tensor
    ) -> None:
        self._loss, self._cuda = loss, like.is_cuda
        self._first = [float(group["lr"]) for group in groups]
        if self._cuda:
            groups = [g | {"lr": torch.tensor(g["lr"], device=like.device)} for g in groups]
        self.parameters = [p for group in groups for p in group["params"]]
        self._adam = torch.optim.Adam(groups, betas=(0.9, 0.99), capturable=self._cuda)
        self.total = torch.zeros((), device=like.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made = 0
        self._data: tuple[Tensor, Tensor] | None = None
        self.refused: str | None = None
        """Why no graph could be made."""

    def _update(self, y: Tensor, clean: Tensor) -> None:
        loss = self._loss(y, clean)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self._adam.step()
        self.total += loss.detach()

    def set_rate(self, factor: float) -> None:
        """The learning rates are these times the first ones."""
        for group, lr in zip(self._adam.param_groups, self._first, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr * factor

    def __call__(self, y: Tensor, clean: Tensor) -> None:
        """One step."""
        if self._graph is None and self._cuda and self.refused is None and self._made >= _WARM:
            self._capture(y, clean)
        if self._graph is None:
            self._adam.zero_grad()
            self._update(y, clean)
        else:
            assert self._data is not None
            self._data[0].copy_(y)
            self._data[1].copy_(clean)
            self._graph.replay()
        self._made += 1

    def _capture(self, y: Tensor, clean: Tensor) -> None:
        graph, data = torch.cuda.CUDAGraph(), (y.clone(), clean.clone())
        self._adam.zero_grad()  # so that gradients are written, not added to
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._update(*data)
        except RuntimeError as error:  # nothing has run: a captured step is only noted
            self.refused = str(error).splitlines()[0]
            torch.cuda.synchronize()
            return
        self._graph, self._data = graph, data


def train(
    model: nn.Module, simulate: Callable[[Tensor, torch.Generator], Tensor],
    images: Sequence[Tensor], *, size: int, batch: int, steps: int, seconds: float,
    lr: float, network_lr: float, seed: int, device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Train in place on what ``simulate`` makes of random windows; returns the course.

    The learning rates rise for twenty steps and fall to zero by a cosine of the time.
    """
    model.to(device).train()
    windows = Windows(images, size, seed, device)
    network = [p for n, p in model.named_parameters() if "layers." in n]
    rest = [p for n, p in model.named_parameters() if "layers." not in n]
    groups = [{"params": rest, "lr": lr}, {"params": network, "lr": network_lr}]

    def loss(y: Tensor, clean: Tensor) -> Tensor:
        return patch_loss(model(y), clean, 0.1)

    stepping = Stepping(loss, [g for g in groups if g["params"]], windows.pixels)
    losses: list[float] = []
    step, done, start, noted = 0, 0.0, time.perf_counter(), 0
    while done < 1:
        stepping.set_rate(min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * done)))
        clean = windows.draw(batch)
        stepping(simulate(clean, windows.generator), clean)
        step += 1
        if step % _WATCHED == 0 and device.type == "cuda":
            torch.cuda.synchronize()
        done = max(step / steps, (time.perf_counter() - start) / seconds)
        if step % 100 == 0 or done >= 1:
            losses.append(float(stepping.total) / (step - noted))
            stepping.total.zero_()
            noted = step
            if not math.isfinite(losses[-1]):
                raise DivergenceError(f"The loss is {losses[-1]} after {step} steps.")
    model.eval()
    elapsed = time.perf_counter() - start
    if stepping.refused is not None:
        say(f"without a CUDA graph: {stepping.refused}")
    say(f"{step} steps, {elapsed:.1f} s, loss {losses[0]:.4f} → {losses[-1]:.4f}")
    return {"steps": step, "seconds": round(elapsed, 1), "every": 100, "losses": losses}
