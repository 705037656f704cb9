"""What ``legato explore`` computes, without a browser."""

import io
import struct
import zlib

import pytest
import torch
from PIL import Image

from legato.console.files import DataError
from legato.errors import InputError
from legato.nn import ContrastWeights, Potts
from legato.studies.explore.controls import GradientControls, SegmentationControls
from legato.studies.explore.gradients import distance, see_gradients, stepped, truth
from legato.studies.explore.pictures import LONGEST_SIDE, MAX_BYTES, example_pictures, read_picture
from legato.studies.explore.segmentation import (
    colour_cost,
    coupling,
    looked_at,
    outline_length,
    segment_picture,
)
from legato.studies.toy.example import SETS
from legato.studies.toy.methods import BACK_ITERATED, METHODS, estimate


@pytest.fixture(scope="module")
def stripes():
    """Three flat colours side by side with a little noise, and their labels from dark to bright."""
    labels = torch.arange(36).div(12, rounding_mode="floor").expand(24, 36)
    colours = torch.tensor([[0.1, 0.1, 0.2], [0.3, 0.6, 0.3], [0.9, 0.8, 0.7]])
    noise = 0.08 * torch.randn(3, 24, 36, generator=torch.Generator().manual_seed(0))
    return (colours[labels].permute(2, 0, 1) + noise).clamp(0, 1), labels


# --- cost -----------------------------------------------------------------------------------------


def test_typical_colours_are_found_and_sorted(stripes):
    image, labels = stripes
    cost = colour_cost(image, 3)
    assert cost.shape == (1, 3, 24, 36)
    assert (cost.argmin(1)[0] == labels).float().mean() > 0.97


def test_the_cheapest_cost_is_three_halves_on_average(stripes):
    # A squared distance over twice the variance of three channels, by definition of the scale.
    assert colour_cost(stripes[0], 3).min(1).values.mean() == pytest.approx(1.5, rel=1e-4)


def test_a_flat_picture_has_finite_costs():
    cost = colour_cost(torch.full((3, 8, 8), 0.5), 4)
    assert torch.isfinite(cost).all()
    assert cost.abs().max() < 1e-6


@pytest.mark.parametrize("image", [torch.zeros(1, 8, 8), torch.zeros(3, 8), torch.zeros(3, 0, 8)])
def test_what_is_no_picture(image):
    with pytest.raises(InputError, match="shape"):
        colour_cost(image, 3)


# --- segmentation ---------------------------------------------------------------------------------


def test_the_curve_is_that_of_one_solve(stripes):
    image, _ = stripes
    controls = SegmentationControls(labels=3, smoothness=1.5, contrast=5.0, iterations=40)
    found = segment_picture(image, controls)
    with torch.no_grad():
        whole = Potts(40).solve(colour_cost(image, 3), ContrastWeights(1.5, 5.0)(image[None]))
    assert found.iterations[0] == 1
    assert found.iterations[-1] == 40
    assert found.energy[-1] == pytest.approx(float(whole.energy) / 864, rel=1e-5)
    assert found.gap[-1] == pytest.approx(float(whole.gap) / 864, rel=1e-2, abs=1e-6)
    assert torch.equal(found.potts, whole.x.argmax(1)[0])


def test_energy_is_bounded_from_below_by_every_gap(stripes):
    found = segment_picture(stripes[0], SegmentationControls(labels=3, iterations=300))
    least = found.energy[-1] - found.gap[-1]
    for energy, gap in zip(found.energy, found.gap, strict=True):
        assert gap > -1e-5
        assert energy - gap <= found.energy[-1] + 1e-5
        assert energy >= least - 1e-5
    assert found.gap[-1] < 0.01 * found.gap[0]
    assert found.energy[-1] < found.cost_only_energy


def test_more_smoothness_means_shorter_outlines():
    image = example_pictures()["Scene 1"]
    lengths = [
        segment_picture(image, SegmentationControls(smoothness=beta, iterations=60)).potts_length
        for beta in (0.0, 2.0, 8.0)
    ]
    assert lengths[0] > lengths[1] > lengths[2]


def test_without_smoothness_colours_decide(stripes):
    found = segment_picture(
        stripes[0], SegmentationControls(labels=3, smoothness=0.0, iterations=50)
    )
    assert torch.equal(found.potts, found.cost_only)
    assert found.potts_length == found.cost_only_length > 0


def test_weights():
    image = torch.rand(1, 3, 6, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(coupling(image, 2.0, 0.0), torch.full((1, 1, 1, 1, 1), 2.0))
    near = coupling(image, 2.0, 1e-4)  # κ → 0
    assert torch.allclose(near, torch.tensor(2.0), rtol=1e-3)
    assert torch.equal(coupling(image, 2.0, 9.0), ContrastWeights(2.0, 9.0)(image))


def test_outlines():
    labels = torch.tensor([[0, 0, 1], [0, 2, 1]])
    assert outline_length(labels) == 4
    assert outline_length(torch.zeros(5, 5, dtype=torch.long)) == 0


@pytest.mark.parametrize("iterations", [1, 2, 3, 10, 257, 1000])
def test_where_the_curve_is_looked_at(iterations):
    places = looked_at(iterations)
    assert places[0] == 1
    assert places[-1] == iterations
    assert places == sorted(set(places))
    assert len(places) <= 25


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"labels": 1}, "labels lies between 2 and 8, not 1"),
        ({"labels": 2.5}, "labels is a whole number"),
        ({"iterations": 10**9}, "iterations lies between 1 and 1000"),
        ({"smoothness": float("nan")}, "smoothness lies between"),
        ({"contrast": -1.0}, "contrast lies between"),
    ],
)
def test_controls_out_of_range(controls, words):
    with pytest.raises(InputError, match=words):
        SegmentationControls(**controls)


# --- pictures -------------------------------------------------------------------------------------


def test_examples_differ_and_repeat():
    pictures = list(example_pictures().values())
    assert len(pictures) == 4
    assert all(p.shape == (3, 192, 256) and 0 <= p.min() < p.max() <= 1 for p in pictures)
    assert not torch.equal(pictures[0], pictures[1])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP"])
def test_types_that_are_read(kind, tmp_path):
    path = tmp_path / f"picture.{kind.lower()}"
    Image.new("RGB", (80, 40), (200, 30, 60)).save(path, kind)
    picture = read_picture(path)
    assert picture.shape == (3, 40, 80)
    assert torch.allclose(picture[:, 20, 40], torch.tensor([200, 30, 60]) / 255, atol=0.03)


def test_large_pictures_are_scaled(tmp_path):
    Image.new("L", (1000, 250), 128).save(tmp_path / "wide.png")
    picture = read_picture(tmp_path / "wide.png")
    assert picture.shape == (3, LONGEST_SIDE // 4, LONGEST_SIDE)
    Image.new("L", (5000, 2), 128).save(tmp_path / "thin.png")
    assert read_picture(tmp_path / "thin.png").shape == (3, 1, LONGEST_SIDE)


@pytest.mark.parametrize("content", [b"hello", b"%PDF-1.7 no picture", b"GIF89a" + bytes(50)])
def test_what_is_no_picture_of_a_known_type(content, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png is not an image .* PNG, JPEG, WEBP, TIFF, BMP:"):
        read_picture(tmp_path / "a.png")


def test_an_empty_file(tmp_path):
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=r"a\.png is empty"):
        read_picture(tmp_path / "a.png")


def test_a_gif_under_another_name(tmp_path):
    Image.new("P", (8, 8)).save(tmp_path / "a.png", "GIF")
    with pytest.raises(DataError, match="is not an image of a known format"):
        read_picture(tmp_path / "a.png")


def test_a_truncated_picture(tmp_path):
    data = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(data, "PNG")
    (tmp_path / "half.png").write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    with pytest.raises(DataError, match="truncated or damaged"):
        read_picture(tmp_path / "half.png")


@pytest.mark.parametrize(
    "side", [8_000, 10_000, 60_000]
)  # below, between and above Pillow's limits
def test_decompression_bombs_are_not_decoded(side, tmp_path):
    (tmp_path / "bomb.png").write_bytes(_bomb(side))
    with pytest.raises(DataError, match=r"too large .* at most 50 million"):
        read_picture(tmp_path / "bomb.png")


def test_large_files_are_not_read(tmp_path):
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"huge\.png has 20\.0 MB; at most 20 MB"):
        read_picture(tmp_path / "huge.png")


def test_a_picture_that_is_gone(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_picture(tmp_path / "nothing.png")


def _bomb(side):
    """A PNG of a few bytes whose header promises side² pixels."""

    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


# --- gradients ------------------------------------------------------------------------------------


def test_rows_are_the_toys_own_estimates():
    view = see_gradients(GradientControls("B", 0.3, forward=60, back=12))
    assert [row.method for row in view.rows] == list(METHODS)
    for row in view.rows:
        expected = estimate(SETS["B"], row.method, 0.3, back=12, forward=60)
        assert row.gradient == expected.gradient
        assert row.error == abs(expected.gradient - SETS["B"].derivative(0.3))
        assert row.words == expected.warnings


def test_errors_shrink_with_back_iterations_and_end_at_the_truth():
    view = see_gradients(GradientControls("A", 0.45, forward=200, back=20))
    assert view.backs[0] == 1
    assert view.backs[-1] == 200
    assert set(view.along) == set(BACK_ITERATED)
    for rows in view.along.values():
        assert rows[-1].error < 1e-9 < rows[0].error


def test_at_the_kink_the_whole_subdifferential_is_right():
    view = see_gradients(GradientControls("A", 0.0))
    assert view.truth == SETS["A"].clarke() == (-0.5, 0.0)
    assert view.at_kink
    by_name = {row.method: row for row in view.rows}
    assert by_name["Smoothed-impl"].error == 0
    assert -0.5 <= by_name["Smoothed-impl"].gradient <= 0


@pytest.mark.parametrize("values", SETS)
@pytest.mark.parametrize("theta", [-0.5, 0.01, 1.0])
def test_projected_steps_are_stable_everywhere(values, theta):
    toy = stepped(SETS[values], theta)
    assert 0 < toy.projected_steps[theta] < 2 / (1 + toy.lam * theta**2)
    found = estimate(toy, "Proj.GD", theta, forward=400)
    assert found.gradient == pytest.approx(truth(toy, theta)[0], abs=1e-8)


def test_the_figures_own_steps_are_kept():
    assert stepped(SETS["A"], 0.3) is SETS["A"]
    assert stepped(SETS["A"], 0.0) is SETS["A"]


def test_no_more_is_differentiated_than_was_made():
    view = see_gradients(GradientControls("A", 0.3, forward=5, back=400))
    assert view.controls.used_back == 5
    assert view.backs == [1, 2, 3, 4, 5]


def test_a_step_that_is_too_long_is_said_in_words():
    view = see_gradients(GradientControls("B", 1.0, forward=100, back=50))
    said = {row.method: " ".join(row.words) for row in view.rows}
    assert "not a fixed point" in said["Bregman-FB2"]


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"values": "C"}, "There is no set 'C'"),
        ({"theta": 7.0}, "theta lies between"),
        ({"theta": float("nan")}, "theta lies between"),
        ({"forward": 0}, "forward lies between"),
        ({"back": 10**7}, "back lies between"),
    ],
)
def test_gradient_controls_out_of_range(controls, words):
    with pytest.raises(InputError, match=words):
        GradientControls(**controls)


def test_distance_from_an_interval():
    assert distance(0.5, (0.0, 1.0)) == 0
    assert distance(1.5, (0.0, 1.0)) == 0.5
    assert distance(-2.0, (0.0, 1.0)) == 2
