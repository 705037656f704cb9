"""What a person sees of a command: lines, errors, warnings, progress."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from legato._support.extras import how_to_install
from legato.console.loading import LoadError
from legato.errors import LegatoError

console = Console(highlight=False)

# What `pip install legato[studies]` brings, under the names they are imported by.
_PACKAGES = ("lightning", "torchmetrics", "safetensors", "PIL", "matplotlib", "numpy")


def fail(message: object) -> NoReturn:
    """Say what is wrong on the error stream, in full whatever its width, and exit with 1."""
    Console(stderr=True).print(f"[bold red]error[/] {escape(str(message))}", soft_wrap=True)
    raise typer.Exit(1)


@contextlib.contextmanager
def reporting_errors(interrupted: str = "Interrupted.") -> Iterator[None]:
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
            fail(f"This command needs {error.name}: {how_to_install('studies')}")
        except OSError as error:
            fail(f"A file could not be read or written: {error}")
        except RuntimeError as error:
            # Only who has imported torch can have run out of its memory.
            if "torch" not in sys.modules or not _is_full_gpu(error):
                raise
            fail(f"The GPU's memory is full ({error}). Try a smaller --batch, or --device cpu.")
        except KeyboardInterrupt:
            Console(stderr=True).print(f"\n{escape(interrupted)}", soft_wrap=True)
            raise typer.Exit(130) from None
        except SystemExit as error:  # a training that was told to end
            Console(stderr=True).print(escape(interrupted), soft_wrap=True)
            raise typer.Exit(error.code if isinstance(error.code, int) else 1) from None


def say(line: str) -> None:
    """One line, as it is: paths are not broken, brackets are no markup."""
    console.print(escape(line), soft_wrap=True)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar that leaves nothing behind, with these columns or counts and the remaining time.

    It goes to the error stream, so that results can be piped.
    """
    errors = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        *(columns or (MofNCompleteColumn(), TimeRemainingColumn())),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


@contextlib.contextmanager
def counted_lines(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function that shows a line above a bar, which moves on with it."""
    with progress_bar() as shown:
        task = shown.add_task(title, total=total)

        def report(line: str) -> None:
            shown.console.print(line, highlight=False)
            shown.advance(task)

        yield report


def _is_full_gpu(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def _show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    Console(stderr=True).print(f"[bold yellow]warning[/] {escape(str(message))}", soft_wrap=True)
