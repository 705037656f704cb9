"""How far ``noise_level`` is off on photographs, grey and in colour, clipped and not.

    python benchmarks/noise_level.py FOLDER --out benchmarks/results/noise_level_cpu.json

FOLDER holds clean colour photographs; noise is drawn with fixed seeds. Grey is the mean of the
channels; clipped means rounded to whole numbers from 0 to 255, as a file holds them.

The constants of the estimate were chosen on twenty of the 200 photographs; which twenty was not
recorded. ``--held-out`` leaves out the first twenty and every tenth, the two ways in which twenty
of them would be picked, and measures the other 162.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy
import torch
from PIL import Image

from legato.console.provenance import provenance
from legato.nn import noise_level

SIGMAS = (10, 15, 25, 50)


def photographs(folder: Path) -> list[torch.Tensor]:
    """Pictures (3, H, W) in [0, 255]."""
    found = []
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            pixels = numpy.asarray(image.convert("RGB"), numpy.float32)
        found.append(torch.from_numpy(pixels).permute(2, 0, 1))
    return found


def ratios(pictures: list[torch.Tensor], sigma: float, grey: bool, clipped: bool) -> list[float]:
    """Estimate over truth for each picture."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for picture in pictures:
        clean = picture.mean(0, keepdim=True) if grey else picture
        noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
        noisy = noisy.round().clamp(0, 255) if clipped else noisy
        found.append(float(noise_level(noisy[None] / 255)) * 255 / sigma)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--sigmas", type=float, nargs="+", default=SIGMAS)
    args = parser.parse_args()
    pictures = photographs(args.folder)
    if args.held_out:
        pictures = [p for k, p in enumerate(pictures) if k >= 20 and k % 10]
    rows = []
    for grey in (True, False):
        for clipped in (False, True):
            for sigma in args.sigmas:
                seen = ratios(pictures, sigma, grey, clipped)
                row = {
                    "picture": "grey" if grey else "colour",
                    "clipped": clipped,
                    "sigma": sigma,
                    "median": round(statistics.median(seen), 4),
                    "least": round(seen[0], 4),
                    "5 %": round(seen[len(seen) // 20], 4),
                    "95 %": round(seen[-1 - len(seen) // 20], 4),
                    "largest": round(seen[-1], 4),
                }
                rows.append(row)
                print(row, flush=True)
    if args.out is not None:
        result = {
            "pictures": len(pictures),
            "folder": args.folder.name,
            "what": "estimated σ over true σ",
            "held_out": args.held_out,
            "rows": rows,
            **provenance(),
        }
        args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
