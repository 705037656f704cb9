"""Which kernel computes a layer: the fused one of its device where there is one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from legato._support.telling import tell
from legato.errors import InputError, LegatoWarning

KERNELS = ("triton", "numba", "reference")
DEVICES = {"triton": "cuda", "numba": "cpu"}
F = TypeVar("F")

_said: set[str] = set()


@dataclass(frozen=True)
class KernelRegistry(Generic[F]):
    """The kernels of a layer, imported when they are first needed.

    Args:
        title: the layer's name in words.
        data: the name of the tensor whose device decides.
        triton_limit: the largest number of labels (Potts) or coupled channels (total variation)
            that the Triton kernels hold in registers.
        triton_limit_of: the word for what is limited.
        load: imports a kernel by its name.
    """

    title: str
    data: str
    triton_limit: int
    triton_limit_of: str
    load: Callable[[str], F]
    loaded: dict[str, F] = field(default_factory=dict)

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
        if name == "triton" and count > self.triton_limit:
            say_once(
                f"The fused Triton kernels take up to {self.triton_limit} {self.triton_limit_of}, "
                f"and there are {count}: using the reference kernel, which is slower and needs "
                "more memory."
            )
            name = "reference"
        if name not in self.loaded:
            self.loaded[name] = self._load(name)
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

    def _load(self, name: str) -> F:
        try:
            return self.load(name)
        except ImportError as error:
            raise InputError(
                f"The {name} kernel needs a package that cannot be imported ({error}). Install it, "
                "or leave kernel=None to have one chosen."
            ) from error


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


def say_once(message: str) -> None:
    """Warn, but not at every call of a training."""
    if message not in _said:
        _said.add(message)
        tell(message, LegatoWarning)
