"""Batches are their elements; permutations, shifts and units go through."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught, compute, cotangents, least_slope
from metamorphic.subject import Inputs

RATIOS = ((1.0, 1.0, 1.0), (1.0, 1e2, 1e-2), (1.0, 1e5, 1e-3))
"""Sizes of the elements of a batch, where the data have a unit; every law of a batch is tried
with cotangents of such ratios too."""


def _elements(case: Case) -> list[Inputs]:
    """Three draws that share what is not batched."""
    subject = case.subject
    draws = [case.inputs, subject.inputs(case.seed + 10_001), subject.inputs(case.seed + 20_002)]
    return [
        {k: d[k] if k in subject.batched else case.inputs[k] for k in case.inputs} for d in draws
    ]


def _joined(case: Case, elements: Sequence[Inputs]) -> Inputs:
    join = torch.cat if case.subject.has_batch else torch.stack
    return {
        k: join([e[k] for e in elements]) if k in case.subject.batched else elements[0][k]
        for k in case.inputs
    }


def _pick(case: Case, tensor: Tensor, i: int) -> Tensor:
    return tensor[i : i + 1] if case.subject.has_batch else tensor[i]


def batch(case: Case, judge: Judge) -> None:
    """Every element of a batch gets the values and gradients it would get alone.

    Sizes differ where units allow it; the losses of the elements differ in size, too.
    """
    subject = case.subject
    if not subject.batched:
        return
    units = set(subject.homogeneous) and set(subject.homogeneous) <= set(subject.batched)
    for ratios in RATIOS if units else (RATIOS[0], RATIOS[1]):
        elements = _elements(case)
        if units:
            elements = [
                {k: v * r if k in subject.homogeneous else v for k, v in e.items()}
                for e, r in zip(elements, ratios, strict=True)
            ]
        losses = ratios[::-1]
        alone = [caught(lambda e=e: compute(subject, e)) for e in elements]
        if not all(a.fine for a in alone):
            continue
        weights = [
            [c * w for c in cotangents(a.values)] for a, w in zip(alone, losses, strict=True)
        ]
        alone = [
            caught(lambda e=e, w=w: compute(subject, e, w))
            for e, w in zip(elements, weights, strict=True)
        ]
        join = torch.cat if subject.has_batch else torch.stack
        together = [join([w[i] for w in weights]) for i in range(len(weights[0]))]
        found = caught(lambda e=elements, c=together: compute(subject, _joined(case, e), c))
        law = f"batch: sizes {ratios[1]:g}, {ratios[2]:g}"
        _compare(case, judge, law, found, alone)


def _compare(case: Case, judge: Judge, law: str, found: Outcome, alone: list[Outcome]) -> None:
    subject = case.subject
    if not found.fine:
        judge.same(case, law, found, alone[0])
        return
    for i, right in enumerate(alone):
        values = [_pick(case, v, i) for v in found.values]
        slopes = {
            k: None if g is None else _pick(case, g, i)
            for k, g in found.slopes.items()
            if k in subject.batched
        }
        judge.same(
            case, f"{law}: element {i}", Outcome(values, slopes, warned=found.warned),
            Outcome(right.values, {k: right.slopes.get(k) for k in slopes}, warned=right.warned),
            rounding=subject.rounding, warned_is_fine=True,
        )  # fmt: skip
    shared = [k for k in found.slopes if k not in subject.batched]
    if shared:
        total: dict[str, Tensor | None] = {}
        for k in shared:
            parts = [a.slopes[k] for a in alone]
            known = [p for p in parts if p is not None]
            total[k] = torch.stack(known).sum(0) if known else None
        mine = {k: found.slopes[k] for k in shared}
        judge.same(
            case, f"{law}: shared", Outcome([], mine, warned=found.warned), Outcome([], total),
            rounding=10 * subject.rounding, warned_is_fine=True,
            least=max(map(least_slope, alone)),  # the sum may cancel
        )  # fmt: skip


def batch_order(case: Case, judge: Judge) -> None:
    """Elements of a batch in another order; one of them twice."""
    subject = case.subject
    if not subject.batched:
        return
    elements = _elements(case)
    base = caught(lambda: compute(subject, _joined(case, elements)))
    if not base.fine:
        return
    weights = cotangents(base.values)
    for name, order in {"reversed": [2, 1, 0], "repeated": [0, 1, 2, 1]}.items():
        moved = [elements[i] for i in order]
        mine = [w[order] for w in weights]
        found = caught(lambda m=moved, w=mine: compute(subject, _joined(case, m), w))
        right = Outcome(
            [v[order] for v in base.values],
            {k: None if g is None else g[order] for k, g in base.slopes.items()
             if k in subject.batched},
            warned=base.warned,
        )  # fmt: skip
        judge.same(
            case, f"batch order: {name}", found, right, rounding=subject.rounding,
            warned_is_fine=True,
        )  # fmt: skip


def permuted(case: Case, judge: Judge) -> None:
    """Coordinates in another order: outputs and gradients in that order."""
    subject = case.subject
    if not subject.permuted:
        return
    axes = subject.permuted
    name, dims = next(iter(axes.items()))
    count = case.inputs[name].shape[dims[0]]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(case.seed))

    def moved(t: Tensor, dims: tuple[int, ...]) -> Tensor:
        for d in dims:
            t = t.index_select(d, order)
        return t

    out = subject.permuted_output
    inputs = {k: moved(v, axes[k]) if k in axes else v for k, v in case.inputs.items()}
    base = case.expected
    if not base.fine:
        return
    follows = [
        v.ndim > 0 and v.shape[out] == count if i == 0 or subject.kind != "estimator" else False
        for i, v in enumerate(base.values)
    ]
    if subject.name.startswith("MatrixGame") or "game" in subject.name:
        follows = [True] + [False] * (len(follows) - 1)
    weights = [
        c.index_select(out, order) if f else c
        for c, f in zip(cotangents(base.values), follows, strict=True)
    ]
    found = caught(lambda: compute(subject, inputs, weights))
    right = Outcome(
        [v.index_select(out, order) if f else v for v, f in zip(base.values, follows, strict=True)],
        {k: g if g is None or k not in axes else moved(g, axes[k]) for k, g in base.slopes.items()},
        warned=base.warned,
    )  # fmt: skip
    judge.same(case, "permuted", found, right, rounding=100 * subject.rounding, warned_is_fine=True)


def units(case: Case, judge: Judge) -> None:
    """Other units: all homogeneous inputs times s multiply the outputs by s^degree."""
    subject = case.subject
    if not subject.homogeneous or not case.expected.fine:
        return
    for s in (2.0**-10, 3.7, 1e6):
        inputs = {k: v * s if k in subject.homogeneous else v for k, v in case.inputs.items()}
        found = caught(lambda i=inputs: compute(subject, i))
        d = subject.degree
        right = Outcome(
            [v * s**d for v in case.expected.values],
            {k: None if g is None else g * s ** (d - (k in subject.homogeneous))
             for k, g in case.expected.slopes.items()},
            warned=case.expected.warned,
        )  # fmt: skip
        judge.same(
            case, f"units: {s:g}", found, right, rounding=100 * subject.rounding,
            slopes=subject.slopes_scale, warned_is_fine=True,
        )  # fmt: skip


def shifted(case: Case, judge: Judge) -> None:
    """A constant added to the data is added to the result."""
    subject = case.subject
    if subject.shifted is None or not case.expected.fine:
        return
    for c in (0.75, -20.0):
        inputs = {**case.inputs, subject.shifted: case.inputs[subject.shifted] + c}
        found = caught(lambda i=inputs: compute(subject, i))
        right = Outcome(
            [v + c for v in case.expected.values], case.expected.slopes,
            warned=case.expected.warned,
        )  # fmt: skip
        judge.same(
            case, f"shifted: {c:g}", found, right, rounding=1e-4, slopes=False, warned_is_fine=True
        )


LAWS = (batch, batch_order, permuted, units, shifted)
