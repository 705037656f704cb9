"""The law of side effects: a layer changes nothing but returns something new."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.calling import same_random_numbers
from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, backward, split
from legato.testing.layer.verdict import Verdict, sound, wrong


def effects_law(subject: Subject, tolerance: float) -> Verdict:
    """Inputs, cotangents, parameters and torch's settings stay; outputs are nobody else's."""
    law = "side effects"
    words = _inputs_changed(subject) or _settings_changed(subject) or _seeds(subject)
    words = words or _shared(subject, tolerance)
    return wrong(law, words) if words else sound(law, "inputs, outputs and settings are left alone")


def _inputs_changed(subject: Subject) -> str:
    for mode in ("no_grad", "forward and backward"):
        values = [v.detach().clone() if isinstance(v, Tensor) else v for v in subject.values]
        kept = [v.clone() if isinstance(v, Tensor) else v for v in values]
        parameters = [p.detach().clone() for p in subject.parameters]
        if mode == "no_grad":
            with torch.no_grad():
                subject.run(values)
        else:
            leaves = []
            for i in subject.moving:
                if i < subject.count:
                    values[i].requires_grad_()
                    leaves.append(values[i])
                else:
                    leaves.append(subject.parameters[i - subject.count])
            with torch.enable_grad():
                outputs = subject.run(values)
            drawn = torch.randn(
                sum(o.numel() for o in outputs), generator=generator(3), dtype=torch.float64
            )
            cotangent = [c.contiguous() for c in split(drawn.to(outputs[0].device), outputs)]
            before = [c.clone() for c in cotangent]
            _pass_back(outputs, leaves, cotangent)
            if any(not torch.equal(a, b) for a, b in zip(before, cotangent, strict=True)):
                return "the cotangent is overwritten by the backward pass"
            if any(leaf.grad is not None for leaf in leaves):
                return "the layer writes into .grad by itself"
        for i, (value, before_) in enumerate(zip(values, kept, strict=True)):
            if i < subject.count and isinstance(value, Tensor) and not _same(value, before_):
                return f"{subject.names[i]} is overwritten ({mode})"
        for k, (now, then) in enumerate(zip(subject.parameters, parameters, strict=True)):
            if not _same(now, then):
                return f"{subject.names[subject.count + k]} is overwritten ({mode})"
    return ""


def _pass_back(outputs: Any, leaves: list[Tensor], cotangent: list[Tensor]) -> None:
    used = [(o, c) for o, c in zip(outputs, cotangent, strict=True) if o.requires_grad]
    if used:
        torch.autograd.grad([o for o, _ in used], leaves, [c for _, c in used], allow_unused=True)


def _settings_changed(subject: Subject) -> str:
    def settings() -> dict[str, object]:
        return {
            "gradient mode": torch.is_grad_enabled(),
            "default dtype": torch.get_default_dtype(),
            "number of threads": torch.get_num_threads(),
            "use of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        }

    kept, wrong = settings(), ""
    values = [v.detach().clone() if isinstance(v, Tensor) else v for v in subject.values]
    # The calls so far may have left behind what this one would set: each dtype is tried.
    for dtype in (torch.float32, torch.float64):
        try:
            torch.set_default_dtype(dtype)
            with torch.enable_grad():
                before = settings()
                subject.run(values)
                after = settings()
        except Exception:  # it computes in another dtype than it is given
            continue
        finally:
            torch.set_default_dtype(kept["default dtype"])  # type: ignore[arg-type]
        changed = [name for name in before if before[name] != after[name]]
        wrong = wrong or (changed[0] if changed else "")
    torch.set_num_threads(int(kept["number of threads"]))  # type: ignore[call-overload]
    if wrong == "gradient mode":
        return "the layer switches gradients off and leaves them off"
    return f"the layer changes torch's {wrong}" if wrong else ""


def _seeds(subject: Subject) -> str:
    """Whatever the global generator was, the layer sets it to the same."""
    if not subject.random:
        return ""
    left = []
    for seed in (1, 2):
        with same_random_numbers(seed):
            before = torch.get_rng_state()
            subject.memory.same_generators()
            subject.random = False  # so that nobody sets it but the layer
            try:
                subject.outputs(subject.values)
            finally:
                subject.random = True
            after = torch.get_rng_state()
            if torch.equal(before, after):
                return ""
            left.append(after)
    return "the layer seeds torch's global generator" if torch.equal(*left) else ""


def _shared(subject: Subject, tolerance: float) -> str:
    """An output that the next call overwrites, or that the layer reads again."""
    other = [0.5 * v if i in subject.moving else v for i, v in enumerate(subject.values)]
    values = [v.clone() if isinstance(v, Tensor) else v for v in subject.values]
    with torch.no_grad():
        first = subject.run(values)
        kept = [o.clone() for o in first]
    if subject.attempt(other) is None:
        subject.value(subject.values)
    if any(not _same(o, k) for o, k in zip(first, kept, strict=True)):
        return "an output is overwritten by the next call"
    c = torch.ones(sum(o.numel() for o in first), dtype=torch.float64, device=first[0].device)
    outputs, leaves = subject.graph(subject.values)
    gradients = backward(outputs, leaves, c)
    saved = [None if g is None else g.clone() for g in gradients]
    subject.gradients(subject.values, -3.0 * c)
    for g, s in zip(gradients, saved, strict=True):
        if g is not None and s is not None and not _same(g, s):
            return "a gradient is overwritten by the next backward pass"
    with torch.no_grad():
        for o in first:
            if not _overlaps(o):
                o.fill_(7.0)
        again = subject.run(subject.values)
    off = max(apart(a, k) for a, k in zip(again, kept, strict=True))
    if off > tolerance:
        return f"writing into an output changes what the next call returns, by {off:.1e}"
    return ""


def _overlaps(x: Tensor) -> bool:
    """Expanded tensors cannot be written to."""
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
