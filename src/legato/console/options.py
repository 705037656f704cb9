"""Options that commands share, each described once, and what their values mean."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.errors import InputError

MACHINE = "Machine"
"""The panel of the help page for options that say where to compute, not what."""

Device = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda", help="Where to compute.", rich_help_panel=MACHINE),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small version, in a minute or two on two cores.")
]


def device_of(device: str) -> str:
    """The device that ``--device`` names, if it is there; a GPU is set up for speed."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise InputError(f"--device is auto, cpu or cuda, not {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no GPU that torch can use here; leave --device out.")
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")  # of networks; the solver multiplies no matrices
    return device


def listed(text: str | None) -> list[str] | None:
    """The parts of ``A,B,…``."""
    return None if text is None else [part.strip() for part in text.split(",")]


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers of ``5,10,…``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} is a list such as 5,10,20, not {text!r}.") from None
