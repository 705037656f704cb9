"""Which kernel computes total variation: the fused one where there is one, else the engine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from legato.errors import InputError
from legato.nn.kernels.choice import available, load_kernel, require_known, say_once
from legato.nn.kernels.tv_iterates import TVIterates

TVFunction = Callable[..., TVIterates]
KERNELS = ("numba", "reference")

_loaded: dict[str, TVFunction] = {}


def choose_kernel(device: str, override: str | None = None) -> tuple[str, TVFunction]:
    """The name and function of the kernel for a device."""
    name = _choose(device, override)
    return name, _loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choose(device: str, override: str | None) -> str:
    require_known(override, KERNELS)
    name = override or _best(device)
    if name == "numba" and device != "cpu":
        raise InputError(
            f"The numba kernel computes on cpu, but image is on {device}. Leave kernel=None to "
            "have one chosen."
        )
    if name not in _loaded:
        _loaded[name] = load_kernel("tv", name)
    return name


def _best(device: str) -> str:
    if device == "cpu":
        if available("numba"):
            return "numba"
        say_once(
            "Numba is not installed: total variation uses the reference kernel, which is many "
            'times slower. Install it with pip install "legato[fast]".'
        )
    elif device == "cuda":
        say_once(
            "There is no fused GPU kernel for total variation yet: using the reference kernel, "
            "which is slower and needs more memory."
        )
    return "reference"
