"""All long runs on record, added up: benchmarks/results/stress_totals.json.

    python stress/totals.py

Runs of different states of the library are counted together; each file says which state it is of.
What is open is what the corpus calls so.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from legato._support.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FILES = ("stress_cpu", "oracle_h200", "oracle_defaults_h200", "stress_16_cores", "oracle_cpu",
         "oracle_balance_cpu", "oracle_recount_cpu", "oracle_landed_cpu", "oracle_fresh_cpu",
         "oracle_repaired_cpu", "stress_parts_cpu", "metamorphic_cpu")  # fmt: skip
ADDED = ("problems_against_the_oracle", "undecided_by_the_oracle", "well_posed_problems",
         "false_alarms", "gradients", "comparisons", "refusals", "gradients_with_a_warning",
         "metamorphic_checks", "extreme_inputs", "kills", "repeated_solves_cpu",
         "solves_in_threads", "findings", "findings_of_earlier_states")  # fmt: skip


def totals() -> dict[str, Any]:
    counts: Counter[str] = Counter()
    by_file = {}
    for name in FILES:
        summary = json.loads((RESULTS / f"{name}.json").read_text())["summary"]
        counts.update({key: summary.get(key, 0) for key in ADDED})
        by_file[name] = {key: summary.get(key, 0) for key in ("problems_against_the_oracle",
                                                             "findings")}  # fmt: skip
    cases = sorted((ROOT / "tests" / "corpus" / "cases").glob("*.json"))
    contents = {path.stem: json.loads(path.read_text()) for path in cases}
    return {
        "summary": dict(counts),
        "files": by_file,
        "open_cases": sum("open" in case for case in contents.values()),
        "open": {name: case["open"] for name, case in contents.items() if "open" in case},
    }


if __name__ == "__main__":
    write_text(RESULTS / "stress_totals.json", json.dumps(totals(), indent=1) + "\n")
    sys.exit(0)
