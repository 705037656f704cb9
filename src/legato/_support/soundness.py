"""Whether the data of a whole problem are numbers that a solver can work with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.checks import RANGE, holds, is_concrete, out_of_range, require_nonnegative
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
    whole = [held.tensor >= 0 for held in weights if not held.tensor.is_floating_point()]
    if not all(map(holds, [*_conditions(found, of_any_size), *whole])):
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


def _conditions(found: list[Held], of_any_size: set[int]) -> list[Tensor]:
    """What holds of sound data, one tensor for each device: one pass, no copy, one read for all."""
    by_device: dict[torch.device, list[Tensor]] = {}
    groups: dict[Any, list[Tensor]] = {}
    for _, t, may_be_infinite in found:
        low, high = t.detach().aminmax()
        is_weight = id(t) in of_any_size
        ranged = t.dtype == torch.float64 and not (is_weight or may_be_infinite)
        limit = RANGE[t.dtype] if ranged else None
        groups.setdefault((t.device, t.dtype, may_be_infinite, is_weight, limit), []).extend(
            (low, high)
        )
    for (device, _, may_be_infinite, is_weight, limit), ends in groups.items():
        several = torch.stack(ends)
        sound = ~several.isnan() if may_be_infinite else several.isfinite()
        if is_weight:
            sound = sound & (several >= 0)
        if limit is not None:
            sound = sound & within(several.view(-1, 2).abs().amax(-1, keepdim=True), limit)
        by_device.setdefault(device, []).append(sound.all())
    return [parts[0] if len(parts) == 1 else torch.stack(parts) for parts in by_device.values()]


def within(largest: Tensor, limit: float) -> Tensor:
    """Whether largest entries lie in the range, or are 0."""
    return (largest == 0) | ((largest <= limit) & (largest >= 1 / limit))


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
        if not may_be_infinite and id(tensor) not in of_any_size and tensor.dtype == torch.float64
        if not bool(within(tensor.detach().abs().amax(), RANGE[tensor.dtype]))
    )
    return out_of_range(path or what, float(tensor.detach().abs().amax()), tensor.dtype)
