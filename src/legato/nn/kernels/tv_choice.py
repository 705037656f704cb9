"""Which kernel computes total variation: the fused one where there is one, else the engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from legato.errors import InputError
from legato.nn.kernels import _say_once, available
from legato.nn.kernels.tv_iterates import TVIterates

TVFunction = Callable[..., TVIterates]
KERNELS = ("numba", "reference")

_loaded: dict[str, TVFunction] = {}


def choose_kernel(device: str, override: str | None = None) -> tuple[str, TVFunction]:
    """The name and function of the kernel for a device."""
    name = _choose(device, override)
    return name, _loaded[name]


def require_known(kernel: str | None) -> None:
    """Refuse the name of no kernel."""
    if kernel is not None and kernel not in KERNELS:
        raise InputError(f"kernel must be one of {', '.join(KERNELS)}, or None, not {kernel!r}.")


# torch.compile evaluates this once and takes the name for a constant, which it is.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choose(device: str, override: str | None) -> str:
    require_known(override)
    name = override or _best(device)
    if name == "numba" and device != "cpu":
        raise InputError(
            f"The numba kernel computes on cpu, but image is on {device}. Leave kernel=None to "
            "have one chosen."
        )
    if name not in _loaded:
        _loaded[name] = load_kernel(name)
    return name


def _best(device: str) -> str:
    if device == "cpu":
        if available("numba"):
            return "numba"
        _say_once(
            "Numba is not installed: total variation uses the reference kernel, which is many "
            'times slower. Install it with pip install "legato[fast]".'
        )
    elif device == "cuda":
        _say_once(
            "There is no fused GPU kernel for total variation yet: using the reference kernel, "
            "which is slower and needs more memory."
        )
    return "reference"


def load_kernel(name: str) -> TVFunction:
    """The `tv` function of one kernel, imported when first needed."""
    try:
        module = importlib.import_module(f"legato.nn.kernels.tv_{name}")
    except ImportError as error:
        raise InputError(
            f"The {name} kernel needs a package that cannot be imported ({error}). Install it, or "
            "leave kernel=None to have one chosen."
        ) from error
    tv: TVFunction = module.tv
    return tv
