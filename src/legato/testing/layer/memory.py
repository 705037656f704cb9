"""What a layer remembers between calls: found, noted, and put back as it was.

A cache is harmless if a call with an empty one gives the same. To see that, the containers that a
layer can reach (attributes, closures, globals of its own file) are noted before its first call.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 5


class Memory:
    """The mutable things behind a function, with their contents at the time of noting."""

    def __init__(self, function: Any) -> None:
        self._home = _file_of(function)
        self._seen: dict[int, Any] = {}  # keeps them alive, so that no address is used twice
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._cleared: list[Callable[[], None]] = []
        self._walk(function, 0)

    def same_generators(self) -> None:
        """Random numbers of the layer's own start where they were when it was noted."""
        for generator, state in self._generators:
            generator.set_state(state)

    def generators_moved(self) -> bool:
        return any(not torch.equal(g.get_state(), state) for g, state in self._generators)

    def tensors(self) -> list[Tensor]:
        """What the layer holds beside the parameters of a module."""
        return [tensor for tensor, _ in self._tensors]

    @contextlib.contextmanager
    def forgotten(self) -> Iterator[None]:
        """As if the layer had never been called; afterwards it remembers again what it did."""
        now = Memory.__new__(Memory)
        now.__dict__ = {
            **self.__dict__,
            "_dicts": [(d, dict(d)) for d, _ in self._dicts],
            "_lists": [(l, list(l)) for l, _ in self._lists],
            "_sets": [(s, set(s)) for s, _ in self._sets],
            "_classes": [(c, _plain(c)) for c, _ in self._classes],
            "_cells": [(c, _content(c)) for c, _ in self._cells],
            "_globals": [(g, name, g.get(name)) for g, name, _ in self._globals],
            "_tensors": [(t, t.detach().clone()) for t, _ in self._tensors],
        }
        self._put_back()
        try:
            yield
        finally:
            now._put_back()

    def _put_back(self) -> None:
        for mapping, then in self._dicts:
            if mapping.keys() != then.keys() or any(mapping[k] is not then[k] for k in then):
                mapping.clear()
                mapping.update(then)
        for items, content in self._lists:
            items[:] = content
        for group, members in self._sets:
            group.clear()
            group.update(members)
        for kind, attributes in self._classes:
            for name in set(_plain(kind)) - set(attributes):
                delattr(kind, name)
            for name, value in attributes.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)
        for cell, value in self._cells:
            if value is not _EMPTY:
                cell.cell_contents = value
        for space, name, value in self._globals:
            space[name] = value
        for tensor, numbers in self._tensors:
            if not torch.equal(tensor, numbers):
                with torch.no_grad():
                    tensor.copy_(numbers)
        for clear in self._cleared:
            clear()

    # --- finding ----------------------------------------------------------------------------------

    def _walk(self, thing: Any, depth: int) -> None:
        if depth > _DEPTH or id(thing) in self._seen or thing is None:
            return
        if isinstance(thing, (str, bytes, int, float, complex, types.ModuleType, torch.dtype)):
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, torch.Generator):
            self._generators.append((thing, thing.get_state()))
        elif isinstance(thing, Tensor):
            # The referee moves parameters itself; sparse tensors cannot be compared.
            if not isinstance(thing, nn.Parameter) and thing.layout == torch.strided:
                self._tensors.append((thing, thing.detach().clone()))
        elif isinstance(thing, dict):
            self._dicts.append((thing, dict(thing)))
            for value in list(thing.values()):
                self._walk(value, depth + 1)
        elif isinstance(thing, (list, tuple, set, frozenset)):
            if isinstance(thing, list):
                self._lists.append((thing, list(thing)))
            if isinstance(thing, set):
                self._sets.append((thing, set(thing)))
            for value in list(thing):
                self._walk(value, depth + 1)
        elif isinstance(thing, types.MethodType):
            self._walk(thing.__self__, depth)
            self._walk(thing.__func__, depth)
        elif isinstance(thing, types.FunctionType):
            self._walk_function(thing, depth)
        elif isinstance(thing, functools.partial):
            self._walk((thing.func, thing.args, thing.keywords), depth)
        elif hasattr(thing, "cache_clear") and hasattr(thing, "__wrapped__"):
            self._cleared.append(thing.cache_clear)
            self._walk(thing.__wrapped__, depth)
        elif isinstance(thing, type):
            self._walk_class(thing, depth)
        elif isinstance(getattr(thing, "__dict__", None), dict):
            self._walk(vars(thing), depth)
            self._walk_class(type(thing), depth)

    def _walk_class(self, kind: type, depth: int) -> None:
        if kind.__module__ != self._home:  # the insides of libraries are none of our business
            return
        if id(kind) not in self._seen or not any(c is kind for c, _ in self._classes):
            self._seen[id(kind)] = kind
            self._classes.append((kind, _plain(kind)))
            for value in list(vars(kind).values()):
                found = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                self._walk(found, depth + 1)

    def _walk_function(self, function: types.FunctionType, depth: int) -> None:
        if function.__module__ != self._home:
            return
        for cell in function.__closure__ or ():
            content = _content(cell)
            self._cells.append((cell, content))
            self._walk(content, depth + 1)
        self._walk(function.__defaults__, depth + 1)
        self._walk(function.__kwdefaults__, depth + 1)
        if vars(function):
            self._walk(vars(function), depth + 1)
        for name in _names(function.__code__):
            if name in function.__globals__:
                value = function.__globals__[name]
                if not isinstance(value, (types.ModuleType, type, types.FunctionType)):
                    self._globals.append((function.__globals__, name, value))
                self._walk(value, depth + 1)


_EMPTY = object()
_NO_DATA = (
    types.FunctionType,
    staticmethod,
    classmethod,
    property,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _plain(kind: type) -> dict[str, Any]:
    """Attributes of a class that are data."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not isinstance(value, _NO_DATA)
    }


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names that a function and those defined in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _file_of(thing: Any) -> str | None:
    if isinstance(thing, types.MethodType):
        thing = thing.__self__
    wrapped = getattr(thing, "__wrapped__", thing)
    if isinstance(wrapped, (types.FunctionType, type)):
        return wrapped.__module__
    return type(wrapped).__module__
