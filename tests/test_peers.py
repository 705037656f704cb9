"""The race against peers: its runner, its truth, its verdicts, and the committed results."""

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def module(monkeypatch):
    """Modules of the race, which is a folder of scripts and no package."""
    monkeypatch.syspath_prepend(str(PEERS))
    monkeypatch.delitem(sys.modules, "truth", raising=False)  # the name of a folder of tests, too
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


# --- rows and environments ------------------------------------------------------------------------


def test_every_row_is_there_once_and_has_an_environment(module):
    rows, environments = module("rows"), module("environments")
    keys = [row[:3] for row in rows.ROWS]
    assert len(set(keys)) == len(keys)
    known = {*environments.libraries(), *environments.OWN}
    assert {row.library for row in rows.ROWS} == known
    assert all((PEERS / "contestants" / f"{name}.py").exists() for name in known)


def test_problems_and_rows_agree(module):
    pytest.importorskip("numba")
    assert list(module("rows").TABLE) == list(module("instances").PROBLEMS)


@pytest.mark.parametrize("library", ["legato", "unrolled"])
def test_the_methods_of_a_row_exist(module, library):
    methods = module(f"contestants.{library}").METHODS
    for row in module("rows").ROWS:
        if row.library == library:
            assert row.method in methods[row.problem]


def test_requirements_are_exact(module):
    for name in module("environments").libraries():
        lines = (PEERS / "requirements" / f"{name}.txt").read_text().splitlines()
        assert lines
        for line in lines:
            assert re.fullmatch(r"[\w.-]+==[\w.]+", line), f"{name}: {line}"


def test_an_environment_that_cannot_be_made_gives_its_reason(module, monkeypatch, tmp_path):
    environments = module("environments")
    (tmp_path / "nowhere.txt").write_text("no-such-package-of-legato==1.0\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "_run", lambda command: refuse(environments))
    with pytest.raises(environments.NotInstalledError, match="no wheel"):
        environments.python_of("nowhere")


def refuse(environments):
    raise environments.NotInstalledError("no wheel for this interpreter")


# --- one row --------------------------------------------------------------------------------------


def run_child(tmp_path, problem, library, method, data):
    """What a row's own process writes, for data of a handy size."""
    np.savez(tmp_path / "data.npz", **data)
    result = tmp_path / "result.json"
    subprocess.run(
        [
            sys.executable, str(PEERS / "child.py"), problem, library, method,
            str(tmp_path / "data.npz"), str(result), "--seconds", "0.01",
        ],
        check=True, timeout=120,
    )  # fmt: skip
    return json.loads(result.read_text())


def test_a_row_measures_errors_times_and_memory(tmp_path):
    theta = np.array([[1.0, 0.5, -3.0]])
    x = np.array([[0.75, 0.25, 0.0]])
    target = np.array([[0.0, 1.0, 0.0]])
    gradient = np.array([[0.75, -0.75, 0.0]])  # x − target without its mean on the support
    data = {"theta": theta, "target": target, "x": x, "gradient": gradient}
    row = run_child(tmp_path, "simplex_projection", "legato", "prox", data)
    assert row["gradient_error"] < 1e-14
    assert row["solution_error"] < 1e-14
    assert row["first_s"] > 0
    assert row["forward_s"] > 0
    assert row["both_s"] > 0
    assert row["peak_MiB"] >= 0


def test_a_row_that_fails_says_why(module, tmp_path, monkeypatch):
    np.savez(tmp_path / "data.npz", theta=np.zeros((1, 3)), target=np.zeros((1, 3)))
    result = tmp_path / "result.json"
    arguments = ["simplex_projection", "legato", "prox", str(tmp_path / "data.npz"), str(result)]
    monkeypatch.setattr(sys, "argv", ["child.py", *arguments])
    module("child").main()
    assert json.loads(result.read_text())["failed"].startswith("KeyError: 'gradient'")


def test_errors_are_relative_and_never_nan(module):
    child = module("child")
    assert child.relative_error([3.0, 4.0], np.array([0.0, 4.0])) == pytest.approx(0.75)
    assert child.relative_error([math.nan], np.array([1.0])) == math.inf
    with pytest.raises(ValueError, match="expected"):
        child.relative_error([1.0], np.array([1.0, 2.0]))


def test_repetitions_stop_when_one_is_too_long(module):
    calls = []
    times = module("child").repeat(lambda: calls.append(sum(range(100_000))), seconds=1e-6)
    assert len(calls) == times.runs == 1
    assert times.wall > 0


# --- truth ----------------------------------------------------------------------------------------


def test_regions_differentiate_total_variation(module):
    pytest.importorskip("numba")
    truth = module("truth")
    y = np.random.default_rng(0).standard_normal((2, 4))

    def solve(weight):
        u, _, change = truth.variational(-y[None], weight)
        assert change < 1e-10
        return u[0]

    u, h = solve(0.05), 1e-5
    found = truth.regions(u)
    assert found.value(y, 0.05) == pytest.approx(u, abs=1e-9)
    cotangent = np.arange(8.0).reshape(2, 4) ** 2
    slope = ((solve(0.05 + h) - solve(0.05 - h)) * cotangent).sum() / (2 * h)
    assert found.gradient(cotangent) == pytest.approx(slope, rel=1e-6)


def test_batches_are_those_of_scipy(module):
    pytest.importorskip("numba")
    from scipy.optimize import nnls

    truth = module("truth")
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((3, 8, 4)), rng.standard_normal((3, 8))
    x = truth.batched_least_squares(A, b, lambda v: np.maximum(v, 0), on_simplex=False)
    for k in range(3):
        assert x[k] == pytest.approx(nnls(A[k], b[k])[0], abs=1e-10)


# --- verdicts and pages ---------------------------------------------------------------------------


def row(library, error, seconds):
    return {
        "problem": "p", "library": library, "method": "m", "note": "", "warnings": [],
        "gradient_error": error, "solution_error": error, "forward_s": seconds / 2,
        "backward_s": seconds / 2, "both_s": seconds, "first_s": seconds, "peak_MiB": 1.0,
    }  # fmt: skip


def names(found):
    return [(peer["library"], times) for peer, times in found]


def test_peers_of_comparable_or_smaller_error_count_as_faster(module):
    report = module("report")
    rows = [
        row("legato", 1e-6, 1.0), row("sloppy", 1e-2, 0.1), row("good", 5e-6, 0.5),
        row("better", 1e-8, 0.25), row("slow", 1e-8, 2.0),
    ]  # fmt: skip
    found = report.verdict(rows, {"uncertainty": 1e-9})
    assert not found["accurate"]
    assert names(found["faster"]) == [("good", 2.0), ("better", 4.0)]
    assert names(found["coarser"]) == [("sloppy", 10.0)]


def test_each_peer_is_set_against_the_rows_of_its_own_accuracy(module):
    report = module("report")
    rows = [
        row("legato", 1e-4, 0.1), row("legato", 1e-8, 0.5), row("rough", 5e-4, 0.2),
        row("between", 1e-6, 0.25), row("exact", 5e-8, 0.4),
    ]  # fmt: skip
    found = report.verdict(rows, {})
    assert found["accurate"]
    assert names(found["faster"]) == [("exact", 1.25)]
    assert names(found["coarser"]) == [("between", 2.0)]


def test_a_smaller_error_of_a_peer_is_reported(module):
    report = module("report")
    rows = [row("legato", 1e-3, 1.0), row("good", 1e-6, 5.0)]
    found = report.verdict(rows, {})
    assert not found["accurate"]
    assert found["faster"] == found["coarser"] == []
    page = report.summary("p", {"problems": {"p": {}}, "rows": rows})
    assert page == "**a peer's error is smaller**; faster at comparable or smaller error: no peer."


def test_a_silent_wrong_gradient_is_marked(module):
    report = module("report")
    assert "nothing" in report.says(row("x", 0.5, 1.0))
    assert report.says(row("x", 1e-8, 1.0)) == ""
    warned = row("x", 0.5, 1.0) | {"warnings": ["UserWarning: not converged"]}
    assert report.says(warned) == "not converged"


@pytest.fixture(scope="module")
def committed():
    path = RESULTS / "peers_cpu.json"
    if not path.exists():
        pytest.skip("no committed result of the race")
    return json.loads(path.read_text())


def test_the_committed_rows_hold_what_the_table_needs(committed):
    for field in ("date", "commit", "device", "versions", "seed", "problems", "rows"):
        assert field in committed
    assert committed["threads"] == 1
    for r in committed["rows"]:
        assert r["problem"] in committed["problems"]
        if "failed" in r:
            assert r["failed"].strip()
            continue
        assert math.isfinite(r["solution_error"])
        assert min(r["forward_s"], r["first_s"]) > 0
        assert "gradient_error" in r or r["note"] == "solution only"


def test_every_problem_has_a_row_of_legato_with_a_gradient(committed):
    for name in committed["problems"]:
        own = [r for r in committed["rows"] if (r["problem"], r["library"]) == (name, "legato")]
        assert any("gradient_error" in r for r in own), name


def test_the_page_is_made_from_the_results(module, committed):
    assert (RESULTS / "peers.md").read_text() == module("report").markdown(committed)
