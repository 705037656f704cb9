"""A reconstruction from k-space of eight coils, 512×512 pixels, 300 iterations, and its derivative.

    python benchmarks/multicoil.py [--device cuda] [--quick] [--out results.json]

½‖M F S x − y‖² + λ|∇x| of a complex picture by the primal–dual method. Beside the time stands a
floor: the bytes that any implementation without fused transforms moves in an iteration, at the
speed of a copy on this device. The derivative is that of a mean square in λ and in the data,
through all iterations; its pass back moves at least twice the bytes of the way there. Gradients are
held against differences in double precision, on a small picture.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from harness import copy_speed, record
from torch import Tensor

import legato as lg
from legato.nn import TV, Reconstruction
from legato.studies.denoise.images import draw_picture

COILS, KEPT, WEIGHT, BALANCE = 8, 4, 2e-3, 10.0


def coil_maps(size: int) -> Tensor:
    """Smooth complex maps around the picture, of norm one at each pixel."""
    place = torch.linspace(-1, 1, size)
    angles = torch.arange(COILS) * (2 * math.pi / COILS)
    rows = place[None, :, None] - 1.2 * angles.sin()[:, None, None]
    columns = place[None, None] - 1.2 * angles.cos()[:, None, None]
    maps = torch.exp(-(rows**2 + columns**2) / 1.5) * torch.exp(1j * (rows + angles[:, None, None]))
    return maps / maps.abs().square().sum(0).sqrt()


def scan(size: int, dtype: torch.dtype, device: torch.device) -> tuple[lg.Fourier, Tensor, Tensor]:
    """The operator, its data with noise, and the picture."""
    lines = torch.arange(size)
    mask = (lines % KEPT == 0) | ((lines - size // 2).abs() < 0.04 * size)
    coils = coil_maps(size).to(device, dtype)
    operator = lg.Fourier(torch.fft.ifftshift(mask)[:, None].to(device), coils)
    clean = draw_picture(0, size, size).to(device, dtype)[None]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((1, COILS, size, size), generator=generator, dtype=torch.complex64)
    y = operator(clean)
    return operator, (y + 0.01 * noise.to(y)) * (y != 0), clean


def layer_of(operator: lg.Fourier, iterations: int, size: int) -> Reconstruction:
    layer = Reconstruction(
        operator, TV(torch.tensor(WEIGHT)), first=operator.adjoint, iterations=iterations,
        balance=BALANCE,
    )  # fmt: skip
    return layer.to(operator.coils.device)  # type: ignore[union-attr]


def gradient_error(device: torch.device, size: int = 24, iterations: int = 60) -> float:
    """Of the derivative in log λ, relative to that by differences, in double precision."""
    operator, y, clean = scan(size, torch.complex128, device)
    layer = layer_of(operator, iterations, size).double()
    weight = layer.regulariser.weight.log

    def loss() -> Tensor:
        return (layer(y) - clean).abs().square().sum()

    (found,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        start, h = weight.clone(), 1e-6
        above = loss_at(weight, start + h, loss)
        below = loss_at(weight, start - h, loss)
    true = (above - below) / (2 * h)
    return float((found - true).abs() / true.abs())


def loss_at(weight: Tensor, value: Tensor, loss: Any) -> Tensor:
    weight.copy_(value)
    found: Tensor = loss()
    return found


def timed(run: Any, device: torch.device, repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[2:])


def floor_bytes(size: int) -> int:
    """Of one iteration: what is read and written once, complex numbers of eight bytes.

    K and K*: maps read, coil pictures through a transform (read and written on each of its two
    axes), the data read; x, the picture before it, its gradient and the dual variable.
    """
    picture = 8 * size * size
    transforms = 2 * 4 * COILS * picture
    return transforms + 2 * COILS * picture + COILS * picture + 9 * picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    size, iterations, repeats = (64, 20, 1) if options.quick else (512, 300, 5)
    operator, y, clean = scan(size, torch.complex64, device)
    layer = layer_of(operator, iterations, size)
    engine: lg.Engine = lg.Replayed() if device.type == "cuda" else lg.Eager()

    def forward() -> Tensor:
        with torch.no_grad(), engine:
            return layer(y)

    attached = y.clone().requires_grad_()

    def both() -> None:
        with engine:
            loss = (layer(attached) - clean).abs().square().mean()
            loss.backward()

    rows: dict[str, Any] = {"size": size, "coils": COILS, "iterations": iterations}
    start = operator.adjoint(y)
    for name, picture in (("zero-filled", start), ("total variation", forward())):
        rows[name] = float(-10 * (picture - clean).abs().square().mean().log10())
    rows["milliseconds"] = {"forward": timed(forward, device, repeats)}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rows["milliseconds"]["forward and gradient"] = timed(both, device, repeats)
    if device.type == "cuda":
        rows["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    speed = copy_speed(16.0 if options.quick else 512.0, device.type)
    bytes_moved = iterations * floor_bytes(size)
    floor = bytes_moved / speed / 1e6
    least = {"forward": floor, "forward and gradient": 3 * floor}
    rows["floor"] = {"GB/s of a copy": speed, "GB forward": bytes_moved / 1e9}
    rows["floor"]["milliseconds"] = least
    rows["times the floor"] = {
        key: milliseconds / least[key] for key, milliseconds in rows["milliseconds"].items()
    }
    rows["gradient error"] = gradient_error(device)
    print(rows, flush=True)
    if options.out is not None:
        record(options.out, rows, str(device))


if __name__ == "__main__":
    main()
