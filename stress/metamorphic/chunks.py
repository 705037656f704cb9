"""Metamorphic checks in chunks: each is determined by its number and takes under a minute.

A chunk takes every so many-th subject, with a seed of its own, through all laws; a few of them
also through what is slow: compilers, processes, counting objects.
"""

from __future__ import annotations

import time
import warnings

from tally import Tally

from metamorphic import (
    contexts,
    copies,
    layouts,
    memory,
    nan,
    repeats,
    symmetries,
    transforms,
)
from metamorphic.compiled import compiled
from metamorphic.judge import Judge
from metamorphic.outcome import Case
from metamorphic.places import FAMILIES, any_place
from metamorphic.processes import forked, in_threads, spawned
from metamorphic.subject import Subject
from metamorphic.subjects import subjects

LAWS = (
    *repeats.LAWS, *contexts.LAWS, *layouts.LAWS, *symmetries.LAWS, *transforms.LAWS, *nan.LAWS,
    *copies.LAWS,
)  # fmt: skip
PARTS = 28
"""Chunks after which every subject has had its turn."""
PROCESS_EVERY = 4
"""Every so many-th chunk spawns a process."""


def chosen(number: int) -> list[Subject]:
    """The subjects of a chunk: spread over all kinds, all of them after ``PARTS`` chunks."""
    return [s for i, s in enumerate(subjects()) if i % PARTS == number % PARTS]


def chunk(number: int, tally: Tally) -> None:
    """Run one chunk and write what it found into the tally."""
    judge = Judge(tally)
    cases = [Case(subject, number) for subject in chosen(number)]
    with warnings.catch_warnings():
        # Deprecated parts of torch that a law asks for on purpose.
        warnings.simplefilter("ignore")
        cases = [case for case in cases if judge.works(case)]
        for case in cases:
            _laws_of(case, judge)
        names = list(FAMILIES)
        for i in range(2):
            any_place(names[(2 * number + i) % len(names)], number, judge)
        _slow(cases, judge, number)
    tally.count("chunks")


def _laws_of(case: Case, judge: Judge) -> None:
    begun = time.monotonic()
    for law in LAWS:
        law(case, judge)
    judge.tally.count(
        f"milliseconds of {case.subject.kind}", round(1e3 * (time.monotonic() - begun))
    )


def _slow(cases: list[Case], judge: Judge, number: int) -> None:
    attached = [c for c in cases if c.subject.differentiable]
    in_threads(cases[number % 2 :: 2], judge)
    forked(cases[::2], judge)
    if number % PROCESS_EVERY == 0:
        spawned(cases, judge)
    turn = number // PARTS
    for case in (cases[(turn + k * 7) % len(cases)] for k in range(3)):
        for law in memory.LAWS:
            law(case, judge)
    if attached:
        backend = ("eager", "aot_eager")[number % 2]
        compiled(attached[(turn + number) % len(attached)], judge, backend)
