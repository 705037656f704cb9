"""``legato reconstruct picture``, ``kspace`` and ``sinogram``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from legato.console import options
from legato.console.talking import progress_bar, reporting_errors, say
from legato.errors import InputError

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
_MISFIT = 1.5
"""Times σ from which on a misfit is not put down to the noise."""


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
        _require_options(sigma, weight, iterations)
        read = read_picture(image)
        target = _target(image, output, read.suffix, force)
        if target.suffix.lower() != ".npy":
            require_suffix(read, target)
        found_kernel, notes = read_kernel(kernel)
        level = None if sigma is None else sigma / 255
        measured = blurred(read.channels.to(where), found_kernel.to(where), level)
        x, rested = _solve(measured, weight, iterations, image)
        if target.suffix.lower() == ".npy":
            _write_array(x[:, 0], target)
        else:
            write_picture(read.with_channels(x[:, 0].cpu()), target)
        noise = f"σ = {255 * measured.sigma:.1f} of 255"
        _report(
            image, measured, x, weight, sigma, noise, [*read.notes, *notes], rested, f"→ {target}"
        )


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
        _require_options(sigma, weight, iterations)
        target, before = _targets(data, output, force)
        numbers = arrays.read_kspace(data).to(where)
        seen = None if mask is None else arrays.read_mask(mask, numbers).to(where)
        maps = None if coils is None else arrays.read_coils(coils, numbers).to(where)
        measured = measure(numbers, seen, maps, sigma)
        x, rested = _solve(measured, weight, iterations, data)
        _write(measured, x[0], target, before)
        noise = f"σ = {measured.sigma * measured.scale:.3g}"
        _report(data, measured, x, weight, sigma, noise, [], rested, f"→ {target}, {before}")


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
        _require_options(sigma, weight, iterations)
        if size is not None and not 1 <= size <= 4096:
            raise InputError(f"--size is a number of pixels from 1 to 4096, not {size}.")
        target, before = _targets(data, output, force)
        numbers = arrays.read_sinogram(data)
        turned = arrays.read_angles(angles, tuple(numbers.shape))
        measured = measure(numbers.to(where), turned, size, sigma)
        x, rested = _solve(measured, weight, iterations, data)
        _write(measured, x[0], target, before)
        noise = f"σ = {measured.sigma * measured.scale:.3g}"
        _report(data, measured, x, weight, sigma, noise, [], rested, f"→ {target}, {before}")


def _require_options(sigma: float | None, weight: float | None, iterations: int) -> None:
    for name, value in (("--sigma", sigma), ("--weight", weight)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite, not {value}. Leave it out to "
                             "have it estimated.")  # fmt: skip
    if iterations < 1:
        raise InputError(f"--iterations must be at least 1, not {iterations}.")


def _target(path: Path, output: Path | None, suffix: str, force: bool) -> Path:
    """Where the result goes: never over its source, over another file only if asked to."""
    target = output or path.with_name(f"{path.stem}-reconstructed{suffix}")
    if target.is_dir():
        target = target / f"{path.stem}-reconstructed{suffix}"
    if target.exists() and path.exists() and target.samefile(path):
        raise InputError(f"{target} is what is read. Choose another --output.")
    if target.exists() and not force:
        raise InputError(f"{target} exists. Give --force to replace it, or another --output.")
    if not target.parent.is_dir():
        raise InputError(f"{target} cannot be written: there is no folder {target.parent}.")
    return target


def _targets(path: Path, output: Path | None, force: bool) -> tuple[Path, Path]:
    """Those of the result and of the picture before."""
    target = _target(path, output, ".png", force)
    before = target.with_name(f"{target.stem.removesuffix('-reconstructed')}-before.png")
    if before.exists() and not force:
        raise InputError(f"{before} exists. Give --force to replace it, or another --output.")
    return target, before


def _solve(
    measured: Measured, weight: float | None, iterations: int, path: Path
) -> tuple[Tensor, bool]:
    from legato.studies.reconstruct.solving import solve

    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(path.name, total=iterations)
        used = measured.weight if weight is None else weight
        return solve(measured, used, iterations, lambda made: bar.advance(task, made))


def _write(measured: Measured, x: Tensor, target: Path, before: Path) -> None:
    """The result and what was known without a prior, both as bright as the result allows."""
    from legato.console.pictures import Picture, write_picture

    shown = [t.abs() if t.is_complex() else t for t in (x, measured.before[0])]
    brightest = max(float(shown[0].amax()), 1e-12)
    pictures = [Picture((t / brightest)[None].float().cpu(), "L") for t in shown]
    if target.suffix.lower() == ".npy":
        _write_array(x * measured.unit, target)
    else:
        write_picture(pictures[0], target)
    write_picture(pictures[1], before)


def _write_array(x: Tensor, target: Path) -> None:
    import numpy

    from legato._support.files import replacing

    with replacing(target) as temporary, open(temporary, "wb") as file:
        numpy.save(file, x.cpu().numpy())


def _report(
    path: Path, measured: Measured, x: Tensor, weight: float | None, sigma: float | None,
    noise: str, notes: list[str], rested: bool, where: str,
) -> None:  # fmt: skip
    """One line: what was found out, what was done, where it is; and what looks wrong."""
    said = [
        f"{noise}, {'estimated' if sigma is None else 'given'}",
        f"λ = {measured.weight if weight is None else weight:.3g}",
        *measured.notes,
    ]
    misfit = measured.misfit(x)
    warned = list(notes)
    if not rested:
        warned.append("it was still changing in the end: more --iterations change it a little")
    if misfit > _MISFIT and weight is None:
        warned.append(
            f"what the picture would give is {misfit:.1f} σ away from the data: look at the "
            "kernel, the mask or the angles, and at σ"
        )
    say(f"{path}: {', '.join(said)} {where}" + "".join(f"; {note}" for note in warned))
