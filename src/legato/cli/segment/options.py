"""Options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from legato.console.options import MACHINE as _MACHINE
from legato.console.options import Device as Device
from legato.console.options import Quick as Quick

_DATA, _MODEL, _TRAINING = "Data", "Model", "Training"

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Stanford Background: its archive or folder. Without any data, legato draws scenes.",
        rich_help_panel=_DATA,
    ),
]
Images = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Your own images …", rich_help_panel=_DATA)
]
Masks = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="… and masks of the same names: grey PNGs with labels 0, 1, …, 255 where unknown.",
        rich_help_panel=_DATA,
    ),
]
Classes = Annotated[
    str,
    typer.Option(
        metavar="surfaces|regions",
        help="Stanford's 3 geometric or 8 semantic classes.",
        rich_help_panel=_DATA,
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…", help="Names of the classes in your masks.", rich_help_panel=_DATA
    ),
]
SplitFile = Annotated[
    Path | None,
    typer.Option(
        "--split",
        metavar="FILE",
        help="A split.json with the images to train and to test on; drawn 80 : 20 otherwise.",
        rich_help_panel=_DATA,
    ),
]
Network = Annotated[
    str,
    typer.Option(
        metavar="small|fcn32|FILE.py:factory",
        help="The paper's small network, FCN-32s on VGG-16, or yours: factory(number of classes) "
        "returns a module that maps images to logits of their size.",
        rich_help_panel=_MODEL,
    ),
]
OwnNetwork = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="FILE.py:factory",
        help="Where the model's network is your own.",
        rich_help_panel=_MODEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|torchvision|random",
        help="Where fcn32 gets VGG-16's convolutions: a safetensors file, torchvision's download "
        "(the default), or nowhere.",
        rich_help_panel=_MODEL,
    ),
]
Layer = Annotated[
    str,
    typer.Option(
        metavar="none|uniform|contrast|learned",
        help="The global layer: none, or one whose weights are one number, follow the image's "
        "contrast, or are learned from the network's features.",
        rich_help_panel=_MODEL,
    ),
]
Neighbours = Annotated[
    int | None,
    typer.Option(metavar="4|8", help="Pixels a pixel is compared with.", rich_help_panel=_MODEL),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Iterations of the layer's solver (default: 100; with --quick 30).",
        rich_help_panel=_MODEL,
    ),
]
Start = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="Start from the network in this model.safetensors.",
        rich_help_panel=_MODEL,
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        metavar="log|paper",
        help="−log u, or the paper's softmax loss on u.",
        rich_help_panel=_TRAINING,
    ),
]
Optimiser = Annotated[str, typer.Option(metavar="adam|sgd", rich_help_panel=_TRAINING)]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Passes over the images (default: small 30, others 20).", rich_help_panel=_TRAINING
    ),
]
BatchSize = Annotated[
    int, typer.Option("--batch", help="Images a step and process.", rich_help_panel=_TRAINING)
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        help="Learning rate of the network (default: small 0.003, fcn32 0.0001, yours 0.001; "
        "with sgd 30 times that).",
        rich_help_panel=_TRAINING,
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="The same seed gives the same numbers.", rich_help_panel=_MACHINE)
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="32|bf16-mixed",
        help="Of the network; the layer's solver computes in float32 always (default: bf16-mixed "
        "on a GPU, 32 elsewhere).",
        rich_help_panel=_MACHINE,
    ),
]
Devices = Annotated[int, typer.Option(help="GPUs, or processes, a machine.",
                                      rich_help_panel=_MACHINE)]  # fmt: skip
Nodes = Annotated[
    int,
    typer.Option(
        help="Machines: run the command on each, with MASTER_ADDR and NODE_RANK set.",
        rich_help_panel=_MACHINE,
    ),
]
Workers = Annotated[
    int, typer.Option(help="Processes that prepare images.", rich_help_panel=_MACHINE)
]
TensorBoard = Annotated[
    bool,
    typer.Option("--tensorboard", help="Logs for TensorBoard too.", rich_help_panel=_MACHINE),
]
