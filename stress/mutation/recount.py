"""Mutants that were once not caught, against the tests that are said to catch them now.

    python stress/mutation/recount.py --out benchmarks/results/mutation_survivors_cpu.json

``judged.md`` says of each survivor of a run which test has been written for it, or why it is
equivalent. Each one that is not is made again in the library of today, in a copy, by its line and
its change, and the test that is named runs against it; what fails has to pass without the mutant.
What is not found any more, because the line is another one now, is counted by itself. A count that
was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutants import Mutant, mutants  # noqa: E402
from tree import Tree, warm_up  # noqa: E402

FIRST = HERE.parents[1] / "benchmarks" / "results" / "mutation_cpu.json"
"""The run that they survived."""
NO_TESTS = 5
"""pytest's exit status where none was left to run."""
ROW = re.compile(r"^\| (\S+\.py) \| `(.+)` \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"^test (\w+/\w+)::(\w+)(?:\[(.+?)\])?")


def rows() -> list[dict[str, str]]:
    found = ROW.findall((HERE / "judged.md").read_text())
    return [dict(zip(("module", "text", "what", "verdict"), row, strict=True)) for row in found]


def again(tree: Tree, row: dict[str, str]) -> list[Mutant]:
    """The same change on the same line of today's source, wherever in the module it stands."""
    module = f"legato/{row['module']}"
    if not (tree.src / module).exists():
        return []
    source = (tree.src / module).read_bytes()
    lines = source.decode().splitlines()
    found = [
        m
        for m in mutants(module, source)
        if lines[m.line - 1].strip() == row["text"] and m.what == row["what"]
    ]
    if len(found) < 2:
        return found
    survivors = json.loads(FIRST.read_text())["survivors"]
    of_its_kind = (s for s in survivors if (s["module"], s["what"]) == (module, row["what"]))
    classes = {s["function"].partition(".")[0] for s in of_its_kind}
    return [m for m in found if m.function.partition(".")[0] in classes] or found


def runs(tree: Tree, verdict: str, cpu: float) -> tuple[int, str]:
    named = NAMED.match(verdict)
    assert named, verdict
    file, name, case = f"tests/{named[1]}.py", named[2], named[3]
    chosen = [f"{file}::{name}[{case}]"] if case else [file]
    report = tree.root.parent / f"{tree.root.name}.report"
    options = () if case else ("-k", name)
    return tree.run(chosen, report, cpu, "-x", *options), f"{file}::{name}"


def examine(tree: Tree, row: dict[str, str], cpu: float) -> dict[str, Any]:
    made = again(tree, row)
    result: dict[str, Any] = {**row, "made": len(made), "caught": 0}
    for mutant in made:
        source = (tree.src / mutant.module).read_bytes()
        fresh = b"numba" in source or b"line_function" in source
        changed = mutant.apply(source)
        with tree.broken(mutant.module, changed), tree.kernels(fresh):
            code, result["test"] = runs(tree, row["verdict"], cpu)
        result["caught"] += code > 0 and code != NO_TESTS
        result["out of time"] = result.get("out of time", 0) + (code < 0)
    return result


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path("/tmp/legato-recount"))
    parser.add_argument("--seconds", type=float, default=240.0, help="of processor time for a test")
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.nice(options.nice)
    tree = Tree(HERE.parents[1], options.tree)
    os.environ["NUMBA_CACHE_DIR"] = str(options.tree.with_suffix(".kernels"))
    warm_up()
    log = options.tree.with_suffix(".jsonl")
    known = {line["verdict"]: line for line in _lines(log)}
    results = []
    for row in rows():
        kind = row["verdict"].partition(" ")[0].rstrip(":")
        began, result = time.time(), {**row, "made": 0}
        if (
            kind == "test"
            and row["verdict"] in known
            and known[row["verdict"]]["text"] == row["text"]
        ):
            results.append(known[row["verdict"]])
            continue
        if kind == "test":
            result = examine(tree, row, options.seconds)
            sound = result["caught"] and runs(tree, row["verdict"], options.seconds)[0] == 0
            result["passes without it"] = bool(sound)
        results.append({**result, "kind": kind, "seconds": round(time.time() - began, 1)})
        with log.open("a") as out:
            out.write(json.dumps(results[-1], ensure_ascii=False) + "\n")
        print(json.dumps(results[-1], ensure_ascii=False), flush=True)
    tested = [r for r in results if r["kind"] == "test"]
    caught = [r for r in tested if 0 < r["made"] == r["caught"] and r["passes without it"]]
    content = {
        "commit": tree.commit,
        "survivors": len(results),
        "equivalent": Counter(r["kind"] for r in results)["equivalent"],
        "with_a_test": len(tested),
        "caught": len(caught),
        "out_of_time": sum(bool(r.get("out of time")) for r in tested),
        "line_is_another_one": sum(not r["made"] for r in tested),
        "left": Counter(r["kind"] for r in results)["left"],
        "results": results,
    }
    options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print({k: v for k, v in content.items() if k != "results"})


if __name__ == "__main__":
    main()
