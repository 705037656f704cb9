"""The study as a whole: what it records, that it repeats itself, that committed results are its."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from legato.errors import InputError
from legato.studies.toy.example import SETS
from legato.studies.toy.methods import METHODS
from legato.studies.toy.published import Comparison
from legato.studies.toy.report import printed_like
from legato.studies.toy.solution_map import check_derivative
from legato.studies.toy.study import BACKS, Settings, run

COMMITTED = Path(__file__).parents[3] / "experiments" / "toy"


@pytest.fixture(scope="module")
def quick():
    return run(Settings(quick=True))


@pytest.fixture(scope="module")
def again():
    """Set A once more with another seed, and what was said on the way."""
    said = []
    return run(Settings(("A",), quick=True, seed=1), said.append), said


def test_it_repeats_itself_and_the_seed_moves_the_check_alone(quick, again):
    first, other = quick.record(), again[0].record()
    assert other["nonunique"] == first["nonunique"]
    first, other = first["sets"]["A"], other["sets"]["A"]
    check = first.pop("derivative_check")
    assert check != other.pop("derivative_check")
    assert check == asdict(check_derivative(SETS["A"], 0))
    assert first == other


def test_progress_is_announced(again):
    results, said = again
    assert len(said) == len(set(said)) == results.settings.stages


def test_every_number_agrees(quick):
    for found in quick.sets.values():
        assert len(found.comparisons) == 9
        assert all(c.agrees for c in found.comparisons)
        assert set(found.estimates[0.3]) == set(METHODS)


@pytest.mark.parametrize("settings", [Settings(), Settings(quick=True)])
def test_panels_are_among_the_back_iterations(settings):
    assert set(BACKS) <= set(settings.backs)
    assert list(settings.backs) == sorted(set(settings.backs))


@pytest.mark.parametrize("sets", [("C",), ("A", ""), ()])
def test_unknown_sets(sets):
    with pytest.raises(InputError, match="set"):
        Settings(sets)


@pytest.mark.parametrize(
    ("text", "value", "agrees"),
    [
        ("1.32e-4", 1.3249e-4, True),
        ("1.32e-4", 1.3251e-4, False),
        ("-0.5", -0.5, True),
        ("-22.22", -22.2222, True),
        ("-22.22", -22.23, False),
        ("0", 0.4, True),
        ("0", 0.6, False),
    ],
)
def test_agreement_is_to_the_digits_printed(text, value, agrees):
    assert Comparison("key", "label", value, text).agrees is agrees


def test_rounding_errors_are_compared_in_size():
    for value, agrees in ((0.0, True), (1.7e-15, True), (2e-15, False)):
        assert Comparison("key", "label", value, "1.3e-15", rounding=5e-16).agrees is agrees


def test_committed_results_are_what_the_code_computes(quick):
    """Times and versions aside; rounding may differ between machines."""
    committed = json.loads((COMMITTED / "results.json").read_text("utf-8"))
    assert committed["settings"] == {"sets": ["A", "B"], "quick": False, "seed": 0}
    fresh = quick.record()
    assert set(committed["sets"]) == set(fresh["sets"])
    for name, found in fresh["sets"].items():
        kept = committed["sets"][name]
        for key, row in found["comparison"].items():
            assert kept["comparison"][key]["value"] == pytest.approx(row["value"], abs=1e-14)
        for theta, methods in found["gradients"].items():
            for method, panels in methods.items():
                assert kept["gradients"][theta][method] == pytest.approx(panels, rel=1e-10)
        assert kept["kink"]["limits"] == pytest.approx(found["kink"]["limits"])
    for kept, row in zip(committed["coupled"], fresh["coupled"], strict=True):
        assert kept["gradient"] == pytest.approx(row["gradient"], rel=1e-6)


def test_the_readme_quotes_the_committed_results():
    text = (COMMITTED / "README.md").read_text("utf-8")
    committed = json.loads((COMMITTED / "results.json").read_text("utf-8"))
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    cells = {row[0].strip(): [c.strip() for c in row[1:]] for row in rows}
    a, b = (committed["sets"][name] for name in "AB")
    for key, row in a["comparison"].items():
        shown = cells[row["what"].replace("|", "∣")]  # a bar would end the cell
        for value, given in zip((row, b["comparison"][key]), shown, strict=True):
            assert given == printed_like(value["value"], value["errata"])
    for method in ("Bregman-FB", "Bregman-FB2", "Bregman-FB-impl"):
        expected = []
        for found in (a, b):
            slope = found["kink"]["clarke"][0]
            panels = found["gradients"]["theta=0"][method]
            last = found["kink"]["approach"][-1]["gradients"][method]
            expected += [f"{v / slope:.3f}" for v in (panels["K=10"], panels["K=200"], last)]
        expected.append(f"{a['kink']['limits'][method] / a['kink']['clarke'][0]:.3f}")
        assert cells[method] == expected
    for method in {row["method"] for row in committed["coupled"]}:
        errors = [row["error"] for row in committed["coupled"] if row["method"] == method]
        assert cells[f"`{method}`" if "(" in method else method] == [
            printed_like(error, "1.0e-1") for error in errors
        ]


def test_coupled_derivatives_by_hand(quick):
    """What is differentiated without smoothing has the closed form; μ cannot have it."""
    for row in quick.coupled:
        smoothed = row.method.startswith("Smoothed")
        assert row.error > 5e-4 if smoothed else row.error < 1e-7


def test_committed_figures_exist_and_are_small():
    shown = sorted((COMMITTED / "figures").glob("*.png"))
    assert len(shown) == 11
    assert all(p.stat().st_size <= 150_000 for p in shown)
    text = (COMMITTED / "README.md").read_text("utf-8")
    for name in ("1_loss", "2_tangents", "3_convergence", "4_gradients", "5_kink", "6_nonunique"):
        assert f"figures/{name}" in text
