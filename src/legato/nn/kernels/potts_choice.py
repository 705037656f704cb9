"""Which kernel computes the Potts layer: one function, three ways to compute it."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn.kernels.choice import available, load_kernel, require_known, say_once
from legato.nn.kernels.potts_iterates import PottsIterates

PottsFunction = Callable[..., PottsIterates]
KERNELS = ("triton", "numba", "reference")
DEVICES = {"triton": "cuda", "numba": "cpu"}
FUSED_LABELS = 64
"""The most labels that the Triton kernels take."""


def choose_kernel(cost: Tensor, override: str | None = None) -> tuple[str, PottsFunction]:
    """The name and function of the kernel for this cost: fused where one is available."""
    name = _choose(cost.device.type, int(cost.shape[1]), override)
    return name, _loaded[name]


_loaded: dict[str, PottsFunction] = {}


# torch.compile evaluates this once and takes the name for a constant, which it is.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choose(device: str, labels: int, override: str | None) -> str:
    require_known(override, KERNELS)
    name = override or _best(device)
    home = DEVICES.get(name, device)
    if home != device and not (name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"):
        raise InputError(
            f"The {name} kernel computes on {home}, but cost is on {device}. Leave kernel=None to "
            "have one chosen."
        )
    if name == "triton" and labels > FUSED_LABELS:
        say_once(
            f"The fused Triton kernels take up to {FUSED_LABELS} labels, and there are {labels}: "
            "using the reference kernel, which is slower and needs more memory."
        )
        name = "reference"
    if name not in _loaded:
        _loaded[name] = load_kernel("potts", name)
    return name


def _best(device: str) -> str:
    if device == "cuda":
        if available("triton"):
            return "triton"
        say_once(
            "Triton is not installed: the Potts layer uses the reference kernel on this GPU, which "
            "is many times slower. Install triton to get the fused kernels."
        )
    elif device == "cpu" and available("numba"):
        return "numba"
    return "reference"
