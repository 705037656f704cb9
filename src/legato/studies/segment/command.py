"""``legato segment``: train, apply and compare segmentations with and without the global layer."""

from __future__ import annotations

import typer

from legato.studies.segment.commands.compare import compare
from legato.studies.segment.commands.download import download
from legato.studies.segment.commands.evaluate import evaluate
from legato.studies.segment.commands.iterations import iterations
from legato.studies.segment.commands.predict import predict
from legato.studies.segment.commands.table import table
from legato.studies.segment.commands.train import train

segment = typer.Typer(
    help="Segment images with a network and, after it, the paper's global layer.",
    epilog="A first tour, on scenes that legato draws itself: `legato segment train --quick`, "
    "then `legato segment train --quick --layer learned`, then `legato segment compare` of the "
    "two models that these wrote.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_MODEL = "out/segment/small-learned/model.safetensors"

for command, example in (
    (
        train,
        "Example, the network first and then the two together: `legato segment train --out "
        "out/cnn`, then `legato segment train --start out/cnn/model.safetensors --layer learned "
        "--out out/global`.",
    ),
    (evaluate, f"Example: `legato segment evaluate {_MODEL} --data iccv09Data.tar.gz`"),
    (predict, f"Example: `legato segment predict {_MODEL} *.jpg --out out/predicted`"),
    (
        compare,
        "Example: `legato segment compare out/cnn/model.safetensors out/global/model.safetensors`. "
        "A folder seed-N that `legato segment table` wrote is enough by itself: `legato segment "
        "compare out/segment/table/seed-0`.",
    ),
    (iterations, "Example, in a minute: `legato segment iterations --quick`"),
    (
        table,
        "Example: `legato segment table --quick`. Several processes can share the work: start each "
        "with its own --seeds and the same --out, then once with all seeds to collect.",
    ),
    (download, "Example: `legato segment download data`"),
):
    segment.command(epilog=example)(command)
