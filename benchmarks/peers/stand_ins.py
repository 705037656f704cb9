"""Stand-ins for packages that deepinv imports and that reconstruction never calls.

``with_stand_ins()`` lets the unpacked wheel of deepinv be imported where they are not installed:
their modules, classes and functions exist, and calling one raises.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

PACKAGES = ("torchvision", "h5py", "natsort", "einops", "matplotlib", "requests", "tqdm", "PIL")


class _Absent:
    """Something of a package that is not there."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise ImportError(f"{type(self).__name__} belongs to a package that is not installed.")


class _StandIn(ModuleType):
    """A module in which every name is a class that cannot be made."""

    __path__: ClassVar[list[str]] = []  # so that it has modules inside
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Absent,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.split(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def with_stand_ins() -> list[str]:
    """Let absent packages be imported; returns their names."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    sys.meta_path.append(_Finder(absent))
    return absent
