"""The figures of docs/differences.md: computed again, and all of them from the result file."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "errata"
RECORD = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))["errata"]
ROUNDING = 1e-8  # errors below this are those of differences and rounding: they vary by machine


@pytest.fixture(scope="module")
def found():
    spec = importlib.util.spec_from_file_location("errata_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute()


def test_the_figures_come_out_again(found):
    assert found.keys() == RECORD.keys()
    for number, figures in RECORD.items():
        for name, value in figures.items():
            if value > ROUNDING:
                assert found[number][name] == pytest.approx(value, rel=1e-6)
            else:
                assert found[number][name] < ROUNDING


def test_what_is_right_is_right_and_what_is_printed_is_not():
    for number in ("1", "2", "3", "4", "13"):
        assert RECORD[number]["right"] < ROUNDING, number
    for number in ("1", "2", "3"):
        assert RECORD[number]["printed"] > 0.1, number
    assert RECORD["9"]["modulus_on_the_right_interval"] == pytest.approx(1.0)
    assert RECORD["9"]["modulus_as_printed"] < 1
    assert RECORD["13"]["radius"] < 1 < RECORD["13"]["radius_at_a_spurious_point"]


def test_the_page_takes_every_figure_from_a_file():
    """In the parts that hold evidence no number with decimals or a power is typed by hand."""
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    evidence = page.split("## Choices the paper leaves open")[0]
    read = re.findall(r"\{value\}`experiments/errata/results.json errata/(\d+)/(\w+) ", evidence)
    assert {number for number, _ in read} == RECORD.keys()
    assert all(name in RECORD[number] for number, name in read)
    typed = re.sub(r"\{value\}`[^`]*`", "", evidence)
    assert not re.findall(r"·10|\d %|\d\.\d{2,}", typed)
