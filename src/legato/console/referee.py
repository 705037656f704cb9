"""``legato check``: a layer and its inputs out of a user's file, and the verdict on a terminal."""

from __future__ import annotations

from typing import Any

import torch
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from legato.console.loading import LoadError, import_file, load, parts
from legato.console.options import whole_numbers
from legato.console.talking import console
from legato.errors import InputError
from legato.testing import LayerReport

_STYLES = {"sound": "green", "wrong": "bold red", "not decided": "yellow", "not measured": "dim"}
_SAYS = {
    "sound": "Sound: every law that could be measured holds.",
    "wrong": "Wrong: do not train through this layer before these are understood.",
    "not decided": "Not decided: nothing is known to be wrong, and not all could be seen.",
}


def layer_of(target: str) -> Any:
    """The function or module that ``FILE.py:LAYER`` names; a class is called without arguments."""
    found = load(target)
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise LoadError(
            f"{parts(target)[1]}() raised {type(error).__name__}: {error}. Name a layer that is "
            "ready, e.g. `layer = MyLayer(3)`."
        ) from error


def inputs_for(target: str, named: str | None, shapes: list[str], dtype: str, seed: int) -> Any:
    """What ``--inputs`` names or ``--shape`` describes; else ``inputs`` in the layer's file."""
    if named is not None and shapes:
        raise InputError("Say --inputs or --shape, not both.")
    if shapes:
        return _drawn(shapes, dtype, seed)
    file = parts(target)[0]
    if named is not None and ":" in named:
        file, name = parts(named)
    else:
        name = named or "inputs"
    module = import_file(file)
    if not hasattr(module, name):
        hint = "" if named else " Say what to call the layer with: --shape 4,10 or --inputs NAME."
        raise LoadError(f"{file} has no {name!r}.{hint}")
    found = getattr(module, name)
    if callable(found) and not isinstance(found, torch.Tensor):
        try:
            found = found()
        except Exception as error:
            raise LoadError(f"{name}() raised {type(error).__name__}: {error}") from error
    if not isinstance(found, (torch.Tensor, tuple, list)):
        kind = type(found).__name__
        raise LoadError(f"{name} in {file} is of type {kind}, not a tensor or a tuple.")
    return found


def _drawn(shapes: list[str], dtype: str, seed: int) -> tuple[torch.Tensor, ...]:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InputError(f"--dtype is float32 or float64, not {dtype!r}.")
    generator = torch.Generator().manual_seed(seed)
    sizes = [() if text in ("", "()") else whole_numbers("--shape", text) for text in shapes]
    if any(n < 1 for size in sizes for n in size):
        raise InputError("--shape is a list of sizes such as 4,10, each at least 1.")
    return tuple(
        torch.randn(s, generator=generator, dtype=torch.float64, device="cpu").to(kind)
        for s in sizes
    )


def show(report: LayerReport) -> None:
    """Print a line for each law, notes, and the verdict."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("law", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("")
    for verdict in report:
        style = _STYLES[verdict.state]
        table.add_row(verdict.law, f"[{style}]{verdict.state}[/]", escape(verdict.words))
    console.print(table)
    for note in report.notes:
        console.print(f"[yellow]note[/] {escape(note)}")
    console.print()
    state = report.state
    console.print(
        Panel(
            escape(_SAYS[state]),
            title=escape(report.subject),
            title_align="left",
            border_style=_STYLES[state],
        )
    )
