"""What people put after a network today, on the same logits, tuned the same way.

    python experiments/segment/peers.py --data iccv09Data.tar.gz --coarse coarse-surfaces.npz ...

``--coarse`` files hold the first networks' logits at stride 32, named SEED/IMAGE: side_by_side.py
writes them. The dense CRF needs ``pip install pydensecrf2``; without it that row says so. Every
method sees the same training images. Those with a few numbers get as many random draws of them,
judged by mean IoU; ``far_potts`` has a gradient, and passes over the images that take less time
than as many draws. What ``--out`` holds is not computed again, so several processes can share the
work by ``--method``; a last one, without it or with ``--finish``, puts all together and takes the
times, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from legato.console.runs import RunFolder
from legato.nn import ContrastWeights, Potts, SimilarityWeights
from legato.studies.segment.data import IGNORE, Dataset, Sample, Split, StanfordBackground, split
from legato.studies.segment.evaluation import Score, confusion, stacked
from legato.studies.segment.iterations import kept
from legato.studies.segment.networks import upsampled

OFFSETS = tuple(offset for d in (1, 3, 9, 27) for offset in ((d, 0), (0, d)))
"""Neighbours at four distances, below and to the right, at half the resolution."""

PASSES = 10
"""Over the training images, for a method with a gradient; one takes the time of three draws."""

Parameters = dict[str, Any]
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


class FarPotts(nn.Module):
    """The layer with neighbours at several distances and weights from the colours of an image.

    It works at half the resolution, and its log-probabilities are brought to the image's size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights = SimilarityWeights(width=1 / 12, neighbours=OFFSETS)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.potts = Potts(100, neighbours=OFFSETS, learn_balance=True)

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        """Log-probabilities, before they are normalised, of logits and an image in [0, 1]."""
        small, seen = (F.avg_pool2d(x, 2, ceil_mode=True) for x in (logits, image))
        found = self.potts(-self.log_scale.exp() * small, self.weights(seen))
        height, width = logits.shape[-2:]
        return F.interpolate(found, scale_factor=2, mode="bilinear")[..., :height, :width]


def far_potts(logits: Tensor, image: Tensor, parameters: Parameters) -> Tensor:
    """legato's layer with far neighbours, applied afterwards only."""
    layer = FarPotts()
    layer.load_state_dict({name: torch.tensor(value) for name, value in parameters.items()})
    with torch.no_grad():
        return layer(logits[None], image[None].float() / 255)[0].argmax(0)


def _log_uniform(lo: float, hi: float) -> Callable[[random.Random], float]:
    return lambda draw: math.exp(draw.uniform(math.log(lo), math.log(hi)))


SPACES: dict[str, tuple[Method, dict[str, Callable[[random.Random], float]]]] = {
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


Logits = dict[str, Tensor]


def judge(
    method: Method, parameters: Parameters, samples: Sequence[Sample], coarse: Logits
) -> Score:
    """The score on these samples."""
    counts = {}
    for sample in samples:
        logits = upsampled(coarse[sample.name][None], sample.labels.shape)[0]
        labels = method(logits, sample.image, parameters)
        counts[sample.name] = confusion(labels, sample.labels, len(logits))
    return Score.of(stacked(counts))


def tune(
    method: Method,
    space: dict[str, Callable[[random.Random], float]],
    draws: int,
    samples: Sequence[Sample],
    coarse: Logits,
) -> Parameters:
    """The best of ``draws`` random parameters by mean IoU on training images."""
    draw = random.Random(0)
    tried = [{key: one(draw) for key, one in space.items()} for _ in range(draws if space else 1)]
    shown = tqdm(tried, leave=False)
    return max(shown, key=lambda parameters: judge(method, parameters, samples, coarse).iou)


def descend(samples: Sequence[Sample], coarse: Logits, batch: int = 3) -> Parameters:
    """Parameters of ``far_potts`` from Adam on the expected share of wrong pixels."""
    layer, generator = FarPotts(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, betas=(0.9, 0.95))
    steps = PASSES * -(-len(samples) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in tqdm(range(PASSES), leave=False):
        order = torch.randperm(len(samples), generator=generator).tolist()
        for first in range(0, len(samples), batch):
            optimizer.zero_grad()
            for index in order[first : first + batch]:
                sample = samples[index]
                logits = upsampled(coarse[sample.name][None], sample.labels.shape)
                found = layer(logits, sample.image[None].float() / 255).softmax(1)
                truth = sample.labels.long()[None]
                (F.nll_loss(found, truth, ignore_index=IGNORE) / batch).backward()
            optimizer.step()
            schedule.step()
    return {name: value.tolist() for name, value in layer.state_dict().items()}


METHODS: dict[str, Method] = {name: method for name, (method, _) in SPACES.items()}
METHODS["Potts, far neighbours"] = far_potts


def found_for(
    name: str, options: argparse.Namespace, data: Dataset, parts: Split, coarse: Logits
) -> dict[str, Any]:
    """A method's parameters and scores for one network."""
    training = list(data.subset(parts.train[: options.tune_on]))
    method, began = METHODS[name], time.process_time()
    if name in SPACES:
        parameters = tune(*SPACES[name], options.draws, training, coarse)
    else:
        parameters = descend(training, coarse)
    took = time.process_time() - began
    test = list(data.subset(parts.test))[:: options.every]
    return {
        "parameters": parameters,
        "tuning_processor_seconds": took,
        "tuned_iou": judge(method, parameters, training, coarse).iou,
        **dataclasses.asdict(judge(method, parameters, test, coarse)),
    }


def timed(rows: dict[str, Any], samples: Sequence[Sample], coarse: Logits) -> dict[str, Any]:
    """Milliseconds for one image, methods in turns: the least and the median, by the clock and of
    the processor on all its cores."""
    taken: dict[str, Any] = {name: [] for name in rows}
    for sample in samples:
        logits = upsampled(coarse[sample.name][None], sample.labels.shape)[0]
        for name, row in rows.items():
            wall, processor = time.perf_counter(), time.process_time()
            METHODS[name](logits, sample.image, row["each"][0]["parameters"])
            taken[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {
        name: {
            f"{kind}_{which}": 1e3 * pick(one[place] for one in each[1:])
            for place, kind in enumerate(("wall", "processor"))
            for which, pick in (("least", min), ("median", statistics.median))
        }
        for name, each in taken.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Stanford Background")
    parser.add_argument("--coarse", type=Path, required=True)
    parser.add_argument("--classes", choices=("surfaces", "regions"), default="surfaces")
    parser.add_argument("--networks", default="0", help="seeds of the networks: 0,1,2")
    parser.add_argument("--method", action="append", help="compute these alone, and no times")
    parser.add_argument("--finish", action="store_true", help="take times with --method as well")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--tune-on", type=int, default=30, help="number of training images")
    parser.add_argument("--every", type=int, default=1, help="of the test images, for a trial")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/peers"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = StanfordBackground(options.data, options.classes)
    parts = split(data.names, 0.2, seed=0)
    with np.load(options.coarse) as file:
        stored = {key: torch.from_numpy(file[key]).float() for key in file.files}
    run = RunFolder(options.out)
    rows: dict[str, Any] = {}
    for name in METHODS:
        if options.method and name not in options.method:
            continue
        if name == "dense CRF" and importlib.util.find_spec("pydensecrf") is None:
            print("dense CRF: not installed")
            continue
        each = []
        for seed in options.networks.split(","):
            coarse = {k.split("/")[1]: v for k, v in stored.items() if k.split("/")[0] == seed}
            file_name = f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"
            compute = partial(found_for, name, options, data, parts, coarse)
            each.append(kept(options.out / file_name, compute))
        rows[name] = {
            key: statistics.fmean(one[key] for one in each) for key in ("accuracy", "iou")
        } | {"each": each}
        print(f"{name:<24} accuracy {rows[name]['accuracy']:.2f}  IoU {rows[name]['iou']:.2f}")
    if options.method and not options.finish:
        return
    test = [s for s in data.subset(parts.test) if tuple(s.labels.shape) == (240, 320)][:20]
    for name, times in timed(rows, test, coarse).items():
        rows[name] |= {"milliseconds": times["wall_least"], "times": times}
        print(f"{name:<24} {times}")
    names = ("draws", "tune_on", "networks", "classes", "threads")
    settings = {key: getattr(options, key) for key in names} | {"passes": PASSES}
    written = run.finish({"settings": settings, "rows": rows})
    print(f"Results: {written}")


if __name__ == "__main__":
    main()
