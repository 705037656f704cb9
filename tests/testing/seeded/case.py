"""What a seeded case is: a layer, inputs for it, and what is known about it beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from makers import rand, randn

Layer = Callable[..., Tensor]
Inputs = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """A layer of known quality.

    Args:
        name: unique among the cases.
        kind: of the fault, or of the layer where there is none.
        make: builds the layer anew, so that no state is carried from one test to the next.
        inputs: builds the inputs anew: float64, the same numbers each time.
        batch: which inputs carry the batch as their leading axis; the others are shared.
        coupled: whether elements of the batch may influence one another, by design.
    """

    name: str
    kind: str
    make: Callable[[], Layer]
    inputs: Inputs
    batch: tuple[int, ...] = (0,)
    coupled: bool = False

    @property
    def layer(self) -> Layer:
        """A new layer at each access: keep it in a variable to call one layer twice."""
        return self.make()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, kind={self.kind!r})"


@dataclass(frozen=True, repr=False)
class Fault(Case):
    """A layer with one fault; ``wrong`` says which.

    Args:
        parameters: names of the module's parameters that show the fault, where inputs do not.
    """

    wrong: str = ""
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Clean(Case):
    """A layer without a fault.

    Args:
        ties: the inputs lie on a kink, where a gradient is any number between the one-sided slopes.
        idle: inputs that have no influence on the output, on purpose.
        follows: whether the dtype of the output follows the inputs; a module's own parameters may
            fix it.
    """

    ties: bool = False
    idle: tuple[int, ...] = ()
    follows: bool = True


def maker_of(layer: Any) -> Callable[[], Layer]:
    """How to build a layer: an autograd Function is applied, a module constructed."""
    if isinstance(layer, type) and issubclass(layer, torch.autograd.Function):
        return lambda: layer.apply
    if isinstance(layer, type) and issubclass(layer, torch.nn.Module):
        return layer
    return lambda: layer


def register(
    cases: list[Fault],
    kind: str,
    wrong: str,
    inputs: Inputs,
    *,
    batch: tuple[int, ...] = (0,),
    parameters: tuple[str, ...] = (),
) -> Callable[[Any], Any]:
    """Adds the decorated layer to the cases."""

    def add(layer: Any) -> Any:
        cases.append(
            Fault(
                name=layer.__name__,
                kind=kind,
                make=maker_of(layer),
                inputs=inputs,
                batch=batch,
                wrong=wrong,
                parameters=parameters,
            )
        )
        return layer

    return add


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ over the last axis, which is kept."""
    return (a * b).sum(-1, keepdim=True)


def apply(A: Tensor, x: Tensor) -> Tensor:
    """A x for batches of matrices and vectors."""
    return (A @ x.unsqueeze(-1)).squeeze(-1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ for batches of vectors."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def positive_definite(*shape: int, seed: int) -> Tensor:
    """Symmetric matrices with eigenvalues above one half, of the shape (…, n, n)."""
    A = randn(*shape, seed=seed)
    return A @ A.mT / shape[-1] + 0.5 * torch.eye(shape[-1], dtype=A.dtype)


def well_conditioned(*shape: int, seed: int) -> Tensor:
    """Matrices (…, n, n) that are far from symmetric and from singular."""
    return randn(*shape, seed=seed) / shape[-1] ** 0.5 + 2 * torch.eye(
        shape[-1], dtype=torch.float64
    )


def spread(*shape: int, seed: int, gap: float = 0.1) -> Tensor:
    """Numbers of both signs that differ from each other and from zero by at least ``gap``/2."""
    size = int(torch.Size(shape).numel())
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    grid = (order.double() - (size - 1) // 2 - 0.5) * gap
    return (grid + 0.2 * gap * rand(size, seed=seed + 1)).reshape(shape)
