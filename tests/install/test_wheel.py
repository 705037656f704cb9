"""What is distributed installs: a wheel of the sdist, beside its declared dependencies only.

The empty environment sees links to exactly the distributions that ``dependencies`` reach in the
environment of the tests, so that nothing is downloaded and what is not declared is not there.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from documented import PAGES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WALK = """
import importlib, json, pkgutil, sys
import legato
found = {"legato": None}
for module in pkgutil.walk_packages(legato.__path__, "legato.", onerror=lambda name: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        found[module.name] = None
    except ImportError as error:
        found[module.name] = [type(error).__name__, error.name, str(error)]
json.dump(found, sys.stdout)
"""


def closure(requirements):
    """The names of the distributions that requirements reach, as far as their markers hold here."""
    found, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += [Requirement(text) for text in metadata.requires(name) or []]
    return found


def link(names, folder):
    """A folder through which exactly these installed distributions can be imported."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():  # several distributions share a namespace package
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder


def run(*command, cwd, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def hatch(target, source, out):
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (built,) = out.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return built


@pytest.fixture(scope="session")
def distributions(tmp_path_factory, worker_id):
    """The folder with sdist, wheel and the environment; made once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent
    out = folder / "distributions"
    with FileLock(folder / "distributions.lock"):
        if not (out / "done").exists():
            out.mkdir()
            sdist = hatch("sdist", ROOT, out)
            with tarfile.open(sdist) as archive:
                archive.extractall(out / "source", filter="data")
            (source,) = (out / "source").iterdir()
            wheel = hatch("wheel", source, out)
            venv.create(out / "env", symlinks=True)
            python = out / "env" / "bin" / "python"
            install = ("install", "-q", "--no-deps", "--no-index", wheel)
            run(sys.executable, "-m", "pip", "--python", python, *install, cwd=out)
            (site,) = (out / "env").glob("lib/python*/site-packages")
            needed = link(closure(PROJECT["dependencies"]), out / "needed")
            (site / "needed.pth").write_text(f"{needed}\n")
            link(closure(EXTRAS["cli"]), out / "cli")
            (out / "done").touch()
    return out


def test_the_sdist_is_what_git_tracks(distributions):
    """So that the tests, which compare pages with result files, can run from it."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    (source,) = (distributions / "source").iterdir()
    found = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    missing = {name for name in tracked.stdout.splitlines() if (ROOT / name).is_file()} - found
    assert not missing


def test_the_tests_can_be_collected_from_the_sdist(distributions):
    (source,) = (distributions / "source").iterdir()
    listed = run(
        sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider",
        "--assert=plain",
        "tests/laws", "tests/unit", "tests/test_readme.py", "tests/test_experiments.py",
        cwd=source, PYTHONPATH=str(source / "src"), PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert re.search(r"^\d+ tests collected", listed, re.MULTILINE)


def test_every_module_imports_or_names_its_extra(distributions):
    found = json.loads(run(distributions / "env/bin/python", "-c", WALK, cwd=distributions))
    assert set(PAGES) <= set(found), "a documented module is not in the wheel"
    sentence = re.compile(rf"needs \S+: pip install 'legato\[({'|'.join(EXTRAS)})\]'")
    unnamed = {
        name: found[name] for name in PAGES if found[name] and not sentence.search(found[name][2])
    }
    assert not unnamed, "documented modules whose error does not name their extra"
    # Parts below them may fail, for a package that some extra declares; nothing may be undeclared.
    extras = [text for texts in EXTRAS.values() for text in texts if not text.startswith("legato[")]
    declared = {
        top
        for name in closure(extras)
        for top in {file.parts[0] for file in metadata.distribution(name).files or []}
    } | {"triton", "torchvision"}  # they come with torch, or are used where present
    undeclared = {
        name: error
        for name, error in found.items()
        if error and (error[1] or "").partition(".")[0] not in declared
    }
    assert not undeclared


def test_the_readme_s_program_runs(distributions):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    check = "\nassert loss < 0.02, loss\n"
    run(distributions / "env/bin/python", "-c", program + check, cwd=distributions)


def test_the_command_says_its_version_or_what_it_lacks(distributions):
    command = distributions / "env" / "bin" / "legato"
    with pytest.raises(AssertionError, match=r"needs (typer|rich): pip install 'legato\[cli\]'"):
        run(command, "--version", cwd=distributions)
    said = run(command, "--version", cwd=distributions, PYTHONPATH=str(distributions / "cli"))
    assert said.split() == ["legato", PROJECT["version"]]


def test_one_version_number():
    import legato

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert legato.__version__ == PROJECT["version"]
    written = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if re.search(rf"""["']{re.escape(PROJECT["version"])}["']""", path.read_text("utf-8"))
    ]
    assert not written, "the version is pyproject.toml's alone"


def test_everything_declared_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    everything = [*PROJECT["dependencies"], *(text for texts in EXTRAS.values() for text in texts)]
    declared = {canonicalize_name(Requirement(text).name) for text in everything} - {"legato"}
    assert not declared - pinned
