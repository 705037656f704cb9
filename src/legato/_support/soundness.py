"""Whether the data of a whole problem are numbers that a solver can work with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.checks import RANGE, is_concrete, out_of_range, require_nonnegative
from legato._support.holding import Held, held_tensors, held_weights
from legato._support.tree import as_real
from legato.errors import InputError


def require_sound_data(obj: Any, what: str) -> None:
    """Refuse NaN, infinity, negative weights, half precision, mixed devices and dtypes, no entries.

    And float64 outside of RANGE, whose squares are no numbers: a residual would be 0, or NaN. Those
    of float32 are, in the double precision in which norms are taken.
    """
    if torch.compiler.is_compiling():
        return  # there are no values yet, and some compilers cannot look into a dataclass
    found = [
        held._replace(tensor=_entries(held.tensor))
        for held in held_tensors(obj)
        if held.tensor.is_floating_point() or held.tensor.is_complex()
    ]
    devices = {t.device for _, t, _ in found if t.ndim > 0}
    if len(devices) > 1:
        places = ", ".join(f"{p} on {t.device}" for p, t, _ in found)
        raise InputError(f"{what} mixes devices ({places}). Move everything to one with .to(…).")
    dtypes = {t.dtype for _, t, _ in found if t.ndim > 0}
    if len(dtypes) > 1:
        kinds = ", ".join(f"{p} is {t.dtype}" for p, t, _ in found)
        raise InputError(
            f"{what} mixes floating dtypes ({kinds}). Convert everything to one, e.g. .double()."
        )
    if dtypes - {torch.float32, torch.float64}:
        raise InputError(
            f"{what} is in {', '.join(map(str, dtypes))}, but solvers compute in float32 or "
            "float64: rounding would add up over the iterations. Call .float() on its data, e.g. "
            "on the output of a network under autocast."
        )
    for path, tensor, _ in found:
        if tensor.numel() == 0:
            raise InputError(
                f"{path or what} is empty (shape {tuple(tensor.shape)}): nothing to solve for."
            )
    if not is_concrete() or not found:
        return
    # A weight was not negative when its term was made, but may have been learned since.
    weights = list(held_weights(obj))
    of_any_size = {id(held.tensor) for held in weights}
    # One pass, no copy, one read for all.
    probes = [
        torch.isnan(t.detach()).any()
        if may_be_infinite
        else _flaw(t.detach(), of_any_size=id(t) in of_any_size)
        for _, t, may_be_infinite in found
    ]
    probes += [(held.tensor.detach() < 0).any() for held in weights]
    total = probes[0] + 0.0
    for probe in probes[1:]:
        total = total + probe.to(total)
    if float(total) != 0:
        for path, tensor, _ in weights:
            if not bool(torch.isnan(tensor.detach()).any()):
                require_nonnegative(tensor, path)
        raise InputError(_describe_unsound(found, of_any_size, what))


def _entries(t: Tensor) -> Tensor:
    """What is stored of a tensor: an operator of your own may hold a sparse one.

    Complex numbers are two real ones each, of their precision.
    """
    if t.layout is torch.strided:
        return as_real(t)
    return t.detach()._values() if t.layout is torch.sparse_coo else t.detach().values()


def _flaw(t: Tensor, of_any_size: bool) -> Tensor:
    """0, unless t holds NaN or infinity, or is of float64 and its largest entry outside of RANGE.

    Zero is fine. Weights may be ``of_any_size``: one that is huge, as a search for a good one may
    try, makes its term a constraint.
    """
    low, high = t.aminmax()
    flaw = 0 * low + 0 * high
    if t.dtype != torch.float64 or of_any_size:
        return flaw
    limit, largest = RANGE[t.dtype], torch.maximum(-low, high)
    return flaw + (largest > limit) + ((largest > 0) & (largest < 1 / limit))


def _describe_unsound(found: list[Held], of_any_size: set[int], what: str) -> str:
    lines = []
    for path, tensor, may_be_infinite in found:
        entries = tensor.detach()
        bad = torch.isnan(entries) if may_be_infinite else ~torch.isfinite(entries)
        count = int(bad.sum())
        if count:
            index = tuple(int(i) for i in bad.nonzero()[0])
            lines.append(f"{path or what} has {count} of {tensor.numel()} (first at {index})")
    if lines:
        return (
            f"{what} holds NaN or infinite values: {'; '.join(lines)}. Clean the data first, e.g. "
            "with torch.nan_to_num, or find where it became non-finite."
        )
    path, tensor = next(
        (path, tensor)
        for path, tensor, may_be_infinite in found
        if not may_be_infinite
        if bool(_flaw(tensor.detach(), of_any_size=id(tensor) in of_any_size))
    )
    return out_of_range(path or what, float(tensor.detach().abs().amax()), tensor.dtype)
