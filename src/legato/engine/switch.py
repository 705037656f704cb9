"""The switch: how a solve runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.autograd import forward_ad

from legato._support import tree
from legato._support.checks import inside_functional_transform, is_watched, require_whole
from legato._support.compiling import UnrecordableError, is_being_recorded
from legato._support.telling import tell
from legato.algorithms import Algorithm
from legato.engine.expecting import Call
from legato.engine.machine import (
    Beside,
    Builder,
    CapturedLoop,
    CapturedSweep,
    CaptureError,
    Loop,
    OpenTape,
    Sweep,
    Tape,
    captures,
)
from legato.engine.stepping import Kept, Stepping, expected_step, stepping
from legato.errors import EagerWarning

_chosen: ContextVar[tuple[Engine, ...]] = ContextVar("engines", default=())


class Engine(ContextDecorator):
    """How the iterations of a solve run; the mathematics is the same for all.

    Given to one solve, ``solve(…, engine=Compiled())``, or to all that a block or a function
    calls: ``with Compiled(): …``, ``@Compiled()``.
    """

    def block(self, iterations: int, size: int) -> int:
        """How many iterations are compiled as one function, of ``size`` operations each."""
        return 1

    def compiled(self, module: fx.GraphModule) -> Callable[..., Any]:
        """What a block runs as."""
        return module

    def __enter__(self) -> Engine:
        _chosen.set((*_chosen.get(), self))
        return self

    def __exit__(self, *_: Any) -> None:
        _chosen.set(_chosen.get()[:-1])


class Eager(Engine):
    """Step by step, as Python comes to it: for looking inside, and inside of the other engines.

    >>> with lg.Compiled():
    ...     solution = lg.solve(lg.SquaredDistance(torch.ones(2)) + lg.L1(0.5), engine=lg.Eager())
    >>> solution.x
    tensor([0.5000, 0.5000])
    """

    def __repr__(self) -> str:
        return "Eager()"


@dataclass(frozen=True)
class Replayed(Engine):
    """Iterations as one CUDA graph: recorded in the first call, replayed in all that follow.

    The first call takes about a second, later ones wait for no launches. Every call runs one step
    as usual and compares what it does with the record: tensors may be changed or replaced, and a
    step that does something else is recorded anew. What cannot be recorded, because it reads
    values or draws random numbers, runs step by step and says so. On a CPU it saves a little of
    Python's time.

    >>> weight = torch.tensor(0.5, requires_grad=True)
    >>> x = lg.solve(lg.SquaredDistance(torch.ones(2)) + lg.L1(weight), engine=lg.Replayed()).x
    >>> x.sum().backward()
    >>> x.detach(), weight.grad
    (tensor([0.5000, 0.5000]), tensor(-2.))
    """


@dataclass(frozen=True)
class Compiled(Engine):
    """As :class:`Replayed`, with the operations of several iterations compiled into few kernels.

    The first call of a kind takes seconds to minutes; worth it in a training loop. Without a
    compiler on the machine it says so and replays.

    Args:
        steps: iterations in one compiled function; None chooses by the size of a step.
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            require_whole(self.steps, "steps")

    def block(self, iterations: int, size: int) -> int:
        if self.steps is not None:
            return min(self.steps, iterations)
        most = max(1, min(10, _COMPILED // max(size, 1), iterations))
        return next((n for n in range(most, most // 2, -1) if iterations % n == 0), most)

    def compiled(self, module: fx.GraphModule) -> Callable[..., Any]:
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default):
            node.target = _products_of_rows
        module.recompile()
        return _OrAsItIs(module)


def _products_of_rows(rows: Tensor, matrices: Tensor) -> Tensor:
    """A batch of products, written as sums on a GPU where each is of a single row.

    A compiler joins sums with what is around them; a library's call takes some microseconds, and
    copies. It does the same itself with the product of one matrix and one vector.
    """
    if rows.is_cuda and rows.shape[1] == 1:
        return (rows.transpose(1, 2) * matrices).sum(1, keepdim=True)
    return torch.bmm(rows, matrices)


_COMPILED = 320
"""Operations in one compiled function: beyond, compilers take minutes."""


class _OrAsItIs:
    """A compiled function, or the plain one where the compiler fails."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._plain = module
        self._fast: Callable[..., Any] | None = torch.compile(module, dynamic=False, fullgraph=True)

    def __call__(self, *tensors: Tensor) -> Any:
        if self._fast is None:
            return self._plain(*tensors)
        try:
            return self._fast(*tensors)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._fast = None
            tell(
                f"Compiled() replays without compiling: {_first_line(error)}",
                EagerWarning,
            )
            return self._plain(*tensors)


# --- what running and gradients ask for ----------------------------------------------------------


def engine_of(given: Engine | None) -> Engine | None:
    """The engine that was given, or that of the block around; None where steps run as usual."""
    if torch.compiler.is_compiling():
        return None  # a compiler takes the steps as they are
    around = _chosen.get()
    engine = given if given is not None else (around[-1] if around else None)
    return None if engine is None or isinstance(engine, Eager) else engine


def uncompiled(engine: Engine | None) -> Engine | None:
    """What runs products and Krylov spaces: they gain little from a compiler, and would wait."""
    return None if engine is None else Replayed()


def recorded_step(
    engine: Engine | None, problem: Any, algorithm: Algorithm[Any, Any], state: Any,
    *, differentiate: bool = False, attach: bool = False,
) -> Stepping | None:  # fmt: skip
    """The step of this solve as a program; None where it has to run as usual, said in words."""
    if engine is None or _is_transformed(state):
        return None
    return _recorded(engine, Call(problem, algorithm, state, differentiate, attach))[0]


def _recorded(
    engine: Engine, call: Call, expected: Stepping | None = None
) -> tuple[Stepping | None, bool]:
    try:
        return stepping(call, expected)
    except UnrecordableError as reason:
        tell(
            f"{engine!r} runs this solve step by step: {reason}.",
            EagerWarning,
        )
        return None, False


Ran = TypeVar("Ran")


def recorded_run(
    engine: Engine | None, call: Call, iterations: int, run: Callable[[Stepping], Ran]
) -> tuple[Stepping, Ran] | None:
    """The step of a call as a program, and what ``run`` makes of it; None where it runs as usual.

    A device begins with the step that is expected, and the host finds out in the meantime whether
    it is the one. If not, what the device did is thrown away.
    """
    if engine is None or _is_transformed(call.state):
        return None
    expected, trusted = expected_step(call)
    begins = expected is not None and trusted and may_begin(engine, call, expected, iterations)
    if expected is None or not begins:
        step, _ = _recorded(engine, call, expected)
        return None if step is None else (step, run(step))
    beside = Beside(tree.leaves(call.state))
    begun = run(expected)
    with beside:
        step, as_expected = _recorded(engine, call, expected)
    if step is None:
        return None
    return step, begun if as_expected else run(step)


def may_begin(engine: Engine, call: Call, expected: Stepping, iterations: int) -> bool:
    """Whether a device is there that can begin at once: with a graph that it has."""
    if not captures(tree.leaves(call.state)):
        return False
    kept = expected.kept
    key = _key(engine, kept, iterations)
    return key in (kept.sweeps if kept.program.adjoint is not None else kept.loops)


def looped(
    engine: Engine, problem: Any, algorithm: Algorithm[Any, Any], state: Any, iterations: int
) -> tuple[Any, Any] | None:
    """The last two states after some steps, without derivatives; None where they run as usual."""

    def run(step: Stepping) -> tuple[Any, Any]:
        return loop(engine, step, state, iterations)

    ran = recorded_run(engine, Call(problem, algorithm, state), iterations, run)
    return None if ran is None else ran[1]


def loop(engine: Engine, step: Stepping, state: Any, iterations: int) -> tuple[Any, Any]:
    """The last two states after some steps, without derivatives."""
    leaves = [t.detach() for t in tree.leaves(state)]
    builder = _builder(step.kept, engine, iterations)
    with torch.no_grad():
        inputs = (*leaves, *builder.prepared([t.detach() for t in step.outside]))
        if captures(inputs):
            key = _key(engine, step.kept, iterations)
            with step.kept.lock:
                if key not in step.kept.loops:
                    step.kept.loops[key] = CapturedLoop(builder, iterations)
            try:
                both = step.kept.loops[key](*inputs)
            except CaptureError as reason:
                _tell_uncaptured(engine, reason)
                both = Loop(builder, iterations)(*inputs)
        else:
            both = Loop(builder, iterations)(*inputs)
    width = len(leaves)
    return tree.rebuild(state, both[:width]), tree.rebuild(state, both[width:])


def _key(engine: Engine, kept: Kept, iterations: int) -> tuple[int, int, str]:
    return iterations, engine.block(iterations, kept.program.size), repr(engine)


def _builder(kept: Kept, engine: Engine, iterations: int) -> Builder:
    block = engine.block(iterations, kept.program.size)
    with kept.lock:
        return kept.builders.setdefault(
            (repr(engine), block), Builder(kept.program, engine.compiled, block)
        )


def sweep(
    engine: Engine, step: Stepping, state: Sequence[Tensor], iterations: int
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tape | OpenTape]:
    """The last two states after some steps, as leaves, and the tape that differentiates them."""
    builder, width = _builder(step.kept, engine, iterations), len(state)
    with torch.no_grad():
        outside = builder.prepared([t.detach() for t in step.outside])
        inputs = [*(t.detach() for t in state), *outside]
        if captures(inputs):
            captured = _free_sweep(step.kept, builder, _key(engine, step.kept, iterations))
            try:
                tape = captured.hold()
                both = captured.forward(*inputs)
                return both[:width], both[width:], tape
            except CaptureError as reason:
                _tell_uncaptured(engine, reason)
            finally:
                captured.lock.release()
        opened = Sweep(builder, iterations)
        both, content = opened.forward(*inputs)
        return both[:width], both[width:], OpenTape(opened, content)


def _tell_uncaptured(engine: Engine, reason: CaptureError) -> None:
    tell(
        f"{engine!r} runs this solve without a CUDA graph, each operation by itself: {reason}",
        EagerWarning,
    )


def transposed(
    engine: Engine | None, problem: Any, algorithm: Algorithm[Any, Any], state: Any
) -> Callable[..., Sequence[Tensor]] | None:
    """w ↦ Jᵀw of the step at ``state``, on leaves; None where it has to run as usual."""
    step = recorded_step(engine, problem, algorithm, state, differentiate=True, attach=True)
    if engine is None or step is None or step.program.adjoint is None:
        return None
    return sweep(engine, step, tree.leaves(state), 1)[2].product


def _free_sweep(kept: Kept, builder: Builder, key: Any) -> CapturedSweep:
    """One whose tape nobody needs any more, locked; a new one where all are in use."""
    with kept.lock:
        for one in kept.sweeps.setdefault(key, []):
            if one.is_free and one.lock.acquire(blocking=False):
                return one
        one = CapturedSweep(builder, key[0])
        one.lock.acquire()
        kept.sweeps[key].append(one)
        return one


def _is_transformed(state: Any) -> bool:
    """Whether somebody else looks at the operations: a compiler, a transform, a mode."""
    return (
        torch.compiler.is_compiling()
        or inside_functional_transform()
        or is_being_recorded()
        or is_watched()
        or forward_ad._current_level >= 0  # tangents are no part of a recording
        or any(
            type(t) is not Tensor and not isinstance(t, torch.nn.Parameter)
            for t in tree.leaves(state)
        )
    )


def _first_line(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else ''}"[:300]
