"""Which kernel computes total variation: one function, three ways to compute it."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn.kernels.choice import available, load_kernel, require_known, say_once
from legato.nn.kernels.tv_iterates import Coupling, TVIterates

TVFunction = Callable[..., TVIterates]
KERNELS = ("triton", "numba", "reference")
DEVICES = {"triton": "cuda", "numba": "cpu"}
FUSED_CHANNELS = 8
"""The most channels under one norm that the Triton kernels take: they hold them all at once."""

_loaded: dict[str, TVFunction] = {}


def choose_kernel(
    image: Tensor, coupling: Coupling, override: str | None = None
) -> tuple[str, TVFunction]:
    """The name and function of the kernel for this image: fused where one is available."""
    coupled = int(image.shape[1]) if coupling.channels else 1
    name = _choose(image.device.type, coupled, override)
    return name, _loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choose(device: str, coupled: int, override: str | None) -> str:
    require_known(override, KERNELS)
    name = override or _best(device)
    home = DEVICES.get(name, device)
    if home != device and not (name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"):
        raise InputError(
            f"The {name} kernel computes on {home}, but image is on {device}. Leave kernel=None to "
            "have one chosen."
        )
    if name == "triton" and coupled > FUSED_CHANNELS:
        say_once(
            f"The fused Triton kernels take up to {FUSED_CHANNELS} channels under one norm, and "
            f"there are {coupled}: using the reference kernel, which is slower and needs more "
            "memory."
        )
        name = "reference"
    if name not in _loaded:
        _loaded[name] = load_kernel("tv", name)
    return name


def _best(device: str) -> str:
    if device == "cuda":
        if available("triton"):
            return "triton"
        say_once(
            "Triton is not installed: total variation uses the reference kernel on this GPU, which "
            "is many times slower. Install triton to get the fused kernels."
        )
    elif device == "cpu":
        if available("numba"):
            return "numba"
        say_once(
            "Numba is not installed: total variation uses the reference kernel, which is many "
            'times slower. Install it with pip install "legato[fast]".'
        )
    return "reference"
