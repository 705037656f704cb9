"""Images of every kind as RGB, and clear words for those that cannot be read."""

import io

import numpy
import pytest
import torch
from PIL import Image

from legato.console.files import DataError
from legato.console.pictures import decode_image, read_image

RAMP = numpy.arange(0, 240, 10, dtype=numpy.uint8).reshape(4, 6)
COLOURS = numpy.stack((RAMP, 255 - RAMP, RAMP // 2), axis=-1)


def save(path, image, **options):
    image.save(path, **options)
    return path


def planes(array):
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


@pytest.mark.parametrize("suffix", ["png", "tiff", "bmp", "ppm"])
def test_rgb_comes_as_it_is(tmp_path, suffix):
    image = read_image(save(tmp_path / f"a.{suffix}", Image.fromarray(COLOURS)))
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert torch.equal(image, planes(COLOURS))


def test_webp_and_jpeg(tmp_path):
    exact = read_image(save(tmp_path / "a.webp", Image.fromarray(COLOURS), lossless=True))
    assert torch.equal(exact, planes(COLOURS))
    flat = Image.new("RGB", (32, 16), (200, 100, 50))
    image = read_image(str(save(tmp_path / "a.jpg", flat)))
    assert image.shape == (3, 16, 32)
    assert (image.float().mean((1, 2)) - torch.tensor([200.0, 100, 50])).abs().max() < 3


def test_grey_is_repeated(tmp_path):
    image = read_image(save(tmp_path / "a.png", Image.fromarray(RAMP)))
    assert torch.equal(image, torch.from_numpy(RAMP).expand(3, -1, -1))


def test_black_and_white(tmp_path):
    image = read_image(save(tmp_path / "a.png", Image.fromarray(RAMP > 100)))
    assert torch.equal(image[1], torch.from_numpy(RAMP > 100) * torch.tensor(255).byte())


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_16_bits_are_scaled_to_8(tmp_path, suffix):
    wide = RAMP.astype(numpy.uint16) * 257
    image = read_image(save(tmp_path / f"a.{suffix}", Image.fromarray(wide)))
    assert torch.equal(image, torch.from_numpy(RAMP).expand(3, -1, -1))


def test_16_bits_are_rounded_and_reach_white(tmp_path):
    wide = numpy.array([[0, 128, 129, 65535 - 129, 65535]], numpy.uint16)
    image = read_image(save(tmp_path / "a.png", Image.fromarray(wide)))
    assert image[0].tolist() == [[0, 0, 1, 254, 255]]


def test_transparent_pixels_lie_over_white(tmp_path):
    alpha = numpy.zeros((4, 6, 1), numpy.uint8)
    alpha[:2] = 255
    image = read_image(
        save(tmp_path / "a.png", Image.fromarray(numpy.concatenate((COLOURS, alpha), axis=-1)))
    )
    assert torch.equal(image[:, :2], planes(COLOURS)[:, :2])
    assert (image[:, 2:] == 255).all()


def test_half_transparent_grey(tmp_path):
    image = read_image(save(tmp_path / "a.png", Image.new("LA", (2, 2), (100, 51))))
    assert (image == round(0.2 * 100 + 0.8 * 255)).all()


def test_palette_with_a_transparent_colour(tmp_path):
    palette = Image.frombytes("P", (2, 1), bytes([0, 1]))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert read_image(save(tmp_path / "a.png", palette))[:, 0, 1].tolist() == [40, 50, 60]
    image = read_image(save(tmp_path / "b.png", palette, transparency=1))
    assert image[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255]]


def test_cmyk(tmp_path):
    inks = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert read_image(save(tmp_path / "a.tiff", inks))[:, 0, 0].tolist() == [255, 0, 0]
    assert read_image(save(tmp_path / "a.jpg", inks)).shape == (3, 8, 8)


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
def test_the_orientation_of_the_camera_is_applied(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise
    options = {"lossless": True} if suffix == "webp" else {}
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(COLOURS), exif=exif, **options)
    assert torch.equal(read_image(path), torch.rot90(planes(COLOURS), -1, (1, 2)))


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="There is no image"):
        read_image(tmp_path / "a.png")


def test_a_folder(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        read_image(tmp_path)


def test_an_empty_file(tmp_path):
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=r"a\.png is empty"):
        read_image(tmp_path / "a.png")


def test_something_else(tmp_path):
    (tmp_path / "a.png").write_text("not an image at all")
    with pytest.raises(DataError, match="not an image of a known format"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file(tmp_path, form, share):
    noise = numpy.random.default_rng(0).integers(0, 256, (60, 80, 3), numpy.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, form)
    data = buffer.getvalue()
    (tmp_path / "a").write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="damaged"):
        read_image(tmp_path / "a")


def test_an_image_that_is_too_large(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.new("RGB", (30, 20)))
    for limit in (599, 400, 100):  # a little, enough for Pillow to warn, enough for it to refuse
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match="too large"):
            read_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(path).shape == (3, 20, 30)


@pytest.mark.parametrize(
    ("values", "message"),
    [(numpy.ones((4, 4), numpy.float32), "floating"), (numpy.full((4, 4), 1 << 20), "32-bit int")],
)
def test_32_bits_have_no_white(tmp_path, values, message):
    array = values if values.dtype == numpy.float32 else values.astype(numpy.int32)
    path = save(tmp_path / "a.tiff", Image.fromarray(array))
    with pytest.raises(DataError, match=message):
        read_image(path)


def test_limits_that_a_caller_sets(tmp_path):
    data = save(tmp_path / "a.bmp", Image.fromarray(COLOURS)).read_bytes()
    assert decode_image(data, "a.bmp", most_pixels=24).shape == (3, 4, 6)
    with pytest.raises(DataError, match=r"a.bmp is too large \(6 × 4 pixels\)"):
        decode_image(data, "a.bmp", most_pixels=23)
    with pytest.raises(DataError, match="Known are PNG, JPEG"):
        decode_image(data, "a.bmp", formats=("PNG", "JPEG"))
