"""The referee against layers with one seeded fault each, and against clean ones: what it says.

    python benchmarks/seeded_layers.py benchmarks/results/seeded_layers_cpu.json

The layers were written by somebody who had not seen the referee (tests/testing/seeded). A fault is
found if a law says "wrong"; a false alarm is a clean layer of which a law says so.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from record import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from legato.testing import check_layer
from testing.seeded.clean import CLEAN
from testing.seeded.faults import FAULTS


def verdict(case: Any) -> dict[str, Any]:
    """What the referee says of one layer, told what its user knows: whether there is a batch."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = bool(case.batch) and not case.coupled
        report = check_layer(case.layer, case.inputs(), batch=batch)
    wrong = {v.law: v.words for v in report.verdicts if v.state == "wrong"}
    return {
        "name": case.name,
        "kind": case.kind,
        "state": report.state,
        "wrong": wrong,
        "seconds": round(time.perf_counter() - begun, 2),
    }


def main() -> None:
    torch.set_num_threads(1)
    faults, clean = [verdict(c) for c in FAULTS], [verdict(c) for c in CLEAN]
    content = {
        "faults": len(faults),
        "faults_found": sum(f["state"] == "wrong" for f in faults),
        "clean_layers": len(clean),
        "kinds_of_clean_layers": len({c["kind"] for c in clean}),
        "false_alarms": sum(c["state"] == "wrong" for c in clean),
        "clean_layers_not_decided": sum(c["state"] == "not decided" for c in clean),
        "missed": [f for f in faults if f["state"] != "wrong"],
        "false": [c for c in clean if c["state"] == "wrong"],
        "all_faults": faults,
    }
    numbers = {k: v for k, v in content.items() if isinstance(v, int)}
    print("\n".join(f"{name.replace('_', ' '):<28} {n}" for name, n in numbers.items()))
    for one in (*content["missed"], *content["false"]):  # type: ignore[misc]
        print(f"  {one['name']}: {one['state']}; {one['wrong']}")
    record(Path(sys.argv[1]), content)


if __name__ == "__main__":
    main()
