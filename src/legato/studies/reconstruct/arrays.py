"""Arrays that come from outside: kernels, k-space, sinograms, masks and angles."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.console.files import DataError
from legato.console.pictures import SUFFIXES, read_picture

_TEXT = (".txt", ".csv")


def read_array(path: Path, what: str, *, text: bool = False) -> NDArray[Any]:
    """The numbers in a .npy file, or in a text file where that will do; refused are NaN and none.

    ``what`` is what messages call it, such as "k-space".
    """
    known = (".npy", *_TEXT) if text else (".npy",)
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file with the {what}.")
    if not path.exists():
        raise DataError(f"There is no file {path} with the {what}. Check the path.")
    if path.suffix.lower() not in known:
        raise DataError(
            f"The {what} is read from {' or '.join(known)}, not from {path.name}. Save it with "
            "numpy.save."
        )
    try:
        array = _from_text(path) if path.suffix.lower() in _TEXT else numpy.load(path)
    except (ValueError, EOFError, OSError, SyntaxError) as error:  # whatever a damaged header says
        raise DataError(
            f"{path} cannot be read ({error}). One array of numbers is read: save the {what} again "
            "with numpy.save."
        ) from error
    if not isinstance(array, numpy.ndarray) or array.dtype.kind not in "buifc":
        kind = getattr(array, "dtype", type(array).__name__)
        raise DataError(f"{path} holds {kind}, not numbers: the {what} is one array of these.")
    if array.size == 0:
        raise DataError(f"{path} is empty, an array of shape {array.shape}.")
    if not numpy.isfinite(array).all():
        count = int(array.size - numpy.isfinite(array).sum())
        raise DataError(
            f"{path} holds NaN or infinity in {count} of {array.size} entries. Replace them: what "
            "was not measured is 0 in k-space; of a sinogram leave the whole angle out."
        )
    return array


def _from_text(path: Path) -> NDArray[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a file is empty is said by the caller
        return numpy.loadtxt(path, delimiter="," if path.suffix.lower() == ".csv" else None)


def read_kernel(path: Path) -> tuple[Tensor, list[str]]:
    """A blur's kernel (h, w) of sum one, from an array or a picture, and what was changed."""
    if path.suffix.lower() in SUFFIXES:
        kernel = read_picture(path).channels.mean(0).double()
    else:
        array = read_array(path, "kernel", text=True)
        if array.dtype.kind == "c":
            raise DataError(f"The kernel in {path} is complex; a blur's kernel is real.")
        if array.ndim != 2:
            raise DataError(
                f"The kernel in {path} has shape {array.shape}; a kernel is one picture, rows × "
                "columns."
            )
        kernel = torch.from_numpy(array.astype(numpy.float64))
    total = float(kernel.sum())
    if not total > 1e-12 * float(kernel.abs().sum()) or total <= 0:
        raise DataError(
            f"The kernel in {path} has the sum {total:g}: a blur keeps brightness, so its kernel "
            "has a positive sum."
        )
    notes = [] if abs(total - 1) < 1e-3 else [f"the kernel's sum {total:.4g} becomes 1"]
    return (kernel / total).float(), notes


def read_kspace(path: Path) -> Tensor:
    """k-space (C, rows, columns), or (rows, columns) of one coil, as complex64."""
    array = read_array(path, "k-space")
    if array.dtype.kind != "c":
        advice = (
            "Its last axis of size 2 looks like real and imaginary parts: array[..., 0] + 1j * "
            "array[..., 1]."
            if array.ndim and array.shape[-1] == 2
            else "A picture is no k-space: take its numpy.fft.fft2 first, if that is meant."
        )
        raise DataError(f"The k-space in {path} is not complex but {array.dtype}. {advice}")
    if array.ndim not in (2, 3):
        raise DataError(
            f"The k-space in {path} has shape {array.shape}; needed is coils × rows × columns, or "
            "rows × columns. Save one slice."
        )
    if array.ndim == 3 and array.shape[0] > min(array.shape[1:]):
        raise DataError(
            f"The k-space in {path} has shape {array.shape}, which would be {array.shape[0]} coils "
            "of so few frequencies: coils × rows × columns is needed. Move the axis of coils to "
            "the front, as by numpy.moveaxis(array, -1, 0)."
        )
    if min(array.shape[-2:]) < 8:
        raise DataError(f"The k-space in {path} has shape {array.shape}: at least 8×8 is needed.")
    return _in_single(array, path, "k-space")


def _in_single(array: NDArray[Any], path: Path, what: str) -> Tensor:
    """Numbers in single precision, where they are far from what that can hold."""
    largest = float(numpy.abs(array).max())
    if largest and not 1e-30 < largest < 1e30:
        raise DataError(
            f"The largest number of the {what} in {path} is {largest:.1e} in size: single "
            "precision, which is used here, has no room beside it. Give it in another unit, such "
            "as array / abs(array).max()."
        )
    kind = numpy.complex64 if array.dtype.kind == "c" else numpy.float32
    return torch.from_numpy(array.astype(kind))


def read_mask(path: Path, data: Tensor) -> Tensor:
    """Which frequencies were measured, (rows, columns)."""
    array = read_array(path, "mask")
    sizes = tuple(data.shape[-2:])
    if array.shape != sizes:
        raise DataError(
            f"The mask in {path} has shape {array.shape}, but k-space has {sizes} frequencies, "
            "rows × columns."
        )
    if not numpy.isin(array, (0, 1)).all():
        raise DataError(f"The mask in {path} holds other numbers than 0 and 1.")
    return torch.from_numpy(array.astype(bool))


def read_coils(path: Path, data: Tensor) -> Tensor:
    """Complex maps, one for each coil."""
    array = read_array(path, "coil maps")
    needed = tuple(data.shape) if data.ndim == 3 else (1, *data.shape)
    if array.shape != needed or array.dtype.kind != "c":
        raise DataError(
            f"The coil maps in {path} are {array.dtype} of shape {array.shape}; needed are complex "
            f"ones of shape {needed}, coils × rows × columns as k-space."
        )
    if not numpy.abs(array).any():
        raise DataError(f"The coil maps in {path} are 0 everywhere.")
    return _in_single(array, path, "coil maps")


def read_sinogram(path: Path) -> Tensor:
    """Line integrals (angles, detectors)."""
    array = read_array(path, "sinogram")
    if array.dtype.kind == "c":
        raise DataError(f"The sinogram in {path} is complex; line integrals are real.")
    if array.ndim != 2:
        raise DataError(
            f"The sinogram in {path} has shape {array.shape}; needed is angles × detectors. Save "
            "one slice."
        )
    return _in_single(array, path, "sinogram")


def read_angles(path: Path | None, shape: tuple[int, ...]) -> tuple[float, ...]:
    """One angle for each row of a sinogram, in radians; evenly over half a turn without a file."""
    rows, detectors = shape
    if path is None:
        return tuple(math.pi * k / rows for k in range(rows))
    array = read_array(path, "angles", text=True)
    if array.dtype.kind == "c":
        raise DataError(f"The angles in {path} are complex; they are real, in degrees.")
    degrees = numpy.atleast_1d(array.squeeze()).astype(float)
    if degrees.ndim != 1:
        raise DataError(f"The angles in {path} have shape {array.shape}; needed is a list of them.")
    if len(degrees) != rows:
        turned = (
            " The sinogram has as many columns: transpose it, to angles × detectors."
            if len(degrees) == detectors
            else ""
        )
        raise DataError(
            f"There are {len(degrees)} angles in {path}, but the sinogram has {rows} rows.{turned}"
        )
    turns = numpy.sort(degrees % 180)
    gaps = numpy.diff(turns, append=turns[0] + 180)
    if len(turns) > 1 and gaps.min() < 1e-6:
        raise DataError(
            f"An angle is there twice in {path}, up to half a turn: its rays are the same. Leave "
            "the row out, or average the two."
        )
    if rows > 4 and float(numpy.ptp(degrees)) < 6.3:
        raise DataError(
            f"The angles in {path} lie within {float(numpy.ptp(degrees)):.3g} degrees: they look "
            "like radians. Needed are degrees, as by numpy.rad2deg."
        )
    return tuple(math.radians(a) for a in degrees)
