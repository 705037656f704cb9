"""What the page of the denoising study says is what its result file holds."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "experiments" / "denoise"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results():
    file = FOLDER / "results.json"
    if not file.exists():
        assert PAGE.count("Not measured yet.") == 3  # no numbers without their file
        pytest.skip("the table has not been measured yet")
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_tables_are_the_result_file_s(results):
    pytest.importorskip("rich")
    from legato.studies.denoise.report import (
        comparisons_markdown,
        table_markdown,
        weights_markdown,
    )

    assert table_markdown(results["table"]) in PAGE
    assert weights_markdown(results["one_weight"]) in PAGE
    assert comparisons_markdown(results["comparisons"]) in PAGE


def test_the_learned_weight_is_the_searched_one(results):
    for kinds in results["one_weight"].values():
        for one in kinds.values():
            assert abs(one["relative_difference"]) <= 0.01


def test_the_gains_are_the_result_file_s(results):
    gain = results["gain"]["25"]
    for row in ("filters", "TV, λ(y)", "filters, λ(y)"):
        assert f"+{gain[row]['BSD68']:.2f}" in PAGE
    assert gain["filters, λ(y)"]["BSD68"] >= results["target"]
    for sigma in ("15", "50"):
        assert f"+{results['gain'][sigma]['filters, λ(y)']['BSD68']:.2f}" in PAGE


def test_what_is_said_of_bm3d_is_so(results):
    def behind(sigma: str, images: str) -> float:
        rows = results["table"][sigma]
        return rows["BM3D"][images]["psnr"] - rows["filters, λ(y)"][images]["psnr"]

    assert all(abs(behind(sigma, "BSD68")) < 0.1 for sigma in results["table"])
    assert all(0.25 < behind(sigma, "Set12") < 0.55 for sigma in results["table"])


def test_the_steps_are_the_result_file_s(results):
    assert str(results["training"]["25"]["filters"]["steps"]) in PAGE
