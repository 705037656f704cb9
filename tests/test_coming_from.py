"""What docs/coming_from.md says of other libraries is recorded, and legato's half still holds."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RECORD = json.loads(
    (ROOT / "benchmarks" / "results" / "coming_from_cpu.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def page():
    """The script that ran the page's programs, which lies in a folder that is no package."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    try:
        import coming_from

        yield coming_from
    finally:
        sys.path.remove(str(ROOT / "benchmarks" / "peers"))


def test_the_record_is_of_these_programs(page):
    """Else run benchmarks/peers/coming_from.py again."""
    assert page.fingerprint() == RECORD["programs"]
    assert [*RECORD["sections"]] == [*page.SECTIONS]


def test_every_section_has_two_columns(page):
    owners = {}
    for program in page.programs():
        if program.section:
            owners.setdefault(program.section, []).append(program.who)
    assert [*owners] == [*page.SECTIONS]
    assert all(len(two) == 2 and two[1] == "legato" for two in owners.values())


def test_legato_finds_what_the_others_found(page):
    here = page.run_here()
    for section, row in RECORD["sections"].items():
        ours = here[section, "legato"]
        for name in ("solution", "gradient"):
            assert np.linalg.norm(row[name]) > 1e-3
            assert page.difference(getattr(ours, name), row[name]) < RECORD["tolerance"], section
            assert row[f"{name}_difference"] < RECORD["tolerance"]


def test_the_default_of_cvxpylayers_is_off_as_the_page_says(page):
    """A difference worth a sentence; the sentence takes its number from the record."""
    assert RECORD["sections"]["cvxpylayers"]["without_mode"]["gradient_difference"] > 0.01
    (code,) = (p.code for p in page.programs() if p.who == "cvxpylayers")
    assert page.WITHOUT_MODE[0] in code
