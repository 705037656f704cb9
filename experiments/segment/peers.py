"""What people put after a network today, on the same logits, tuned the same way.

    python experiments/segment/peers.py --data iccv09Data.tar.gz --coarse seed-0/coarse.pt ...

``--coarse`` files come from ``legato segment table`` (the first network's logits at stride 32).
The dense CRF needs ``pip install pydensecrf2``; without it that row says so. Every method gets the
same number of random parameter draws, judged by mean IoU on the same training images.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from legato.console.runs import RunFolder
from legato.nn import ContrastWeights, Potts
from legato.studies.segment.data import IGNORE, Sample, StanfordBackground, split
from legato.studies.segment.evaluation import Score
from legato.studies.segment.networks import upsampled

Parameters = dict[str, float]
Method = Callable[[Tensor, Tensor, Parameters], Tensor]  # logits, uint8 image → labels


def softmax(logits: Tensor, image: Tensor, parameters: Parameters) -> Tensor:
    """The network's own answer."""
    return logits.argmax(0)


def blurred_softmax(logits: Tensor, image: Tensor, parameters: Parameters) -> Tensor:
    """Probabilities smoothed by a Gaussian: no edges, no model."""
    sigma = parameters["sigma"]
    radius = math.ceil(3 * sigma)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = kernel / kernel.sum()
    p = logits.softmax(0)[:, None]
    p = F.conv2d(F.pad(p, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None])
    p = F.conv2d(F.pad(p, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None, :])
    return p[:, 0].argmax(0)


def dense_crf(logits: Tensor, image: Tensor, parameters: Parameters) -> Tensor:
    """Mean field of a fully connected CRF (Krähenbühl and Koltun, 2011), as pydensecrf has it."""
    from pydensecrf import densecrf

    classes, height, width = logits.shape
    crf = densecrf.DenseCRF2D(width, height, classes)
    unary = -logits.log_softmax(0).reshape(classes, -1).numpy()
    crf.setUnaryEnergy(np.ascontiguousarray(unary, dtype=np.float32))
    crf.addPairwiseGaussian(sxy=parameters["near"], compat=parameters["near_weight"])
    crf.addPairwiseBilateral(
        sxy=parameters["far"],
        srgb=parameters["colour"],
        rgbim=np.ascontiguousarray(image.permute(1, 2, 0).numpy()),
        compat=parameters["far_weight"],
    )
    found = np.array(crf.inference(int(parameters["iterations"])))
    return torch.from_numpy(found.reshape(classes, height, width)).argmax(0)


def potts(logits: Tensor, image: Tensor, parameters: Parameters) -> Tensor:
    """legato's layer with contrast weights, applied afterwards only: two numbers to tune."""
    weights = ContrastWeights(1.0, parameters["kappa"])(image[None].float() / 255)
    layer = Potts(100, balance=5.0)
    with torch.no_grad():
        return layer(-parameters["scale"] * logits[None], weights.detach())[0].argmax(0)


def _log_uniform(lo: float, hi: float) -> Callable[[random.Random], float]:
    return lambda draw: math.exp(draw.uniform(math.log(lo), math.log(hi)))


METHODS: dict[str, tuple[Method, dict[str, Callable[[random.Random], float]]]] = {
    "softmax": (softmax, {}),
    "blurred softmax": (blurred_softmax, {"sigma": _log_uniform(0.5, 40)}),
    "dense CRF": (
        dense_crf,
        {
            "near": _log_uniform(1, 10),
            "near_weight": _log_uniform(0.3, 20),
            "far": _log_uniform(10, 120),
            "colour": _log_uniform(3, 40),
            "far_weight": _log_uniform(0.3, 20),
            "iterations": lambda draw: draw.choice((5, 10)),
        },
    ),
    "Potts, contrast weights": (
        potts,
        {"kappa": _log_uniform(3, 60), "scale": _log_uniform(1e-3, 1)},
    ),
}


def judge(
    method: Method, parameters: Parameters, samples: Sequence[Sample], coarse: dict[str, Tensor]
) -> tuple[Score, float]:
    """The score on these samples, and the median milliseconds for one."""
    confusion = torch.zeros(3, 3, dtype=torch.int64)
    times = []
    for sample in samples:
        logits = upsampled(coarse[sample.name][None], sample.labels.shape)[0]
        start = time.perf_counter()
        labels = method(logits, sample.image, parameters)
        times.append(time.perf_counter() - start)
        known = sample.labels != IGNORE
        pairs = 3 * sample.labels[known].long() + labels[known]
        confusion += torch.bincount(pairs, minlength=9).view(3, 3)
    return Score.of(confusion, len(samples)), 1e3 * statistics.median(times)


def tune(
    name: str, draws: int, samples: Sequence[Sample], coarse: dict[str, Tensor]
) -> tuple[Parameters, float]:
    """The best of ``draws`` random parameters by mean IoU on training images."""
    method, space = METHODS[name]
    if not space:
        return {}, judge(method, {}, samples, coarse)[0].iou
    draw = random.Random(0)
    best: tuple[Parameters, float] = ({}, -math.inf)
    for _ in tqdm(range(draws), desc=name, leave=False):
        parameters = {key: sample(draw) for key, sample in space.items()}
        iou = judge(method, parameters, samples, coarse)[0].iou
        if iou > best[1]:
            best = parameters, iou
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Stanford Background")
    parser.add_argument("--coarse", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--tune-on", type=int, default=60, help="number of training images")
    parser.add_argument("--parameters", type=Path, help="results of an earlier run: tuned already")
    parser.add_argument("--out", type=Path, default=Path("out/peers"))
    options = parser.parse_args()

    data = StanfordBackground(options.data)
    parts = split(data.names, test=143, seed=0)
    training = [data.subset(parts.train)[i] for i in range(options.tune_on)]
    test = [data.subset(parts.test)[i] for i in range(len(parts.test))]
    earlier = json.loads(options.parameters.read_text())["rows"] if options.parameters else {}
    rows: dict[str, Any] = {}
    for name in METHODS:
        if name == "dense CRF":
            try:
                import pydensecrf.densecrf  # noqa: F401
            except ImportError as error:
                rows[name] = {"skipped": f"not installed: {error}"}
                continue
        seeds = []
        for place, path in enumerate(options.coarse):
            coarse = torch.load(path, weights_only=True)
            if name in earlier:
                tuned = earlier[name]["each"][place]
                parameters, iou = tuned["parameters"], tuned["tuned_iou"]
            else:
                parameters, iou = tune(name, options.draws, training, coarse)
            score, milliseconds = judge(METHODS[name][0], parameters, test, coarse)
            seeds.append(
                dataclasses.asdict(score)
                | {"milliseconds": milliseconds, "parameters": parameters, "tuned_iou": iou}
            )
        rows[name] = {
            key: statistics.fmean(one[key] for one in seeds)
            for key in ("accuracy", "iou", "milliseconds")
        } | {"each": seeds}
        print(
            f"{name:<24} accuracy {rows[name]['accuracy']:.2f}  IoU {rows[name]['iou']:.2f}  "
            f"{rows[name]['milliseconds']:.1f} ms"
        )
    settings = {"draws": options.draws, "tune_on": options.tune_on, "networks": len(options.coarse)}
    file = RunFolder(options.out).finish({"settings": settings, "rows": rows})
    print(f"Results: {file}")


if __name__ == "__main__":
    main()
