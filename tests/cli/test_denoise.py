"""``legato denoise`` from the outside."""

import json
import os

import numpy
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from command_line import failed
from legato.cli import app
from legato.gradients import Unroll
from legato.nn import AnalysisDenoiser, noise_level
from legato.studies.denoise import clean as cleaning
from legato.studies.denoise.clean import (
    FILTERS_FILE,
    MAPS_FILE,
    clean_channels,
    shipped_denoiser,
    shipped_filters,
    story_of,
)
from legato.studies.denoise.images import draw_picture
from legato.studies.denoise.models import first_filters
from legato.studies.denoise.report import no_training
from legato.studies.denoise.scores import psnr

SIGMA = 20


def denoise(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["denoise", *map(str, args)])


def noisy_levels(top=255):
    """A drawn picture with noise of 20 of 255, as whole numbers up to ``top``."""
    image = draw_picture(3, 40, 48)
    noise = SIGMA / 255 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return ((image + noise).clamp(0, 1) * top).round().numpy()


@pytest.fixture
def grey(tmp_path):
    path = tmp_path / "grey.png"
    Image.fromarray(noisy_levels().astype(numpy.uint8)).save(path)
    return path


# --- the shipped filters --------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "size"), [(FILTERS_FILE, 20_000), (MAPS_FILE, 120_000)])
def test_what_is_shipped_is_small_and_says_where_it_comes_from(path, size):
    assert path.stat().st_size < size
    story = json.loads(story_of(path).read_text("utf-8"))
    assert story["training"]["steps"] > 0
    assert {"date", "commit", "device", "versions"} <= set(story)


def test_the_shipped_filters_are_for_any_grey_image():
    for filters in (shipped_filters(), shipped_denoiser().filters):
        assert filters.conditioned
        assert filters.channels == 1


@pytest.mark.parametrize("sigma", [10, 25, 50])
def test_the_shipped_models_denoise(sigma):
    clean_image = draw_picture(5, 48, 56)[None]
    noise = torch.randn(clean_image.shape, generator=torch.Generator().manual_seed(1))
    y = clean_image + sigma / 255 * noise
    for model in (shipped_filters(), shipped_denoiser()):
        found = clean_channels(y, sigma / 255, model, torch.device("cpu"))
        assert psnr(found, clean_image) > psnr(y, clean_image) + 3


@pytest.mark.parametrize("model", [shipped_filters, shipped_denoiser])
def test_tiles_make_no_difference(model, monkeypatch):
    noise = torch.randn(1, 90, 100, generator=torch.Generator().manual_seed(0))
    y = draw_picture(5, 90, 100)[None] + 0.08 * noise
    whole = clean_channels(y, 0.08, model(), torch.device("cpu"))
    monkeypatch.setattr(cleaning, "TILE", 48)
    monkeypatch.setattr(cleaning, "MARGIN", 32)
    tiled = clean_channels(y, 0.08, model(), torch.device("cpu"))
    assert float((tiled - whole).abs().max()) < 5e-4


# --- a picture ------------------------------------------------------------------------------------


def test_a_picture_by_its_name_alone(grey):
    result = denoise(grey)
    assert result.exit_code == 0, result.output
    assert "estimated" in result.stdout
    found = numpy.asarray(Image.open(grey.with_name("grey-clean.png"))).astype(float)
    truth = draw_picture(3, 40, 48).numpy() * 255
    before = numpy.abs(noisy_levels() - truth).mean()
    assert numpy.abs(found - truth).mean() < 0.6 * before
    y = torch.from_numpy(noisy_levels() / 255).float()[None, None]
    assert f"σ = {255 * float(noise_level(y)):.1f} of 255" in result.stdout


def test_options_may_come_first(grey, tmp_path):
    result = denoise("--sigma", 20, "--output", tmp_path / "out.png", grey)
    assert result.exit_code == 0, result.output
    assert "σ = 20.0 of 255, given" in result.stdout
    assert (tmp_path / "out.png").exists()
    again = denoise("clean", grey, "--sigma", 20, "-o", tmp_path / "again.png")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "out.png").read_bytes()


def save_as(mode, path):
    levels = noisy_levels().astype(numpy.uint8)
    grey = Image.fromarray(levels)
    if mode == "16":
        Image.fromarray(noisy_levels(65535).astype(numpy.uint16)).save(path)
    elif mode in ("F", "F wide"):
        values = noisy_levels(1000.0 if mode == "F wide" else 1.0) - 5.0 * (mode == "F wide")
        Image.fromarray((values if mode == "F wide" else noisy_levels() / 255)
                        .astype(numpy.float32)).save(path)  # fmt: skip
    elif mode in ("LA", "RGBA"):
        image = grey.convert(mode)
        image.putalpha(Image.fromarray(numpy.arange(levels.size, dtype=numpy.uint8)
                                       .reshape(levels.shape)))  # fmt: skip
        image.save(path)
    elif mode == "P clear":
        grey.convert("P").save(path, transparency=0)
    else:
        grey.convert("RGB").convert(mode).save(path)


@pytest.mark.parametrize(
    ("mode", "suffix", "becomes", "note"),
    [
        ("L", ".bmp", "L", ""),
        ("RGB", ".jpg", "RGB", ""),
        ("RGB", ".webp", "RGB", ""),
        ("LA", ".png", "LA", ""),
        ("RGBA", ".png", "RGBA", ""),
        ("P", ".png", "RGB", "P becomes RGB"),
        ("P clear", ".png", "RGBA", "P becomes RGBA"),
        ("CMYK", ".jpg", "RGB", "CMYK becomes RGB"),
        ("16", ".png", "I;16", ""),
        ("16", ".tif", "I;16", ""),
        ("F", ".tif", "F", ""),
        ("F wide", ".tif", "F", "range of"),
    ],
)
def test_modes_and_depths(mode, suffix, becomes, note, tmp_path):
    path = tmp_path / f"picture{suffix}"
    save_as(mode, path)
    result = denoise(path, "--sigma", 15)
    assert result.exit_code == 0, result.output
    assert note in result.stdout
    written = tmp_path / f"picture-clean{'.tiff' if becomes == 'F' else '.png'}"
    with Image.open(path) as before, Image.open(written) as after:
        assert after.mode == becomes
        assert after.size == before.size
        if mode in ("LA", "RGBA"):
            assert after.getchannel("A").tobytes() == before.getchannel("A").tobytes()
        old = numpy.asarray(before.convert("RGBA" if mode == "P clear" else becomes)).astype(float)
        new = numpy.asarray(after).astype(float)
    span = old.max() - old.min()
    assert 0.005 < numpy.abs(new - old).mean() / span < 0.2  # changed, but the same picture


def test_nothing_changes_without_noise(grey):
    result = denoise(grey, "--sigma", 0)
    assert result.exit_code == 0, result.output
    assert "nothing changed" in result.stdout
    after = Image.open(grey.with_name("grey-clean.png"))
    assert after.tobytes() == Image.open(grey).tobytes()


def test_a_flat_picture_has_no_noise(tmp_path):
    path = tmp_path / "flat.png"
    Image.new("L", (20, 20), 77).save(path)
    result = denoise(path)
    assert result.exit_code == 0, result.output
    assert "σ = 0.0 of 255, estimated" in result.stdout
    assert set(Image.open(tmp_path / "flat-clean.png").tobytes()) == {77}


def test_much_noise_is_said(grey):
    assert "more noise than the filters were trained for" in denoise(grey, "--sigma", 90).stdout


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", ["-1", "nan", "inf", "300"])
def test_no_such_sigma(grey, sigma):
    failed(denoise(grey, "--sigma", sigma), "sigma must be a standard deviation")


def test_one_bit(tmp_path):
    Image.new("1", (20, 20)).save(tmp_path / "a.png")
    failed(denoise(tmp_path / "a.png"), "a.png", "one bit")


def test_a_mode_that_cannot_be_converted(tmp_path, monkeypatch):
    def refuse(image, mode):
        raise ValueError(f"conversion from {image.mode} to {mode} not supported")

    Image.new("LAB", (20, 20)).save(tmp_path / "a.tif")
    monkeypatch.setattr(Image.Image, "convert", refuse)  # as Pillow does for rarer pairs
    failed(denoise(tmp_path / "a.tif"), "a.tif", "LAB", "Save it as RGB")


def test_smaller_than_the_filters(tmp_path):
    Image.new("L", (30, 5)).save(tmp_path / "a.png")
    failed(denoise(tmp_path / "a.png", "--sigma", 5), "a.png", "30×5", "smaller than the filters")
    Image.new("L", (2, 2)).save(tmp_path / "b.png")
    failed(denoise(tmp_path / "b.png"), "b.png", "3×3")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_floats_that_are_no_numbers(tmp_path, value):
    values = numpy.zeros((20, 20), numpy.float32)
    values[3, 3] = value
    Image.fromarray(values).save(tmp_path / "a.tif")
    failed(denoise(tmp_path / "a.tif"), "NaN or infinite")


def test_integers_without_black_and_white(tmp_path):
    Image.fromarray(numpy.full((20, 20), 70000, numpy.int32)).save(tmp_path / "a.tif")
    failed(denoise(tmp_path / "a.tif"), "70000")


def test_several_pictures_in_a_file(tmp_path):
    frames = [Image.new("L", (20, 20), level) for level in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    failed(denoise(tmp_path / "a.gif"), "2 pictures")


def test_unreadable_files_do_not_stop_the_others(grey, tmp_path):
    (tmp_path / "broken.png").write_bytes(grey.read_bytes()[:200])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.png").touch()
    names = ("broken.png", "text.png", "empty.png", "missing.png")
    result = denoise(*(tmp_path / name for name in names), tmp_path, grey)
    failed(result, *names, "is a folder")
    assert "1 of 6 images" in result.stdout
    assert grey.with_name("grey-clean.png").exists()


def test_existing_files_stay(grey, tmp_path):
    target = tmp_path / "there.png"
    target.write_text("precious")
    failed(denoise(grey, "-o", target), "exists", "--force")
    assert target.read_text() == "precious"
    assert denoise(grey, "-o", target, "--force").exit_code == 0
    with Image.open(target) as written:
        assert written.mode == "L"
    before = grey.read_bytes()
    failed(denoise(grey, "-o", grey, "--force"), "the picture itself")
    assert grey.read_bytes() == before


def test_files_that_cannot_hold_it(grey, tmp_path):
    save_as("16", tmp_path / "deep.png")
    failed(denoise(tmp_path / "deep.png", "-o", tmp_path / "a.jpg"), ".jpg", "I;16", "a.png")
    failed(denoise(grey, "-o", tmp_path / "a.xyz"), ".xyz")
    failed(denoise(grey, "-o", tmp_path / "nowhere" / "a.png"), "cannot be written")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(grey, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    failed(denoise(grey, "-o", tmp_path / "locked" / "a.png"), "cannot be written")


def test_several_images_into_a_folder(grey, tmp_path):
    other = tmp_path / "other.png"
    save_as("RGB", other)
    result = denoise(grey, other, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"grey.png", "other.png"}
    failed(denoise(grey, other, "-o", grey), "must be a folder")
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / "grey.png"
    save_as("L", twin)
    failed(denoise(grey, twin, "-o", tmp_path / "out"), "called grey")


def test_filters_of_one_s_own(grey, tmp_path):
    own = tmp_path / "own.safetensors"
    first_filters(8, 3, 5, None, Unroll()).save(own)
    assert denoise(grey, "--model", own).exit_code == 0
    AnalysisDenoiser(8, 3).save(own)
    failed(denoise(grey, "--model", own, "--force"), "one σ only")
    own.write_text("nothing")
    failed(denoise(grey, "--model", own, "--force"), "cannot be read")


def test_without_arguments_it_explains_itself():
    assert "IMAGE" in denoise().output
    assert "--sigma" in denoise("clean", "--help").output


# --- the table ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from legato.studies.denoise import settings

    out = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "QUICK_STEPS", 2)
        first = denoise("table", "--quick", "--parts", "25", "--out", out)
        yield out, first, denoise("table", "--quick", "--parts", "25", "--out", out)


def test_the_table(table):
    out, first, again = table
    assert first.exit_code == 0, first.output
    assert "filters, λ(y)" in first.stdout
    results = json.loads((out / "results.json").read_text())
    assert set(results["table"]) == {"25"}
    assert {path.name for path in (out / "figures").iterdir()} == {"filters.png", "crops.jpg"}
    assert again.exit_code == 0, again.output
    assert "is there already" in again.stdout


def test_a_quick_table_says_that_it_is_no_training(table):
    said = " ".join(table[1].output.split())
    assert "2 steps are no training" in said
    assert "without --quick it trains for 2000 steps" in said
    assert no_training(2000) is None


def test_parts_of_a_picture_are_counted(monkeypatch):
    monkeypatch.setattr(cleaning, "TILE", 24)
    channels = torch.rand(3, 40, 60, generator=torch.Generator().manual_seed(0))
    calls = []
    clean_channels(channels, 0.1, shipped_denoiser(), torch.device("cpu"), lambda: calls.append(1))
    assert len(calls) == cleaning.parts(channels) == 3 * 2 * 3


def test_the_table_refuses(table, tmp_path):
    out, *_ = table
    before = (out / "settings.json").read_bytes()
    failed(
        denoise("table", "--parts", "25", "--out", out),
        "holds another run",
        "level.filters was 8 and is now 48",
    )
    assert (out / "settings.json").read_bytes() == before
    failed(denoise("table", "--sigmas", "many"), "list of numbers")
    failed(denoise("table", "--quick", "--parts", "none", "--out", tmp_path), "no part 'none'")
    failed(denoise("table", "--data", tmp_path / "no", "--out", tmp_path), "no folder")
