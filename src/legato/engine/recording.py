"""Recording what a function does to tensors, as a list of operations that can be done again.

Recorded are torch's basic operations, below autograd, so that those of a backward pass count as
well, whoever wrote it. Tensors that the function finds somewhere (in a closure, an attribute, a
module) are noted as such: they are inputs, whose values are read in every call anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from legato._support.compiling import UnrecordableError, recorded


class Value(NamedTuple):
    """A tensor by its number, where it stands among an operation's arguments."""

    number: int


class Scalar(NamedTuple):
    """A number of Python's: 1, 1.0 and True are three, and nan is equal to itself."""

    kind: type
    digits: str

    @property
    def value(self) -> Any:
        return _NUMBERS[self.digits] if self.kind is bool else self.kind(self.digits)


_NUMBERS = {"True": True, "False": False}


class Operation(NamedTuple):
    """One of torch's operations, with numbers in the places of tensors.

    Two of them are equal if they do the same. ``places`` are those of ``gives`` among several
    results, of which some may be None; it is None itself where the result is a single tensor.
    """

    target: Any
    args: Any
    kwargs: Any
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    places: tuple[int, ...] | None


class Recording:
    """Operations in their order; ``outside`` are the tensors found, by their number."""

    def __init__(self) -> None:
        self.inputs: list[int] = []
        self.operations: list[Operation] = []
        self.outside: dict[int, Tensor] = {}
        self.kinds: list[Any] = []
        """Of inputs and of what is outside."""

    @property
    def key(self) -> Any:
        """Equal for two recordings that do the same to tensors of the same kind."""
        return (tuple(self.kinds), tuple(self.operations))


class Recorder(TorchDispatchMode):
    """Does what it is asked to do, and writes it down."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # so that no number is given to two tensors
        self._own: set[int] = set()  # storages of what is given or computed, and of nothing else
        self._others: set[int] = set()
        self._log: list[Any] = []
        self.recording = Recording()
        for tensor in inputs:
            self.add_input(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what torch would wrap around each operation takes longer than most of them

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _IN_PLACE:
            self._require_own(args[0], func)
        elif func not in _REPEATABLE:
            _require_repeatable(func)
        out = func(*args, **kwargs) if kwargs else func(*args)
        self._log.append((func, args, kwargs, out))
        return out

    def add_input(self, tensor: Tensor) -> int:
        """A tensor that changes from call to call; its memory must be its own."""
        number = self._number_anew(tensor)
        self._own.add(_storage(tensor))
        self.recording.inputs.append(number)
        self._note_kind(tensor)
        return number

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor; one that was neither given nor computed comes from outside."""
        self.write()
        return self._number(tensor)

    def known(self, tensor: Any) -> int | None:
        """The number of a tensor, if it has one."""
        return self._numbers.get(id(tensor))

    def brought(self) -> bool:
        """Whether something came from where torch does not see: nobody else holds a tensor that
        was found outside, and it was not made of Python's numbers.
        """
        lifted, held = self.lifted(), self.recording.outside.values()
        # Held by the two lists here, by the loop, and by the function that counts.
        return any(sys.getrefcount(t) <= 4 and id(t) not in lifted for t in held)

    def lifted(self) -> set[int]:
        """The identities of those tensors from outside that were made of Python's numbers."""
        lift = torch.ops.aten.lift_fresh.default
        numbers = {n for o in self.recording.operations if o.target is lift for n in o.takes}
        return {id(t) for n, t in self.recording.outside.items() if n in numbers}

    def has_hooks(self) -> bool:
        """Whether somebody is to be called with the gradient of a tensor that was met."""
        return any(
            t.requires_grad and (t._backward_hooks or (t.retains_grad and not t.is_leaf))
            for t in self._held
        )

    def write(self) -> None:
        """Put what was done since the last time into the recording."""
        log, self._log = self._log, []
        for func, args, kwargs, out in log:
            takes: list[int] = []
            written = tuple([self._encode(a, takes) for a in args])
            named = tuple(
                [(k, self._encode(v, takes)) for k, v in kwargs.items()] if kwargs else ()
            )
            places = None if isinstance(out, Tensor) else _places(out)
            results = (out,) if places is None else [out[i] for i in places]
            in_place = func in _IN_PLACE  # the same tensor, from here on another value
            give = self._number_anew if in_place else self._give
            gives = tuple([give(t) for t in results])
            func = _IN_PLACE[func] if in_place else func
            self.recording.operations.append(
                Operation(func, written, named, tuple(takes), gives, places)
            )

    def _number(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))
        if known is not None:
            return known
        if _storage(tensor) in self._own:
            raise UnrecordableError("a tensor changed its identity on a way that is not seen")
        if type(tensor) not in _PLAIN:
            raise UnrecordableError(f"it uses tensors of type {type(tensor).__name__}")
        number = self._number_anew(tensor)
        self._others.add(_storage(tensor))
        self.recording.outside[number] = tensor
        self._note_kind(tensor)
        return number

    def _give(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))  # an operation may hand its argument through
        if known is not None:
            return known
        storage = _storage(tensor)
        if storage not in self._others:  # a view of what is outside is no news
            self._own.add(storage)
        return self._number_anew(tensor)

    def _require_own(self, tensor: Tensor, func: Any) -> None:
        """Refuse to change in place what was not computed here, or is seen by a second tensor."""
        self.write()
        storage = _storage(tensor)
        sharing = {id(t) for t in self._held if _storage(t) == storage}
        if storage not in self._own or sharing != {id(tensor)}:
            raise UnrecordableError(f"it changes tensors in place ({func})")

    def _number_anew(self, tensor: Tensor) -> int:
        number = len(self._held)
        self._held.append(tensor)
        self._numbers[id(tensor)] = number
        return number

    def _note_kind(self, t: Tensor) -> None:
        strides = t.stride() if t.layout == torch.strided else None
        self.recording.kinds.append(
            (t.shape, strides, t.dtype, t.device, t.requires_grad, t.is_conj(), t.is_neg())
        )

    def _encode(self, value: Any, takes: list[int]) -> Any:
        kind = type(value)
        if kind is int or value is None:
            return value
        if kind is float or kind is bool or kind is complex:
            return Scalar(kind, repr(value))
        if isinstance(value, Tensor):
            number = self._number(value)
            takes.append(number)
            return Value(number)
        if kind is list or kind is tuple:
            return tuple([self._encode(v, takes) for v in value])
        return value


@contextmanager
def recording(recorder: Recorder, *, guarded: bool = False) -> Iterator[Recorder]:
    """A recorder at work; checks that would read values are left out, as in a captured graph.

    Among them is the search for NaN of torch's anomaly mode, which then looks at the whole run.
    ``guarded`` looks at what Python calls as well, which takes its time.
    """
    # Touched only where it is on: it is one switch for all threads.
    anomaly = torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else None
    with (
        anomaly or nullcontext(),
        recorded(),
        recorder,
        _Unread(recorder) if guarded else nullcontext(),
    ):
        yield recorder
    recorder.write()


class _Unread(TorchFunctionMode):
    """Refuses to hand values to what torch does not see, as NumPy, where they depend on the state.

    What comes back would stand in the recording as it was in this step.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func in _READING
            and self._recorder.number(args[0]) not in self._recorder.recording.outside
        ):
            raise UnrecordableError(f"it reads values while it runs (Tensor.{func.__name__})")
        return func(*args, **(kwargs or {}))


_READING = {
    Tensor.numpy,
    Tensor.tolist,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
}


def fill(written: Any, value_of: Callable[[int], Any]) -> Any:
    """Arguments as they were written down, with values in the places of numbers."""
    if isinstance(written, Value):
        return value_of(written.number)
    if isinstance(written, Scalar):
        return written.value
    if type(written) is tuple:
        return [fill(v, value_of) for v in written]
    return written


_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_IN_PLACE = {torch.ops.aten.logical_and_.default: torch.ops.aten.logical_and.default}
"""What torch itself does in place, in the derivative of clamp, and what gives the same anew."""
_UNFILLED = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
_REPEATABLE: set[Any] = set()
"""Operations that were found to be so."""


def _require_repeatable(func: Any) -> None:
    tags = func.tags
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        raise UnrecordableError(f"it reads values while it runs ({func})")
    if torch.Tag.nondeterministic_seeded in tags:
        raise UnrecordableError(f"it draws random numbers ({func})")
    if func._schema.is_mutable:
        raise UnrecordableError(f"it changes tensors in place ({func})")
    if func.overloadpacket in _UNFILLED:
        raise UnrecordableError(f"it fills memory in a way that is not seen ({func})")
    if func is torch.ops.aten.as_strided.default:
        raise UnrecordableError(f"it depends on how tensors lie in memory ({func})")
    _REPEATABLE.add(func)


def _places(results: Any) -> tuple[int, ...]:
    """Where tensors stand among several results."""
    if not isinstance(results, list | tuple):
        return ()
    if any(isinstance(r, list | tuple) for r in results):
        raise UnrecordableError("one of its operations gives lists of tensors among others")
    return tuple([i for i, r in enumerate(results) if isinstance(r, Tensor)])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else -1
