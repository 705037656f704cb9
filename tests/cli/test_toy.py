"""``legato toy`` from the outside."""

import json
import sys
from functools import cache

import pytest
from typer.testing import CliRunner

from legato._support.extras import how_to_install
from legato.cli import app
from legato.studies.toy import study
from legato.studies.toy.example import SETS
from legato.studies.toy.report import minus, printed_like


def toy(*args):
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["toy", *map(str, args)])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Numbers are computed once for each set; that they repeat is asked in tests/studies/toy."""
    out = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        settings, compute = study.Settings(quick=True), study._study
        computed = cache(lambda name: compute(SETS[name], settings, lambda what: None))
        patch.setattr(study, "_study", lambda toy, settings, advance: computed(toy.name))
        yield out, toy("--quick", "--out", out)


def test_it_ends_by_saying_where_the_pictures_are(quick):
    out, result = quick
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"Pictures: {out / 'figures'}"


def test_pictures(quick):
    out, _ = quick
    names = {p.name for p in (out / "figures").iterdir()}
    kinds = ("1_loss", "2_tangents", "3_convergence", "4_gradients", "5_kink")
    assert names == {f"{k}_{s}.png" for k in kinds for s in "AB"} | {"6_nonunique.png"}
    for path in (out / "figures").iterdir():
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 10_000 < len(content) <= 150_000


def test_numbers_stand_beside_those_of_the_errata(quick):
    _, result = quick
    rows = [line.split() for line in result.output.splitlines()]
    analytic = next(r for r in rows if r[:2] == ["dL/dθ,", "analytic"])
    assert analytic[2:] == ["−0.17215831", "✓", "−0.17215831", "−0.40090934", "✓", "−0.40090934"]
    assert "✗" not in result.output
    assert "…" not in result.output
    numbers = result.output.partition("Numbers:")[0]  # paths may be long
    assert max(map(len, numbers.splitlines())) <= 80


def test_it_says_where_the_paper_does_not_hold(quick):
    _, result = quick
    text = " ".join(result.output.split())
    for words in ("1/(αN)", "limits 0.432 and 0.500", "(1 − K/N)²", "Clarke"):
        assert words in text


def test_files(quick):
    out, _ = quick
    settings = json.loads((out / "settings.json").read_text("utf-8"))
    assert settings["settings"] == {"sets": ["A", "B"], "quick": True, "seed": 0}
    results = json.loads((out / "results.json").read_text("utf-8"))
    for name, analytic in (("A", -0.17215831), ("B", -0.40090934)):
        table = results["sets"][name]["comparison"]
        assert len(table) == 9
        assert all(row["agrees"] for row in table.values())
        assert round(table["analytic"]["value"], 8) == analytic


def test_one_set_again_gives_the_same_numbers_and_pictures(quick, tmp_path):
    out, _ = quick
    result = toy("--quick", "--set", "b", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    first, again = (json.loads((p / "results.json").read_text("utf-8")) for p in (out, tmp_path))
    assert set(again["sets"]) == {"B"}
    assert again["sets"]["B"] == first["sets"]["B"]
    pictures = list((tmp_path / "figures").iterdir())
    assert len(pictures) == 6
    for path in pictures:
        assert path.read_bytes() == (out / "figures" / path.name).read_bytes()


def test_help_teaches():
    result = toy("--help")
    assert result.exit_code == 0
    for word in ("Bregman-FB-impl", "FixedPoint(K)", "kink", "--quick", "--seed", "A|B|both"):
        assert word in result.output


# --- bad input ------------------------------------------------------------------------------------


def test_unknown_set(tmp_path):
    result = toy("--set", "C", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr.startswith("error There is no set 'C': choose A or B, or both.")
    assert not (tmp_path / "run").exists()


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = toy("--out", tmp_path / "file" / "run")
    assert result.exit_code == 1
    assert result.stderr.startswith("error The output folder")
    assert "--out" in result.stderr


def test_pictures_that_cannot_be_written(quick, tmp_path):
    (tmp_path / "figures").write_text("in the way")
    result = toy("--quick", "--set", "A", "--out", tmp_path)
    assert result.exit_code == 1
    assert "error A file could not be read or written" in result.stderr
    assert "figures" in result.stderr
    assert not (tmp_path / "results.json").exists()


def test_without_matplotlib(tmp_path, monkeypatch):
    for name in ("legato.console.figures", "legato.studies.toy.figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = toy("--out", tmp_path / "run")
    assert result.exit_code == 1
    assert how_to_install("studies") in result.stderr
    assert not (tmp_path / "run").exists()


# --- details --------------------------------------------------------------------------------------


def test_methods_can_be_told_apart():
    from legato.studies.toy.figures import COLOURS, MARKERS
    from legato.studies.toy.methods import METHODS

    for look in (COLOURS, MARKERS):
        assert set(look) == set(METHODS)
        assert len(set(look.values())) == len(METHODS)


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        (1.32450752e-4, "1.32e-4", "1.32e-4"),
        (0.0, "5.6e-17", "0"),
        (-22.2222, "-22.22", "-22.22"),
        (12345.0, "1.0e0", "1.2e4"),
        (0.0, "0", "0"),
    ],
)
def test_numbers_are_printed_alike(value, text, expected):
    assert printed_like(value, text) == minus(expected)
