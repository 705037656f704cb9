"""The table: what is done is not repeated, and its arithmetic is right."""

import json
from dataclasses import asdict, replace

import numpy
import pytest
import torch

from legato.errors import InputError
from legato.studies.segment import table
from legato.studies.segment.data import split
from legato.studies.segment.evaluation import Score
from legato.studies.segment.settings import LayerSettings, Recipe
from legato.studies.segment.table import VARIANTS, TableSettings, collect, run_seed

SETTINGS = TableSettings(
    "small",
    seeds=(0, 1),
    variants=("control", "global"),
    first_epochs=1,
    extra_epochs=1,
    lr=3e-3,
    extra_lr=1e-3,
    recipe=Recipe(batch=2, accelerator="cpu"),
    test_iterations=(2, 6),
    iterations=4,
)


@pytest.fixture(scope="module")
def parts(study):
    return split(study.data.names, 2)


@pytest.fixture(scope="module")
def done(study, parts, tmp_path_factory):
    """A table of two seeds, with the lines it reported."""
    folder, lines = tmp_path_factory.mktemp("table"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
        for seed in SETTINGS.seeds:
            run_seed(seed, SETTINGS, study.data, parts, folder, "cpu", None, lines.append)
    return folder, lines


def test_what_a_seed_leaves_behind(done, study, parts):
    folder, lines = done
    assert [line.split()[:3] for line in lines[:3]] == [
        ["seed", "0", name] for name in ("network", "control", "global")
    ]
    names = {p.name for p in (folder / "seed-0").iterdir() if p.is_file()}
    assert names == {
        "network.pt", "network.json", "control.json", "global.json", "labels-control.pt",
        "labels-global.pt", "weights.pt", "network.npz", "control.npz", "global.npz",
    }  # fmt: skip
    for name in ("labels-control", "labels-global", "weights"):
        maps = torch.load(folder / "seed-0" / f"{name}.pt", weights_only=True)
        assert set(maps) == set(parts.test)
        assert all(m.dtype == torch.uint8 and m.shape == (32, 40) for m in maps.values())
    row = json.loads((folder / "seed-0" / "global.json").read_text())
    assert set(row["test_iterations"]) == {"2", "6"}
    assert row["train"]["images"] == 4
    assert row["test"]["images"] == 2
    assert "scale.log_scale" in row["parameters"]
    with numpy.load(folder / "seed-0" / "global.npz") as counts:
        for part in ("train", "test"):
            found = asdict(Score.of(torch.from_numpy(counts[part])))
            assert json.loads(json.dumps(found)) == row[part]


def test_what_is_done_is_not_done_again(done, study, parts, monkeypatch):
    folder, _ = done
    monkeypatch.setattr(table, "train", lambda *a, **k: pytest.fail("trained again"))
    lines = []
    run_seed(0, SETTINGS, study.data, parts, folder, "cpu", None, lines.append)
    assert lines == []


def test_the_same_seed_gives_the_same_row(done, study, parts, tmp_path, monkeypatch):
    monkeypatch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
    settings = replace(SETTINGS, variants=("control",))
    run_seed(1, settings, study.data, parts, tmp_path, "cpu")
    rows = [
        json.loads((folder / "seed-1" / "control.json").read_text())
        for folder in (done[0], tmp_path)
    ]
    for row in rows:
        row.pop("seconds")
    assert rows[0] == rows[1]


def test_means_deviations_and_paired_gains(tmp_path):
    numbers = {"network": (70, 71), "control": (80, 84), "global": (85, 87)}
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        for name, values in numbers.items():
            score = {"accuracy": values[seed] + 5, "iou": values[seed]}
            path = tmp_path / f"seed-{seed}" / f"{name}.json"
            path.write_text(json.dumps({"seconds": 1.0, "test": score}))
    rows = collect(tmp_path, SETTINGS)
    assert rows["global"]["test"]["iou"]["mean"] == 86
    assert rows["global"]["test"]["iou"]["std"] == pytest.approx(2**0.5)
    gain = rows["global"]["gain"]["iou"]
    assert gain["each"] == [5, 3]
    assert (gain["mean"], gain["std"]) == (4, pytest.approx(2**0.5))
    assert rows["network"]["gain"]["accuracy"]["each"] == [-10, -13]
    # A seed that is not finished leaves its variant out.
    (tmp_path / "seed-1" / "global.json").unlink()
    assert set(collect(tmp_path, SETTINGS)) == {"network", "control"}


def test_an_unknown_variant():
    with pytest.raises(InputError, match=r"\['magic'\].*control, skip, global"):
        TableSettings(variants=("magic",))


def test_the_papers_own_configuration_is_a_row():
    """Section 8: contrast weights, 4 neighbours, 100 iterations, their mean, its loss, Adam."""
    for name, rate in (("paper", None), ("paper-rate", 1e-3)):
        row = VARIANTS[name]
        assert row.layer == LayerSettings("contrast", neighbours=4, iterations=100, average=True)
        assert (row.loss, row.optimiser, row.lr) == ("paper", "adam", rate)
        assert (row.refine, row.freeze_network) == (False, False)
    assert Recipe().batch == 5
