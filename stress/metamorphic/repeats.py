"""The same call again gives the same bits, whatever happened in between, and leaves no trace."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch

import legato as lg
from legato.errors import InputError
from metamorphic.judge import Judge
from metamorphic.outcome import (
    Case,
    Outcome,
    caught,
    compute,
    cotangents,
    leaves,
    loss_of,
    outputs_of,
    slopes_of,
)


def another_problem() -> None:
    """A solve with a gradient that has nothing to do with any subject."""
    w = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    b = torch.linspace(-1, 1, 5, dtype=torch.float64)
    energy = lg.SquaredDistance(b) + lg.L1(w) @ lg.Differences((-1,))
    lg.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(200, tol=1e-8)).x.sum().backward()


def _global_state() -> dict[str, Any]:
    return {
        "random numbers": torch.get_rng_state().sum().item(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "python threads": threading.active_count(),
        "warning filters": len(warnings.filters),
    }


def twice(case: Case, judge: Judge) -> None:
    """The same call again; random numbers, modes and filters of the process stay as they were."""
    expected = case.expected
    before = _global_state()
    found = caught(lambda: compute(case.subject, case.inputs))
    after = _global_state()
    judge.same(case, "twice", found, expected)
    changed = [k for k in before if before[k] != after[k]]
    judge.require(case, "global state", not changed, f"changed: {', '.join(changed)}")


def inputs_kept(case: Case, judge: Judge) -> None:
    """Inputs are neither written to nor resized, nor do they get a .grad that nobody asked for."""
    subject = case.subject
    at = leaves(case.inputs) if subject.differentiable else dict(case.inputs)
    copies = {k: v.detach().clone() for k, v in at.items()}
    versions = {k: v._version for k, v in at.items()}

    def work() -> Outcome:
        built = subject.build(at)
        values = outputs_of(subject, built, at)
        if subject.differentiable:
            slopes_of(subject, values, at, subject.parameters(built))
        return Outcome([v.detach() for v in values])

    found = caught(work)
    judge.same(case, "inputs kept: outputs", found, slopes=False)
    wrong = [
        k for k, v in at.items()
        if v._version != versions[k] or not torch.equal(v.detach(), copies[k]) or v.grad is not None
    ]  # fmt: skip
    judge.require(case, "inputs kept", not wrong, f"changed: {', '.join(wrong)}")


def in_between(case: Case, judge: Judge) -> None:
    """Another problem between the forward and the backward pass; two graphs, the older one last."""
    subject = case.subject

    def work() -> Outcome:
        first, second = leaves(case.inputs), leaves(case.inputs)
        built = subject.build(first)
        values = outputs_of(subject, built, first)
        another_problem()
        other = outputs_of(subject, subject.build(second), second)
        slopes_of(subject, other, second)
        slopes = slopes_of(subject, values, first, subject.parameters(built))
        return Outcome([v.detach() for v in values], slopes)

    if subject.differentiable:
        judge.same(case, "in between", caught(work))


def backward_twice(case: Case, judge: Judge) -> None:
    """A second backward pass through a kept graph, after one with another loss."""
    subject = case.subject

    def work() -> Outcome:
        at = leaves(case.inputs)
        built = subject.build(at)
        values = outputs_of(subject, built, at)
        parameters = subject.parameters(built)
        small = [1e-7 * torch.ones_like(v) for v in values]
        slopes_of(subject, values, at, parameters, small, retain=True)
        slopes = slopes_of(subject, values, at, parameters, retain=True)
        again = slopes_of(subject, values, at, parameters)
        judge.same(case, "backward twice: again", Outcome([], again), Outcome([], slopes))
        return Outcome([v.detach() for v in values], slopes)

    if subject.differentiable:
        judge.same(case, "backward twice", caught(work))


def accumulated(case: Case, judge: Judge) -> None:
    """.backward() adds to .grad: two calls give twice the gradient, to the last bit."""
    subject = case.subject

    def work() -> Outcome:
        at = leaves(case.inputs)
        built = subject.build(at)
        parameters = subject.parameters(built)
        values = outputs_of(subject, built, at)
        for turn in range(2):
            if turn:
                again = built if parameters else subject.build(at)
                values = outputs_of(subject, again, at)
            loss_of(values, cotangents(values)).backward()
        names = [*at, *(f"parameter {i}" for i in range(len(parameters)))]
        grads = [t.grad for t in (*at.values(), *parameters)]
        halves = {n: None if g is None else g / 2 for n, g in zip(names, grads, strict=True)}
        return Outcome([v.detach() for v in values], halves)

    if subject.differentiable and any(g is not None for g in case.expected.slopes.values()):
        judge.same(case, "accumulated", caught(work))


def overwritten(case: Case, judge: Judge) -> None:
    """Data that are overwritten between the passes: the gradient of the old data, or an error."""
    subject = case.subject
    if not subject.differentiable:
        return
    for name in case.inputs:

        def work(name: str = name) -> Outcome:
            at = leaves(case.inputs)
            # A copy, as the next batch in the same buffer: torch forbids writing to leaves.
            seen = {k: v * 1 for k, v in at.items()}
            built = case.build(seen)
            values = outputs_of(subject, built, seen)
            with torch.no_grad():
                seen[name].mul_(3)
            try:
                slopes = slopes_of(subject, values, at, subject.parameters(built))
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error):
                    raise InputError("torch refuses") from error
                raise
            return Outcome([v.detach() for v in values], slopes)

        found = caught(work)
        found.values = case.expected.values  # a view of the data may be among the outputs
        judge.same(case, f"overwritten: {name}", found, rounding=subject.rounding)


LAWS = (twice, inputs_kept, in_between, backward_twice, accumulated, overwritten)
