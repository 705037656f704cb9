"""One step of an algorithm, recorded in every call and looked up among those that are known."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.compiling import UnrecordableError
from legato._support.forking import renew_after_fork
from legato.algorithms import Algorithm
from legato.engine.at_once import replays
from legato.engine.expecting import Call, Expectations, is_one
from legato.engine.machine import Builder, CapturedLoop, CapturedSweep
from legato.engine.program import Adjoint, Program
from legato.engine.recording import Recorder, Recording, recording

KEPT = 64
"""Programs that are remembered."""


@dataclass
class Kept:
    """A program and what was made of it, by number of iterations and way of compiling."""

    program: Program
    builders: dict[Any, Builder] = field(default_factory=dict)
    loops: dict[Any, CapturedLoop] = field(default_factory=dict)
    sweeps: dict[Any, list[CapturedSweep]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Stepping:
    """The program of this call's step, with the tensors that it takes in this call.

    ``outside`` are those that the step finds by itself; ``attached`` says which entries of the
    state carry a derivative.
    """

    kept: Kept
    outside: list[Tensor]
    attached: tuple[bool, ...]

    @property
    def program(self) -> Program:
        return self.kept.program

    @property
    def learned(self) -> list[Tensor]:
        """What is outside and gets a gradient."""
        adjoint = self.program.adjoint
        if adjoint is None:
            return []
        by_number = dict(zip(self.program.outside, self.outside, strict=True))
        return [by_number[adjoint.outside[i]] for i in self.program.found]

    def is_one_with(self, other: Stepping) -> bool:
        """Whether both run the same program on the same memory."""
        alike = self.kept is other.kept and self.attached == other.attached
        return alike and all(map(is_one, self.outside, other.outside))


_kept: OrderedDict[Any, Kept] = OrderedDict()
expectations = Expectations()


class _Memory:
    """The lock of what is remembered; a forked child begins with nothing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        self.lock = threading.Lock()
        _kept.clear()


_memory = _Memory()


def forget() -> None:
    """Drop all programs, and with them the memory of their graphs.

    >>> legato.engine.forget()
    """
    with _memory.lock:
        _kept.clear()
    expectations.forget()
    replays.clear()


def expected_step(call: Call) -> tuple[Stepping | None, bool]:
    """The step as the last call of this kind had it, on the tensors of this one; and whether what
    was expected of the last one was right."""
    last = expectations.of(call.kind())
    kept = None if last is None else last.program()
    if last is None or kept is None:
        return None, False
    tensors = last.tensors(call)
    return None if tensors is None else Stepping(kept, tensors, last.attached), last.trusted


def stepping(call: Call, expected: Stepping | None = None) -> tuple[Stepping, bool]:
    """The step of a call as a program, and whether it is the one that was expected.

    Raises :class:`UnrecordableError`.
    """
    leaves, differentiate = tree.leaves(call.state), call.differentiate
    _require_one_device(leaves)
    last = expectations.of(call.kind())
    attached = call.attached() if last is None else last.attached
    while True:
        one = _Step(call.problem, call.algorithm, call.state, leaves, attached, differentiate)
        grown = tuple(a or b for a, b in zip(attached, one.attached, strict=True))
        if grown == attached:
            break
        attached = grown  # what a step attaches, the next one finds attached
    outside = list(one.recording.outside.values())
    _require_one_device([*leaves, *outside])
    if differentiate:
        _require_untangled([t for t in outside if t.requires_grad])
    adjoint = one.record_adjoint() if one.is_foreign else None
    default = torch.get_default_dtype()  # which operations without a dtype take
    key = (one.recording.key, one.graph_key, tuple(one.outputs), attached, adjoint, default)
    with _memory.lock:
        kept = _kept.get(key)
        if kept is not None:
            _kept.move_to_end(key)
    if kept is not None and one.brings_tensors():
        one.require_repeatable(kept.program)
    if kept is None:
        kept = Kept(one.program())
        one.require_repeatable(kept.program)
        with _memory.lock:
            kept = _kept.setdefault(key, kept)
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
    step = Stepping(kept, outside, attached)
    as_expected = expected is not None and step.is_one_with(expected)
    if as_expected and last is not None:
        last.trusted = True
    else:
        expectations.note(call, kept, attached, outside, one.made_of_numbers())
    return step, as_expected


class _Step:
    """A step, recorded as it is run."""

    def __init__(
        self, problem: Any, algorithm: Algorithm[Any, Any], state: Any, leaves: Sequence[Tensor],
        attached: tuple[bool, ...], differentiate: bool, *, guarded: bool = False,
    ) -> None:  # fmt: skip
        self._guarded = guarded
        self._rest = (problem, algorithm, state)
        self._pattern, self._differentiate = attached, differentiate
        self._inputs = [
            t.detach().clone().requires_grad_(a) for t, a in zip(leaves, attached, strict=True)
        ]
        self._recorder = Recorder(self._inputs)
        with (
            torch.set_grad_enabled(differentiate),
            recording(self._recorder, guarded=guarded),
        ):
            after = algorithm.step(problem, tree.rebuild(state, self._inputs))
            self._after = tree.leaves(after)
        if len(self._after) != len(leaves):
            raise UnrecordableError("its states change their structure")
        self.outputs = [self._recorder.number(t) for t in self._after]
        for old, new in zip(leaves, self._after, strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise UnrecordableError("its states change their shape or dtype")
        self.attached = tuple(t.requires_grad for t in self._after) if differentiate else attached
        self.recording: Recording = self._recorder.recording
        if differentiate and self._recorder.has_hooks():
            raise UnrecordableError("tensors in it have hooks, which a recording would call too")
        self.is_foreign = False
        """Whether the backward pass runs Python of somebody else's, which may have changed."""
        self._adjoint: Adjoint | None = None
        self.graph_key = self._graph() if differentiate else ()

    # --- derivatives ------------------------------------------------------------------------------

    def _learned(self) -> dict[int, Tensor]:
        outside = self.recording.outside
        return {n: t for n, t in outside.items() if t.requires_grad}

    def _graph(self) -> tuple[Any, ...]:
        """What autograd has noted and how it hangs together.

        Operations do not tell which of their arguments were attached, and custom functions show in
        none.
        """
        ends = {t.grad_fn: -n for n, t in self._learned().items() if t.grad_fn is not None}
        numbers: dict[Any, int] = {}
        open_: list[Any] = []

        def place(node: Any, slot: int) -> Any:
            if node is None or node in ends:
                return ends.get(node), slot
            if node not in numbers:
                numbers[node] = len(numbers)
                open_.append(node)
            return numbers[node], slot

        found: list[Any] = [tuple([place(t.grad_fn, t.output_nr) for t in self._after])]
        while open_:
            node = open_.pop()
            follow = tuple([place(*edge) for edge in node.next_functions])
            leaf = None if follow else self._recorder.known(getattr(node, "variable", None))
            found.append((node.name(), follow, leaf, _numbers_of(node)))
            self.is_foreign = self.is_foreign or _is_foreign(node)
        return tuple(found)

    def record_adjoint(self) -> Adjoint | None:
        """The backward pass of this step, written down after it; None where there is none."""
        if not self._differentiate or not any(self.attached):
            return None
        if self._adjoint is not None:
            return self._adjoint
        learned = self._learned()
        state = [i for i, a in enumerate(self._pattern) if a]
        recorder, known = self._recorder, set(self.recording.outside)
        live = [i for i in state if self._after[i].requires_grad]
        cotangents = [torch.ones_like(self._after[i]) for i in state]
        numbers = tuple(map(recorder.add_input, cotangents))
        with recording(recorder, guarded=self._guarded):
            results = torch.autograd.grad(
                [self._after[i] for i in live],
                [*(self._inputs[i] for i in state), *learned.values()],
                [c for i, c in zip(state, cotangents, strict=True) if i in live],
                allow_unused=True,
                retain_graph=True,
            )
        arrived = [None if g is None else recorder.number(g) for g in results]
        if set(self.recording.outside) != known:
            raise UnrecordableError("its backward pass uses tensors that the forward pass does not")
        pulled, leaving = tuple(arrived[: len(state)]), arrived[len(state) :]
        # What is learned on the host gets its gradient once, after all steps.
        gradients = tuple(_before_leaving(self.recording, n) for n in leaving)
        self._adjoint = Adjoint(tuple(state), numbers, pulled, tuple(learned), gradients)
        return self._adjoint

    def program(self) -> Program:
        """The program of what was recorded, with its adjoint where one is asked for."""
        return Program(self.recording, self.outputs, self.record_adjoint())

    # --- trust ------------------------------------------------------------------------------------

    def made_of_numbers(self) -> set[int]:
        """The identities of those tensors that it made of Python's numbers."""
        return self._recorder.lifted()

    def brings_tensors(self) -> bool:
        """Whether it takes tensors from somewhere that torch does not see."""
        return self._recorder.brought()

    def require_repeatable(self, program: Program) -> None:
        """A second step, run by the algorithm and by the program, finds and gives the same."""
        problem, algorithm, state = self._rest
        second = _Step(
            problem, algorithm, state, [t.detach() for t in self._after], self._pattern,
            self._differentiate, guarded=True,
        )  # fmt: skip
        if self.is_foreign:
            second.record_adjoint()
        mine, other = self.recording, second.recording
        count = len(other.operations)
        same = mine.operations[:count] == other.operations and list(mine.outside) == list(
            other.outside
        )
        if not same or second.outputs != self.outputs or second.graph_key != self.graph_key:
            raise UnrecordableError("two steps in a row do different things")
        made_here = self.made_of_numbers()
        for a, b in zip(mine.outside.values(), other.outside.values(), strict=True):
            if a is not b and a.data_ptr() != b.data_ptr() and id(a) not in made_here:
                raise UnrecordableError("it computes with something that torch does not see")
            if a is not b and not _same(a, b):
                raise UnrecordableError(
                    "a tensor that it makes from Python values changes by the step"
                )
        with torch.no_grad():
            constants = program.prologue()(*other.outside.values())
            results = program.steps(1)(*(t.detach() for t in self._after), *constants)
        for got, true in zip(results[len(self._after) :], second._after, strict=True):
            if not _same(got, true.detach()):
                raise UnrecordableError("the recorded step gives other values than the step itself")


def _before_leaving(recording: Recording, number: int | None) -> int | None:
    """The number of a gradient before it was brought to the host."""
    copy = torch.ops.aten._to_copy.default
    for one in reversed(recording.operations):
        brought = one.gives == (number,) and one.target is copy
        if brought and dict(one.kwargs).keys() == {"device"}:
            return int(one.takes[0])
    return number


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b.to(a.device))
    eps = torch.finfo(a.dtype).eps
    return torch.allclose(a.detach(), b.detach().to(a.device), 100 * eps, 100 * eps, True)


def _numbers_of(node: Any) -> Any:
    """What a custom function keeps besides tensors, as far as it can be compared."""
    kept = getattr(node, "__dict__", None) or {}
    return tuple((k, repr(v)) for k, v in sorted(kept.items()) if isinstance(v, _Simple))


_Simple = bool | int | float | str | None


def _is_foreign(node: Any) -> bool:
    """Whether a node of the graph is a custom function of somebody else's, or holds such a thing.

    What ours keep are numbers, which are compared, tensors, and parts of the library.
    """
    function = getattr(node, "_forward_cls", None)
    if function is None:
        return False
    held = (v for v in vars(node).values() if not isinstance(v, Tensor | _Simple))
    return not all(_is_ours(one) for one in (function, *(type(v) for v in held)))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "legato"


def _require_one_device(tensors: Sequence[Tensor]) -> None:
    """All on one device; numbers may stay on the host."""
    devices = {t.device for t in tensors if t.device.type != "cpu" or t.ndim}
    if len(devices) > 1:
        raise UnrecordableError(f"it works on several devices ({', '.join(map(str, devices))})")


def _require_untangled(learned: Sequence[Tensor]) -> None:
    """A tensor computed from another must not stand beside it: its gradient would count twice."""
    if all(t.grad_fn is None for t in learned) or len(learned) < 2:
        return
    targets = {id(t) for t in learned if t.grad_fn is None}
    nodes = {t.grad_fn for t in learned if t.grad_fn is not None}
    open_ = [n for node in nodes for n, _ in node.next_functions if n is not None]
    seen: set[Any] = set()
    while open_:
        node = open_.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in nodes or id(getattr(node, "variable", None)) in targets:
            raise UnrecordableError(
                "it uses a learned tensor and another that was computed from it"
            )
        open_ += [n for n, _ in node.next_functions if n is not None]
