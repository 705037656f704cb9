"""What a person sees of a command: errors, warnings, progress."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from legato.cli.fail import fail
from legato.cli.load import LoadError
from legato.errors import LegatoError

console = Console(highlight=False)

# What `pip install legato[studies]` brings, under the names they are imported by.
_PACKAGES = ("lightning", "torchmetrics", "safetensors", "PIL", "matplotlib", "numpy")


@contextlib.contextmanager
def plainly(interrupted: str = "Interrupted.") -> Iterator[None]:
    """Errors and warnings as sentences; Ctrl-C ends with ``interrupted`` and the usual code."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        try:
            yield
        except (LegatoError, LoadError) as error:
            fail(error)
        except ModuleNotFoundError as error:
            if error.name not in _PACKAGES:
                raise
            fail(f"This command needs {error.name}: pip install 'legato[studies]'")
        except torch.OutOfMemoryError as error:
            fail(f"The GPU's memory is full ({error}). Try a smaller --batch, or --device cpu.")
        except OSError as error:
            fail(f"A file could not be read or written: {error}")
        except KeyboardInterrupt:
            Console(stderr=True).print(f"\n{escape(interrupted)}", soft_wrap=True)
            raise typer.Exit(130) from None
        except SystemExit as error:  # a training that was told to end
            Console(stderr=True).print(escape(interrupted), soft_wrap=True)
            raise typer.Exit(error.code if isinstance(error.code, int) else 1) from None


def say(line: str) -> None:
    """One line, as it is: paths are not broken, brackets are no markup."""
    console.print(escape(line), soft_wrap=True)


def bar() -> Progress:
    """A progress bar that leaves nothing behind; to the error stream, so results can be piped."""
    errors = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


def _show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    Console(stderr=True).print(f"[bold yellow]warning[/] {escape(str(message))}", soft_wrap=True)
