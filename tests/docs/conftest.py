"""The site in its quick form, built once for all tests (and for all processes that run them)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The folder of the built pages; what Sphinx said, if it failed."""
    pytest.importorskip("sphinx", reason="the site is built by the packages of legato[docs]")
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent  # shared by the processes of pytest-xdist
    out = folder / "site"
    with FileLock(folder / "site.lock"):
        said = out / "said.txt"
        if not said.exists():
            out.mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, str(ROOT / "docs" / "build.py"), "--quick", str(out)],
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONWARNINGS": "default"},
                timeout=600,
                check=False,
            )
            said.write_text(done.stderr if done.returncode else "", encoding="utf-8")
    problems = said.read_text(encoding="utf-8")
    assert not problems, f"The site does not build without warnings:\n{problems}"
    return out / "html"
