"""What the choice of a kernel has in common, whichever layer it is for."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from legato.errors import InputError, LegatoWarning

_said: set[str] = set()


def require_known(kernel: str | None, known: Sequence[str]) -> None:
    """Refuse the name of no kernel."""
    if kernel is not None and kernel not in known:
        raise InputError(f"kernel must be one of {', '.join(known)}, or None, not {kernel!r}.")


def available(package: str) -> bool:
    """Whether an optional package can be imported."""
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def load_kernel(layer: str, name: str) -> Any:
    """The function `layer` of the module `layer`_`name`, imported when first needed."""
    try:
        module = importlib.import_module(f"legato.nn.kernels.{layer}_{name}")
    except ImportError as error:
        raise InputError(
            f"The {name} kernel needs a package that cannot be imported ({error}). Install it, or "
            "leave kernel=None to have one chosen."
        ) from error
    return getattr(module, layer)


def say_once(message: str) -> None:
    """Warn, but not at every call of a training."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, LegatoWarning, stacklevel=2)
