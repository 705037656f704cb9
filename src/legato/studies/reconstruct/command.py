"""``legato reconstruct picture``, ``kspace`` and ``sinogram``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legato.console import options
from legato.console.talking import reporting_errors
from legato.errors import InputError
from legato.studies.reconstruct.request import Request

if TYPE_CHECKING:
    from torch import Tensor

    from legato.studies.reconstruct.measured import Measured

reconstruct = typer.Typer(
    help="A picture from a blurred one, from k-space or from a sinogram, by total variation.",
    epilog="`legato reconstruct picture photo.png kernel.png` writes photo-reconstructed.png "
    "beside it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Weight = Annotated[
    float | None,
    typer.Option(help="λ of total variation, for a picture in [0, 1]; else by the noise."),
]
Iterations = Annotated[int, typer.Option(help="Most iterations.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Where to write: a picture, or numbers as .npy."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@reconstruct.command(
    epilog="Example: `legato reconstruct picture photo.png kernel.npy --sigma 5`. The kernel is "
    "the picture of a point, its middle at pixel size // 2."
)
def picture(
    image: Annotated[Path, typer.Argument(help="A blurred picture.")],
    kernel: Annotated[Path, typer.Argument(help="Its kernel: .npy, .txt, .csv or a picture.")],
    sigma: Annotated[
        float | None,
        typer.Option(help="The noise's standard deviation, white being 255; else estimated."),
    ] = None,
    weight: Weight = None,
    iterations: Iterations = 300,
    output: Output = None,
    force: Force = False,
    device: options.Device = "auto",
) -> None:
    """Undo a blur whose kernel is known.

    Writes NAME-reconstructed.png, with the mode and depth that the picture had.
    """
    with reporting_errors():
        import torch

        from legato.console.pictures import read_picture, require_suffix, write_picture
        from legato.studies.reconstruct.arrays import read_kernel
        from legato.studies.reconstruct.measured import blurred

        where = torch.device(options.device_of(device))
        request = Request(image, sigma, weight, iterations, output, force)
        read = read_picture(image)
        target = request.target(read.suffix)
        if target.suffix.lower() != ".npy":
            require_suffix(read, target)
        found_kernel, notes = read_kernel(kernel)
        level = None if sigma is None else sigma / 255
        measured = blurred(read.channels.to(where), found_kernel.to(where), level)
        x, rested = request.solve(measured)
        if target.suffix.lower() == ".npy":
            _write_array(x[:, 0], target)
        else:
            write_picture(read.with_channels(x[:, 0].cpu()), target)
        noise = f"σ = {255 * measured.sigma:.1f} of 255"
        said = (*read.notes, *notes)
        request.report(measured, x, noise, f"→ {target}", rested=rested, notes=said)


@reconstruct.command(
    epilog="Example: `legato reconstruct kspace scan.npy`. What was not measured is 0 in the file, "
    "or false in --mask."
)
def kspace(
    data: Annotated[Path, typer.Argument(help="Complex k-space as .npy: coils × rows × columns.")],
    mask: Annotated[
        Path | None, typer.Option(help="What was measured, rows × columns; else what is not 0.")
    ] = None,
    coils: Annotated[
        Path | None, typer.Option(help="Complex coil maps; else read off the low frequencies.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="√E|noise|² of a number in the file; else estimated.")
    ] = None,
    weight: Weight = None,
    iterations: Iterations = 300,
    output: Output = None,
    force: Force = False,
    device: options.Device = "auto",
) -> None:
    """A picture from undersampled k-space of one coil or several.

    Writes the modulus as NAME-reconstructed.png, and NAME-before.png, where zeros
    stand for what was not measured; the complex numbers with --output NAME.npy.
    """
    with reporting_errors():
        import torch

        from legato.studies.reconstruct import arrays
        from legato.studies.reconstruct.measured import kspace as measure

        where = torch.device(options.device_of(device))
        request = Request(data, sigma, weight, iterations, output, force)
        targets = request.targets()
        numbers = arrays.read_kspace(data).to(where)
        seen = None if mask is None else arrays.read_mask(mask, numbers).to(where)
        maps = None if coils is None else arrays.read_coils(coils, numbers).to(where)
        measured = measure(numbers, seen, maps, sigma)
        _finish(request, measured, *targets)


@reconstruct.command(
    epilog="Example: `legato reconstruct sinogram rays.npy --angles degrees.txt`. At 0° the rays "
    "run along the picture's rows."
)
def sinogram(
    data: Annotated[Path, typer.Argument(help="Line integrals as .npy: angles × detectors.")],
    angles: Annotated[
        Path | None,
        typer.Option(
            help="Degrees, one for each row: .npy, .txt or .csv; else evenly over half a turn."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the picture; else the number of detectors.")
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(help="The noise's standard deviation in the file; else estimated."),
    ] = None,
    weight: Weight = None,
    iterations: Iterations = 300,
    output: Output = None,
    force: Force = False,
    device: options.Device = "auto",
) -> None:
    """A picture from its projections along parallel rays.

    Writes NAME-reconstructed.png, and NAME-before.png by filtered back-projection;
    the numbers themselves with --output NAME.npy.
    """
    with reporting_errors():
        import torch

        from legato.studies.reconstruct import arrays
        from legato.studies.reconstruct.measured import sinogram as measure

        where = torch.device(options.device_of(device))
        request = Request(data, sigma, weight, iterations, output, force)
        if size is not None and not 1 <= size <= 4096:
            raise InputError(f"--size is a number of pixels from 1 to 4096, not {size}.")
        targets = request.targets()
        numbers = arrays.read_sinogram(data)
        turned = arrays.read_angles(angles, tuple(numbers.shape))
        measured = measure(numbers.to(where), turned, size, sigma)
        _finish(request, measured, *targets)


def _finish(request: Request, measured: Measured, target: Path, before: Path) -> None:
    """Solve, and write the result and what was known before, as bright as the result allows."""
    from legato.console.pictures import Picture, write_picture

    found, rested = request.solve(measured)
    x = found[0]
    shown = [t.abs() if t.is_complex() else t for t in (x, measured.before[0])]
    brightest = max(float(shown[0].amax()), 1e-12)
    pictures = [Picture((t / brightest)[None].float().cpu(), "L") for t in shown]
    if target.suffix.lower() == ".npy":
        _write_array(x * measured.unit, target)
    else:
        write_picture(pictures[0], target)
    write_picture(pictures[1], before)
    noise = f"σ = {measured.sigma * measured.scale:.3g}"
    request.report(measured, found, noise, f"→ {target}, {before}", rested=rested)


def _write_array(x: Tensor, target: Path) -> None:
    import numpy

    from legato._support.files import replacing

    with replacing(target) as temporary, open(temporary, "wb") as file:
        numpy.save(file, x.cpu().numpy())
