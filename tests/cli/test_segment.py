"""``legato segment`` from the outside."""

import json
import re
import shutil

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from command_line import failed
from legato.cli import app
from legato.studies.segment import choices
from legato.studies.segment.commands import table as table_command
from legato.studies.segment.model import build, save_model
from legato.studies.segment.settings import LayerSettings, ModelSettings

COMMANDS = ("train", "evaluate", "predict", "compare", "iterations", "table", "download")

OWN_NETWORK = """
import torch

def build(classes):
    return torch.nn.Sequential(torch.nn.Conv2d(3, classes, 3, padding=1))

def wrong(classes):
    return torch.nn.Conv2d(3, classes + 1, 1)

def number(classes):
    return classes
"""


def segment(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["segment", *map(str, args)])


@pytest.fixture(autouse=True, scope="module")
def small():
    """What --quick means, smaller still: nothing to compile, seconds instead of a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.nn.fused.choice.KernelRegistry.best", lambda *_: "reference")
        patch.setattr(choices, "QUICK_SCENES", (10, (32, 40)))
        patch.setattr(choices, "QUICK_EPOCHS", {"small": 2, "vgg32": 1, "custom": 1})
        patch.setattr(choices, "QUICK_ITERATIONS", 3)
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A trained network: its folder, and what the command said."""
    out = tmp_path_factory.mktemp("runs") / "cnn"
    return out, segment("train", "--quick", "--out", out)


@pytest.fixture(scope="module")
def layered(plain):
    """The network with the layer, trained on from there."""
    out = plain[0].parent / "global"
    start = plain[0] / "model.safetensors"
    return out, segment("train", "--quick", "--layer", "learned", "--start", start, "--out", out)


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


# ------------------------------------------------------------------------------------------ help
@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command):
    result = segment(command, "--help")
    assert result.exit_code == 0
    assert f"legato segment {command}" in " ".join(result.output.split())  # an example
    assert command in segment("--help").output
    assert not re.search(r" \.\s", result.output)  # brackets are markup, and would vanish


# ----------------------------------------------------------------------------------------- train
def test_what_a_training_writes(plain):
    out, result = plain
    assert result.exit_code == 0, result.output + result.stderr
    assert files(out) == {
        "settings.json", "results.json", "split.json", "log.csv", "last.ckpt",
        "model.safetensors", "figures/course.png", "figures/predictions.jpg",
    }  # fmt: skip
    results = json.loads((out / "results.json").read_text())
    assert results["train"]["images"] == 8
    assert results["test"]["images"] == 2
    assert 0 < results["test"]["iou"] < results["test"]["accuracy"] < 100
    told = [line for line in result.output.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in told] == ["1/2", "2/2"]  # one line each, as in a pipe
    assert "\r" not in result.output + result.stderr
    assert f"{results['test']['iou']:.2f}" in result.output
    assert f"Pictures: {out / 'figures'}" in result.output
    assert len((out / "log.csv").read_text().splitlines()) == 1 + 2
    settings = json.loads((out / "settings.json").read_text())
    assert settings["settings"]["recipe"]["seed"] == 0
    assert "torch" in settings["versions"]


def test_pictures_are_pictures(plain):
    for path, size in (("course.png", 800), ("predictions.jpg", 500)):
        with Image.open(plain[0] / "figures" / path) as image:
            image.load()
            assert image.width > size
            assert len(numpy.unique(numpy.asarray(image.convert("L")))) > 20


def test_a_finished_training_is_not_repeated(plain):
    out, _ = plain
    before = {name: (out / name).stat().st_mtime_ns for name in files(out)}
    result = segment("train", "--quick", "--out", out)
    assert result.exit_code == 0
    assert "is finished" in result.output
    assert "mean IoU" in result.output
    assert {name: (out / name).stat().st_mtime_ns for name in files(out)} == before


def test_damaged_results_are_not_computed_anew_without_a_word(plain, tmp_path):
    out = shutil.copytree(plain[0], tmp_path / "run")
    (out / "results.json").write_text('{"test": {"iou": 4')
    result = segment("train", "--quick", "--out", out)
    assert failed(result, "results.json", "damaged", "delete it to have it computed again")


def test_an_interrupted_training_goes_on_to_the_same_model(plain, tmp_path, monkeypatch):
    from legato.studies.segment import epochs

    def interrupt(self, trainer, *rest):
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(epochs.EpochBar, "on_train_batch_end", interrupt)
        result = segment("train", "--quick", "--out", tmp_path)
    assert result.exit_code == 130
    assert "The same command goes on" in result.stderr
    assert not (tmp_path / "results.json").exists()
    result = segment("train", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    straight = load_file(plain[0] / "model.safetensors")
    resumed = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(resumed[name], value) for name, value in straight.items())
    scores = [json.loads((f / "results.json").read_text())["test"] for f in (plain[0], tmp_path)]
    assert scores[0] == scores[1]


def test_a_layer_goes_on_from_a_trained_network(plain, layered):
    out, result = layered
    assert result.exit_code == 0, result.output + result.stderr
    stored = load_file(out / "model.safetensors")
    assert any(name.startswith("layer.") for name in stored)
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert settings["start"] == str(plain[0] / "model.safetensors")
    assert settings["model"]["layer"]["weights"] == "learned"
    assert settings["model"]["layer"]["iterations"] == 3


def test_a_folder_of_another_run(plain):
    before = {name: (plain[0] / name).read_bytes() for name in files(plain[0])}
    result = segment("train", "--quick", "--lr", 0.5, "--out", plain[0])
    assert failed(result, "holds another run", "recipe.lr was 0.003 and is now 0.5", "--out")
    assert {name: (plain[0] / name).read_bytes() for name in files(plain[0])} == before


def test_a_checkpoint_of_another_architecture(layered, tmp_path):
    shutil.copy(layered[0] / "last.ckpt", tmp_path)
    result = segment("train", "--quick", "--out", tmp_path)
    assert failed(result, "belongs to another model", "last.ckpt")
    assert files(tmp_path) == {"last.ckpt"}


def test_a_start_of_another_architecture(layered, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(OWN_NETWORK)
    start = layered[0] / "model.safetensors"
    out = tmp_path / "run"
    result = segment("train", "--quick", "--network", f"{file}:build", "--start", start,
                     "--out", out)  # fmt: skip
    assert failed(result, "its network is 'small'")
    assert not out.exists()


def test_an_output_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for command in (["train"], ["table"], ["iterations"]):
        result = segment(*command, "--quick", "--out", tmp_path / "file" / "run")
        assert failed(result, "cannot be written", "--out")
    assert files(tmp_path) == {"file"}


def test_a_full_gpu(tmp_path, monkeypatch):
    from legato.studies.segment import training

    def full(*args, **more):
        raise torch.OutOfMemoryError("Tried to allocate 20 GiB.")

    monkeypatch.setattr(training, "train", full)
    assert failed(segment("train", "--quick", "--out", tmp_path), "20 GiB", "--batch")


def test_a_diverging_training(tmp_path):
    result = segment("train", "--quick", "--lr", 1e30, "--out", tmp_path)
    assert failed(result, "diverged", "Lower the learning rate")
    assert not (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--network", "huge"), "small, vgg32 or FILE.py:factory"),
        (("--layer", "magic"), "none, uniform, contrast or learned"),
        (("--layer", "learned", "--neighbours", 6), "4 or 8"),
        (("--loss", "hinge"), "log, paper"),
        (("--optimiser", "lbfgs"), "adam, sgd"),
        (("--precision", "16"), "32, bf16-mixed"),
        (("--device", "tpu"), "auto, cpu or cuda"),
        (("--epochs", 0), "epochs must be at least 1"),
        (("--classes", "regions"), "give --data"),
        (("--classes", "magic"), "surfaces or regions"),
        (("--images", "a"), "both --images and --masks"),
        (("--data", "a", "--images", "b", "--masks", "c"), "not both"),
        (("--names", "a,b"), "masks of your own"),
        (("--weights", "torchvision"), "--weights is for vgg32"),
        (("--network", "vgg32", "--weights", "absent.safetensors"), "cannot be read"),
        (("--network", "absent.py:build"), "There is no file absent.py"),
        (("--start", "absent.safetensors"), "absent.safetensors cannot be read"),
        (("--data", "absent.tar.gz"), "absent.tar.gz"),
        (("--split", "absent.json"), "absent.json"),
    ],
)
def test_options_that_make_no_sense(args, words, tmp_path):
    assert failed(segment("train", "--quick", "--out", tmp_path / "run", *args), words)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------- data of one's own
@pytest.fixture
def own(tmp_path):
    """A folder of images, one of masks, and a network."""
    rng = numpy.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for index in range(5):
        pixels = rng.integers(0, 256, (24, 30 + index, 3), numpy.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
        mask = (pixels[..., 0] > 128).astype(numpy.uint8)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{index}.png")
    (tmp_path / "net.py").write_text(OWN_NETWORK)
    return tmp_path


def test_images_and_a_network_of_ones_own(own):
    given = ("--images", own / "images", "--masks", own / "masks")
    network = ("--network", f"{own / 'net.py'}:build")
    out = own / "run"
    result = segment("train", "--quick", *given, "--names", "dark,bright", *network,
                     "--layer", "contrast", "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.output + result.stderr
    model = out / "model.safetensors"
    assert failed(segment("evaluate", model), "give it again with --network")
    result = segment("evaluate", model, *network)  # the run remembers its data
    assert result.exit_code == 0, result.output + result.stderr
    assert set(json.loads(result.stdout)["iou_per_class"]) == {"dark", "bright"}
    out = own / "predicted"
    result = segment("predict", model, own / "images" / "0.png", *network, "--out", out)
    assert result.exit_code == 0, result.output + result.stderr
    assert files(out) == {"0-labels.png", "0-overlay.png"}


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("wrong", "(1, 3, 45, 61) are needed"),
        ("number", "made a int, not an nn.Module"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_a_network_of_ones_own_that_does_not_fit(own, factory, words):
    out = own / "run"
    result = segment("train", "--quick", "--network", f"{own / 'net.py'}:{factory}", "--out", out)
    assert failed(result, words)
    assert not out.exists()


def test_an_image_without_a_labelled_pixel(own):
    mask = Image.fromarray(numpy.full((24, 32), 255, numpy.uint8))
    mask.save(own / "masks" / "2.png")
    result = segment("train", "--images", own / "images", "--masks", own / "masks",
                     "--out", own / "run")  # fmt: skip
    assert failed(result, "2 has no labelled pixel")
    assert not (own / "run").exists()


def test_a_truncated_archive(tmp_path, plain):
    import gzip

    path = tmp_path / "iccv09Data.tar.gz"
    path.write_bytes(gzip.compress(bytes(200_000) + b"not a tape archive" * 1000)[:-30])
    for args in (("train", "--out", tmp_path / "run"), ("iterations", "--out", tmp_path / "run"),
                 ("evaluate", plain[0] / "model.safetensors")):  # fmt: skip
        assert failed(
            segment(*args, "--data", path), "iccv09Data.tar.gz", "legato segment download"
        )
    assert files(tmp_path) == {"iccv09Data.tar.gz"}


# --------------------------------------------------------------------------------------- evaluate
def test_evaluate_takes_classes_with_stanford_s_data_only(plain, tmp_path):
    model = plain[0] / "model.safetensors"
    assert failed(segment("evaluate", model, "--classes", "regions"), "--classes is for --data")
    asked = ("evaluate", model, "--data", tmp_path, "--classes", "magic")
    assert failed(segment(*asked), "--classes is surfaces or regions")


def test_evaluate_repeats_the_numbers_of_the_training(plain, tmp_path):
    out, _ = plain
    result = segment("evaluate", out / "model.safetensors", "--out", tmp_path / "score.json")
    assert result.exit_code == 0, result.output + result.stderr
    found = json.loads(result.stdout)
    assert json.loads((tmp_path / "score.json").read_text()) == found
    test = json.loads((out / "results.json").read_text())["test"]
    for key in ("accuracy", "iou", "images"):
        assert found[key] == test[key]
    assert list(found["iou_per_class"]) == ["sky", "horizontal", "vertical"]
    assert found["milliseconds_per_image"] > 0
    assert "split.json" in found["on"]


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_file_that_is_no_model(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for command in (("evaluate", path), ("predict", path, path), ("compare", path, path)):
        assert failed(segment(*command), "model.safetensors cannot be read")
    assert files(tmp_path) == {"model.safetensors"}


# ---------------------------------------------------------------------------------------- predict
def test_predict_takes_images_of_every_kind(layered, tmp_path):
    rng = numpy.random.default_rng(1)
    pixels = rng.integers(0, 256, (21, 33, 4), numpy.uint8)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "colour.jpg")
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(pixels[..., 0].astype(numpy.uint16) * 257).save(tmp_path / "deep.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "grey.png").read_bytes()[:200])
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "grey.png", tmp_path / "other" / "grey.png")
    names = ("broken.png", "colour.jpg", "clear.png", "absent.png", "grey.png", "other/grey.png",
             "deep.png")  # fmt: skip
    out = tmp_path / "out"
    result = segment("predict", layered[0] / "model.safetensors",
                     *(tmp_path / name for name in names), "--out", out)  # fmt: skip
    assert failed(result, "broken.png", "absent.png")
    assert "5 of 7 images" in result.output
    assert "vertical" in result.output
    done = ("colour", "clear", "grey", "grey-2", "deep")
    assert files(out) == {f"{n}-{kind}.png" for n in done for kind in ("labels", "overlay")}
    for name in done:
        with Image.open(out / f"{name}-labels.png") as labels:
            assert labels.mode == "P"
            assert labels.size == (33, 21)
            assert set(numpy.unique(numpy.asarray(labels))) <= {0, 1, 2}
            assert labels.getpalette()[:3] == [86, 156, 230]  # sky
        with Image.open(out / f"{name}-overlay.png") as overlay:
            assert overlay.size == (33, 21)
            assert overlay.mode == "RGB"
    grey, deep = (numpy.asarray(Image.open(out / f"{n}-labels.png")) for n in ("grey", "deep"))
    assert (grey == deep).all()  # 16 bits of the same picture


def test_predictions_are_the_models(plain, tmp_path):
    from legato.studies.segment.data import read_image
    from legato.studies.segment.model import load_model

    pixels = numpy.random.default_rng(2).integers(0, 256, (20, 24, 3), numpy.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    path = plain[0] / "model.safetensors"
    result = segment("predict", path, tmp_path / "image.png", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    model, _ = load_model(path)
    with torch.no_grad():
        wanted = model.eval()(read_image(tmp_path / "image.png")[None] / 255).argmax(1)[0]
    found = numpy.asarray(Image.open(tmp_path / "out" / "image-labels.png"))
    assert (found == wanted.numpy()).all()


# ---------------------------------------------------------------------------------------- compare
def test_compare_two_models(plain, layered, tmp_path):
    models = [folder / "model.safetensors" for folder in (plain[0], layered[0])]
    for name in ("panels.jpg", "panels.png"):
        result = segment("compare", *models, "--count", 2, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output + result.stderr
        with Image.open(tmp_path / name) as image:
            assert image.width > image.height  # five columns, two rows
    for folder, name in ((plain[0], "CNN "), (layered[0], "CNN + global ")):
        score = json.loads((folder / "results.json").read_text())["test"]
        line = next(x for x in result.output.splitlines() if x.startswith(name))
        assert f"{score['accuracy']:.2f} %" in line
        assert f"{score['iou']:.2f} %" in line


def test_what_compare_does_not_take(plain, tmp_path):
    model = plain[0] / "model.safetensors"
    assert failed(segment("compare", *[model] * 3), "two models or one folder, not 3")
    assert failed(segment("compare", model, model, "--out", "a.pdf"), ".jpg or .png")
    assert failed(segment("compare", tmp_path), "labels-control.pt holds no label maps")


def test_cases_are_spread_from_best_to_worst():
    from legato.studies.segment.data import SyntheticScenes
    from legato.studies.segment.figures import spread_out

    data = SyntheticScenes(7, size=(32, 32)).in_memory()
    before, after = {}, {}
    gains = [0, 3, -2, 1, 5, -4, 2]  # in rows of pixels that were wrong before and are right now
    for sample, gain in zip(data, gains, strict=True):
        wrong = (sample.labels + 1) % 3
        for maps, rows in ((before, 10), (after, 10 + gain)):
            maps[sample.name] = torch.where(
                torch.arange(32)[:, None] < rows, sample.labels, wrong
            ).byte()
    assert spread_out(data, after, before, 3) == [4, 3, 5]
    assert spread_out(data, after, before, 20) == [4, 1, 6, 3, 0, 2, 5]


# ----------------------------------------------------------------------------- iterations and table
def test_iterations(tmp_path):
    result = segment("iterations", "--quick", "--balance", 1, "--counts", "2,4",
                     "--steps", 2, "--count", 2, "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output + result.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [p["iterations"] for p in results["points"]] == [2, 4, 2, 4]
    kept = {f"rows/{time}{row}-{n}.json" for time in ("", "time-") for row in ("last", "average")
            for n in (2, 4)}  # fmt: skip
    assert files(tmp_path) == {"results.json", "settings.json", "figures/iterations.png"} | kept
    again = segment("iterations", "--quick", "--balance", 2, "--counts", "2,4",
                    "--steps", 2, "--count", 2, "--out", tmp_path)  # fmt: skip
    assert failed(again, "holds another run", "balance was 1")
    assert failed(segment("iterations", "--counts", "5;10"), "5;10")
    assert failed(segment("iterations", "--seeds", "one"), "--seeds", "one")


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    out = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        usual = table_command._settings

        def shorter(*args):
            from dataclasses import replace

            return replace(usual(*args), first_epochs=1, extra_epochs=1, iterations=3,
                           test_iterations=(3,))  # fmt: skip

        patch.setattr(table_command, "_settings", shorter)
        first = segment("table", "--quick", "--seeds", "1", "--out", out)
        assert first.exit_code == 0, first.output + first.stderr
        both = segment("table", "--quick", "--seeds", "0,1", "--out", out)
    return out, first, both


def test_the_table(tabled):
    out, first, both = tabled
    assert both.exit_code == 0, both.output + both.stderr
    # Seed 1 was there: the second call computes seed 0 only.
    assert [line.split()[1] for line in both.stderr.splitlines() if line.startswith("seed")] == (
        ["0"] * 4
    )
    assert "±" in both.output
    assert "±" not in first.output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert list(rows) == ["network", "control", "global", "contrast"]
    text = (out / "table.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| global |"))
    value = rows["global"]["test"]["iou"]
    assert f"{value['mean']:.2f} ± {value['std']:.2f}" in row
    assert row.count("|") == text.splitlines()[0].count("|") == text.splitlines()[1].count("|")
    assert "over 2 seeds" in text
    assert (out / "figures" / "table.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_enough_to_compare(tabled, tmp_path):
    result = segment("compare", tabled[0] / "seed-0", "--out", tmp_path / "panels.jpg")
    assert result.exit_code == 0, result.output + result.stderr
    score = json.loads((tabled[0] / "seed-0" / "global.json").read_text())["test"]
    assert f"{score['iou']:.2f} %" in result.output
    assert (tmp_path / "panels.jpg").stat().st_size > 10_000


def test_a_table_of_other_settings(tabled):
    result = segment("table", "--quick", "--network", "vgg32", "--out", tabled[0])
    assert failed(result, "holds another run", "table.network")
    assert failed(segment("table", "--seeds", "a,b"), "--seeds is a list")
    assert failed(segment("table", "--variants", "magic"), "magic")
    assert failed(segment("table", "--weights", "random"), "--weights FILE")


# --------------------------------------------------------------------------------------- download
def test_download_shows_where_it_is(tmp_path, monkeypatch):
    from legato.studies.segment import data

    def fetch(folder, url, progress):
        progress(10, 100)
        progress(100, None)
        return folder / "iccv09Data.tar.gz"

    monkeypatch.setattr(data, "download", fetch)
    result = segment("download", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"Data set: {tmp_path / 'iccv09Data.tar.gz'}" in result.output


def test_a_download_that_fails_leaves_nothing(tmp_path):
    assert failed(segment("download", tmp_path / "new", "--url", "ftp://nowhere"), "http")
    assert list(tmp_path.iterdir()) == []


def test_compare_wants_the_model_without_the_layer_first(plain, tmp_path):
    model = build(ModelSettings(("sky", "horizontal", "vertical"), layer=LayerSettings()))
    with_layer = tmp_path / "with.safetensors"
    save_model(
        model, ModelSettings(("sky", "horizontal", "vertical"), layer=LayerSettings()), with_layer
    )
    result = segment(
        "compare", with_layer, plain[0] / "model.safetensors", "--out", tmp_path / "x.png"
    )
    assert result.exit_code == 1
    assert "give the model without it first" in " ".join(result.stderr.split())
    assert not (tmp_path / "x.png").exists()


def test_a_training_that_is_told_to_end_says_so(tmp_path, monkeypatch):
    from legato.studies.segment import training

    def told(*args, **more):
        raise SystemExit(143)

    monkeypatch.setattr(training, "train", told)
    result = segment("train", "--quick", "--out", tmp_path)
    assert result.exit_code == 143
    assert "The same command goes on" in result.stderr
