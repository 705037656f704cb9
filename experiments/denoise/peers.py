"""Other programs on the same noisy images: scikit-image's total variation, and BM3D.

    python experiments/denoise/peers.py scikit-image --data DIR --out FILE.json
    python experiments/denoise/peers.py bm3d --data DIR --out FILE.json

Needs ``pip install scikit-image`` or ``pip install bm3d``.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy
import torch
from torch import Tensor

from legato.console.runs import RunFolder
from legato.studies.denoise.images import ImageSets, drawn_sets, middles, noisy, read_sets
from legato.studies.denoise.scores import psnr, ssim, summary

NAMES = {"scikit-image": "TV, scikit-image", "bm3d": "BM3D"}


def chambolle(image: Tensor, weight: float) -> Tensor:
    """scikit-image's, iterated until its energy changes by less than 1e-5 of itself."""
    from skimage.restoration import denoise_tv_chambolle

    found = denoise_tv_chambolle(image.numpy(), weight=weight, eps=1e-5, max_num_iter=300)
    return torch.from_numpy(numpy.ascontiguousarray(found)).float()


def best_weight(sets: ImageSets, sigma: float, images: int, size: int) -> float:
    """The weight with the best mean PSNR on the middles of training images, on a 5 % grid."""
    clean = middles(sets.train[:images], size)[:, 0]
    seen: dict[int, float] = {}

    def value(place: int) -> float:
        if place not in seen:
            weight = sigma * 1.05**place
            found = [
                psnr(chambolle(noisy(image, sigma, number), weight), image)
                for number, image in enumerate(clean)
            ]
            seen[place] = sum(found) / len(found)
        return seen[place]

    place = 0
    for step in (4, 1):
        while (best := max((place - step, place, place + step), key=value)) != place:
            place = best
    return sigma * 1.05**place


def bm3d(image: Tensor, sigma: float) -> Tensor:
    import bm3d as package

    return torch.from_numpy(package.bm3d(image.double().numpy(), sigma)).float()


def one_score(program: str, clean: Tensor, number: int, sigma: float, weight: float | None):
    """PSNR and SSIM of one image."""
    torch.set_num_threads(1)
    y = noisy(clean, sigma, number)
    found = bm3d(y, sigma) if weight is None else chambolle(y, weight)
    return psnr(found, clean), ssim(found[None, None], clean[None, None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=NAMES)
    parser.add_argument("--data", type=Path, help="holds train, BSD68, Set12; drawn otherwise")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sigmas", type=float, nargs="+", default=[15, 25, 50])
    parser.add_argument("--images", type=int, default=50, help="that choose the weight")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    program = arguments.program
    torch.set_num_threads(1)
    sets = drawn_sets() if arguments.data is None else read_sets(arguments.data)
    rows: dict[str, dict[str, object]] = {}
    weights: dict[str, float] = {}
    for sigma in arguments.sigmas:
        level, weight = sigma / 255, None
        if program == "scikit-image":
            size = min(192, *(min(image.shape) for image in sets.train))
            weight = best_weight(sets, level, arguments.images, size)
            weights[f"{sigma:g}"] = weight
        scores = {}
        for test, images in sets.tests.items():
            with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
                tasks = [
                    pool.submit(one_score, program, clean, number, level, weight)
                    for number, clean in enumerate(images)
                ]
                found = [task.result() for task in tasks]
            scores[test] = summary(
                {"psnr": [one[0] for one in found], "ssim": [one[1] for one in found]}
            )
            mean = scores[test]["psnr"]
            print(f"{NAMES[program]}, σ = {sigma:g}, {test}: {mean:.2f} dB", flush=True)
        rows[f"{sigma:g}"] = scores
        results = {
            "program": f"{program} {version(program)}",
            "weights": weights,
            "rows": {NAMES[program]: rows},
        }
        folder = RunFolder(arguments.out.parent)
        folder.finish(results).replace(arguments.out)


if __name__ == "__main__":
    main()
