"""Build the site with warnings as errors: python docs/build.py [--quick] [OUT]

Works on a copy of this folder in OUT/stage, beside links to what the pages show (examples, results,
figures), so that nothing generated lies among the sources. The site is OUT/html, by default
out/docs/html. ``--quick`` shows the gallery's scripts without running them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SHOWN = ("README.md", "CHANGELOG.md", "benchmarks", "examples", "experiments", "tests", "src")


def stage(out: Path) -> Path:
    """A copy of the sources, beside links to what they show."""
    folder = out / "stage"
    source = folder / "docs"
    kept = source / "gallery"
    source.mkdir(parents=True, exist_ok=True)
    for old in source.iterdir():  # so that a page that was deleted or renamed does not stay
        if old != kept:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(
        DOCS, source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "_build")
    )
    for name in SHOWN:
        link = folder / name
        link.unlink(missing_ok=True)  # another checkout may have built here before
        link.symlink_to(ROOT / name)
    return source


def build(out: Path, *, quick: bool) -> int:
    os.environ["LEGATO_DOCS_QUICK"] = "1" if quick else "0"
    from sphinx.cmd.build import main as sphinx

    source, html = stage(out), out / "html"
    shutil.rmtree(html, ignore_errors=True)
    # -E: pages show each other's titles and numbers from files, so all are read again; what takes
    # long, running the gallery, is remembered by sphinx-gallery itself.
    arguments = ["-W", "--keep-going", "-n", "-q", "-E", "-b", "html", "-d", str(out / "doctrees")]
    return sphinx([*arguments, str(source), str(html)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "out" / "docs")
    parser.add_argument("--quick", action="store_true", help="do not run the gallery's scripts")
    options = parser.parse_args()
    failed = build(options.out.resolve(), quick=options.quick)
    if failed:
        sys.exit(failed)
    print(f"The site: {options.out / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
