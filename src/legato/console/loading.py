"""Getting a problem or a network out of a user's file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class LoadError(Exception):
    """A target cannot be loaded; the message says what is wrong with it."""


def load(target: str) -> Callable[..., Any]:
    """Import FILE.py of ``FILE.py:factory``; that function, or class, in it."""
    path, name = parts(target)
    module = import_file(path)
    factory = getattr(module, name, None)
    if factory is None:
        known = [n for n, v in vars(module).items() if callable(v) and v.__module__ == _NAME]
        listed = f" It defines: {', '.join(known)}." if known else ""
        raise LoadError(f"{path} has no function {name!r}.{listed}")
    if not callable(factory):
        raise LoadError(f"{name} in {path} is of type {type(factory).__name__}, not a function.")
    return factory


def parts(target: str) -> tuple[str, str]:
    """File and name of ``FILE.py:name``."""
    path, separator, name = target.rpartition(":")
    if not separator or not path or not name:
        raise LoadError(
            f"{target!r} does not name a function. Write FILE.py:make, the file and the name in it."
        )
    return path, name


def call_factory(target: str, *arguments: object) -> Any:
    """What the factory of ``FILE.py:factory`` returns for ``arguments``."""
    factory = load(target)
    try:
        return factory(*arguments)
    except Exception as error:
        path, _, name = target.rpartition(":")
        written = ", ".join(map(str, arguments))
        raise LoadError(f"{name}({written}) raised {_describe(error, path)}") from error


_NAME = "legato_doctor_target"


def import_file(file: str) -> ModuleType:
    """The module in a file, which may import its neighbours."""
    path = Path(file)
    if not path.is_file():
        raise LoadError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE.py` does
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise LoadError(f"Importing {path} raised {_describe(error, str(path))}") from error
    finally:
        sys.path.pop(0)
    return module


def _describe(error: Exception, path: str) -> str:
    """Kind, message and the last line of the user's file that was involved."""
    file = str(Path(path).resolve())
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if str(Path(f.filename).resolve()) == file]
    where = f" ({path}:{lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"
