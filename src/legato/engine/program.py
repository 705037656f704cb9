"""A recorded step as functions of tensors: forward, forward with a tape, and its adjoint."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from legato.engine.recording import Operation, Recording, fill


@dataclass(frozen=True)
class Adjoint:
    """Numbers of the tensors of a recorded backward pass.

    ``cotangents`` come in for the entries ``state`` of the state; ``pulled`` go out for them and
    ``gradients`` for the tensors ``outside``; None where nothing arrives.
    """

    state: tuple[int, ...]
    cotangents: tuple[int, ...]
    pulled: tuple[int | None, ...]
    outside: tuple[int, ...]
    gradients: tuple[int | None, ...]


class Program:
    """What a step computes from the state and from tensors outside of it.

    What depends on the latter alone is computed once in ``prologue`` and then counts as constant.
    """

    def __init__(
        self, recording: Recording, outputs: Sequence[int], adjoint: Adjoint | None = None
    ) -> None:
        arriving = () if adjoint is None else adjoint.cotangents
        # Cotangents are inputs of the recording too.
        self.inputs = tuple(n for n in recording.inputs if n not in arriving)
        self.outputs = tuple(outputs)
        self.adjoint = adjoint
        self.outside = tuple(recording.outside)
        asked: list[int] = list(outputs)
        if adjoint is not None:
            asked += [n for n in (*adjoint.pulled, *adjoint.gradients) if n is not None]
        self._recorded = recording.operations
        needed = self._behind(asked, recording.operations)
        fixed = _independent(needed, self.outside)
        self._loop = [o for o in needed if not set(o.gives) <= fixed]
        used = {n for o in self._loop for n in o.takes} | set(asked)
        self.constants = tuple(n for n in (*self.outside, *sorted(fixed)) if n in used)
        """Numbers of what every step takes besides the state."""
        self.begins_on_host = any(_is_made_on_host(o) for o in needed if set(o.gives) <= fixed)
        self._forward = self._behind(self.outputs, self._loop)
        self._backward: list[Operation] = []
        self.saved: tuple[int, ...] = ()
        if adjoint is not None:
            self._partition(adjoint)
        self.size = len(self._forward)

    def _partition(self, adjoint: Adjoint) -> None:
        """The backward pass keeps what the forward pass has, instead of computing it again."""
        results = [n for n in (*adjoint.pulled, *adjoint.gradients) if n is not None]
        had = {n for o in self._forward for n in o.gives} | set(self.inputs)
        rest = [o for o in self._loop if not set(o.gives) <= had]
        self._backward = self._behind(results, rest)
        known = set(self.constants) | set(adjoint.cotangents)
        wanted = {n for o in self._backward for n in o.takes} | set(results)
        self.saved = tuple(sorted(wanted & had - known))

    # --- modules ----------------------------------------------------------------------------------

    def prologue(self) -> fx.GraphModule:
        """(outside) ↦ constants."""
        build = _Builder()
        values = build.inputs(self.outside)
        wanted = [n for n in self.constants if n not in values]
        build.emit(self._behind(wanted, self._recorded), values)
        return build.done([values[n] for n in self.constants])

    def steps(self, count: int, *, saving: bool = False) -> fx.GraphModule:
        """(state, constants) ↦ the last two states, and what was saved in each step."""
        build = _Builder()
        state = build.inputs(self.inputs)
        constants = build.inputs(self.constants)
        now, saved = [state[n] for n in self.inputs], []
        before = now
        for _ in range(count):
            values = dict(zip(self.inputs, now, strict=True)) | constants
            build.emit(self._forward, values)
            before, now = now, [values[n] for n in self.outputs]
            saved += [values[n] for n in self.saved] if saving else []
        return build.done([*before, *now, *saved])

    def product(self) -> fx.GraphModule:
        """(saved of one step, constants, cotangents) ↦ cotangents: the state's alone."""
        assert self.adjoint is not None
        build = _Builder()
        values = build.inputs(self.saved) | build.inputs(self.constants)
        arriving = build.inputs(self.adjoint.cotangents)
        values |= arriving
        pulled = self.adjoint.pulled
        build.emit(self._behind([n for n in pulled if n is not None], self._backward), values)
        pairs = zip(pulled, arriving.values(), strict=True)
        return build.done([build.zeros(old) if n is None else values[n] for n, old in pairs])

    def pulls(self, count: int) -> fx.GraphModule:
        """(saved of the steps in their order, constants, cotangents, sums) ↦ both anew."""
        assert self.adjoint is not None
        build = _Builder()
        tapes = [build.inputs(self.saved) for _ in range(count)]
        constants = build.inputs(self.constants)
        arriving = build.inputs(self.adjoint.cotangents)
        cotangents = list(arriving.values())
        found = [i for i, n in enumerate(self.adjoint.gradients) if n is not None]
        totals = list(build.inputs(found).values())
        for tape in reversed(tapes):
            values = tape | constants
            values |= dict(zip(self.adjoint.cotangents, cotangents, strict=True))
            build.emit(self._backward, values)
            cotangents = [
                build.zeros(old) if n is None else values[n]
                for n, old in zip(self.adjoint.pulled, cotangents, strict=True)
            ]
            gradients = [values[self.adjoint.gradients[i]] for i in found]  # type: ignore[index]
            totals = [build.add(a, g) for a, g in zip(totals, gradients, strict=True)]
        return build.done([*cotangents, *totals])

    @property
    def found(self) -> tuple[int, ...]:
        """Which of the adjoint's tensors outside get a gradient, by their place there."""
        assert self.adjoint is not None
        return tuple(i for i, n in enumerate(self.adjoint.gradients) if n is not None)

    def _behind(self, wanted: Iterable[int], among: Sequence[Operation]) -> list[Operation]:
        """Those operations that values depend on, in their order."""
        open_, chosen = set(wanted), set()
        for place in range(len(among) - 1, -1, -1):
            if not open_.isdisjoint(among[place].gives):
                chosen.add(place)
                open_.update(among[place].takes)
        return [among[place] for place in sorted(chosen)]


def _independent(operations: Sequence[Operation], outside: Sequence[int]) -> set[int]:
    """What is computed from the outside alone."""
    known = set(outside)
    for one in operations:
        if known.issuperset(one.takes):
            known.update(one.gives)
    return known.difference(outside)


def _is_made_on_host(one: Operation) -> bool:
    """Whether a tensor comes from nowhere, and not on a GPU: its way there cannot be captured."""
    device = dict(one.kwargs).get("device")
    return not one.takes and (device is None or torch.device(device).type == "cpu")


class _Builder:
    """An fx graph in the making."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def inputs(self, numbers: Iterable[int]) -> dict[int, fx.Node]:
        return {n: self.graph.placeholder(f"v{n}_{len(self.graph.nodes)}") for n in numbers}

    def emit(self, operations: Iterable[Operation], values: dict[int, fx.Node]) -> None:
        for one in operations:
            args = fill(one.args, values.__getitem__)
            kwargs = {k: fill(v, values.__getitem__) for k, v in one.kwargs}
            made = self.graph.call_function(one.target, tuple(args), kwargs)
            if one.places is not None:
                for place, number in zip(one.places, one.gives, strict=True):
                    values[number] = self.graph.call_function(operator.getitem, (made, place))
            else:
                values[one.gives[0]] = made

    def add(self, a: fx.Node, b: fx.Node) -> fx.Node:
        return self.graph.call_function(torch.ops.aten.add.Tensor, (a, b))

    def zeros(self, like: fx.Node) -> fx.Node:
        return self.graph.call_function(torch.ops.aten.zeros_like.default, (like,))

    def done(self, outputs: Sequence[Any]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        return fx.GraphModule(torch.nn.Module(), self.graph)
