"""From what a user gives to a batch of programs, or to an error that says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import describe, inside_functional_transform, require_tensor
from legato._support.precision import out_of_autocast
from legato.errors import InputError
from legato.nn.programs.program import Program, is_finite

NAMES = ("Q", "c", "A", "b", "G", "h", "lo", "hi")
_MATRICES = ("Q", "A", "G")
_PAIRS = (("A", "b"), ("G", "h"))
_EVEN = {torch.float32: 1e-5, torch.float64: 1e-10}
"""How far from symmetric, relative to its largest entry, Q may be by rounding."""
_CONVEX = {torch.float32: 1e-5, torch.float64: 1e-9}
"""How negative, relative to its largest entry, an eigenvalue of Q may be by rounding."""


@dataclass(frozen=True)
class Shapes:
    """The leading axes of the answer, and how many instances, variables and rows there are."""

    batch: tuple[int, ...]
    n: int

    @property
    def size(self) -> int:
        return torch.Size(self.batch).numel()


def as_tensors(given: dict[str, Any], layer: str) -> dict[str, Tensor]:
    """What was given, as tensors of one dtype on one device; numbers may stand for bounds."""
    if inside_functional_transform():
        raise InputError(
            f"{layer} decides by values, which torch.func hides. Give it the whole batch instead "
            "of vmap: leading axes are batches; and call .backward() or torch.autograd.grad."
        )
    kept: dict[str, Any] = {k: out_of_autocast(v) for k, v in given.items() if v is not None}
    numbers = {k: v for k, v in kept.items() if k in ("lo", "hi") and isinstance(v, int | float)}
    tensors = {k: v for k, v in kept.items() if k not in numbers}
    if not tensors:
        raise InputError(f"{layer} needs an objective: give Q, c or both.")
    for name, value in tensors.items():
        require_tensor(value, name)
        if value.is_meta:
            raise InputError(f"{name} is on the meta device: it has a shape, but no numbers.")
    first_name, first = next(iter(tensors.items()))
    for name, value in tensors.items():
        if value.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name} is {value.dtype}, but {layer} takes float32 or float64.")
        if value.dtype != first.dtype:
            raise InputError(
                f"{first_name} is {first.dtype} and {name} is {value.dtype}: convert one of them."
            )
        if value.device != first.device:
            raise InputError(
                f"{first_name} is on {first.device} and {name} on {value.device}: move one of them."
            )
    if not {"Q", "c"} & tensors.keys():
        raise InputError(f"{layer} needs an objective: give Q, c or both.")
    n = (tensors["c"] if "c" in tensors else tensors["Q"]).shape[-1:] or (1,)
    for name, number in numbers.items():
        tensors[name] = torch.full(n, float(number), dtype=first.dtype, device=first.device)
    return {name: tensors[name] for name in NAMES if name in tensors}


def shapes_of(tensors: dict[str, Tensor]) -> Shapes:
    """The common shape of the batch; refuses what does not fit, naming both sides."""
    for matrix, vector in _PAIRS:
        if (matrix in tensors) != (vector in tensors):
            raise InputError(f"{matrix} and {vector} belong together: give both or neither.")
    for name, value in tensors.items():
        least = 2 if name in _MATRICES else 1
        if value.ndim < least:
            what = "a matrix (…, rows, n)" if least == 2 else "a vector (…, n)"
            raise InputError(f"{name} must be {what}, not of shape {describe(value)}.")
    first = next(name for name in NAMES if name in tensors)
    n = tensors[first].shape[-1]
    if n == 0:
        raise InputError(f"{first} of shape {describe(tensors[first])} has no variables.")
    for name, value in tensors.items():
        if name in ("b", "h"):
            continue
        if value.shape[-1] != n or (name == "Q" and value.shape[-2] != n):
            raise InputError(
                f"{first} says {n} variables, but {name} has shape {describe(value)}: "
                + ("Q is (…, n, n)." if name == "Q" else "its last axis counts variables.")
            )
    for matrix, vector in _PAIRS:
        if matrix in tensors and tensors[matrix].shape[-2] != tensors[vector].shape[-1]:
            raise InputError(
                f"{matrix} {describe(tensors[matrix])} has {tensors[matrix].shape[-2]} rows, but "
                f"{vector} {describe(tensors[vector])} has {tensors[vector].shape[-1]} entries."
            )
    batch: tuple[int, ...] = ()
    for name, value in tensors.items():
        leading = value.shape[:-2] if name in _MATRICES else value.shape[:-1]
        try:
            batch = tuple(torch.broadcast_shapes(batch, leading))
        except RuntimeError:
            raise InputError(
                f"{name} of shape {describe(value)} does not fit a batch of shape {batch}: leading "
                "axes must be equal, one, or absent for what all instances share."
            ) from None
    if 0 in batch:
        raise InputError(f"The batch of shape {batch} has no instances.")
    return Shapes(batch, n)


def require_numbers(tensors: dict[str, Tensor]) -> None:
    """Refuse NaN, infinite data other than absent bounds, and empty intervals; one read for all."""
    flaws: dict[str, Tensor] = {}
    for name, value in tensors.items():
        v = value.detach()
        if name in ("h", "hi"):
            flaws[name] = ~(v > -torch.inf).all()
        elif name == "lo":
            flaws[name] = ~(v < torch.inf).all()
        else:  # one pass; a sum that only overflows is looked at again below
            flaws[name] = ~is_finite(v.sum())
    if "Q" in tensors:
        Q = tensors["Q"].detach()
        size, off = (v.abs().amax() for v in (Q, Q - Q.mT))
        flaws["symmetric"] = off > _EVEN[Q.dtype] * size
    if "lo" in tensors and "hi" in tensors:
        flaws["interval"] = (tensors["lo"].detach() > tensors["hi"].detach()).any()
    found = dict(zip(flaws, torch.stack([*flaws.values()]).tolist(), strict=True))
    for name in tensors:
        if found[name]:
            v = tensors[name].detach()
            if bool(torch.isnan(v).any()) or name not in ("h", "lo", "hi"):
                count = int((~torch.isfinite(v)).sum())
                if count == 0:
                    continue
                raise InputError(f"{name} holds {count} NaN or infinite values of {v.numel()}.")
            end = "+∞" if name == "lo" else "−∞"
            raise InputError(f"{name} holds {end}: no point satisfies that.")
    if found.get("symmetric"):
        Q = tensors["Q"].detach()
        raise InputError(
            f"Q is not symmetric: |Q − Qᵀ| reaches {float((Q - Q.mT).abs().amax()):.2g}. The "
            "objective ½xᵀQx only sees (Q + Qᵀ)/2: give that."
        )
    if found.get("interval"):
        lo, hi = tensors["lo"].detach(), tensors["hi"].detach()
        excess = lo - hi
        raise InputError(
            f"lo > hi in {int((excess > 0).sum())} entries, by up to {float(excess.amax()):.2g}: "
            "no x lies between."
        )


def require_convex(Q: Tensor) -> None:
    """Refuse a Q with a negative eigenvalue; Cholesky decides, eigenvalues are for the words."""
    size = Q.abs().amax((-2, -1), keepdim=True)
    unit = Q.double() / torch.where(size > 0, size, 1.0)
    # An eigenvalue can be as large as n, and rounding in proportion.
    allowed = _CONVEX[Q.dtype] * max(1.0, Q.shape[-1] ** 0.5)
    shifted = unit + allowed * torch.eye(Q.shape[-1], dtype=unit.dtype, device=Q.device)
    info = torch.linalg.cholesky_ex(shifted)[1]
    if not bool(info.any()):
        return
    lowest = torch.linalg.eigvalsh(unit)[..., 0]
    bad = lowest < -allowed
    if bool(bad.any()):
        worst = float((lowest * size[..., 0, 0]).amin())
        where = bad.nonzero()[0].tolist()
        raise InputError(
            f"Q has a negative eigenvalue, {worst:.2g}"
            + (f" (first in instance {tuple(where)})" if where else "")
            + ": the program is not convex and may have many local minima. Learn a factor, "
            "Q = LLᵀ, or add a multiple of the identity."
        )


def batched(tensors: dict[str, Tensor], shapes: Shapes, absent: Tensor | None = None) -> Program:
    """The program in float64, one leading axis; what instances share is expanded, not copied."""
    n, size = shapes.n, shapes.size
    some = next(iter(tensors.values()))
    bounded = "lo" in tensors or "hi" in tensors

    def spread(name: str, absent: tuple[int, ...], fill: float) -> Tensor:
        if name not in tensors:
            return some.new_full((), fill, dtype=torch.float64).expand(size, *absent)
        value = tensors[name].detach().double()
        if name == "Q":
            value = (value + value.mT) / 2
        elif name in ("A", "G") and bounded:
            value = value.clone()  # the backward pass reads them again, whatever became of them
        tail = 2 if name in _MATRICES else 1
        value = value.expand(*shapes.batch, *value.shape[-tail:])
        return value.reshape(size, *value.shape[-tail:])

    G, h = spread("G", (0, n), 0.0), spread("h", (0,), 0.0)
    # A row of zeros asks for 0 ≤ h: it never binds, and is no tie either.
    h = torch.where((G == 0).all(-1) & (h >= 0), torch.inf, h)
    b = spread("b", (0,), 0.0)
    if absent is None:
        absent = torch.zeros(b.shape[-1], dtype=torch.bool, device=b.device)
    return Program(
        spread("Q", (n, n), 0.0),
        spread("c", (n,), 0.0),
        spread("A", (0, n), 0.0),
        b,
        G,
        h,
        spread("lo", (n,), -torch.inf),
        spread("hi", (n,), torch.inf),
        bounded,
        absent.expand(*shapes.batch, -1).reshape(size, -1) if b.shape[-1] else b > 0,
    )
