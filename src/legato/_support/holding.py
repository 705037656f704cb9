"""Things that hold tensors: they say which, show themselves in short, and are found by checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn


class Held(NamedTuple):
    """A tensor, where it was found, and whether infinite entries have a meaning there."""

    path: str
    tensor: Tensor
    may_be_infinite: bool = False


class Holder:
    """A base for functions, operators and geometries: all public attributes count as data.

    A class whose attribute may hold infinite entries (the ends of a box) names it in
    ``may_be_infinite``; a weight, which must not become negative, in ``nonnegative``. Attributes
    that begin with an underscore are not looked at.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ()
    nonnegative: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        """The call that makes this object, arguments at their defaults left out."""
        if not dataclasses.is_dataclass(self):
            return f"{type(self).__name__}(…)"
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.init or value is field.default:
                continue
            if isinstance(value, float | int | str | tuple) and value == field.default:
                continue
            named = len(parts) < _position(self, field.name)
            parts.append(f"{field.name}={short(value)}" if named else short(value))
        return f"{type(self).__name__}({', '.join(parts)})"


def _position(obj: Any, name: str) -> int:
    return [f.name for f in dataclasses.fields(obj) if f.init].index(name)


def short(value: Any) -> str:
    """A value as it may stand in a message: tensors with more than one entry by their shape."""
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_meta and value.device.type == "cpu":
            return f"{float(value.detach()):.4g}"
        return f"tensor({'×'.join(map(str, value.shape))})"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value):
        return f"({', '.join(map(short, value))})"
    return getattr(value, "__name__", None) or repr(value)


def held_tensors(obj: Any, path: str = "", may_be_infinite: bool = False) -> Iterator[Held]:
    """All tensors reachable through holders, dataclasses, modules and containers."""
    if isinstance(obj, Tensor):
        yield Held(path, obj, may_be_infinite)
    elif obj is None or isinstance(obj, (bool, int, float, str)):
        return  # most attributes; torch.compile cannot ask these types for their dictionary
    elif isinstance(obj, nn.Module):
        for name, tensor in (*obj.named_parameters(), *obj.named_buffers()):
            if tensor.numel():  # modules keep empty ones for what is not there
                yield Held(f"{path}.{name}", tensor, may_be_infinite)
    elif isinstance(obj, (tuple, list)):
        for i, part in enumerate(obj):
            yield from held_tensors(part, f"{path}[{i}]", may_be_infinite)
    elif isinstance(obj, Holder) or dataclasses.is_dataclass(obj):
        infinite = obj.may_be_infinite if isinstance(obj, Holder) else ()
        for name, value in getattr(obj, "__dict__", {}).items():
            if not name.startswith("_"):
                inner = f"{path}.{name}" if path else name
                yield from held_tensors(value, inner, name in infinite)


def held_intervals(obj: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs lo ≤ hi, at least one of them a tensor, of all holders that have such ends."""
    if isinstance(obj, (tuple, list)):
        for part in obj:
            yield from held_intervals(part)
    elif isinstance(obj, Holder) or (dataclasses.is_dataclass(obj) and not isinstance(obj, type)):
        parts = getattr(obj, "__dict__", {})
        lo, hi = parts.get("lo"), parts.get("hi")
        if isinstance(lo, Tensor) or isinstance(hi, Tensor):
            yield lo, hi
        for name, value in parts.items():
            if not name.startswith("_"):
                yield from held_intervals(value)


def held_weights(obj: Any, path: str = "") -> Iterator[Held]:
    """The tensors among the attributes that holders call ``nonnegative``."""
    if isinstance(obj, (tuple, list)):
        for i, part in enumerate(obj):
            yield from held_weights(part, f"{path}[{i}]")
    elif isinstance(obj, Holder) or (dataclasses.is_dataclass(obj) and not isinstance(obj, type)):
        weights = obj.nonnegative if isinstance(obj, Holder) else ()
        for name, value in getattr(obj, "__dict__", {}).items():
            inner = f"{path}.{name}" if path else name
            if isinstance(value, Tensor):
                if name in weights and value.numel():
                    yield Held(inner, value)
            elif not name.startswith("_"):
                yield from held_weights(value, inner)


def holders(obj: Any) -> Iterator[Holder]:
    """All functions, operators and geometries that an object is made of, itself included."""
    if isinstance(obj, (tuple, list)):
        for part in obj:
            yield from holders(part)
    elif isinstance(obj, Holder) or (dataclasses.is_dataclass(obj) and not isinstance(obj, type)):
        if isinstance(obj, Holder):
            yield obj
        for name, value in getattr(obj, "__dict__", {}).items():
            if not name.startswith("_"):
                yield from holders(value)


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place, where torch counts it; ``.data`` is not counted."""
    if not isinstance(tensor, Tensor) or tensor.is_inference():
        return None
    return tensor._version


def versions(obj: Any) -> list[int | None]:
    """Those of all data that holders have as attributes; what modules keep is their own affair."""
    return [
        version_of(value)
        for holder in holders(obj)
        for name, value in vars(holder).items()
        if isinstance(value, Tensor) and not name.startswith("_")
    ]
