"""Real k-space of eight coils, a quarter of its lines: total variation of a complex image.

    python experiments/reconstruct/mri.py cartesian_ksp.npy results.json

The reference is the image of all lines by the same coil maps, which come from the lowest
frequencies; λ is the best of a grid for this one image, so the row says what the model can do, not
what it would do on another. The lines are every sixth and the twenty in the middle.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import legato as lg
from legato.console.provenance import provenance
from legato.nn import TV, Reconstruction


def images(kspace: Tensor) -> Tensor:
    shifted = torch.fft.ifftshift(kspace, (-2, -1))
    return torch.fft.ifft2(shifted, norm="ortho")


def coil_maps(kspace: Tensor, width: int = 24) -> Tensor:
    """Images of the lowest frequencies, each pixel's coils of norm one."""
    window = torch.ones(())
    for size in kspace.shape[-2:]:
        n = torch.arange(size) - size // 2
        window = window[..., None] * (torch.cos(torch.pi * n / width).clamp(min=0) ** 2 * (n.abs() < width / 2))  # fmt: skip  # noqa: E501
    low = images(kspace * window.reshape(kspace.shape[-2:]))
    return low / low.abs().square().sum(0, keepdim=True).sqrt()


def psnr(x: Tensor, truth: Tensor) -> float:
    error = (x.abs() - truth.abs()).square().mean()
    return float(10 * (truth.abs().amax() ** 2 / error).log10())


def main(source: Path, target: Path) -> None:
    kspace = torch.from_numpy(np.load(source)).to(torch.complex64)
    height = kspace.shape[-2]
    coils = coil_maps(kspace)
    truth = (coils.conj() * images(kspace)).sum(0)
    size = truth.abs().amax()
    kspace, truth = kspace / size, truth / size
    line = torch.arange(height)
    lines = (line % 6 == 0) | ((line - height // 2).abs() < 10)
    mask = torch.fft.ifftshift(lines)[:, None]
    y = torch.fft.ifftshift(kspace, (-2, -1))[None] * mask
    operator = lg.Fourier(mask, coils)
    rows: dict[str, object] = {"zero-filled": psnr(operator.adjoint(y)[0], truth)}
    found = {}
    for weight in (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2):
        layer = Reconstruction(
            operator, TV(weight), first=operator.adjoint, iterations=150, balance=30.0
        )
        start = time.perf_counter()
        with torch.no_grad():
            record = layer.solve(y)
        found[weight] = psnr(record.x[0], truth)
        print(weight, found[weight], f"{time.perf_counter() - start:.1f} s", flush=True)
    rows["TV"] = {str(k): v for k, v in found.items()}
    share = float(lines.float().mean())
    whole = provenance("cpu") | {"lines": share, "psnr": rows, "shape": list(kspace.shape)}
    target.write_text(json.dumps(whole, indent=1) + "\n")
    print(rows, share)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
