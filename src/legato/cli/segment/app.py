"""The group of commands."""

from __future__ import annotations

import typer

from legato.cli.segment.compare import compare
from legato.cli.segment.download import download
from legato.cli.segment.evaluate import evaluate
from legato.cli.segment.iterations import iterations
from legato.cli.segment.predict import predict
from legato.cli.segment.table import table
from legato.cli.segment.train import train

segment = typer.Typer(
    help="Segment images with a network and, after it, the paper's global layer.",
    epilog="A first tour, on scenes that legato draws itself: `legato segment train --quick`, "
    "then `legato segment train --quick --layer learned`, then `legato segment compare` of the "
    "two models that these wrote.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_MODEL = "out/segment/small-learned/model.safetensors"

segment.command(
    epilog="Example, the network first and then the two together: `legato segment train --out "
    "out/cnn`, then `legato segment train --start out/cnn/model.safetensors --layer learned --out "
    "out/global`."
)(train)
segment.command(epilog=f"Example: `legato segment evaluate {_MODEL} --data iccv09Data.tar.gz`")(
    evaluate
)
segment.command(epilog=f"Example: `legato segment predict {_MODEL} *.jpg --out out/predicted`")(
    predict
)
segment.command(
    epilog="Example: `legato segment compare out/cnn/model.safetensors "
    "out/global/model.safetensors`. A folder seed-N that `legato segment table` wrote is enough "
    "by itself: `legato segment compare out/segment/table/seed-0`."
)(compare)
segment.command(epilog="Example, in a minute: `legato segment iterations --quick`")(iterations)
segment.command(
    epilog="Example: `legato segment table --quick`. Several processes can share the work: start "
    "each with its own --seeds and the same --out, then once with all seeds to collect."
)(table)
segment.command(epilog="Example: `legato segment download data`")(download)
