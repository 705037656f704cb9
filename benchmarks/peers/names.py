"""The terms that peers export: what the table of names in the documentation is compared with.

``pip download --no-deps pyproximal jaxopt deepinv entmax``, unpack the wheels into one folder, and
``python benchmarks/peers/names.py FOLDER``: it reads the sources and imports nothing of them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import record  # noqa: E402

# Which files of a package define terms, and what in them is none: base classes, networks inside.
SOURCES = {
    "pyproximal": ["pyproximal/proximal/__init__.py"],
    "jaxopt": [f"jaxopt/{name}.py" for name in ("projection", "prox", "loss", "isotonic")],
    "deepinv": ["deepinv/optim/data_fidelity.py", "deepinv/optim/prior.py"],
    "entmax": ["entmax/__init__.py"],
}
NO_TERMS = {"Prior", "DataFidelity", "GLOWCouplingBlock", "NormalizingFlow", "PatchNR"}
ALIASES = {  # modules and functions of the same maps
    "Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect", "BudgetBisect",
    "sparsemax_loss", "entmax15_loss", "sparsemax_bisect_loss", "entmax_bisect_loss",
    "normmax_bisect_loss",
}  # fmt: skip


def exported(tree: ast.Module, package: str) -> Iterator[str]:
    """Names that a file offers: its list of them, what it imports for others, or its classes."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and package == "pyproximal":
            yield from ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom) and package in ("jaxopt", "entmax"):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ClassDef) and package == "deepinv":
            yield node.name


def terms(folder: Path, package: str) -> list[str]:
    found: set[str] = set()
    for pattern in SOURCES[package]:
        for path in sorted(folder.rglob(pattern)):
            found |= set(exported(ast.parse(path.read_text()), package))
    return sorted(n for n in found - NO_TERMS - ALIASES if not n.startswith("_"))


def version(folder: Path, package: str) -> str:
    (info,) = folder.rglob(f"{package}-*.dist-info")
    return info.name.removesuffix(".dist-info").split("-")[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the wheels are unpacked")
    folder = parser.parse_args().folder
    found = {p: {"version": version(folder, p), "terms": terms(folder, p)} for p in SOURCES}
    record(HERE.parent / "results" / "peer_names.json", {"packages": found})


if __name__ == "__main__":
    main()
