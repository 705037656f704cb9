"""What the next call of a kind will most likely do, so that a device can begin with it.

A step is recorded in every call, which takes the host some time. The device need not wait for that:
it begins with the program of the last call of this kind, on the tensors that stand where those of
the last call stood, and the host finds out in the meantime whether that was right.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.forking import renew_after_fork
from legato._support.holding import held_tensors

KEPT = 64
"""Kinds that are remembered."""

Place = str | Tensor | weakref.ref[Tensor]
"""Where a tensor is found: at an attribute; itself, if it is a number of Python's; as it was."""


@dataclass(frozen=True)
class Call:
    """A step that is asked for: of an algorithm, at a state, with derivatives or without.

    ``attach`` asks for derivatives in all of the state, whatever it depends on.
    """

    problem: Any
    algorithm: Any
    state: Any
    differentiate: bool = False
    attach: bool = False

    def attached(self) -> tuple[bool, ...]:
        """Which entries of the state begin with a derivative."""
        leaves, wanted = tree.leaves(self.state), self.differentiate
        return tuple([self.attach or (wanted and t.requires_grad) for t in leaves])

    def kind(self) -> Hashable:
        """The same for calls that may be expected to do the same."""
        shapes = tuple([(t.shape, t.dtype, t.device) for t in tree.leaves(self.state)])
        types = type(self.algorithm), type(self.problem)
        return (*types, self.differentiate, self.attached(), shapes)


@dataclass
class Expected:
    """What the last call of a kind did: a program, what was attached, and where its tensors stood.

    ``trusted`` is whether the last call did what the one before had done.
    """

    program: weakref.ref[Any]
    attached: tuple[bool, ...]
    places: tuple[Place, ...]
    kinds: tuple[Hashable, ...]
    trusted: bool = True

    def tensors(self, call: Call) -> list[Tensor] | None:
        """Those of this call; None where one is gone, or of another kind."""
        held = {h.path: h.tensor for h in held_tensors((call.problem, call.algorithm))}
        found = []
        for place, kind in zip(self.places, self.kinds, strict=True):
            tensor = held.get(place) if isinstance(place, str) else place
            tensor = tensor() if isinstance(tensor, weakref.ref) else tensor
            if tensor is None or kind_of(tensor) != kind:
                return None
            found.append(tensor)
        return found


def kind_of(t: Tensor) -> Hashable:
    strides = t.stride() if t.layout == torch.strided else None
    return t.shape, strides, t.dtype, t.device


class Expectations:
    """The last calls, by their kind; a forked child begins with none."""

    def __init__(self) -> None:
        self._last: OrderedDict[Hashable, Expected] = OrderedDict()
        self._lock = threading.Lock()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._last.clear()

    def __len__(self) -> int:
        return len(self._last)

    def forget(self) -> None:
        with self._lock:
            self._last.clear()

    def of(self, kind: Hashable) -> Expected | None:
        with self._lock:
            return self._last.get(kind)

    def note(
        self, call: Call, program: Any, attached: tuple[bool, ...], tensors: Sequence[Tensor],
        made_of_numbers: set[int],
    ) -> None:  # fmt: skip
        """Expect of the next call what this one did."""
        kind = call.kind()
        paths = {id(h.tensor): h.path for h in held_tensors((call.problem, call.algorithm))}
        places: tuple[Place, ...] = tuple(
            paths.get(id(t)) or (t if id(t) in made_of_numbers else weakref.ref(t)) for t in tensors
        )
        kinds = tuple(map(kind_of, tensors))
        with self._lock:
            trusted = kind not in self._last
            expected = Expected(weakref.ref(program), attached, places, kinds, trusted)
            self._last[kind] = expected
            self._last.move_to_end(kind)
            while len(self._last) > KEPT:
                self._last.popitem(last=False)


def is_one(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one kind, both alive, are one, or the same number of Python's."""
    if a is b:
        return True
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    if a.data_ptr() == b.data_ptr():
        return True
    return a.device.type == "cpu" and a.numel() == 1 and torch.equal(a, b)
