"""The referee on layers of other libraries, and on legato's own.

    python benchmarks/referee.py
    python benchmarks/referee.py --python PATH     # an interpreter that has all of them

Each layer is judged alone, in a process of the library's own pinned environment (``peers/``), on
one thread, by the same call: the layer as its documentation shows it, small random inputs in
float64. A library that cannot be installed is recorded with the reason. Writes
benchmarks/results/referee_cpu.json, from which docs/referee.md takes its table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "referee_cpu.json"
SECONDS = 600


class Layer(NamedTuple):
    """Whose layer, what it is in words, and what makes the arguments of the check."""

    library: str
    what: str
    make: Callable[[], tuple[Any, Any, dict[str, Any]]]


def numbers(*shape: int, seed: int = 0) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sparsemax_of_entmax() -> tuple[Any, Any, dict[str, Any]]:
    from entmax import sparsemax

    return sparsemax, numbers(4, 6), {"batch": True}


def entmax15_exact() -> tuple[Any, Any, dict[str, Any]]:
    from entmax import entmax15

    return entmax15, numbers(4, 6), {"batch": True}


def entmax_bisected() -> tuple[Any, Any, dict[str, Any]]:
    import torch
    from entmax import entmax_bisect

    return entmax_bisect, (numbers(4, 6), torch.tensor(1.3).double()), {"batch": True}


def sparsemax_alone() -> tuple[Any, Any, dict[str, Any]]:
    from sparsemax import Sparsemax

    return Sparsemax(dim=-1), numbers(4, 6), {"batch": True}


def quadratic_program() -> tuple[Any, Any, dict[str, Any]]:
    import torch
    from qpth.qp import QPFunction

    G = torch.cat([torch.eye(4), -torch.eye(4)]).double()
    none = torch.empty(0).double()

    def layer(Q: Any, p: Any) -> Any:
        h = torch.ones(8).double()
        return QPFunction(verbose=-1)(
            Q @ Q.mT + torch.eye(4).to(Q), p, G.to(Q), h.to(Q), none, none
        )

    return layer, (numbers(3, 4, 4), 3 * numbers(3, 4, seed=1)), {"batch": True}


def cone_program(**settings: Any) -> tuple[Any, Any, dict[str, Any]]:
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer

    x, b = cp.Variable(5), cp.Parameter(5)
    program = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - b)), [x >= 0, cp.sum(x) == 1])
    layer = CvxpyLayer(program, parameters=[b], variables=[x])
    return lambda b: layer(b, solver_args=settings)[0], numbers(3, 5), {"batch": True}


def total_variation_of_deepinv() -> tuple[Any, Any, dict[str, Any]]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    import without_torchvision  # noqa: F401
    from deepinv.models import TVDenoiser

    return TVDenoiser(n_it_max=200, ths=0.3), numbers(2, 1, 5, 6), {"batch": True}


def fresh_total_variation_of_deepinv() -> tuple[Any, Any, dict[str, Any]]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    import without_torchvision  # noqa: F401
    from deepinv.models import TVDenoiser

    def layer(y: Any) -> Any:
        return TVDenoiser(n_it_max=200, crit=0.0, ths=0.3)(y)

    return layer, numbers(2, 1, 5, 6), {"batch": True}


def total_variation() -> tuple[Any, Any, dict[str, Any]]:
    import torch

    import legato as lg

    layer, weight = lg.nn.TotalVariation(), torch.tensor(0.3).double()
    return layer, (numbers(2, 1, 5, 6), weight), {"batch": True}


def potts() -> tuple[Any, Any, dict[str, Any]]:
    import legato as lg

    return lg.nn.Potts(30), (numbers(2, 3, 4, 5), numbers(2, 3, 2, 4, 5).abs()), {"batch": True}


def potts_with_steps() -> tuple[Any, Any, dict[str, Any]]:
    import legato as lg

    layer = lg.nn.Potts(30, tau=0.1, sigma=0.1)
    return layer, (numbers(2, 3, 4, 5), numbers(2, 3, 2, 4, 5).abs()), {"batch": True}


def running_logsumexp() -> tuple[Any, Any, dict[str, Any]]:
    import torch

    return lambda x: torch.logcumsumexp(x, -1), numbers(4, 6), {"batch": True}


def attention() -> tuple[Any, Any, dict[str, Any]]:
    from torch.nn import functional

    inputs = [numbers(2, 2, 3, 4, seed=k) for k in range(3)]
    return functional.scaled_dot_product_attention, inputs, {"batch": True}


LAYERS = {
    "entmax-sparsemax": Layer("entmax", "sparsemax", sparsemax_of_entmax),
    "entmax-entmax15": Layer("entmax", "entmax15", entmax15_exact),
    "entmax-bisect": Layer("entmax", "entmax_bisect, α = 1.3", entmax_bisected),
    "sparsemax": Layer("sparsemax", "Sparsemax", sparsemax_alone),
    "qpth": Layer("qpth", "QPFunction, a box", quadratic_program),
    "cvxpylayers": Layer("cvxpylayers", "CvxpyLayer, simplex", cone_program),
    "cvxpylayers-eps": Layer(
        "cvxpylayers", "CvxpyLayer, simplex, eps = 1e-10", lambda: cone_program(eps=1e-10)
    ),
    "deepinv-tv": Layer("deepinv", "TVDenoiser, one object", total_variation_of_deepinv),
    "deepinv-tv-fresh": Layer(
        "deepinv", "TVDenoiser, a new one each call", fresh_total_variation_of_deepinv
    ),
    "torch-logcumsumexp": Layer("torch", "logcumsumexp", running_logsumexp),
    "torch-attention": Layer("torch", "scaled_dot_product_attention", attention),
    "legato-tv": Layer("legato", "TotalVariation", total_variation),
    "legato-potts": Layer("legato", "Potts(30)", potts),
    "legato-potts-steps": Layer("legato", "Potts(30, tau=, sigma=)", potts_with_steps),
}


def judge(name: str) -> dict[str, Any]:
    """In the process that has the library."""
    import torch

    from legato.testing import check_layer

    torch.set_num_threads(1)
    layer = LAYERS[name]
    function, inputs, options = layer.make()
    start = time.perf_counter()
    report = check_layer(function, inputs, **options)
    version = torch.__version__ if layer.library == "torch" else _version(layer.library)
    return {
        "version": version.partition("+")[0],
        "state": report.state,
        "verdicts": [
            {"law": v.law, "state": v.state, "words": v.words, "value": v.value} for v in report
        ],
        "notes": list(report.notes),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _version(library: str) -> str:
    if library == "legato":
        import legato

        return legato.__version__
    return importlib.metadata.version(library)


def in_its_environment(name: str, python: str | None) -> dict[str, Any]:
    """The verdict of a process of its own, or why there is none."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    import environments

    library = LAYERS[name].library
    if library in ("legato", "torch"):
        python = sys.executable
    try:
        raced = library in environments.libraries()
        wanted = library if raced else f"referee/{library}"
        interpreter = python or str(environments.python_of(wanted))
    except environments.NotInstalledError as error:
        return {"state": "not installed", "words": str(error)}
    settings = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [interpreter, __file__, "--layer", name],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=settings,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"state": "not installed", "words": f"more than {SECONDS} s"}
    if done.returncode:
        return {"state": "not installed", "words": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="use this interpreter for all libraries")
    parser.add_argument("--layer", choices=LAYERS, help="judge one here, and print it as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.layer:
        print(json.dumps(judge(chosen.layer)))
        return
    from record import record

    rows = {}
    for name, layer in LAYERS.items():
        found = in_its_environment(name, chosen.python)
        rows[name] = {"library": layer.library, "layer": layer.what} | found
        print(f"{name:<22}{found['state']:<14}{found.get('words', '')}", flush=True)
    record(chosen.out, {"threads": 1, "rows": rows})


if __name__ == "__main__":
    main()
