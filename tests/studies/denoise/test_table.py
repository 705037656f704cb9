"""The table's parts, and what they amount to."""

import json
from dataclasses import replace

import pytest
import torch

from legato.errors import InputError
from legato.nn import AnalysisDenoiser
from legato.studies.denoise.images import drawn_sets
from legato.studies.denoise.models import MappedAnalysis
from legato.studies.denoise.report import table_markdown
from legato.studies.denoise.settings import LevelSettings, TableSettings
from legato.studies.denoise.table import collect, gains, run_part

CPU = torch.device("cpu")


def settings():
    table = TableSettings((25.0,)).quick()
    level = table.level
    level = replace(level, tv_iterations=30, tv_images=3, recipe=replace(level.recipe, steps=3))
    return replace(table, level=level, comparison=replace(table.comparison, steps=2))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("table")
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
        for part in settings().parts:
            run_part(part, settings(), drawn_sets(3, 1), out, CPU, lines.append)
    return out, lines


def test_every_part_leaves_its_numbers(done):
    out, lines = done
    results = collect(settings(), out)
    rows = results["table"]["25"]
    assert list(rows) == [
        "noisy", "TV, isotropic", "TV, anisotropic", "TV, λ(y)", "filters", "filters, λ(y)",
        "filters, one set for every σ", "filters, λ(y), one set for every σ",
    ]  # fmt: skip
    assert rows["TV, isotropic"]["drawn"]["psnr"] > rows["noisy"]["drawn"]["psnr"] + 3
    for kind in ("isotropic", "anisotropic"):
        assert abs(results["one_weight"]["25"][kind]["relative_difference"]) <= 0.01
    gradients = results["comparisons"]["gradients"]
    assert set(gradients) == {"Unroll", "Unroll, checkpoints", "Piggyback", "Implicit"}
    assert gradients["Unroll, checkpoints"]["first_gradient_off"] <= 1e-5
    assert {"Adam", "IPiano"} == set(results["comparisons"]["optimisers"])
    assert any("filters, λ(y)" in line for line in lines)
    for name in ("tv-maps", "filters", "filters-maps"):
        assert (out / "sigma-25" / f"{name}.safetensors").exists()
    AnalysisDenoiser.load(out / "all" / "filters.safetensors")
    MappedAnalysis.load(out / "all" / "filters-maps.safetensors")
    assert "| filters, λ(y) |" in table_markdown(results["table"])


def test_gains_are_over_the_better_total_variation():
    def row(value):
        return {"BSD68": {"psnr": value, "ssim": 0.5}}

    table = {"25": {"TV, isotropic": row(27.4), "TV, anisotropic": row(27.1), "filters": row(28.2)}}
    assert gains(table)["25"]["filters"]["BSD68"] == pytest.approx(0.8)


def test_rows_of_other_programs(tmp_path):
    file = tmp_path / "peer.json"
    scores = {"BSD68": {"psnr": 28.5, "ssim": 0.8, "each": {}}}
    file.write_text(json.dumps({"rows": {"BM3D": {"25": scores}}}))
    table = collect(settings(), tmp_path, [file])["table"]
    assert table == {"25": {"BM3D": {"BSD68": {"psnr": 28.5, "ssim": 0.8}}}}


def test_bad_settings(tmp_path):
    with pytest.raises(InputError, match="between 0 and 255"):
        TableSettings((0.0,))
    with pytest.raises(InputError, match="sigma"):
        LevelSettings(sigma=300)
    with pytest.raises(InputError, match="no part '26'"):
        run_part("26", settings(), drawn_sets(1, 1), tmp_path, CPU)
    folder = tmp_path / "sigma-25"
    folder.mkdir()
    (folder / "results.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        collect(settings(), tmp_path)
