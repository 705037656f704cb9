"""Run every program of docs/coming_from.md, and compare what both columns find.

    python benchmarks/peers/coming_from.py

Other libraries' programs run in their own pinned environments (``environments.py``), on one thread,
with limits on time and memory; legato's run here, one after another, as the test suite does. Writes
benchmarks/results/coming_from_cpu.json, from which the page takes what it says; the tests compare
the page's programs and legato's numbers with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import environments
import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from record import record  # noqa: E402

PAGE = ROOT / "docs" / "coming_from.md"
RESULTS = ROOT / "benchmarks" / "results" / "coming_from_cpu.json"
SECONDS = 120
TOLERANCE = 1e-5
"""By this much, relative to its norm, a solution or gradient may differ between the columns."""
FENCE = re.compile(
    r"^## (?P<section>[^\n]+)$"
    r"|^(?:\*\*(?P<who>[^\n]+)\*\*\n)?"
    r"```(?P<kind>python|\{code-block\} python)\n(?P<code>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


class Program(NamedTuple):
    """A program of the page: under which heading, whose, and whether it runs in this process."""

    section: str
    who: str
    code: str
    here: bool


class Read(NamedTuple):
    """Which expressions are solution and gradient, after the other program and after legato's."""

    library: str | None
    theirs: tuple[str, str]
    ours: tuple[str, str]


class Found(NamedTuple):
    solution: np.ndarray
    gradient: np.ndarray


SECTIONS = {
    "JAXopt": Read("jaxopt", ("w", "gradient"), ("solution.x", "l1reg.grad")),
    "cvxpylayers": Read("cvxpylayers", ("value", "target.grad"), ("solution.x", "target.grad")),
    "deepinv": Read("deepinv", ("x", "weight.grad"), ("u", "weight.grad")),
    "torchdeq": Read("torchdeq", ("z[0]", "weight.grad"), ("solution.x", "weight.grad")),
    "A loop written by hand": Read(None, ("x", "weight.grad"), ("solution.x", "weight.grad")),
}
WITHOUT_MODE = (', "mode": "lsmr"', "")
"""What turns the program of cvxpylayers into its default way to differentiate."""


def programs() -> list[Program]:
    """The page's programs in their order; those before the first heading belong to nobody."""
    found, section = [], ""
    for part in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        if part["section"]:
            section = part["section"]
        else:
            found.append(
                Program(section, part["who"] or "", part["code"], part["kind"] == "python")
            )
    return found


def fingerprint() -> str:
    """Changes with every program of the page but legato's, which the tests run anyway."""
    others = (p.code for p in programs() if p.who != "legato")
    return hashlib.sha256("\n".join(others).encode()).hexdigest()


def run_here() -> dict[tuple[str, str], Found]:
    """Solution and gradient of each program that runs in this process, by section and owner."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = {}
    for program in programs():
        if not program.here:
            continue
        exec(compile(program.code, f"{PAGE.name}, {program.section}", "exec"), names)
        if program.who:
            read = SECTIONS[program.section]
            expressions = read.ours if program.who == "legato" else read.theirs
            found[program.section, program.who] = Found(
                *(eval(e, names).detach().numpy().copy() for e in expressions)
            )
    return found


def run_there(section: str, change: tuple[str, str] | None = None) -> tuple[Found, str]:
    """What another library's program finds in its own environment, and the library's version."""
    from race import limits, one_thread  # only here, as it needs more packages than the tests

    read = SECTIONS[section]
    assert read.library is not None
    first = next(p.code for p in programs() if p.here)
    (code,) = (p.code for p in programs() if p.section == section and not p.here)
    if change is not None:
        assert change[0] in code, f"{change[0]!r} is no longer in the program of {section}"
        code = code.replace(*change)
    if read.library == "deepinv":
        first = "import without_torchvision\n" + first
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.npz"
        solution, gradient = read.theirs
        last = (
            "import importlib.metadata\n"
            "plain = lambda v: np.asarray(v.detach() if hasattr(v, 'detach') else v)\n"
            f"np.savez({str(result)!r}, solution=plain({solution}), gradient=plain({gradient}),\n"
            f"         version=importlib.metadata.version({read.library!r}))\n"
        )
        done = subprocess.run(
            [str(environments.python_of(read.library)), "-c", first + code + last],
            capture_output=True, text=True, timeout=5 * SECONDS, check=False,
            env=one_thread() | {"PYTHONPATH": str(Path(__file__).parent)},
            preexec_fn=limits(SECONDS),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{section} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        with np.load(result) as file:
            return Found(file["solution"], file["gradient"]), str(file["version"])


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """‖found − expected‖/‖expected‖."""
    found, expected = np.ravel(found), np.ravel(expected)
    if found.shape != expected.shape:
        raise ValueError(f"{found.size} entries beside {expected.size}")
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def compare(ours: Found, theirs: Found) -> dict[str, float]:
    return {
        "solution_difference": difference(ours.solution, theirs.solution),
        "gradient_difference": difference(ours.gradient, theirs.gradient),
    }


def main() -> None:
    torch.set_num_threads(1)
    here = run_here()
    sections: dict[str, Any] = {}
    for section, read in SECTIONS.items():
        ours = here[section, "legato"]
        if read.library is None:
            theirs, version = here[section, "By hand"], importlib.metadata.version("torch")
        else:
            theirs, version = run_there(section)
        row: dict[str, Any] = {"library": read.library or "torch", "version": version}
        row |= compare(ours, theirs)
        row |= {name: np.ravel(value).tolist() for name, value in theirs._asdict().items()}
        if section == "cvxpylayers":
            row["without_mode"] = compare(run_there(section, WITHOUT_MODE)[0], ours)
        sections[section] = row
        print(f"{section}: {row['solution_difference']:.1e}, {row['gradient_difference']:.1e}")
        if max(row["solution_difference"], row["gradient_difference"]) > TOLERANCE:
            raise SystemExit(f"{section}: the two columns differ by more than {TOLERANCE}.")
    record(RESULTS, {"tolerance": TOLERANCE, "programs": fingerprint(), "sections": sections})


if __name__ == "__main__":
    main()
