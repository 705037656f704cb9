"""Running a program many times: call by call, or as a CUDA graph over memory of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from legato.engine.program import Program

Function = Callable[..., Any]
Compiler = Callable[[fx.GraphModule], Function]

LONGEST_GRAPH = 20_000
"""Operations of one CUDA graph; longer loops replay a part of theirs."""


@dataclass(frozen=True)
class Builder:
    """Functions of a program, each made once; blocks of steps of full size are compiled."""

    program: Program
    compile_: Compiler
    block: int
    made: dict[Any, Function] = field(default_factory=dict)

    def prologue(self, *outside: Tensor) -> tuple[Tensor, ...]:
        """Constants of the steps; already computed where they begin on the host of a GPU."""
        if self.program.begins_on_host:
            return outside
        results: tuple[Tensor, ...] = self._once("prologue", self.program.prologue)(*outside)
        return results

    def prepared(self, outside: Sequence[Tensor]) -> Sequence[Tensor]:
        """What is given to loops and sweeps: the tensors from outside, or the constants."""
        if not self.program.begins_on_host:
            return outside
        constants: Sequence[Tensor] = self._once("prologue", self.program.prologue)(*outside)
        return constants

    def steps(self, count: int, *, saving: bool = False) -> Function:
        return self._once(
            ("steps", count, saving),
            lambda: self._compiled(count, self.program.steps(count, saving=saving)),
        )

    def pulls(self, count: int) -> Function:
        return self._once(
            ("pulls", count), lambda: self._compiled(count, self.program.pulls(count))
        )

    def product(self) -> Function:
        return self._once("product", lambda: self._compiled(self.block, self.program.product()))

    def lengths(self, iterations: int) -> list[int]:
        """Blocks of steps that make up a number of iterations."""
        count, rest = divmod(iterations, self.block)
        return [self.block] * count + ([rest] if rest else [])

    def _compiled(self, count: int, module: fx.GraphModule) -> Function:
        return self.compile_(module) if count == self.block else module

    def _once(self, key: Any, make: Callable[[], Function]) -> Function:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


class Loop:
    """A number of steps without derivatives."""

    def __init__(self, builder: Builder, iterations: int) -> None:
        self._width = len(builder.program.inputs)
        self._prologue = builder.prologue
        self._blocks = [builder.steps(n) for n in builder.lengths(iterations)]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """(state, outside) ↦ the last two states."""
        width = self._width
        constants = self._prologue(*tensors[width:])
        both = (*tensors[:width], *tensors[:width])
        for steps in self._blocks:
            both = steps(*_distinct(both[width:]), *constants)
        return both


class Sweep:
    """A number of steps that keep what their adjoint needs, and that adjoint."""

    def __init__(self, builder: Builder, iterations: int) -> None:
        self._width = len(builder.program.inputs)
        self._prologue = builder.prologue
        lengths = builder.lengths(iterations)
        self._there = [builder.steps(n, saving=True) for n in lengths]
        self._back = [builder.pulls(n) for n in reversed(lengths)]
        self._product = builder.product() if iterations == 1 else None

    def product(self, tape: Sequence[Any], *cotangents: Tensor) -> tuple[Tensor, ...]:
        """Jᵀw of a single step."""
        assert self._product is not None
        results: tuple[Tensor, ...] = self._product(*tape[1], *tape[0], *_distinct(cotangents))
        return results

    def forward(self, *tensors: Tensor) -> tuple[tuple[Tensor, ...], list[Any]]:
        """(state, outside) ↦ the last two states, and the tape."""
        width = self._width
        constants = self._prologue(*tensors[width:])
        both, tape = (*tensors[:width], *tensors[:width]), [constants]
        for steps in self._there:
            results = steps(*_distinct(both[width:]), *constants)
            both = results[: 2 * width]
            tape.append(results[2 * width :])
        return both, tape

    def reverse(self, tape: Sequence[Any], *arriving: Tensor) -> tuple[Tensor, ...]:
        """(cotangents of the last state, zeros) ↦ those of the first, and of what is outside."""
        for pulls, saved in zip(self._back, reversed(tape[1:]), strict=True):
            arriving = pulls(*saved, *tape[0], *_distinct(arriving))
        return arriving


# --- CUDA graphs ---------------------------------------------------------------------------------


_CAPTURING = threading.Lock()


class CaptureError(Exception):
    """Why there is no CUDA graph: out of memory, or an operation that cannot be captured."""


class Graph:
    """A function of tensors as a CUDA graph: a call copies its arguments in and replays it."""

    def __init__(self, function: Function, examples: Sequence[Tensor], pool: Any = None) -> None:
        try:
            self._capture(function, examples, pool)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise CaptureError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error

    def _capture(self, function: Function, examples: Sequence[Tensor], pool: Any) -> None:
        device = next(t.device for t in examples if t.device.type == "cuda")
        with torch.cuda.device(device):
            # A number kept on the host would be frozen into the kernels that read it.
            self._inputs = [torch.empty_like(t, device=device).copy_(t) for t in examples]
            side = _side_stream(device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function(*self._inputs)  # compiles, and lets libraries take their workspace
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            # Beginning a capture waits for the device, which no other capture allows.
            with (
                _CAPTURING,
                torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"),
            ):
                self._outputs = function(*self._inputs)
            self._device = device.index if device.index is not None else torch.cuda.current_device()
            self._stream = self._stream_now()

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def __call__(self, *tensors: Tensor) -> Any:
        stream = self._stream_now()
        if stream != self._stream:  # the other one may still read the last call's results
            torch.cuda.ExternalStream(self._stream, device=self._device).synchronize()
            self._stream = stream
        if self._alike(tensors):
            _copy_all(self._inputs, tensors)
        else:
            for mine, given in zip(self._inputs, tensors, strict=True):
                mine.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._outputs

    def _alike(self, tensors: Sequence[Tensor]) -> bool:
        """Whether one kernel can copy all of them."""
        return all(t.device == self._inputs[0].device for t in tensors)

    def _stream_now(self) -> int:
        # torch.cuda.current_stream() asks for much more, and takes longer than a replay.
        return int(torch._C._cuda_getCurrentRawStream(self._device))

    def copied(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The results in memory of their own."""
        return _copies(self(*tensors))


def captures(tensors: Sequence[Tensor]) -> bool:
    """Whether these tensors are on a GPU that may record a graph now."""
    if all(t.device.type != "cuda" for t in tensors):
        return False
    return not torch.cuda.is_current_stream_capturing()


class CapturedLoop:
    """:class:`Loop` as a graph, or as one that is replayed as often as it takes."""

    def __init__(self, builder: Builder, iterations: int) -> None:
        program, block = builder.program, builder.block
        longest = max(1, LONGEST_GRAPH // max(program.size, 1) // block) * block
        self._width = len(program.inputs)
        count, rest = divmod(iterations, longest)
        self._parts = [(longest, count)] if count else []
        self._parts += [(rest, 1)] if rest else []
        self._loops = {n: Loop(builder, n) for n, _ in self._parts}
        self._graphs: dict[int, Graph] = {}
        self._lock = threading.Lock()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        width, outside = self._width, tensors[self._width :]
        both: tuple[Tensor, ...] = (*tensors[:width], *tensors[:width])
        with self._lock:
            for length, times in self._parts:
                if length not in self._graphs:
                    self._graphs[length] = Graph(self._loops[length], (*both[width:], *outside))
                graph = self._graphs[length]
                for _ in range(times):
                    both = graph(*_copies(both[width:]), *outside)
                both = _copies(both)
        return both


class CapturedSweep:
    """:class:`Sweep` as two graphs; its tape is in use for as long as somebody holds ``Tape``."""

    def __init__(self, builder: Builder, iterations: int) -> None:
        self._sweep = Sweep(builder, iterations)
        self._there: Graph | None = None
        self._back: Graph | None = None
        self._product: Graph | None = None
        self._tape: list[Any] = []
        self._holder: weakref.ref[Tape] | None = None
        self.lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        return self._holder is None or self._holder() is None

    def hold(self) -> Tape:
        tape = Tape(self)
        self._holder = weakref.ref(tape)
        return tape

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self._there is None:
            self._there = Graph(self._sweep.forward, tensors)
        both, self._tape = self._there(*tensors)
        return _copies(both)

    def reverse(self, *arriving: Tensor) -> tuple[Tensor, ...]:
        with self.lock:
            if self._back is None:
                self._back = self._captured(self._sweep.reverse, arriving)
            if self._back is None:
                return self._sweep.reverse(self._tape, *arriving)
            return self._back.copied(*arriving)

    def product(self, *cotangents: Tensor) -> tuple[Tensor, ...]:
        with self.lock:
            if self._product is None:
                self._product = self._captured(self._sweep.product, cotangents)
            if self._product is None:
                return self._sweep.product(self._tape, *cotangents)
            return self._product.copied(*cotangents)

    def _captured(self, function: Function, examples: Sequence[Tensor]) -> Graph | None:
        """None where that fails: the tape can be read without."""
        assert self._there is not None
        tape = self._tape
        try:
            return Graph(lambda *tensors: function(tape, *tensors), examples, self._there.pool)
        except CaptureError:
            return None


class Tape:
    """The right to a captured sweep's tape."""

    def __init__(self, sweep: CapturedSweep) -> None:
        self._sweep = sweep

    def reverse(self, *arriving: Tensor) -> tuple[Tensor, ...]:
        return self._sweep.reverse(*arriving)

    def product(self, *cotangents: Tensor) -> tuple[Tensor, ...]:
        return self._sweep.product(*cotangents)


class OpenTape:
    """The tape of a sweep that was not captured."""

    def __init__(self, sweep: Sweep, tape: list[Any]) -> None:
        self._sweep, self._tape = sweep, tape

    def reverse(self, *arriving: Tensor) -> tuple[Tensor, ...]:
        return self._sweep.reverse(self._tape, *arriving)

    def product(self, *cotangents: Tensor) -> tuple[Tensor, ...]:
        return self._sweep.product(self._tape, *cotangents)


class Beside:
    """A stream beside the present one, that has seen what happened there until this was made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        devices = [t.device for t in tensors if t.device.type == "cuda"]
        self._device = devices[0] if devices else None
        self._since = None if self._device is None else torch.cuda.current_stream(self._device)
        if self._since is not None:
            self._event = self._since.record_event()

    def __enter__(self) -> None:
        if self._since is None:
            return
        self._stream = _side_stream(self._device)
        self._stream.wait_event(self._event)
        self._entered = torch.cuda.stream(self._stream)
        self._entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        if self._since is None:
            return
        self._entered.__exit__(*raised)
        self._since.wait_stream(self._stream)


def _side_stream(device: Any) -> torch.cuda.Stream:
    """The one beside: libraries keep a workspace for every stream that they ever saw."""
    if device not in _side:
        _side[device] = torch.cuda.Stream(device)
    return _side[device]


_side: dict[Any, torch.cuda.Stream] = {}


def _copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors in memory of their own; what is one tensor stays one."""
    once = {id(t): t for t in tensors}
    made = {key: torch.empty_like(t) for key, t in once.items()}
    _copy_all(list(made.values()), list(once.values()))
    return tuple(made[id(t)] for t in tensors)


def _copy_all(to: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """One kernel for all of a dtype: together they would be copied one by one."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for mine, other in zip(to, given, strict=True):
        mine_alike, other_alike = kinds.setdefault(mine.dtype, ([], []))
        mine_alike.append(mine)
        other_alike.append(other)
    for mine_alike, other_alike in kinds.values():
        torch._foreach_copy_(mine_alike, other_alike)


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors as different objects: compilers specialise on arguments that are one."""
    seen: set[int] = set()
    result = []
    for t in tensors:
        result.append(t.detach() if id(t) in seen else t)
        seen.add(id(t))
    return result
