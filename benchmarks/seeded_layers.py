"""The referee against layers with one seeded fault each, and against clean ones: what it says.

    python benchmarks/seeded_layers.py benchmarks/results/seeded_layers_cpu.json --jobs 2

The layers were written by somebody who had not seen the referee (tests/testing/seeded). A fault is
found if a law says "wrong". Where a law says so of a clean layer, it is a false alarm, unless the
layer has a flaw that its author had not seen: each of these is shown without the referee, by
tests/testing/seeded/flaws.py, on the machine that runs this.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from record import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from legato.testing import check_layer
from testing.seeded.clean import CLEAN
from testing.seeded.faults import FAULTS
from testing.seeded.flaws import FLAWS

CASES = (*FAULTS, *CLEAN)


def verdict(number: int) -> dict[str, Any]:
    """What the referee says of one layer, told what its user knows: whether there is a batch."""
    torch.set_num_threads(1)
    case = CASES[number]
    begun = time.perf_counter()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = bool(case.batch) and not case.coupled
        report = check_layer(case.layer, case.inputs(), batch=batch)
        seconds = round(time.perf_counter() - begun, 2)
        shown = case.name in FLAWS and FLAWS[case.name](case)
    wrong = {v.law: v.words for v in report.verdicts if v.state == "wrong"}
    return {
        "name": case.name,
        "kind": case.kind,
        "state": report.state,
        "wrong": wrong,
        "flaw": (FLAWS[case.name].__doc__ or "").split("\n")[0] if shown else "",
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        verdicts = list(pool.map(verdict, range(len(CASES))))
    faults, clean = verdicts[: len(FAULTS)], verdicts[len(FAULTS) :]
    alarms = [c for c in clean if c["state"] == "wrong"]
    content = {
        "faults": len(faults),
        "faults_found": sum(f["state"] == "wrong" for f in faults),
        "clean_layers": len(clean),
        "kinds_of_clean_layers": len({c["kind"] for c in clean}),
        "clean_layers_called_wrong": len(alarms),
        "of_these_shown_to_be_wrong_without_the_referee": sum(bool(c["flaw"]) for c in alarms),
        "false_alarms": sum(not c["flaw"] for c in alarms),
        "clean_layers_not_decided": sum(c["state"] == "not decided" for c in clean),
        "missed": [f for f in faults if f["state"] != "wrong"],
        "called_wrong": alarms,
        "not_decided": [c["name"] for c in clean if c["state"] == "not decided"],
        "all_faults": faults,
    }
    numbers = {k: v for k, v in content.items() if isinstance(v, int)}
    print("\n".join(f"{name.replace('_', ' '):<48} {n}" for name, n in numbers.items()))
    for one in (*content["missed"], *alarms):  # type: ignore[misc]
        print(f"  {one['name']}: {one['state']}; {one['wrong']}; {one['flaw']}")
    record(options.out, content)


if __name__ == "__main__":
    main()
