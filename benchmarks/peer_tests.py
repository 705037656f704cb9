"""How many of the peers' own tests can be written with legato's names, and how many of them pass.

    python benchmarks/peer_tests.py

``tests/peers/cases.toml`` names every test function of the peers with its number of cases, and
beside it our test of the same problem, or why there is none. This runs ``tests/peers`` once and
counts: a case is written if it names a test, and passes if all of that test does. Cases that have
no meaning here, marked n/a, are left out of the share. Quadratic programs of qpth, JAXopt and
cvxpylayers are in ``tests/nn/programs/test_as_peers_do.py`` and not counted here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from record import record

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "peers" / "cases.toml"


def outcomes() -> dict[str, str]:
    """What became of each test of the folder, by file and name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        plugin = Path(folder) / "outcomes_of_tests.py"
        plugin.write_text(
            "import json, os\n"
            "found = {}\n"
            "def pytest_runtest_logreport(report):\n"
            "    worse = report.failed or report.nodeid not in found\n"
            "    if report.when == 'call' or report.failed:\n"
            "        found[report.nodeid] = report.outcome if worse else found[report.nodeid]\n"
            "def pytest_sessionfinish():\n"
            "    with open(os.environ['OUTCOMES'], 'w') as file:\n"
            "        json.dump(found, file)\n"
        )
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "outcomes_of_tests",
                "tests/peers",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OUTCOMES": str(report)},
            check=False,
        )  # fmt: skip
        found: dict[str, str] = json.loads(report.read_text())
    return {name.removeprefix("tests/peers/"): outcome for name, outcome in found.items()}


def counted(cases: dict[str, list[Any]], results: dict[str, str]) -> dict[str, Any]:
    """The numbers of a peer, and the reasons for what is missing."""
    numbers: Counter[str] = Counter()
    missing: dict[str, int] = {}
    for name, (count, where) in cases.items():
        numbers["cases"] += count
        if where.startswith("-n/a"):
            numbers["not applicable"] += count
            continue
        if where.startswith("- "):
            missing[f"{name}: {where[2:]}"] = count
            continue
        ours = [outcome for test, outcome in results.items() if test.startswith(where)]
        if not ours:
            raise SystemExit(f"{name} names {where}, which is no test of ours.")
        numbers["written"] += count
        numbers["passed"] += count * all(outcome == "passed" for outcome in ours)
    applicable = numbers["cases"] - numbers["not applicable"]
    return {
        **{k: numbers[k] for k in ("cases", "not applicable", "written", "passed")},
        "share": round(numbers["passed"] / applicable, 3),
        "not written": missing,
    }


def main() -> None:
    table = tomllib.loads(CASES.read_text())
    results = outcomes()
    peers = {
        name: {"release": peer["release"], **counted(peer["cases"], results)}
        for name, peer in table.items()
    }
    keys = ("cases", "not applicable", "written", "passed")
    total: dict[str, Any] = {key: sum(peer[key] for peer in peers.values()) for key in keys}
    total["share"] = round(total["passed"] / (total["cases"] - total["not applicable"]), 3)
    path = ROOT / "benchmarks" / "results" / "peer_tests.json"
    record(path, {"own tests": len(results), "all": total, "peers": peers})


if __name__ == "__main__":
    main()
