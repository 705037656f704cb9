"""``legato doctor`` from the outside."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from legato._support.extras import how_to_install
from legato.cli import app
from legato.console.loading import LoadError, call_factory, load

GOOD = """
import torch
import legato as lg

A = torch.eye(3, dtype=torch.float64)
w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

def lasso():
    b = torch.tensor([1.0, -2.0, 0.1], dtype=torch.float64)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    return problem, lg.ForwardBackward(0.5), lambda x: x.square().sum()

def typed(dtype):
    v = torch.tensor(0.3, dtype=dtype, requires_grad=True)
    b = torch.tensor([1.0, -2.0, 0.1], dtype=dtype)
    problem = lg.Composite(lg.LeastSquares(A.to(dtype), b), lg.L1(v))
    return problem, lg.ForwardBackward(0.5), lambda x: x.square().sum()

def single():
    return typed(torch.float32)

def started():
    return (*lasso(), torch.ones(3, dtype=torch.float64))

def pair():
    return lasso()[:2]

def nothing():
    pass

def broken():
    return 1 / 0

def nan():
    problem, algorithm, _ = lasso()
    return problem, algorithm, lambda x: x.sum() * float("nan")

def crash():
    problem, algorithm, _ = lasso()
    return problem, algorithm, lambda x: {}["key [1]"]

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(GOOD)
    return path


def doctor(*args):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["doctor", *map(str, args)])


def test_it_says_what_to_use(file):
    result = doctor(f"{file}:lasso", "--reference", 300)
    assert result.exit_code == 0, result.output
    assert "Implicit(GMRES())" in result.output
    assert "spectral radius of A_x" in result.output
    assert "Use Implicit(GMRES())" in result.output
    assert "recommendation" in result.output


def test_a_factory_with_a_dtype_gets_a_reference_in_float64_and_one_without_does_not(file):
    result = doctor(f"{file}:typed", "--reference", 300)
    assert result.exit_code == 0, result.output
    assert "in a float64 twin" in result.output
    assert "low precision" not in result.output
    result = doctor(f"{file}:single", "--reference", 300)
    assert result.exit_code == 0, result.output
    assert "low precision" in result.output


def test_a_start_and_options(file, tmp_path):
    picture = tmp_path / "picture.png"
    result = doctor(
        f"{file}:started", "--iterations", 3, "--tol", 1e-9, "--reference", 200, "--plot", picture
    )
    assert result.exit_code == 0, result.output
    assert "not converged" in result.output
    assert "after 3 iterations" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pair", "pair() returned 2 values, but (problem, algorithm, loss)"),
        ("nothing", "nothing() returned NoneType, but (problem,"),
        ("broken", "raised ZeroDivisionError: division by zero"),
        ("number", "number in"),
        ("missing", "has no function 'missing'. It defines: lasso, typed"),
        ("nan", "NonFiniteLossError: The loss is nan at the solution"),
        ("crash", "raised KeyError: 'key [1]'"),
    ],
)
def test_what_can_be_wrong_with_a_factory(file, name, words):
    result = doctor(f"{file}:{name}")
    assert result.exit_code == 1
    assert "error" in result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_the_line_of_an_error_is_named(file):
    line = 1 + GOOD.splitlines().index("    return 1 / 0")
    assert f"model.py:{line})" in "".join(doctor(f"{file}:broken").stderr.split("\n"))
    with pytest.raises(LoadError, match=rf"broken\(\) raised .*model\.py:{line}\)"):
        call_factory(f"{file}:broken")


def test_what_can_be_wrong_with_a_target(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import nowhere_to_be_found\n")
    text = tmp_path / "notes.txt"
    text.write_text("x = 1\n")
    for target, words in (
        ("model.py", "does not name a function"),
        (f"{tmp_path}/absent.py:build", "There is no file"),
        (f"{bad}:build", "ModuleNotFoundError"),
        (f"{text}:build", r"must end in \.py"),
    ):
        with pytest.raises(LoadError, match=words):
            load(target)


def test_siblings_can_be_imported(tmp_path):
    (tmp_path / "sibling_of_model.py").write_text("values = (1, 2, 3)\n")
    model = tmp_path / "model.py"
    model.write_text("import sibling_of_model\ndef build():\n    return sibling_of_model.values\n")
    path = list(sys.path)
    assert load(f"{model}:build")() == (1, 2, 3)
    assert sys.path == path


def test_a_picture_that_cannot_be_written(file, tmp_path):
    result = doctor(f"{file}:lasso", "--reference", 200, "--plot", tmp_path / "no" / "such.png")
    assert result.exit_code == 1
    assert "could not be written" in result.stderr


def test_the_package_needs_no_typer_but_the_command_says_so():
    code = """
import sys, legato
assert not any(m in sys.modules for m in ("typer", "rich", "matplotlib"))
sys.modules["typer"] = None
from legato.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == f"The command line needs typer: {how_to_install('cli')}\n"
