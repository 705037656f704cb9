"""What the laws are tried on: something public, its inputs by seed, and what is known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]
ROUNDED = 1e-13
"""Two ways to round the same iterations, relative to the largest entry."""


class Numbers:
    """Random tensors in double precision, reproducible by their seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return low + (high - low) * drawn

    def signs(self, *shape: int) -> Tensor:
        return torch.where(self.uniform(*shape) < 0.5, -1.0, 1.0).double()

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Of singular values from 0.85 to 1.1: a few dozen iterations solve what it stands in."""
        left, _, right = torch.linalg.svd(self.normal(rows, columns), full_matrices=False)
        values = torch.linspace(1.1, 0.85, min(rows, columns), dtype=torch.float64)
        return left * values @ right


@dataclass(frozen=True)
class Subject:
    """Something public as a map from named inputs to outputs, with the symmetries that it has.

    Args:
        kind: What it is: "layer", "solve", "prox", …
        draw: The inputs, in double precision, from random numbers.
        build: The object that is tried (a layer, an energy with its algorithm, a function).
        run: What the object gives for the inputs: a tensor or a tuple of tensors.
        covers: Public names that the object itself does not show, e.g. functions called by ``run``.
        differentiable: Whether outputs are attached to inputs and parameters.
        batched: Inputs that carry a batch on their first axis when elements are put together.
        has_batch: Whether the inputs, as they are drawn, already have that axis (of size one).
        homogeneous: Inputs that, all multiplied by s, multiply the outputs by s^degree.
        slopes_scale: Whether gradients follow: not where steps are constants for autograd.
        permuted: Axes of inputs that may be permuted together, which permutes ``permuted_output``.
        shifted: An input to which a constant may be added, which is then added to the output.
        rounding: How far two ways to compute the same may differ, relative to the largest entry.
        in_single: The same for the inputs in single precision; None: it has nothing to say there.
        bits: What the same computation may differ by: torch chooses kernels of convolutions anew,
            and steps that nothing learned enters are numbers, others tensors.
        make: The layer itself, in the default precision.
        tangents: Whether forward mode gives what reverse mode gives: not where the latter is cut.
        shapes: Inputs of which only the shape counts.
        untruncated: Builds the same with a sweep that is not cut off. Where rounding decides when
            momentum restarts, two cut sweeps differ by as much as is cut off, and not by less.
    """

    name: str
    kind: str
    draw: Callable[[Numbers], Inputs]
    build: Callable[[Inputs], Any]
    run: Callable[[Any, Inputs], Any]
    covers: tuple[str, ...] = ()
    differentiable: bool = True
    batched: tuple[str, ...] = ()
    has_batch: bool = False
    homogeneous: tuple[str, ...] = ()
    degree: int = 1
    slopes_scale: bool = True
    permuted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    permuted_output: int = -1
    shifted: str | None = None
    rounding: float = 1e-9
    in_single: float | None = 2e-3
    bits: float = 0.0
    make: Callable[[], nn.Module] | None = None
    tangents: bool = True
    shapes: tuple[str, ...] = ()
    untruncated: Callable[[Inputs], Any] | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def inputs(self, seed: int) -> Inputs:
        return self.draw(Numbers(seed))

    def parameters(self, built: Any) -> list[Tensor]:
        """What a layer learns."""
        return list(built.parameters()) if isinstance(built, nn.Module) else []


def public_types(obj: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Names of the classes of legato that an object is made of."""
    seen = set() if seen is None else seen
    if id(obj) in seen or obj is None or isinstance(obj, (Tensor, str, int, float, torch.dtype)):
        return
    seen.add(id(obj))
    if isinstance(obj, (tuple, list)):
        for part in obj:
            yield from public_types(part, seen)
        return
    for cls in type(obj).__mro__:
        if cls.__module__.startswith("legato"):
            yield cls.__name__
    if isinstance(obj, nn.Module):
        for part in obj.children():
            yield from public_types(part, seen)
    if dataclasses.is_dataclass(obj) or type(obj).__module__.startswith("legato"):
        for part in list(getattr(obj, "__dict__", {}).values()):
            yield from public_types(part, seen)
