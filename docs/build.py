"""Build the site with warnings as errors: python docs/build.py [--quick | --fresh] [OUT]

Works on a copy of this folder in OUT/stage, beside links to what the pages show (examples, results,
figures), so that nothing generated lies among the sources. The site is OUT/html, by default
out/docs/html. Pages of the gallery that have not changed since they last ran here are not run
again; ``--fresh`` runs all of them, and ``--quick`` shows their scripts without running any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GALLERY = ROOT / "examples" / "gallery"
SHOWN = (
    "README.md", "CHANGELOG.md", "CITATION.cff", "benchmarks", "examples", "experiments", "tests",
    "src",
)  # fmt: skip


def stage(out: Path) -> Path:
    """A copy of the sources, beside links to what they show."""
    folder = out / "stage"
    source = folder / "docs"
    kept = source / "gallery"
    source.mkdir(parents=True, exist_ok=True)
    for old in source.iterdir():  # so that a page that was deleted or renamed does not stay
        if old != kept:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for old in [*kept.rglob("plot_*.rst")]:
        if not (GALLERY / old.relative_to(kept)).with_suffix(".py").exists():
            for file in kept.rglob(f"*{old.stem}*"):
                file.unlink()
    shutil.copytree(
        DOCS, source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "_build")
    )
    for name in SHOWN:
        link = folder / name
        link.unlink(missing_ok=True)  # another checkout may have built here before
        link.symlink_to(ROOT / name)
    return source


# --- which pages of the gallery run ---------------------------------------------------------------


def library() -> str:
    """A fingerprint of the package, which the gallery's figures were drawn with."""
    found = hashlib.sha256()
    for file in sorted((ROOT / "src").rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def unchanged(gallery: Path) -> list[str]:
    """Pages that sphinx-gallery will not run again, by its own rule: the script is the same."""
    return [
        page.stem
        for page in sorted(GALLERY.rglob("plot_*.py"))
        if (mark := gallery / page.relative_to(GALLERY).with_suffix(".py.md5")).exists()
        and mark.read_text() == hashlib.md5(page.read_bytes()).hexdigest()
    ]


def announce(gallery: Path) -> dict[str, str]:
    """Say what will run; the library that each page's figures were drawn with, once it has."""
    pages = [page.stem for page in sorted(GALLERY.rglob("plot_*.py"))]
    same, now = unchanged(gallery), library()
    record = gallery / "drawn_with.json"
    before = json.loads(record.read_text()) if record.exists() else {}
    running = [page for page in pages if page not in same]
    others = "; the others are unchanged and stay as they are" if same else ""
    print(f"── The gallery runs {len(running)} of {len(pages)} pages{others}.")
    for page in running:
        print(f"   {page}")
    old = [page for page in same if before.get(page) != now]
    if old:
        print(
            f"   {len(old)} of the unchanged pages ran with another state of the library; "
            "--fresh runs them again."
        )
    sys.stdout.flush()
    return {page: before.get(page, "") if page in same else now for page in pages}


def build(out: Path, *, quick: bool, fresh: bool = False) -> int:
    os.environ["LEGATO_DOCS_QUICK"] = "1" if quick else "0"
    from sphinx.cmd.build import main as sphinx

    gallery, html = out / "stage" / "docs" / "gallery", out / "html"
    if fresh:
        shutil.rmtree(gallery, ignore_errors=True)
    source = stage(out)
    shutil.rmtree(html, ignore_errors=True)
    drawn = {} if quick else announce(gallery)
    # -E: pages show each other's titles and numbers from files, so all are read again; what takes
    # long, running the gallery, is remembered by sphinx-gallery itself.
    arguments = ["-W", "--keep-going", "-n", "-E", "-b", "html", "-d", str(out / "doctrees")]
    failed = sphinx([*arguments, *(["-q"] if quick else []), str(source), str(html)])
    if drawn and not failed:
        (gallery / "drawn_with.json").write_text(json.dumps(drawn, indent=1))
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "out" / "docs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="do not run the gallery's scripts")
    how.add_argument("--fresh", action="store_true", help="run all of them, changed or not")
    options = parser.parse_args()
    failed = build(options.out.resolve(), quick=options.quick, fresh=options.fresh)
    if failed:
        sys.exit(failed)
    print(f"The site: {options.out / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
