"""The table of names in the documentation, beside what the packages export."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import legato as lg

ROOT = Path(__file__).parents[2]
PACKAGES = json.loads((ROOT / "benchmarks/results/peer_names.json").read_text())["packages"]
PAGE = (ROOT / "docs/your_problem.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.split("## What others call it")[1].splitlines()
    if line.startswith("|")
]
COLUMNS = {"pyproximal": 1, "jaxopt": 2, "deepinv": 3, "entmax": 4}
NOT_TERMS = {"Blur", "BlurFFT", "Inpainting", "Downsampling", "Tomography", "MRI", "MultiCoilMRI"}
NOT_TERMS |= {"LinearPhysics"}
OBJECTIVES = {"least_squares", "ridge_regression", "binary_logreg", "multiclass_logreg"}


def names(cell):
    return {n for n in re.findall(r"`([^`]+)`", cell) if n.isidentifier()}


@pytest.mark.parametrize("package", COLUMNS)
def test_every_term_of_a_package_has_a_row(package):
    found = set().union(*(names(row[COLUMNS[package]]) for row in ROWS[2:]))
    assert found - NOT_TERMS - OBJECTIVES == set(PACKAGES[package]["terms"])
    version = PACKAGES[package]["version"]
    assert ".".join(version.split(".")[:2]) in PAGE


def test_our_column_holds_names_that_exist():
    words = set()
    for row in ROWS[2:]:
        for code in re.findall(r"`([^`]+)`", row[0]):
            words |= set(re.findall(r"[A-Z]\w+|L0|L1", code))
    words -= {"IsotropicTV(w)"}
    homes = (lg, lg.functions, lg.operators, lg.nn)
    assert not {w for w in words if not any(hasattr(home, w) for home in homes)}
    assert len(words) > 50


def test_every_written_case_names_a_test_of_ours():
    """And the counts on record are those of the table."""
    table = tomllib.loads((Path(__file__).parent / "cases.toml").read_text())
    record = json.loads((ROOT / "benchmarks/results/peer_tests.json").read_text())["peers"]
    functions = {
        path.name: set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
        for path in Path(__file__).parent.glob("test_*.py")
    }
    for peer, given in table.items():
        cases = given["cases"].values()
        assert record[peer]["cases"] == sum(count for count, _ in cases)
        written = [(count, where) for count, where in cases if not where.startswith("-")]
        assert record[peer]["written"] == sum(count for count, _ in written)
        for _, where in written:
            file, name = where.split("::")
            assert name.split("[")[0] in functions[file]
