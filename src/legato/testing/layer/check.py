"""The referee: every law on one layer, and a verdict in words."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato.errors import InputError
from legato.testing.layer.batch import batch_law
from legato.testing.layer.calling import said
from legato.testing.layer.effects import effects_law
from legato.testing.layer.elements import elements_of
from legato.testing.layer.gradient import gradient_law, ties_law
from legato.testing.layer.graph import backward_law
from legato.testing.layer.layout import layout_law
from legato.testing.layer.nonfinite import nonfinite_law
from legato.testing.layer.precision import computes_in_float32, device_law, dtype_law
from legato.testing.layer.repeat import repeat_law
from legato.testing.layer.scale import Scale, scale_law
from legato.testing.layer.second import second_law
from legato.testing.layer.solution import Residual, Solution, solution_law
from legato.testing.layer.subject import Subject, first_call
from legato.testing.layer.verdict import LayerReport, Verdict, not_decided

EVERYWHERE = (-math.inf, math.inf)


def check_layer(
    function: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    batch: bool | None = None,
    tolerance: float = 1e-3,
    bounds: Sequence[tuple[float | None, float | None] | None] | None = None,
    scale: Scale = None,
    solution: Solution = None,
    residual: Residual = None,
    directions: int | None = None,
    seed: int = 0,
) -> LayerReport:
    r"""Judge anybody's differentiable layer by the laws that every such layer obeys.

    .. math:: \langle ∇_x \langle c, F(x) \rangle, d \rangle
       = \lim_{h → 0} \frac{\langle c, F(x + hd) - F(x) \rangle}{h}

    is one of them: differences in float64, on both sides, with three step sizes, that say when a
    kink or noise hides the slope. The others are on batches, repeated calls, the backward pass,
    dtypes, devices, memory layouts, NaN, side effects, units, solutions and second derivatives.

    The other checks of this module raise at the first broken law, because a class of legato that
    breaks one is not used at all. This one returns all verdicts, since a stranger's layer may be
    wrong in one respect and fine for its purpose; call ``.require()`` on the report in a test.

    Args:
        function: a function of tensors, or a module, whose parameters then count as inputs; it
            returns a tensor or several. A module is copied, yours is not touched.
        inputs: one tensor, or all arguments. Those with ``requires_grad`` are moved, or all
            floating-point ones if none has it.
        batch: whether the first axis of the inputs is a batch; None finds out and says where it
            cannot.
        tolerance: the relative accuracy that the layer promises in values and gradients.
        bounds: lowest and highest value of each input, None where there is none: where an input
            sits on its bound, the slope into the domain counts.
        scale: the power b of s in F(sx) = sᵇF(x), or ((a₁, a₂, …), b) with those of the inputs.
        solution: the right output, or a function of the inputs that computes it.
        residual: a function of outputs and inputs that vanishes at a solution.
        directions: how many single entries of each input are tried: 8 if None, and fewer where a
            call takes longer than a few milliseconds.
        seed: of directions, cotangents, and the random numbers that the layer sees.

    >>> report = legato.testing.check_layer(torch.nn.Softmax(-1), torch.randn(3, 4))
    >>> report.state
    'sound'
    >>> wrong = legato.testing.check_layer(lambda x: 2 * x.detach() - x, torch.randn(3, 4))
    >>> "the sign is wrong" in wrong["gradient"].words
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    _require_floats(given)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        subject, notes = _prepared(function, given, seed)
        outputs = first_call(subject)
        if not all(bool(o.isfinite().all()) for o in outputs):  # no law says anything there
            words = "the layer gives NaN or infinity for these inputs: choose others"
            return LayerReport(_title(function), (not_decided("gradient", words),), tuple(notes))
        count, slow = _effort(subject, directions)
        notes += slow
        limits = _limits(bounds, subject)
        elements = elements_of(subject, outputs, batch)
        verdicts = [_law("gradient", lambda: gradient_law(subject, limits, tolerance, count))]
        if verdicts[0].state != "wrong":  # else ties would say the same again
            verdicts.append(
                _law("gradient at ties", lambda: ties_law(subject, limits, tolerance, count))
            )
        # The same thing computed twice agrees better than a gradient with its differences.
        exact = max(tolerance / 10, 3 * float(torch.finfo(subject.dtype).eps) ** 0.5)
        laws: dict[str, Callable[[], Verdict]] = {
            "batch = elements": lambda: batch_law(subject, elements, batch, exact),
            "repeated calls": lambda: repeat_law(subject, elements, exact),
            "backward pass": lambda: backward_law(subject, exact),
            "layout and modes": lambda: layout_law(subject, exact),
            "side effects": lambda: effects_law(subject, exact),
            "NaN and infinity": lambda: nonfinite_law(subject, elements),
            "dtype": lambda: dtype_law(subject, tolerance),
            "device": lambda: device_law(subject, tolerance),
            "double backward": lambda: second_law(subject, limits, tolerance, first=verdicts[0]),
            "scale": lambda: scale_law(subject, scale, exact),
            "solution": lambda: solution_law(subject, solution, residual, tolerance),
        }
        verdicts += [_law(name, law) for name, law in laws.items()]
    if any(v.law == "repeated calls" and v.state == "wrong" for v in verdicts):
        notes.append("calls depend on the calls before, and other verdicts may follow from that")
    kinds = sorted({w.category.__name__ for w in heard})
    notes += [f"the layer warned: {', '.join(kinds)}"] if kinds else []
    return LayerReport(_title(function), tuple(verdicts), tuple(notes))


def _effort(subject: Subject, asked: int | None) -> tuple[int, list[str]]:
    """How many entries to try, and a note where that is fewer because calls take long."""
    if asked is not None:
        return max(1, asked), []
    took = math.inf
    for _ in range(3):
        start = time.process_time()  # others on the machine do not count
        subject.outputs(subject.values)
        took = min(took, time.process_time() - start)
    count = 8 if took < 5e-3 else 4 if took < 2e-2 else 2
    words = f"a call takes {1e3 * took:.0f} ms, so {count} entries of each input were tried"
    return count, [f"{words} (directions=)"] if count < 8 else []


def _law(name: str, law: Callable[[], Verdict]) -> Verdict:
    try:
        return law()
    except InputError:
        raise
    except Exception as error:  # the layer's, in a call that others accept
        return not_decided(name, f"the layer raised {said(error)}")


def _prepared(
    function: Callable[..., Any], given: list[Any], seed: int
) -> tuple[Subject, list[str]]:
    """The layer in float64, or in the dtype that was given where it refuses that."""
    asked = next(t.dtype for t in given if isinstance(t, Tensor) and t.is_floating_point())
    if asked == torch.float64:
        return Subject(function, given, seed=seed), []
    try:
        subject = Subject(function, given, torch.float64, seed=seed)
        if any(o.dtype != torch.float64 for o in first_call(subject)):
            why = "it answers in another dtype"
        elif computes_in_float32(subject):
            why = "it computes in float32 whatever it is given"
        else:
            return subject, []
    except InputError as error:
        why = str(error.__cause__ or error)
    except Exception as error:
        why = said(error)
    note = f"judged in {asked}, because float64 does not work ({why.splitlines()[0]:.100})"
    return Subject(function, given, seed=seed), [note]


def _require_floats(given: list[Any]) -> None:
    if not any(isinstance(t, Tensor) and t.is_floating_point() for t in given):
        raise InputError(
            "There is no floating-point tensor among the inputs, so nothing has a gradient."
        )
    for i, t in enumerate(given):
        if isinstance(t, Tensor) and t.is_floating_point() and not bool(t.isfinite().all()):
            raise InputError(f"Input {i + 1} holds NaN or infinity: start from finite numbers.")


def _limits(bounds: Any, subject: Subject) -> list[tuple[float, float]]:
    stated = [None] * subject.count if bounds is None else list(bounds)
    if len(stated) != subject.count:
        raise InputError(
            f"There are {len(stated)} bounds for {subject.count} inputs: one for each, or None."
        )
    found = []
    for pair in stated:
        low, high = (None, None) if pair is None else pair
        found.append((-math.inf if low is None else low, math.inf if high is None else high))
    return [*found, *[EVERYWHERE] * len(subject.parameters)]


def _title(function: Any) -> str:
    if isinstance(function, torch.nn.Module):
        return (
            repr(function).split("\n", 1)[0].removesuffix("(")
            if "\n" in repr(function)
            else repr(function)
        )
    return getattr(function, "__name__", None) or type(function).__name__
