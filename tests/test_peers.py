"""The race against peers: its runner, its truth, its verdicts, and the committed results."""

import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys
import time
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


# --- the race on a GPU ----------------------------------------------------------------------------


@pytest.fixture
def gpu(module, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return module("gpu")


def test_the_rows_of_the_gpu_are_of_problems_and_methods_that_exist(module):
    rows, methods = module("rows"), module("contestants.legato").METHODS
    for problem, libraries in rows.GPU.items():
        assert "legato" in libraries
        if problem.startswith("programs"):
            continue
        assert problem in rows.TABLE
        assert set(libraries["legato"]) <= set(methods[problem])


def test_an_engine_changes_how_a_contestant_runs_and_not_what_it_finds(module):
    methods = module("contestants.legato").METHODS["lasso"]
    rng = np.random.default_rng(0)
    data = {"X": rng.standard_normal((8, 12)), "y": rng.standard_normal(8)}
    data |= {"V": rng.standard_normal((4, 12)), "v": rng.standard_normal(4), "theta": np.ones(1)}
    flat = module("contract").flat
    plain, replayed = (
        methods["Unroll, 200 iterations" + engine](data).gradient() for engine in ("", ", replayed")
    )
    for one, other in zip(plain, replayed, strict=True):
        assert flat(one) == pytest.approx(flat(other), rel=1e-12)
        assert np.abs(flat(one)).max() > 0.01


def test_the_truth_of_a_program_is_that_of_scipy_and_of_differences(gpu):
    from scipy.optimize import minimize

    programs = gpu.programs
    data = programs.make(3, 4, 5, "cpu")
    Q, c, G, h, w = data
    active = programs.legato(data, True)[0].z > 0
    assert 0 < int(active.sum()) < active.numel()
    x, z, in_c = programs.exact(data, active)
    assert programs.kkt(data, x, z) < 1e-13
    assert programs.kkt(data, *programs.exact(data, ~active)[:2]) > 1e-3
    for k in range(3):
        q, a, g, b = (t[k].numpy() for t in (Q, c, G, h))
        found = minimize(
            lambda v, q=q, a=a: 0.5 * v @ q @ v + a @ v, np.zeros(4), method="SLSQP", tol=1e-14,
            jac=lambda v, q=q, a=a: q @ v + a,
            constraints={
                "type": "ineq", "fun": lambda v, g=g, b=b: b - g @ v, "jac": lambda _, g=g: -g,
            },
        )  # fmt: skip
        assert x[k].numpy() == pytest.approx(found.x, abs=1e-6)
    moved, step = c.clone(), 1e-5
    moved[:, 2] += step
    slope = ((programs.exact((Q, moved, G, h, w), active)[0] - x) * w).sum(-1) / step
    assert in_c[:, 2].numpy() == pytest.approx(slope.numpy(), rel=1e-6, abs=1e-9)


def test_a_problem_is_raced_and_who_is_not_there_says_so(tmp_path):
    """From the start of its process to its times, as on a GPU."""
    problem = "programs 1024 × (20, 30)"
    done = subprocess.run(
        [
            sys.executable, str(PEERS / "gpu.py"), "--device", "cpu", "--quick", "--seconds", "300",
            "--problem", problem,
        ],
        input="go\n", capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    news = [json.loads(line) for line in done.stdout.splitlines()]
    assert news[0]["about"]["uncertainty"] < 1e-12
    told = {line["row"]["library"]: line["row"] for line in news if "row" in line}
    own = told["legato"]
    assert max(own["gradient_error"], own["solution_error"]) < 1e-12
    assert min(own["forward_s"], own["both_s"], own["first_s"]) > 0
    for library in ("qpax", "qpth"):
        if importlib.util.find_spec(library) is None:
            assert told[library]["failed"].startswith("ModuleNotFoundError")


def test_a_contestant_that_breaks_or_lingers_costs_nobody_else(gpu, module):
    import torch

    Contestant = module("contract").Contestant

    def breaks():
        raise torch.OutOfMemoryError("too little memory")

    fine = Contestant(lambda: 1.0, lambda: (1.0, 1.0))
    raced = [({}, fine), ({}, Contestant(breaks, breaks))]
    gpu.time_all(raced, "cpu")
    assert raced[0][0]["both_s"] > 0
    assert raced[0][0]["runs"] == gpu.ROUNDS
    assert raced[1][0]["failed"] == "OutOfMemoryError: too little memory"

    def lingers():
        time.sleep(60)

    setting = gpu.Setting("programs", "cpu", time.time() + 100, 1.0, True)
    entry = gpu.Entry("slow", "m", lambda: Contestant(lingers, lingers), lambda found: {})
    row, made = gpu.prepare(entry, setting)
    assert made is None
    assert row["failed"].startswith("TimeoutError: no result within")


def test_a_task_that_has_had_its_time_sits_out(gpu):
    calls = []
    times = gpu.take_turns(
        {"slow": lambda: time.sleep(0.02), "quick": lambda: calls.append(1)}, 5, seconds=0.03
    )
    assert len(times["slow"].wall) == 2
    assert len(times["quick"].wall) == 5


@pytest.fixture(scope="module")
def committed_gpu():
    path = RESULTS / "peers_h200.json"
    if not path.exists():
        pytest.skip("no committed result of the race on a GPU")
    return json.loads(path.read_text())


def test_the_committed_rows_of_the_gpu_are_those_of_the_table(module, committed_gpu):
    for field in ("date", "commit", "device", "versions", "problems", "rows"):
        assert committed_gpu[field]
    found = {(r["problem"], r["library"], r["method"]): r for r in committed_gpu["rows"]}
    assert len(found) == len(committed_gpu["rows"])
    table = {
        (problem, library, method)
        for problem, libraries in module("rows").GPU.items()
        for library, methods in libraries.items()
        for method in methods
    }
    assert set(found) == table
    for r in found.values():
        assert r.get("failed", "").strip() or min(r["forward_s"], r["both_s"], r["first_s"]) > 0


def test_the_page_of_the_gpu_is_made_from_its_results(module, committed_gpu):
    assert (RESULTS / "peers_h200.md").read_text() == module("report").gpu_markdown(committed_gpu)


def test_the_page_of_the_gpu_has_errors_beside_times(module):
    own, other = row("legato", 1e-6, 0.01), row("other", 1e-3, 0.5)
    for r in (own, other):
        del r["peak_MiB"]
    about = {
        "title": "P", "energy": "E", "loss": "L", "truth": "T", "precision": "float32",
        "uncertainty": 1e-9,
    }  # fmt: skip
    data = {
        "date": "2026-11-20", "commit": "c" * 40, "device": "a GPU", "versions": {"torch": "2"},
        "problems": {"p": about}, "rows": [own, other, {**other, "failed": "no | memory"}],
    }  # fmt: skip
    page = module("report").gpu_markdown(data)
    assert "| legato | m |  | 1.0e-06 | 1.0e-06 | 5 ms | 5 ms | 10 ms |\n" in page
    assert "| other | m | no \\| memory | 1.0e-03 | 1.0e-03 | — | — | — |\n" in page
    assert "float32" in page
    assert "MiB" not in page
