"""One folder a run."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from legato.console.provenance import processor, provenance
from legato.console.runs import RunFolder, differences, require_same, results_of
from legato.errors import InputError


@dataclass(frozen=True)
class Wanted:
    names: tuple[str, ...] = ("θ",)
    seed: int = 3


def read(path):
    return json.loads(path.read_text("utf-8"))


def test_settings_first_results_last(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.begin(Wanted())
    assert not (folder.path / "results.json").exists()
    settings = read(folder.path / "settings.json")
    assert settings["settings"] == {"names": ["θ"], "seed": 3}
    for key in ("date", "commit", "device", "versions"):
        assert key in settings
    written = folder.finish({"accuracy": 0.5})
    assert written == folder.path / "results.json"
    assert read(written)["accuracy"] == 0.5
    assert "torch" in read(written)["versions"]


def test_everything_becomes_json(tmp_path):
    values = {
        0.3: torch.tensor([1.0, 2.0]),
        "nan": float("nan"),
        "inf": [float("inf")],
        "path": Path("a/b"),
        "pair": (1, None),
    }
    text = RunFolder(tmp_path).finish(values).read_text("utf-8")
    assert "NaN" not in text
    found = json.loads(text)
    assert found["0.3"] == [1.0, 2.0]
    assert found["nan"] == "nan"
    assert found["inf"] == ["inf"]
    assert found["path"] == "a/b"
    assert found["pair"] == [1, None]


def test_letters_stay_letters(tmp_path):
    assert "λθ²" in RunFolder(tmp_path).finish({"what": "λθ²"}).read_text("utf-8")


def test_figures_have_a_folder(tmp_path):
    path = RunFolder(tmp_path).figure("loss.png")
    assert path == tmp_path / "figures" / "loss.png"
    assert path.parent.is_dir()


def test_a_second_run_replaces_and_leaves_no_scraps(tmp_path):
    for seed in (1, 2):
        folder = RunFolder(tmp_path)
        folder.begin({"seed": seed})
        folder.finish({"seed": seed})
    assert read(tmp_path / "results.json")["seed"] == 2
    assert {p.name for p in tmp_path.iterdir()} == {"results.json", "settings.json"}


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_written(tmp_path, where):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written") as raised:
        RunFolder(tmp_path / where)
    assert str(tmp_path / where) in str(raised.value)
    assert "--out" in str(raised.value)
    assert (tmp_path / "file").read_text() == "in the way"


def test_results_are_read_back(tmp_path):
    assert results_of(tmp_path) is None
    RunFolder(tmp_path).finish({"accuracy": 0.5})
    found = results_of(tmp_path)
    assert found is not None
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("content", [b"", b'{"accuracy": 0.', b"[1, 2]", b"3", b"\xff\xfe{}"])
def test_damaged_results_are_named_and_kept(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged.*delete it to have it computed") as raised:
        results_of(tmp_path)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == content


def test_the_same_run_may_go_on_and_another_is_refused(tmp_path):
    require_same(tmp_path, Wanted())  # nothing is there yet
    RunFolder(tmp_path).begin(Wanted())
    require_same(tmp_path, Wanted())  # as a tuple here and a list in the file
    require_same(tmp_path, Wanted(seed=4), free=("seed",))
    with pytest.raises(InputError, match=r"another run: seed was 3 and is now 4.*--out") as raised:
        require_same(tmp_path, Wanted(seed=4))
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": 3}'])
def test_settings_that_are_none(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InputError, match="holds no settings of a run"):
        require_same(tmp_path, Wanted())


def test_differences_are_named_by_their_place():
    old = {"recipe": {"lr": 0.1, "workers": 2}, "layer": None}
    new = {"recipe": {"lr": 0.2, "workers": 0}, "layer": {"weights": "learned"}}
    assert differences(old, old) == []
    assert differences(old, new, free=("recipe.workers",)) == [
        "recipe.lr was 0.1 and is now 0.2",
        "layer.weights was None and is now 'learned'",
    ]


def test_a_processor_has_a_model(tmp_path):
    described = tmp_path / "cpuinfo"
    described.write_text(
        "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Some CPU\n\n"
        "processor\t: 1\nmodel name\t: Another\n"
    )
    assert processor(described) == "Some CPU, family 6, model 207"
    assert processor(tmp_path / "missing")  # what Python knows
    found = provenance()
    assert found["device"] == processor()
    assert 1 <= found["cores"] <= os.cpu_count()
