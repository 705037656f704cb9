"""Which kernel computes a layer: the fused one of its device where there is one."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from legato.errors import InputError, LegatoWarning

KERNELS = ("triton", "numba", "reference")
DEVICES = {"triton": "cuda", "numba": "cpu"}

_said: set[str] = set()


@dataclass(frozen=True)
class Layer:
    """A layer with a kernel `module`_`name` for each name, each a function called `module`."""

    module: str
    title: str  # as it is called in words
    data: str  # the name of the tensor whose device decides
    most: int  # the Triton kernels take up to so many …
    what: str  # … of these
    loaded: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def choose(self, device: str, count: int, override: str | None) -> str:
        """The name of the kernel, which is then in ``loaded``; says so where it is a slow one."""
        require_known(override)
        name = override or self.best(device)
        home = DEVICES.get(name, device)
        interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
        if home != device and not interpreted:
            raise InputError(
                f"The {name} kernel computes on {home}, but {self.data} is on {device}. Leave "
                "kernel=None to have one chosen."
            )
        if name == "triton" and count > self.most:
            say_once(
                f"The fused Triton kernels take up to {self.most} {self.what}, and there are "
                f"{count}: using the reference kernel, which is slower and needs more memory."
            )
            name = "reference"
        if name not in self.loaded:
            self.loaded[name] = load_kernel(self.module, name)
        return name

    def best(self, device: str) -> str:
        """The fused kernel of a device where it can be imported."""
        for name, home in DEVICES.items():
            if home == device:
                if available(name):
                    return name
                say_once(
                    f"{name.capitalize()} is not installed: {self.title} uses the reference kernel "
                    f"on this {device.upper()}, which is many times slower. Install it with pip "
                    f"install {name}."
                )
        return "reference"


def require_known(kernel: str | None) -> None:
    """Refuse the name of no kernel."""
    if kernel is not None and kernel not in KERNELS:
        raise InputError(f"kernel must be one of {', '.join(KERNELS)}, or None, not {kernel!r}.")


def available(package: str) -> bool:
    """Whether an optional package can be imported."""
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def load_kernel(module: str, name: str) -> Any:
    """The function `module` of the module `module`_`name`, imported when first needed."""
    try:
        found = importlib.import_module(f"legato.nn.kernels.{module}_{name}")
    except ImportError as error:
        raise InputError(
            f"The {name} kernel needs a package that cannot be imported ({error}). Install it, or "
            "leave kernel=None to have one chosen."
        ) from error
    return getattr(found, module)


def say_once(message: str) -> None:
    """Warn, but not at every call of a training."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, LegatoWarning, stacklevel=2)
