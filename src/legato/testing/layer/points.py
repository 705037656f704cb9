"""Where a layer is looked at, and in which directions: near the given inputs, and at their ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(like: Tensor, seed: int) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator(seed), dtype=torch.float64)
    return drawn.to(like.device)


def is_symmetric(x: Tensor) -> bool:
    """Whether it holds symmetric matrices, so that steps should keep them symmetric."""
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2] > 1
    return square and torch.equal(x, x.mT) and bool((x != x[..., :1, :1]).any())


def symmetrised(x: Tensor, direction: Tensor) -> Tensor:
    return (direction + direction.mT) / 2 if is_symmetric(x) else direction


def size_of(x: Tensor) -> Tensor:
    """A typical size of the entries, element by element of a batch, shaped to multiply x."""
    x = x.detach().double()
    overall = float(x.square().mean().sqrt()) or 1.0
    if x.ndim < 2:
        return torch.full_like(x, overall)
    axes = tuple(range(1, x.ndim))
    each = x.square().mean(axes, keepdim=True).sqrt()
    return torch.where(each > 1e-9 * overall, each, overall).expand_as(x)


class Direction(NamedTuple):
    """Where to go, in the units of the input, and what that is in words."""

    step: Tensor
    words: str
    entry: tuple[int, ...] | None = None


def directions(x: Tensor, dense: int, single: int, seed: int, blocks: int = 0) -> list[Direction]:
    """Random ones through all entries, through one element of a batch, and along single entries."""
    size = size_of(x)
    found = []
    for k in range(dense):
        step = symmetrised(x, normal(x, seed + k) * size)
        found.append(Direction(step, "a random direction"))
    for k in range(min(blocks, x.shape[0] if x.ndim else 0)):
        mask = torch.zeros_like(size)
        mask[k] = 1.0
        step = symmetrised(x, normal(x, seed + 50 + k) * size * mask)
        if bool(step.any()):
            found.append(Direction(step, f"element {k}"))
    if x.numel() > 1:
        for index in chosen_entries(x, single, seed):
            found.append(along(x, index))
    return found


def along(x: Tensor, index: tuple[int, ...]) -> Direction:
    step = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    step[index] = size_of(x)[index]
    return Direction(symmetrised(x, step), f"entry {shown(index)}", index)


def chosen_entries(x: Tensor, count: int, seed: int) -> list[tuple[int, ...]]:
    """Entries all over the tensor; first and last, and exact zeros, are among them."""
    if count <= 0:
        return []
    order = torch.randperm(x.numel(), generator=generator(seed)).tolist()
    zeros = (x.reshape(-1) == 0).nonzero().reshape(-1).tolist()
    wanted = list(dict.fromkeys([0, x.numel() - 1, *zeros[: count // 3], *order]))[:count]
    return [_unravel(k, x.shape) for k in wanted]


def jittered(x: Tensor, amount: float, seed: int) -> Tensor:
    """A point nearby, without the ties that x may have."""
    return (x.double() + amount * symmetrised(x, size_of(x) * normal(x, seed))).to(x.dtype)


class Tie(NamedTuple):
    """A point with a tie, in words, the entries that are tied, and whether they are many."""

    point: Tensor
    words: str
    entries: tuple[tuple[int, ...], ...]
    many: bool = False


def has_many_ties(x: Tensor) -> bool:
    """Whether more than one pair of entries is equal, or more than one is zero."""
    return x.numel() - x.unique().numel() > 1 or int((x == 0).sum()) > 1


def tied(x: Tensor, seed: int) -> list[Tie]:
    """Copies of x with one entry at zero, with two equal entries, and with nothing but zeros."""
    if is_symmetric(x) or x.numel() == 0:
        return []
    found = []
    for index in chosen_entries(x, 2, seed):
        point = x.clone()
        point[index] = 0.0
        found.append(Tie(point, f"entry {shown(index)} set to 0", (index,)))
    if x.ndim and x.shape[-1] > 1:
        rows = x.reshape(-1, x.shape[-1])
        row = int(torch.randint(len(rows), (1,), generator=generator(seed + 1)))
        order = rows[row].argsort().tolist()
        middle = len(order) // 2
        pairs = [(order[-2], order[-1]), (order[0], order[1]), (order[middle - 1], order[middle])]
        pairs.append((middle - 1, middle))  # neighbours, for layers that compare those
        for a, b in dict.fromkeys(pairs):
            point = rows.clone()
            point[row, a] = point[row, b]
            where = [(*_unravel(row, x.shape[:-1]), k) for k in (a, b)]
            words = f"entries {shown(where[0])} and {shown(where[1])} made equal"
            found.append(Tie(point.reshape(x.shape), words, tuple(where)))
        point = rows.clone()
        point[row] = point[row, 0]
        where = [(*_unravel(row, x.shape[:-1]), k) for k in (0, x.shape[-1] - 1)]
        words = (
            f"row {shown(where[0][:-1])} made constant" if x.ndim > 1 else "all entries made equal"
        )
        found.append(Tie(point.reshape(x.shape), words, tuple(where), x.shape[-1] > 2))
    everything = chosen_entries(x, 3, seed + 2)
    found.append(Tie(torch.zeros_like(x), "all entries set to 0", tuple(everything), x.numel() > 1))
    return found


def shown(index: Sequence[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def _unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))


def cotangents(size: int, dense: int, single: int, seed: int, device: torch.device) -> list[Tensor]:
    """Random vectors, the sum of all outputs, and single outputs."""
    found = [
        torch.randn(size, generator=generator(seed + k), dtype=torch.float64) for k in range(dense)
    ]
    order = torch.randperm(size, generator=generator(seed + 90)).tolist()
    for k in list(dict.fromkeys([0, size - 1, *order]))[:single]:
        one = torch.zeros(size, dtype=torch.float64)
        one[k] = math.sqrt(size)
        found.append(one)
    return [c.to(device) for c in found]
