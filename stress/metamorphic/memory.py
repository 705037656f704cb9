"""A hundred calls leave as many objects behind as ten did."""

from __future__ import annotations

import gc

import torch

from metamorphic.judge import Judge
from metamorphic.outcome import Case, caught, compute

WARM, REPEATS, SLACK = 5, 25, 10
"""Objects that may be more after all repeats: caches of torch fill up, leaks grow with calls."""


def _tensors() -> int:
    gc.collect()
    return sum(1 for o in gc.get_objects() if isinstance(o, torch.Tensor))


def flat(case: Case, judge: Judge) -> None:
    for _ in range(WARM):
        caught(lambda: compute(case.subject, case.inputs))
    gc.collect()
    objects, tensors = len(gc.get_objects()), _tensors()
    for _ in range(REPEATS):
        caught(lambda: compute(case.subject, case.inputs))
    more_tensors = _tensors() - tensors
    more = len(gc.get_objects()) - objects
    judge.require(
        case, "memory", more_tensors < SLACK and more < 20 * REPEATS,
        f"{more_tensors} tensors and {more} objects more after {REPEATS} calls",
    )  # fmt: skip


def no_cycles(case: Case, judge: Judge) -> None:
    """Graphs are freed when their last name goes, not by the garbage collector."""
    if not case.subject.differentiable:
        return
    caught(lambda: compute(case.subject, case.inputs))
    gc.collect()
    gc.disable()
    try:
        caught(lambda: compute(case.subject, case.inputs))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        held = [o for o in gc.garbage if isinstance(o, torch.Tensor) and o.grad_fn is not None]
        count = len(held)
        del held
        gc.garbage.clear()
    finally:
        gc.set_debug(0)
        gc.enable()
    judge.require(
        case, "memory: cycles", count == 0, f"{count} tensors with a graph wait for the collector"
    )


LAWS = (flat, no_cycles)
