"""``legato reconstruct`` from the outside."""

import math

import numpy
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import legato as lg
from command_line import failed
from legato.cli import app
from legato.studies.denoise.images import draw_picture
from legato.studies.denoise.scores import psnr
from legato.studies.reconstruct.measured import blurred, kspace, sinogram
from legato.studies.reconstruct.tasks import gaussian

SIGMA = 4 / 255


def reconstruct(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["reconstruct", *map(str, args)])


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def levels(image):
    return (image.clamp(0, 1) * 255).round().numpy().astype(numpy.uint8)


def read(path):
    return torch.from_numpy(numpy.asarray(Image.open(path)).astype(numpy.float32) / 255)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A picture and what a blur, a scanner with four coils and parallel rays saw of it."""
    folder = tmp_path_factory.mktemp("measured")
    wide = draw_picture(3, 52, 60)
    kernel = gaussian(1.2, 3)
    seen = torch.nn.functional.conv2d(wide[None, None], kernel[None, None])[0, 0]
    numpy.save(folder / "truth.npy", wide[3:-3, 3:-3].numpy())
    Image.fromarray(levels(seen + SIGMA * noise(seen.shape))).save(folder / "blurred.png")
    numpy.save(folder / "kernel.npy", kernel.numpy())

    image = draw_picture(5, 48, 40)
    n = [torch.linspace(-1, 1, k) for k in image.shape]
    corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    maps = torch.stack(
        [torch.exp(-((n[0][:, None] - a) ** 2 + (n[1] - b) ** 2) / 4) for a, b in corners]
    ) * torch.exp(0.5j * (n[0][:, None] + n[1]))
    maps = maps / maps.abs().square().sum(0).sqrt()
    middle = torch.fft.ifftshift(maps * image, (-2, -1))
    full = torch.fft.fftshift(torch.fft.fft2(middle, norm="ortho"), (-2, -1))
    row = torch.arange(48) - 24
    lines = (row % 3 == 0) | (row.abs() < 9)
    scan = (full + 0.01 * (noise(full.shape, 1) + 1j * noise(full.shape, 2))) * lines[:, None]
    numpy.save(folder / "scan.npy", scan.to(torch.complex64).numpy())
    numpy.save(folder / "image.npy", image.numpy())

    square = draw_picture(7, 40, 40)
    degrees = torch.arange(0, 180, 6.0)
    rays = lg.Radon(torch.deg2rad(degrees), 40)(square)
    numpy.save(folder / "rays.npy", (rays + 0.1 * noise(rays.shape, 3)).numpy())
    numpy.savetxt(folder / "degrees.txt", degrees.numpy())
    numpy.save(folder / "square.npy", square.numpy())
    return folder


def test_a_blurred_picture(here, tmp_path):
    result = reconstruct("picture", here / "blurred.png", here / "kernel.npy", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert "estimated" in result.stdout
    assert "λ =" in result.stdout
    truth = torch.from_numpy(numpy.load(here / "truth.npy"))
    after = read(tmp_path / "blurred-reconstructed.png")
    assert psnr(after, truth) > psnr(read(here / "blurred.png"), truth) + 2


def test_real_kinds_of_kernels_are_alike(here, tmp_path):
    """A picture of the kernel, rounded to 8 bits, and a text file do what the array does."""
    kernel = numpy.load(here / "kernel.npy")
    Image.fromarray((255 * kernel / kernel.max()).round().astype(numpy.uint8)).save(
        tmp_path / "k.png"
    )
    numpy.savetxt(tmp_path / "k.csv", kernel, delimiter=",")
    found = []
    for name in (here / "kernel.npy", tmp_path / "k.png", tmp_path / "k.csv"):
        args = ("--iterations", 25, "-o", tmp_path / f"{name.suffix[1:]}.npy")
        result = reconstruct("picture", here / "blurred.png", name, *args)
        assert result.exit_code == 0, result.output
        found.append(numpy.load(tmp_path / f"{name.suffix[1:]}.npy"))
    assert "the kernel's sum" not in result.stdout
    numpy.testing.assert_allclose(found[0], found[2], atol=1e-5)
    numpy.testing.assert_allclose(found[0], found[1], atol=0.02)


def test_k_space(here, tmp_path):
    result = reconstruct("kspace", here / "scan.npy", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert "in the middle" in result.stdout
    assert "coil maps from 19×19" in result.stdout
    image = torch.from_numpy(numpy.load(here / "image.npy"))
    before, after = (read(tmp_path / f"scan-{n}.png") for n in ("before", "reconstructed"))

    def error(found):  # brightness is free
        return float((found * (found * image).sum() / found.square().sum() - image).norm())

    assert error(after) < 0.7 * error(before)


def test_k_space_in_the_other_order_and_with_a_mask(here, tmp_path):
    scan = torch.from_numpy(numpy.load(here / "scan.npy"))
    sign = torch.tensor([1.0, -1.0])
    moved = torch.fft.ifftshift(scan, (-2, -1)) * sign.repeat(24)[:, None] * sign.repeat(20)
    numpy.save(tmp_path / "corner.npy", moved.numpy())  # fft2 of the picture as it is
    numpy.save(tmp_path / "mask.npy", (scan != 0).any(0).numpy())
    options = ("--sigma", 0.02, "--iterations", 25, "-o")
    for name, *more in (("corner", tmp_path), ("scan", here)):
        extra = ("--mask", tmp_path / "mask.npy") if name == "scan" else ()
        source = more[0] / f"{name}.npy"
        result = reconstruct("kspace", source, *options, tmp_path / f"{name}-x.npy", *extra)
        assert result.exit_code == 0, result.output
    assert "given" in result.stdout
    one, other = (numpy.load(tmp_path / f"{name}-x.npy") for name in ("corner", "scan"))
    assert one.dtype == numpy.complex64
    numpy.testing.assert_allclose(one, other, atol=1e-5 * numpy.abs(one).max())


def test_a_sinogram(here, tmp_path):
    args = ("--angles", here / "degrees.txt", "--size", 40, "-o", tmp_path / "x.npy")
    result = reconstruct("sinogram", here / "rays.npy", *args)
    assert result.exit_code == 0, result.output
    assert "30 angles, 40×40 pixels" in result.stdout
    truth = torch.from_numpy(numpy.load(here / "square.npy"))
    found = torch.from_numpy(numpy.load(tmp_path / "x.npy"))  # in units of the picture
    measured = sinogram(
        torch.from_numpy(numpy.load(here / "rays.npy")),
        tuple(math.pi * k / 30 for k in range(30)), 40, None,
    )  # fmt: skip
    before = measured.before[0] * measured.unit
    assert psnr(found, truth) > psnr(before, truth) + 2
    assert psnr(before, truth) > 20
    again = reconstruct("sinogram", here / "rays.npy", *args[2:], "--force")  # evenly: the same
    assert again.exit_code == 0, again.output
    numpy.testing.assert_allclose(numpy.load(tmp_path / "x.npy"), found, atol=2e-3)


def test_noise_is_found_where_there_is_little_else():
    rays = lg.Radon(torch.linspace(0, torch.pi, 21)[:-1], 64)
    clean = rays(draw_picture(2, 64, 64))
    for sigma in (0.5, 2.0):
        found = sinogram(clean + sigma * noise(clean.shape), rays.angles, 64, None)
        assert found.sigma * found.scale == pytest.approx(sigma, rel=0.35)
    flat = torch.zeros(1, 64, 64, dtype=torch.complex64)
    flat[0, 0, 0] = 64
    noisy = flat + 0.3 * (noise(flat.shape) + 1j * noise(flat.shape, 1)) / math.sqrt(2)
    found = kspace(noisy, None, None, None)
    assert found.sigma * found.scale == pytest.approx(0.3, rel=0.1)
    assert blurred(torch.full((1, 20, 20), 0.5), torch.ones(1, 1), None).sigma > 0


def test_the_unit_of_k_space_changes_nothing_but_the_unit():
    """Powers of two, exact in single precision, whose squares are none of its numbers."""
    scan = torch.fft.fft2(draw_picture(2, 16, 16)) * torch.ones(1, dtype=torch.complex64)
    one, large = kspace(scan, None, None, None), kspace(2.0**80 * scan, None, None, None)
    assert large.scale == pytest.approx(2.0**80 * one.scale)
    assert large.notes == one.notes
    torch.testing.assert_close(large.y, one.y)


def test_a_wrong_kernel_is_noticed(here, tmp_path):
    numpy.save(tmp_path / "wrong.npy", numpy.ones((21, 21)))
    args = ("--iterations", 50, "-o", tmp_path / "x.npy")
    result = reconstruct("picture", here / "blurred.png", tmp_path / "wrong.npy", *args)
    assert result.exit_code == 0, result.output
    assert "look at the kernel" in result.stdout
    assert "sum 441 becomes 1" in result.stdout
    assert "--iterations change it" in result.stdout


# --- what is refused ------------------------------------------------------------------------------


ZEROS = numpy.zeros((4, 16, 16), numpy.complex64)
COMPLEX = (ZEROS + 1).astype(numpy.complex64)
SEEN = numpy.eye(16)
RAYS = numpy.ones((6, 16), numpy.float32)


def nan(array):
    array = array.copy()
    array[0, 3] = numpy.nan
    return array


REFUSED = {
    "kernel, larger": ("kernel", numpy.ones((90, 3)), "larger than the picture"),
    "kernel, three axes": ("kernel", numpy.ones((3, 3, 3)), "one picture"),
    "kernel, complex": ("kernel", numpy.ones((3, 3)) * 1j, "a blur's kernel is real"),
    "kernel, sum": ("kernel", numpy.array([[1.0, -1.0]]), "positive sum"),
    "kernel, NaN": ("kernel", nan(numpy.ones((5, 5))), "NaN or infinity"),
    "k-space, real": ("kspace", numpy.ones((16, 16)), "not complex but float64"),
    "k-space, pairs": ("kspace", numpy.ones((4, 16, 16, 2)), "real and imaginary parts"),
    "k-space, axes": ("kspace", numpy.moveaxis(COMPLEX, 0, -1), "moveaxis"),
    "k-space, slices": ("kspace", COMPLEX[None], "Save one slice"),
    "k-space, small": ("kspace", COMPLEX[:, :4], "at least 8×8"),
    "k-space, zero": ("kspace", ZEROS, "nothing was measured"),
    "k-space, huge": ("kspace", 1e60 * COMPLEX.astype(complex), "1.0e+60 in size"),
    "k-space, tiny": ("kspace", 1e-60 * COMPLEX.astype(complex), "1.0e-60 in size"),
    "k-space, NaN": ("kspace", nan(COMPLEX), "NaN or infinity in 16 of 1024"),
    "k-space, objects": ("kspace", numpy.array([{}, {}]), "cannot be read"),
    "k-space, empty": ("kspace", COMPLEX[:0], "is empty"),
    "k-space, no middle": ("kspace", COMPLEX * (numpy.arange(16) % 2), "--coils"),
    "sinogram, complex": ("sinogram", RAYS * 1j, "line integrals are real"),
    "sinogram, axes": ("sinogram", RAYS[0], "angles × detectors"),
    "sinogram, zero": ("sinogram", 0 * RAYS, "nothing to reconstruct"),
    "sinogram, NaN": ("sinogram", nan(RAYS), "NaN or infinity in 1 of 96"),
    "angles, twice": ("angles", numpy.array([0, 30, 60, 90, 120, 180]), "twice"),
    "angles, radians": ("angles", numpy.linspace(0, 3, 6), "look like radians"),
    "angles, too few": ("angles", numpy.arange(5) * 30, "5 angles"),
    "angles, transposed": ("angles", numpy.arange(16) * 11, "transpose"),
    "angles, empty": ("angles", numpy.zeros(0), "is empty"),
    "angles, NaN": ("angles", numpy.full(6, numpy.nan), "NaN or infinity"),
    "mask, size": ("mask", numpy.ones((16, 15)), "rows × columns"),
    "mask, numbers": ("mask", numpy.full((16, 16), 0.5), "other numbers"),
    "mask, elsewhere": ("mask", numpy.eye(16)[::-1] * (1 - SEEN), "belongs to other data"),
    "mask, nothing": ("mask", numpy.zeros((16, 16)), "nothing was measured"),
    "coils, real": ("coils", numpy.ones((4, 16, 16)), "needed are complex"),
    "coils, zero": ("coils", ZEROS, "0 everywhere"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, here, tmp_path):
    kind, array, words = REFUSED[name]
    numpy.save(tmp_path / "array.npy", array)
    numpy.save(tmp_path / "scan.npy", COMPLEX * (SEEN if name == "mask, elsewhere" else 1))
    numpy.save(tmp_path / "rays.npy", RAYS)
    own = tmp_path / "array.npy"
    result = reconstruct(*{
        "kernel": ("picture", here / "blurred.png", own, "-o", tmp_path / "x.png"),
        "kspace": ("kspace", own),
        "sinogram": ("sinogram", own),
        "angles": ("sinogram", tmp_path / "rays.npy", "--angles", own),
        "mask": ("kspace", tmp_path / "scan.npy", "--mask", own),
        "coils": ("kspace", tmp_path / "scan.npy", "--coils", own),
    }[kind])  # fmt: skip
    failed(result, words)
    assert not list(tmp_path.glob("*.png"))


def test_files_and_options_that_are_none(here, tmp_path):
    missing = tmp_path / "no.npy"
    failed(reconstruct("kspace", missing), "There is no file", "no.npy")
    failed(reconstruct("kspace", tmp_path), "is a folder")
    missing.write_text("not an array")
    failed(reconstruct("kspace", missing), "cannot be read")
    failed(reconstruct("sinogram", here / "degrees.txt"), "read from .npy")
    failed(reconstruct("picture", tmp_path / "a.png", here / "kernel.npy"), "There is no image")
    failed(reconstruct("kspace", here / "scan.npy", "--weight", -1), "--weight must be positive")
    failed(reconstruct("kspace", here / "scan.npy", "--sigma", "nan"), "--sigma must be positive")
    failed(reconstruct("kspace", here / "scan.npy", "--iterations", 0), "--iterations")
    failed(reconstruct("sinogram", here / "rays.npy", "--size", 0), "--size")
    there = tmp_path / "there.png"
    there.write_text("precious")
    failed(reconstruct("kspace", here / "scan.npy", "-o", there), "exists", "--force")
    failed(reconstruct("kspace", here / "scan.npy", "-o", here / "scan.npy"), "what is read")
    failed(reconstruct("kspace", here / "scan.npy", "-o", tmp_path / "a" / "b.png"), "no folder")
    assert there.read_text() == "precious"
    assert "kspace" in reconstruct().output
