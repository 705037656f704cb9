"""All tests that need a GPU, several processes at once, and what came of them as a record.

    PYTHONPATH=src python3 benchmarks/gpu_suite.py benchmarks/results/gpu_suite_h200.json
    PYTHONPATH=src python3 benchmarks/gpu_suite.py out/part.json --files tests/gpu

Nearly all of their time goes into compiling kernels, so processes that share the GPU do not wait
for each other.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import torch
from harness import record

ROOT = Path(__file__).parents[1]
FILES = (
    "tests/gpu",
    "tests/nn/test_potts_kernels.py",
    "tests/nn/test_total_variation_kernels.py",
    "tests/nn/programs/test_kernels.py",
)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore")


def collect(files: Sequence[str]) -> list[str]:
    """The names of all tests that touch the GPU."""
    listed = subprocess.run(
        [*PYTEST, "--collect-only", *files, "-k", "triton or cuda"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    if not names:
        sys.exit(f"No tests were found:\n{listed.stdout}{listed.stderr}")
    return names


def run(names: list[str], folder: Path, number: int) -> Path:
    """One process with its share of the tests."""
    listing, report = folder / f"{number}.txt", folder / f"{number}.xml"
    listing.write_text("\n".join(names))
    done = subprocess.run(
        [*PYTEST, f"@{listing}", f"--junitxml={report}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print("\n".join(done.stdout.splitlines()[-12:]), flush=True)
    return report


def outcomes(report: Path) -> list[tuple[str, str, str]]:
    """(file, outcome, name) of every test in a report; one that was cut off has no report."""
    if not report.exists():
        return [("", "error", f"{report.stem}: ended without a report")]
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        file = case.get("classname", "").replace(".", "/")
        found.append((file, kinds[0] if kinds else "passed", case.get("name", "")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--files", nargs="+", default=FILES, help="a part of them")
    parser.add_argument("--processes", type=int, default=12)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    begin = time.perf_counter()
    names = collect(given.files)
    # Neighbours share kernels: blocks compile less often than every twelfth test would.
    names.sort(key=lambda name: re.sub(r".*::", "", name))
    size = -(-len(names) // given.processes)
    shares = [names[i : i + size] for i in range(0, len(names), size)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(shares)) as pool:
        reports = pool.map(lambda i: run(shares[i], Path(folder), i), range(len(shares)))
        found = [outcome for report in reports for outcome in outcomes(report)]
    files = sorted({file for file, _, _ in found})
    table = {file: dict(Counter(o for f, o, _ in found if f == file)) for file in files}
    failed = [f"{file}::{name}" for file, outcome, name in found if outcome in ("failure", "error")]
    record(
        given.out,
        {
            "seconds": round(time.perf_counter() - begin, 1),
            "tests": len(names),
            "outcomes": dict(Counter(outcome for _, outcome, _ in found)),
            "files": table,
            "failed": failed,
        },
        "cuda",
    )
    print(table, *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
