"""Variables are tensors or (nested) tuples of tensors; this module does arithmetic on them.

Complex variables are vectors of real numbers, the real and imaginary parts: with the inner product
Re⟨x, y⟩ and as :func:`flatten` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Tree: TypeAlias = "Tensor | tuple[Tree, ...]"
"""A tensor, or a (nested) tuple of tensors; NamedTuples keep their type."""

Var: TypeAlias = Any
"""A :data:`Tree` where its type is not followed."""

_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}

T = TypeVar("T")
TreeT = TypeVar("TreeT", bound=Tree)


def tree_map(fn: Callable[..., Any], first: T, *rest: Any) -> T:
    """Apply ``fn`` to corresponding tensors of trees with the same structure."""
    if not isinstance(first, tuple):
        return fn(first, *rest)
    mapped: Any = tuple(tree_map(fn, *parts) for parts in zip(first, *rest, strict=True))
    return type(first)(*mapped) if hasattr(first, "_fields") else mapped


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree from left to right."""
    return list(_walk(tree))


def _walk(tree: Tree) -> Iterator[Tensor]:
    if isinstance(tree, tuple):
        for part in tree:
            yield from _walk(part)
    else:
        yield tree


def rebuild(like: TreeT, tensors: Sequence[Tensor]) -> TreeT:
    """The tree shaped like ``like`` whose leaves are ``tensors``."""
    remaining = iter(tensors)
    return tree_map(lambda _: next(remaining), like)


def detach(tree: TreeT) -> TreeT:
    return tree_map(lambda t: t.detach(), tree)


def sub_scaled(x: Var, alpha: Any, direction: Var) -> Var:
    """x − α·direction in one pass; a tuple of steps goes with a tuple of variables."""
    if isinstance(alpha, tuple):
        return rebuilt(x, map(sub_scaled, x, alpha, direction))
    if isinstance(x, tuple):
        return tree_map(lambda t, d: sub_scaled(t, alpha, d), x, direction)
    if isinstance(alpha, Tensor):
        return torch.addcmul(x, alpha, direction, value=-1)
    return torch.sub(x, direction, alpha=alpha)


def as_numbers(steps: Any) -> Any:
    """Steps whose tensors of no axes, where nothing is learned, are numbers; others stay."""
    if isinstance(steps, Tensor):
        return steps if steps.ndim or steps.requires_grad else steps.item()
    return rebuilt(steps, map(as_numbers, steps)) if isinstance(steps, tuple) else steps


def divide(x: Var, by: Any) -> Var:
    """x / by; a tuple of numbers goes with a tuple of variables."""
    if isinstance(by, tuple):
        return rebuilt(x, map(divide, x, by))
    return tree_map(lambda t: t / by, x)


def map_steps(fn: Callable[[Any], Any], steps: Any) -> Any:
    """fn of a step, or of each of a (nested) tuple of steps."""
    return tuple(map_steps(fn, s) for s in steps) if isinstance(steps, tuple) else fn(steps)


def rebuilt(like: Var, parts: Iterable[Any]) -> Var:
    """A tuple of the type of ``like`` with other parts, as many as it has."""
    made = [part for _, part in zip(like, parts, strict=True)]
    return type(like)(*made) if hasattr(like, "_fields") else tuple(made)


def extrapolate(new: Var, old: Var) -> Var:
    """2·new − old in one pass."""
    if isinstance(new, tuple):
        return tree_map(extrapolate, new, old)
    return torch.lerp(old, new, 2.0)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of complex numbers; ``dtype.to_real()``, which no compiler knows."""
    return _PARTS.get(dtype, dtype)


def real_like(t: Tensor) -> Tensor:
    """A tensor of the dtype that norms, steps and weights beside t have: t, or its real part."""
    return t.real if t.is_complex() else t


def product(a: Tensor, b: Tensor) -> Tensor:
    """Re(ā b), entry by entry."""
    return (a.conj() * b).real if a.is_complex() or b.is_complex() else a * b


def square(t: Tensor) -> Tensor:
    """|t|², entry by entry."""
    return product(t, t)


def sum_beyond(t: Tensor, batch: int) -> Tensor:
    """The sum over all axes but the first ``batch``."""
    return t.sum(tuple(range(batch, t.ndim))) if t.ndim > batch else t


def joint_shape(*shapes: Sequence[int]) -> torch.Size:
    """As torch.broadcast_shapes, which takes its time where they are one."""
    wide = [shape for shape in shapes if len(shape)]
    if all(shape == wide[0] for shape in wide):
        return torch.Size(wide[0] if wide else ())
    return torch.broadcast_shapes(*shapes)


def largest_over(t: Tensor, axes: int) -> Tensor:
    """The largest entries over the last ``axes`` axes, as far as t has them."""
    axes = min(axes, t.ndim)
    return t.flatten(-axes).amax(-1) if axes > 0 else t


def expand_over(t: Tensor | float, axes: int) -> Tensor | float:
    """t with ``axes`` trailing axes of size one, so that it broadcasts against a variable."""
    if not isinstance(t, Tensor) or t.ndim == 0:
        return t
    return t.reshape(*t.shape, *(1,) * axes)


def inner(x: Var, y: Var, batch: int = 0) -> Tensor:
    """Re⟨x, y⟩ over all leaves; the first ``batch`` axes of each stay."""
    parts = [sum_beyond(product(a, b), batch) for a, b in zip(leaves(x), leaves(y), strict=True)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def norm(x: Tree) -> Tensor:
    """The Euclidean norm over all leaves."""
    parts = [torch.linalg.vector_norm(t) for t in leaves(x)]
    return parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts))


def dot(x: Var, y: Var) -> float:
    """Re⟨x, y⟩ as a number, summed up in float64; leaves may lie on several devices."""
    totals: dict[torch.device, list[Tensor]] = {}
    for a, b in zip(leaves(x), leaves(y), strict=True):
        totals.setdefault(a.device, []).append(product(a, b).sum().double())
    return sum(float(torch.stack(parts).sum().detach()) for parts in totals.values())


def length(x: Var) -> float:
    """‖x‖₂ as a number, by :func:`dot`."""
    return math.sqrt(dot(x, x))


def is_finite(x: Var) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in leaves(x))


def equal(x: Var, y: Var) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(x), leaves(y), strict=True))


def copy(x: Var) -> Var:
    """Detached copies."""
    return tree_map(lambda t: t.detach().clone(), x)


@torch.no_grad()
def write(x: Var, values: Var) -> None:
    """x ← values, in place."""
    tree_map(lambda t, value: t.copy_(value), x, values)


def flatten(tree: Tree) -> Tensor:
    """All leaves as one real vector."""
    parts = [as_real(t).reshape(-1) for t in leaves(tree)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def as_real(t: Tensor) -> Tensor:
    """t, with real and imaginary part along a new last axis where it is complex."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def entries(t: Tensor) -> int:
    """How many real numbers t is made of."""
    return 2 * t.numel() if t.is_complex() else t.numel()


def shaped(like: Tensor, numbers: Tensor, count: Sequence[int] = ()) -> Tensor:
    """Real numbers as a tensor shaped like another one, the inverse of :func:`as_real`.

    ``count`` are axes in front that the other one does not have.
    """
    if not like.is_complex():
        return numbers.reshape((*count, *like.shape))
    return torch.complex(*numbers.reshape((*count, *like.shape, 2)).unbind(-1))


def unflatten(like: TreeT, vector: Tensor) -> TreeT:
    """The inverse of :func:`flatten`."""
    targets = leaves(like)
    pieces = torch.split(vector, [entries(t) for t in targets])
    return rebuild(like, [shaped(t, p) for t, p in zip(targets, pieces, strict=True)])
