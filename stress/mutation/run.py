"""Break the library one line at a time and see whether the tests notice.

    python stress/mutation/run.py --mutants 200 --seed 0 --out benchmarks/results/mutation_cpu.json

Everything happens in a copy of the repository (``--tree``, a folder under /tmp by default). First a
map is made: which tests call which function, and how long they take. Then every mutant is written
into the copy and the cheapest tests that call the broken function are run, in a process forked from
one that has torch and pytest loaded; then more of them. What survives meets a broader set at the
end. Progress is kept beside the copy, so that an interrupted run goes on where it was. ``--again``
copies the tests anew and examines the survivors once more, for after tests have been added; delete
the copy and what is beside it to begin with another state of the library. ``--chunk 20`` stops
after 20 mutants. Choose the tests with ``--tests``.

A mutant is caught if a test fails or if tests use far more processor time than they should.

``--reuse FILE`` takes over from an earlier result which mutants a test caught, where neither the
broken module nor that test's file has changed by a byte; all others are judged again. Each verdict
says at which commit it was made. What had tests written for it is no fair sample any more: another
``--seed`` is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutants import Mutant, draw  # noqa: E402
from tree import Tree, warm_up  # noqa: E402

FOLDERS = ("tests/laws", "tests/unit", "tests/testing", "tests/optim", "tests/bilevel",
           "tests/sklearn_estimators", "tests/diagnostics", "tests/nn", "tests/truth")  # fmt: skip
LONGEST_FILE = 90.0
"""Seconds of processor time for one test file while the map is made."""

NO_TESTS = 5
"""pytest's exit status where none was left to run."""

FEW = 10
"""A module with fewer tests gets those of its folder."""


class Map:
    """Which tests call a function, from the cheapest on, no two of one file in a row."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.seconds = {e["test"]: float(e["seconds"]) for e in entries}
        self.of_function: dict[str, list[str]] = defaultdict(list)
        self.of_module: dict[str, list[str]] = defaultdict(list)
        self.of_folder: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            for called in entry["called"]:
                module, _, name = called.partition("::")
                self.of_function[f"{module}::{name.replace('.<locals>', '')}"].append(entry["test"])
                if name != "<module>":
                    self.of_module[module].append(entry["test"])
                    self.of_folder[module.rpartition("/")[0]].append(entry["test"])

    def tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Those that call the function, and the others that call its module."""
        precise = set(self.of_function.get(f"{mutant.module}::{mutant.function}", ()))
        near = set(self.of_module.get(mutant.module, ()))
        if len(near) < FEW:  # kernels are compiled, so that calls of them are not seen
            near |= set(self.of_folder[mutant.module.rpartition("/")[0]])
        if "<" in mutant.function or not precise:  # what runs on import
            precise, near = near, set()
        return self._spread(precise), self._spread(near - precise)

    def _spread(self, tests: set[str]) -> list[str]:
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda t: self.seconds[t]):
            by_file[test.partition("::")[0]].append(test)
        ranked = [(k, self.seconds[t], t) for f in by_file.values() for k, t in enumerate(f)]
        return [t for _, _, t in sorted(ranked)]

    def within(self, tests: list[str], seconds: float) -> list[str]:
        chosen, total = [], 0.0
        for test in tests:
            if total + self.seconds[test] <= seconds:
                chosen.append(test)
                total += self.seconds[test]
        return chosen or tests[:1]

    def cost(self, tests: list[str]) -> float:
        return sum(self.seconds[t] for t in tests)


def build_map(tree: Tree, files: list[str], folder: Path) -> Map:
    """Every test file once, traced; what has been run in its present state is not run again."""
    folder.mkdir(exist_ok=True)
    entries = []
    for file in files:
        log = folder / (file.replace("/", "-") + ".jsonl")
        if not log.exists() or log.stat().st_mtime < (tree.root / file).stat().st_ctime:
            began, part = time.time(), folder / "part"
            code = tree.run([file], part, LONGEST_FILE, trace=True)
            part.touch()
            part.rename(log)
            print(f"{file}: {time.time() - began:.0f} s, code {code}", flush=True)
        lines = _lines(log)
        unfit = {line["failed"] for line in lines if "failed" in line}  # they would fail anyway
        entries += [line for line in lines if "test" in line and line["test"] not in unfit]
    return Map(entries)


def examine(tree: Tree, mutant: Mutant, tests: list[str], cost: float) -> dict[str, Any]:
    """Run tests against one mutant: what caught it, if anything."""
    if not tests:
        return {"caught": None, "tests": 0}
    report = tree.root.parent / f"{tree.root.name}.report"
    source = (tree.src / mutant.module).read_bytes()
    # A cached kernel does not see that what it calls has changed.
    fresh = b"numba" in source or b"line_function" in source
    with tree.broken(mutant.module, mutant.apply(source)), tree.kernels(fresh):
        code = tree.run(tests, report, 3 * cost + (60 if fresh else 25), "-x")
    failed = next((line["failed"] for line in _lines(report) if "failed" in line), None)
    if code in (0, NO_TESTS):
        return {"caught": None, "tests": len(tests)}
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"caught": failed or "time", "tests": len(tests)}
    return {"caught": failed or f"exit {code}", "tests": len(tests)}


def judge(tree: Tree, chart: Map, mutant: Mutant, budgets: tuple[float, ...]) -> dict[str, Any]:
    """Rounds of more and more tests until one notices."""
    began, precise_near = time.time(), chart.tests(mutant)
    seen: set[str] = set()
    result: dict[str, Any] = {"caught": None, "tests": 0}
    for budget in budgets:
        chosen = chart.within(precise_near[0], budget)
        chosen += chart.within(precise_near[1], budget - chart.cost(chosen))
        new = [test for test in chosen if test not in seen]
        seen.update(new)
        if not new:
            continue
        result = examine(tree, mutant, new, chart.cost(new))
        if result["caught"]:
            break
    return {
        **mutant.as_dict(),
        **result,
        "tests": len(seen),
        "seconds": round(time.time() - began, 1),
        "digests": digests(tree, mutant.module, result["caught"]),
    }


# --- verdicts of earlier states -------------------------------------------------------------------


def digests(tree: Tree, module: str, caught: str | None) -> list[str] | None:
    """What a verdict rests on, the module and the file of the test that caught, if one did."""
    file, found, _ = (caught or "").partition("::")
    paths = (tree.src / module, tree.root / file)
    if not found or not all(path.is_file() for path in paths):
        return None
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def holding(tree: Tree, results: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The verdicts on what tests caught, by place, that rest on nothing that has changed."""
    return {
        (r["module"], r["start"], r["end"], r["text"]): r
        for r in results
        if r.get("digests") and r["digests"] == digests(tree, r["module"], r["caught"])
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def summarise(results: list[dict[str, Any]], commit: str) -> dict[str, Any]:
    caught, total = Counter(), Counter()  # type: ignore[var-annotated]
    for r in results:
        package = r["module"].split("/")[1].removesuffix(".py")
        total[package] += 1
        caught[package] += bool(r["caught"])
    return {
        "commit": commit,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "mutants": len(results),
        "caught": sum(caught.values()),
        "caught_at_other_commits": sum(r["commit"] != commit for r in results),
        "share": round(sum(caught.values()) / max(len(results), 1), 4),
        "by_package": {p: [caught[p], total[p]] for p in sorted(total)},
        "survivors": [r for r in results if not r["caught"]],
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests for a survivor")
    parser.add_argument("--chunk", type=int, default=10**9, help="mutants in this call")
    parser.add_argument("--tests", nargs="*", default=list(FOLDERS))
    parser.add_argument("--tree", type=Path, default=None)
    parser.add_argument("--again", action="store_true", help="examine the survivors once more")
    parser.add_argument("--reuse", type=Path, default=None, help="an earlier result")
    parser.add_argument("--nice", type=int, default=10, help="how much others go first")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    os.nice(options.nice)
    repository = HERE.parents[1]
    where = options.tree or Path(f"/tmp/legato-mutation-{options.seed}")
    tree = Tree(repository, where)
    if options.again:
        tree.renew("tests")
    os.environ["NUMBA_CACHE_DIR"] = str(where.with_suffix(".kernels"))
    warm_up()
    chart = build_map(tree, tree.test_files(options.tests), where.with_suffix(".map"))
    log = where.with_suffix(".results")
    known = {r["name"]: r for r in _lines(log)}
    if options.again:
        known = {r["name"]: r for r in holding(tree, list(known.values())).values()}
    drawn = draw(tree.src, options.mutants, options.seed)
    if options.reuse:
        earlier = holding(tree, json.loads(options.reuse.read_text())["results"])
        known = {m.name: earlier[m.place] for m in drawn if m.place in earlier} | known
        print(f"{sum(m.place in earlier for m in drawn)} verdicts of {options.reuse} still hold")
    left = options.chunk
    for final in (False, True):  # the broader set for survivors comes last
        budgets = (options.seconds,) if final else (4.0, 0.4 * options.seconds)
        for number, mutant in enumerate(drawn, 1):
            old = known.get(mutant.name)
            survived = old is not None and not old["caught"] and not old["final"]
            if left <= 0 or not (survived if final else old is None):
                continue
            left -= 1
            result = judge(tree, chart, mutant, budgets)
            verdict = {"name": mutant.name, "final": final, "commit": tree.commit}
            known[mutant.name] = {**result, **verdict}
            with log.open("a") as out:
                out.write(json.dumps(known[mutant.name], ensure_ascii=False) + "\n")
            print(
                f"{number:4d} {mutant.name}: {result['caught'] or 'SURVIVED'} "
                f"({result['tests']} tests, {result['seconds']} s)",
                flush=True,
            )
    results = [known[m.name] for m in drawn if m.name in known]
    summary = summarise(results, tree.commit)
    print(f"{summary['caught']} of {summary['mutants']} caught; {summary['by_package']}")
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
