"""A layer as the laws see it: a function of a list of values, parameters of a module among them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from legato.errors import InputError
from legato.testing.layer.calling import draws, said, same_random_numbers
from legato.testing.layer.memory import Memory

Values = list[Any]
"""What a layer is called with: its inputs, tensors or not, then the parameters of a module."""


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class Subject:
    """A callable and where it is to be judged, in one dtype, on one device.

    A module is copied, and its parameters are moved in place as an optimiser does it. Every call
    sees the same random numbers. Outputs are all floating-point tensors that come back; as one
    vector they are in float64, and so are cotangents.

    Args:
        function: the layer.
        inputs: what it is called with.
        dtype: floating-point tensors are converted to it; None leaves them as they are.
        device: tensors and module are moved there; None leaves them where they are.
        seed: of the random numbers that every call sees.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        seed: int = 0,
    ) -> None:
        self.original, self.given, self.seed = function, tuple(inputs), seed
        self.function, self.module = _own_copy(function, dtype, device)
        named = [] if self.module is None else list(self.module.named_parameters())
        named = [(name, p) for name, p in named if p.requires_grad and p.is_floating_point()]
        self.parameters = [p for _, p in named]
        self.count = len(self.given)
        self.values: Values = [_moved(v, dtype, device) for v in self.given]
        self.values += [p.detach().clone() for p in self.parameters]
        chosen = [i for i, v in enumerate(self.given) if is_float(v) and v.requires_grad]
        chosen = chosen or [i for i, v in enumerate(self.given) if is_float(v)]
        self.moving = [*chosen, *range(self.count, len(self.values))]
        self.names = [
            f"input {i + 1}" if self.count > 1 else "the input" for i in range(self.count)
        ]
        self.names += [f"parameter {name}" for name, _ in named]
        self.memory = Memory(self.function)
        self.random = True  # until found otherwise: setting generators takes longer than most calls

    # --- calling ----------------------------------------------------------------------------------

    def run(self, values: Sequence[Any], seed: int | None = None) -> tuple[Tensor, ...]:
        """The outputs for exactly these tensors, in the gradient mode of the caller."""
        with torch.no_grad():
            for p, value in zip(self.parameters, values[self.count :], strict=True):
                if p is not value and not torch.equal(p, value):
                    p.copy_(value)
        self.memory.same_generators()
        with same_random_numbers(self.seed if seed is None else seed, self.random):
            result = self.function(*values[: self.count])
        outputs = tuple(t for t in pytree.tree_leaves(result) if isinstance(t, Tensor))
        outputs = tuple(torch.view_as_real(t) if t.is_complex() else t for t in outputs)
        return tuple(t for t in outputs if t.is_floating_point())

    def outputs(self, values: Sequence[Any], seed: int | None = None) -> tuple[Tensor, ...]:
        """The outputs without a graph, for copies: a layer may overwrite what it gets."""
        copies = [v.detach().clone() if isinstance(v, Tensor) else v for v in values]
        with torch.no_grad():
            return self.run(copies, seed)

    def value(self, values: Sequence[Any], seed: int | None = None) -> Tensor:
        """All outputs as one vector, without a graph."""
        return flat(self.outputs(values, seed))

    def attempt(self, values: Sequence[Any]) -> Tensor | None:
        """The same, or None where the layer refuses or what it gives is not finite."""
        try:
            found = self.value(values)
        except Exception:  # a stranger's layer may refuse in any way
            return None
        return found if bool(found.isfinite().all()) else None

    def graph(
        self, values: Sequence[Any], moving: Sequence[int] | None = None
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Outputs with their graph, and the leaves that it starts from."""
        moving = self.moving if moving is None else moving
        values = list(values)
        for i, value in enumerate(values[: self.count]):
            if isinstance(value, Tensor):
                values[i] = value.detach().clone().requires_grad_(i in moving)
        with torch.enable_grad():
            outputs = self.run(values)
        leaves = [values[i] if i < self.count else self.parameters[i - self.count] for i in moving]
        return outputs, leaves

    def gradients(
        self, values: Sequence[Any], cotangent: Tensor, moving: Sequence[int] | None = None
    ) -> list[Tensor | None]:
        """Of ⟨cotangent, outputs⟩ in each of ``moving``; None where none arrives."""
        outputs, leaves = self.graph(values, moving)
        return backward(outputs, leaves, cotangent)

    def slopes(self, values: Sequence[Any], cotangent: Tensor) -> Tensor:
        """The gradients in all that moves as one vector, zero where none arrives."""
        found = self.gradients(values, cotangent)
        return flat(filled(found, [values[i] for i in self.moving]))

    def twin(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Subject:
        """The same layer at the same inputs, in another dtype or elsewhere."""
        return Subject(self.original, self.given, dtype, device, self.seed)

    def describe(self, i: int) -> str:
        shape = "×".join(map(str, self.values[i].shape)) or "a scalar"
        return f"{self.names[i]} ({shape})"

    @property
    def dtype(self) -> torch.dtype:
        return self.values[self.moving[0]].dtype


def backward(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangent: Tensor,
    *,
    retain: bool = False,
    create: bool = False,
) -> list[Tensor | None]:
    """One backward pass with a cotangent given as a vector."""
    pieces = split(cotangent, outputs)
    used = [(o, c) for o, c in zip(outputs, pieces, strict=True) if o.requires_grad]
    if not used:
        return [None] * len(leaves)
    return list(
        torch.autograd.grad(
            [o for o, _ in used],
            list(leaves),
            [c for _, c in used],
            allow_unused=True,
            retain_graph=retain or create,
            create_graph=create,
        )
    )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def filled(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(found, like, strict=True)
    return [torch.zeros_like(x) if g is None else g.detach() for g, x in pairs]


def split(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A vector in the shapes and dtypes of these tensors."""
    pieces = vector.split([t.numel() for t in like])
    return [p.reshape(t.shape).to(t) for p, t in zip(pieces, like, strict=True)]


def apart(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    """‖a − b‖ relative to the larger of both and ``floor``; the same NaN or infinity is 0 apart."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.detach().double(), b.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = float(torch.where(same, 0.0, a - b).norm())
    if difference == 0:
        return 0.0
    size = max(floor, *(float(torch.where(same, 0.0, t).norm()) for t in (a, b)))
    size = max(size, *(float(t[t.isfinite()].norm()) for t in (a, b)))
    return difference / size if size > 0 and difference == difference else float("inf")


def first_call(subject: Subject) -> tuple[Tensor, ...]:
    """The outputs at the inputs that were given, which every law supposes to exist."""
    try:
        outputs = subject.outputs(subject.values)
    except Exception as error:
        raise InputError(f"The layer cannot be called with these inputs: {said(error)}") from error
    with same_random_numbers(subject.seed):
        subject.random = False
        subject.random = draws(lambda: subject.outputs(subject.values))
        subject.random |= subject.memory.generators_moved()
    if not outputs:
        raise InputError("The layer returns no floating-point tensor, so nothing can be checked.")
    return outputs


def _own_copy(
    function: Callable[..., Any], dtype: torch.dtype | None, device: torch.device | None
) -> tuple[Callable[..., Any], nn.Module | None]:
    """A module that may be moved and changed without anybody noticing."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if not isinstance(owner, nn.Module):
        return function, None
    try:
        own = copy.deepcopy(owner)
    except Exception as error:
        raise InputError(
            f"The module cannot be copied ({said(error)}), and the referee must not change yours. "
            "Pass a function that makes the call instead."
        ) from error
    own = own.to(dtype=dtype, device=device) if dtype or device else own
    return (own if owner is function else getattr(own, function.__name__)), own


def _moved(value: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_complex():
        raise InputError("Inputs must be real: pass real and imaginary part, and join them inside.")
    kind = dtype if value.is_floating_point() else None
    return value.detach().clone().to(dtype=kind or value.dtype, device=device or value.device)
