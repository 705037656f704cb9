"""``legato`` itself: what it lists, and what it does not import before it has to."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import legato
from legato.cli import STUDIES, app


def ask(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(args))


def test_help_lists_every_command():
    said = ask("--help").output
    for name in ("doctor", "check", "toy", "explore", "segment", "denoise", "reconstruct"):
        assert name in said


def test_version():
    result = ask("--version")
    assert result.exit_code == 0
    assert result.output == f"legato {legato.__version__}\n"


@pytest.mark.parametrize("name", STUDIES)
def test_the_listed_line_is_the_commands_own(name):
    command = STUDIES[name].load(name)
    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == STUDIES[name].help
    assert hasattr(command, "commands") == (name in ("segment", "denoise", "reconstruct"))


def test_a_command_that_does_not_exist():
    result = ask("segmnt")
    assert result.exit_code == 2
    assert "segmnt" in result.output + result.stderr


def run(*args, code=None):
    started = ["-m", "legato", *args] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, "-X", "importtime", *started], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("--version",),
        ("doctor", "--help"),
        ("check", "--help"),
        ("segment", "train", "--help"),
    ],
)
def test_help_does_not_import_torch(args):
    done = run(*args)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "legato.cli" in imported
    assert not imported & {"torch", "numpy", "matplotlib", "lightning"}


def test_the_package_imports_torch_with_its_first_name():
    done = run(
        code="""
import sys, legato
assert "torch" not in sys.modules
shown = {name for name in dir(legato) if not name.startswith("__")}
assert shown == {*legato.__all__, *legato._PACKAGES}, shown
for home, names in legato._HOMES.items():
    for name in names.split():
        assert getattr(legato, name) is getattr(getattr(legato, home), name)
assert "torch" in sys.modules
from legato import *
assert all(name in globals() for name in legato.__all__)
try:
    legato.misspelt
except AttributeError as error:
    print(error)
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'legato' has no attribute 'misspelt'\n"


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(legato.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        statement.module.removeprefix("legato."): tuple(alias.asname for alias in statement.names)
        for statement in block.body
    }
    assert {home: set(names) for home, names in seen.items()} == {
        home: set(names.split()) for home, names in legato._HOMES.items()
    }


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        (), ("doctor",), ("check",), ("toy",), ("explore",), ("segment",), ("segment", "train"),
        ("segment", "table"), ("denoise",), ("denoise", "clean"), ("denoise", "table"),
        ("reconstruct",), ("reconstruct", "kspace"),
    ],
)  # fmt: skip
def test_help_shows_no_types_of_python(args):
    result = ask(*args, "--help")
    assert result.exit_code == 0
    assert not re.search(r"<\w+|list\[", result.output)
    assert re.search(r"--help +Show this message", result.output)


# --- Ctrl-C ---------------------------------------------------------------------------------------

INTERRUPTED_IMPORT = """
import os, signal, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise {raised}
sys.meta_path.insert(0, Slow())
sys.argv = ["legato", *{args!r}]
from legato.__main__ import main
main()
"""


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "AttributeError('half imported')"])
@pytest.mark.parametrize(
    ("name", "args"),
    [("typer", ["--version"]), ("torch", ["doctor", "model.py:make"]), ("torch", ["toy"])],
)
def test_an_interrupt_during_imports_leaves_no_traceback(name, args, raised):
    code = INTERRUPTED_IMPORT.format(name=name, args=args, raised=raised)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_keeps_its_traceback():
    code = INTERRUPTED_IMPORT.format(name="typer", args=["--version"], raised="")
    code = code.replace("os.kill(os.getpid(), signal.SIGINT)", "raise AttributeError('a bug')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a bug" in done.stderr
