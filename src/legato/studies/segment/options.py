"""Options that several commands share, each described once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from legato.console.options import MACHINE

_data = partial(typer.Option, rich_help_panel="Data")
_model = partial(typer.Option, rich_help_panel="Model")
_training = partial(typer.Option, rich_help_panel="Training")
_machine = partial(typer.Option, rich_help_panel=MACHINE)

ModelFile = Annotated[Path, typer.Argument(help="A model.safetensors of `legato segment train`.")]

_STANFORD = "Stanford Background: its archive or folder. Without any data, legato draws scenes."
_MASKS = "… and masks of the same names: grey PNGs with labels 0, 1, …, 255 where unknown."
_SPLIT = "A split.json with the images to train and to test on; drawn 80 : 20 otherwise."
Data = Annotated[Path | None, _data(metavar="PATH", help=_STANFORD)]
Images = Annotated[Path | None, _data(metavar="DIR", help="Your own images …")]
Masks = Annotated[Path | None, _data(metavar="DIR", help=_MASKS)]
Classes = Annotated[
    str, _data(metavar="surfaces|regions", help="Stanford's 3 geometric or 8 semantic classes.")
]
KnownClasses = Annotated[
    str | None,
    _data(
        "--classes",
        metavar="surfaces|regions",
        help="Stanford's 3 geometric or 8 semantic classes (default: those of the model).",
    ),
]
Names = Annotated[str | None, _data(metavar="A,B,…", help="Names of the classes in your masks.")]
SplitFile = Annotated[Path | None, _data("--split", metavar="FILE", help=_SPLIT)]

_NETWORK = (
    "The paper's small network, VGG-32s (VGG-16 with a small head at stride 32), or yours: "
    "factory(number of classes) returns a module that maps images to logits of their size."
)
_VGG = (
    "Where vgg32 gets VGG-16's convolutions: a safetensors file, torchvision's download (the "
    "default), or nowhere."
)
_LAYER = (
    "The global layer: none, or one whose weights are one number, follow the image's contrast, or "
    "are learned from the network's features."
)
_ITERATIONS = "Iterations of the layer's solver (default: 100; with --quick 30)."
Network = Annotated[str, _model(metavar="small|vgg32|FILE.py:factory", help=_NETWORK)]
OwnNetwork = Annotated[
    str | None,
    _model("--network", metavar="FILE.py:factory", help="Where the model's network is your own."),
]
VggWeights = Annotated[
    str | None, _model("--weights", metavar="FILE|torchvision|random", help=_VGG)
]
Layer = Annotated[str, _model(metavar="none|uniform|contrast|learned", help=_LAYER)]
Neighbours = Annotated[int | None, _model(metavar="4|8", help="Pixels a pixel is compared with.")]
Iterations = Annotated[int | None, _model(min=1, help=_ITERATIONS)]
Average = Annotated[
    bool, _model("--average", help="Return the mean of all iterates, as the paper does.")
]
Start = Annotated[
    Path | None, _model(metavar="MODEL", help="Start from the network in this model.safetensors.")
]

_RATE = (
    "Learning rate of the network (default: small 0.003, vgg32 0.0001, yours 0.001; with sgd 30 "
    "times that)."
)
Loss = Annotated[
    str, _training(metavar="log|paper", help="−log u, or the paper's softmax loss on u.")
]
Optimiser = Annotated[str, _training(metavar="adam|sgd")]
Epochs = Annotated[
    int | None, _training(help="Passes over the images (default: small 30, others 20).")
]
BatchSize = Annotated[int, _training("--batch", help="Images a step and process.")]
Rate = Annotated[float | None, _training("--lr", help=_RATE)]

_PRECISION = (
    "Of the network; the layer's solver computes in float32 always (default: bf16-mixed on a GPU, "
    "32 elsewhere)."
)
_NODES = "Machines: run the command on each, with MASTER_ADDR and NODE_RANK set."
Seed = Annotated[int, _machine(min=0, help="The same seed gives the same numbers.")]
Precision = Annotated[str | None, _machine(metavar="32|bf16-mixed", help=_PRECISION)]
Devices = Annotated[int, _machine(help="GPUs, or processes, a machine.")]
Nodes = Annotated[int, _machine(help=_NODES)]
Workers = Annotated[int, _machine(help="Processes that prepare images.")]
TensorBoard = Annotated[bool, _machine("--tensorboard", help="Logs for TensorBoard too.")]
