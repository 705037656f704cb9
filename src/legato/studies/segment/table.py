"""The paper's table: a network with and without the global layer, and what each part is worth."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from legato._support.files import replacing, write_text
from legato.errors import InputError
from legato.studies.segment.data import Dataset, Split
from legato.studies.segment.evaluation import (
    Score,
    confusions,
    predictor,
    stacked,
    weight_pictures,
)
from legato.studies.segment.model import Segmenter, build
from legato.studies.segment.networks import VGG32
from legato.studies.segment.settings import (
    LayerSettings,
    Loss,
    ModelSettings,
    Network,
    Optimiser,
    Recipe,
    Weights,
)
from legato.studies.segment.training import train

Report = Callable[[str], None]

SCORES = ("accuracy", "iou", "iou_of_images", "iou_of_present", "iou_with_unknown")
"""What is reported of a score, in per cent."""


@dataclass(frozen=True)
class Variant:
    """One row: what comes after the trained network, and how the two are trained on."""

    what: str
    layer: LayerSettings | None = None
    refine: bool = False
    loss: Loss = Loss.LOG
    optimiser: Optimiser = Optimiser.ADAM
    freeze_network: bool = False
    lr_factor: float = 1.0
    lr: float | None = None  # one learning rate for everything, in place of the settings'


_LEARNED = LayerSettings(Weights.LEARNED, neighbours=8, balance=1.0)
_PAPER = LayerSettings(Weights.CONTRAST, neighbours=4, iterations=100, average=True)

VARIANTS: dict[str, Variant] = {
    "control": Variant("the network alone, trained on as long as the others"),
    "skip": Variant("the network with finer scores, no layer", refine=True),
    "global": Variant("+ layer, learned weights, 8 neighbours", _LEARNED),
    "contrast": Variant("+ layer, contrast weights", LayerSettings(Weights.CONTRAST)),
    "paper": Variant(
        "the paper's layer: contrast weights, ergodic mean, its loss", _PAPER, loss=Loss.PAPER
    ),
    "paper-rate": Variant(
        "the paper's layer, at the paper's learning rate of 1e-3", _PAPER, loss=Loss.PAPER, lr=1e-3
    ),
    "uniform": Variant("+ layer, one weight for all", LayerSettings(Weights.UNIFORM)),
    "frozen": Variant("learned weights, network frozen", _LEARNED, freeze_network=True),
    "paper-loss": Variant("learned weights, the paper's loss", _LEARNED, loss=Loss.PAPER),
    "truncated": Variant("learned weights, last 20 iterations", replace(_LEARNED, last=20)),
    # Plain gradients are not rescaled, so they need larger steps.
    "sgd": Variant("learned weights, SGD", _LEARNED, optimiser=Optimiser.SGD, lr_factor=30.0),
    "global-200": Variant("learned weights, 200 iterations", replace(_LEARNED, iterations=200)),
    "skip-global": Variant("finer scores and learned weights", _LEARNED, refine=True),
}


@dataclass(frozen=True)
class TableSettings:
    """What the table depends on."""

    network: Network = Network.VGG32
    seeds: tuple[int, ...] = (0, 1, 2)
    variants: tuple[str, ...] = tuple(VARIANTS)
    first_epochs: int = 20
    extra_epochs: int = 8
    lr: float = 1e-4
    extra_lr: float = 3e-5
    recipe: Recipe = Recipe()
    test_iterations: tuple[int, ...] = (50, 100, 200, 400)  # of the trained "global"
    iterations: int | None = None  # of every layer, in place of the variant's own

    def __post_init__(self) -> None:
        unknown = set(self.variants) - set(VARIANTS)
        if unknown:
            raise InputError(
                f"Unknown variants {sorted(unknown)}; there are {', '.join(VARIANTS)}."
            )


def run_seed(
    seed: int,
    settings: TableSettings,
    data: Dataset,
    split: Split,
    folder: Path,
    device: str,
    vgg: Path | None = None,
    report: Report = lambda line: None,
) -> None:
    """Train and score all variants of one seed into ``folder/seed-N``.

    What is already there is not computed again, so an interrupted table goes on, and several
    processes can share the work by seeds.
    """
    one = _Seed(seed, settings, data, split, Path(folder) / f"seed-{seed}", device, report)
    one.train_network(vgg)
    for name in settings.variants:
        if not (one.folder / f"{name}.json").exists():
            one.train_variant(name)


class _Seed:
    """One repetition: the network, and from there every variant."""

    def __init__(
        self, seed: int, settings: TableSettings, data: Dataset, split: Split, folder: Path,
        device: str, report: Report,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.seed, self.settings, self.folder = seed, settings, folder
        self.device, self.report = device, report
        self.classes = tuple(data.class_names)
        self.recipe = replace(settings.recipe, seed=seed)
        self.training_set = data.subset(split.train)
        # All samples, decoded once: they are scored many times.
        self.samples = {"train": list(self.training_set), "test": list(data.subset(split.test))}
        self.start = folder / "network.pt"

    def train_network(self, vgg: Path | None) -> None:
        """The network trained alone, which every variant starts from."""
        torch.manual_seed(self.seed)
        described = ModelSettings(self.classes, self.settings.network)
        model = build(described)
        if self.start.exists() and (self.folder / "network.json").exists():
            self.load_network(model)
        else:
            if isinstance(model.network, VGG32):
                model.network.load_features(vgg)
            recipe = replace(self.recipe, epochs=self.settings.first_epochs, lr=self.settings.lr)
            self.train("network", model, described, recipe)
        if isinstance(model.network, VGG32):
            self.keep_coarse(model.network)

    def train_variant(self, name: str) -> None:
        """One row of the table."""
        torch.manual_seed(1000 + self.seed)
        variant, layer = VARIANTS[name], VARIANTS[name].layer
        if layer is not None and self.settings.iterations is not None:
            layer = replace(layer, iterations=self.settings.iterations)
        described = ModelSettings(self.classes, self.settings.network, layer, variant.refine)
        model = build(described)
        self.load_network(model)
        recipe = replace(
            self.recipe,
            epochs=self.settings.extra_epochs,
            lr=variant.lr or self.settings.extra_lr * variant.lr_factor,
            layer_lr=variant.lr or self.recipe.layer_lr * variant.lr_factor,
            loss=variant.loss,
            optimiser=variant.optimiser,
            freeze_network=variant.freeze_network,
        )
        self.train(name, model, described, recipe)

    def load_network(self, model: Segmenter) -> None:
        model.network.load_state_dict(torch.load(self.start, weights_only=True))

    def train(self, name: str, model: Segmenter, described: ModelSettings, recipe: Recipe) -> None:
        """Train, score and write ``name.json``, with what pictures are drawn from."""
        began = time.perf_counter()
        train(model, described, recipe, self.training_set, self.folder / name, log=False)
        row: dict[str, Any] = {"seconds": time.perf_counter() - began}
        if name == "network":
            _keep(self.start, {k: v.cpu() for k, v in model.network.state_dict().items()})
        labels: dict[str, Tensor] = {}
        counts = {
            "train": self.confusions(model, "train"),
            "test": self.confusions(model, "test", labels),
        }
        row |= {part: asdict(Score.of(stacked(found))) for part, found in counts.items()}
        _keep_counts(self.folder / f"{name}.npz", counts)
        if model.layer is not None:
            named = model.layer.named_parameters()
            row["parameters"] = {key: float(p.detach()) for key, p in named if p.ndim == 0}
        if name == "global":
            row["test_iterations"] = self.at_test(model)
            samples = self.samples["test"]
            _keep(self.folder / "weights.pt", weight_pictures(model, samples, self.device))
        if name in ("control", "global"):
            _keep(self.folder / f"labels-{name}.pt", labels)
        write_text(self.folder / f"{name}.json", json.dumps(row, indent=1) + "\n")
        test = row["test"]
        self.report(
            f"seed {self.seed}  {name:<12} acc {test['accuracy']:.2f}  IoU {test['iou']:.2f}"
        )
        (self.folder / name / "last.ckpt").unlink(missing_ok=True)

    def confusions(
        self, model: Segmenter, part: str, keep: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        predict = predictor(model, self.device, self.recipe.precision)
        samples = self.samples[part]
        return confusions(predict, samples, len(self.classes), self.device, keep=keep)

    def at_test(self, model: Segmenter) -> dict[str, Any]:
        """The trained model with another number of iterations: labels need no temperature."""
        assert model.layer is not None
        usual = model.layer.potts.iterations
        found = {}
        for count in self.settings.test_iterations:
            model.layer.potts.iterations = count
            found[str(count)] = asdict(Score.of(stacked(self.confusions(model, "test"))))
        model.layer.potts.iterations = usual
        return found

    @torch.no_grad()
    def keep_coarse(self, network: VGG32) -> None:
        """The logits at stride 32, from which any peer can start: a few hundred bytes an image."""
        path = self.folder / "coarse.pt"
        if path.exists():
            return
        network = network.to(self.device).eval()
        found = {}
        for sample in (*self.samples["train"], *self.samples["test"]):
            image = sample.image[None].to(self.device).float() / 255
            found[sample.name] = network.coarse(image)[0][0].float().cpu()
        _keep(path, found)


def collect(folder: Path, settings: TableSettings) -> dict[str, Any]:
    """Mean and standard deviation over the seeds, for each variant that all of them finished."""
    rows: dict[str, Any] = {}
    for name in ("network", *settings.variants):
        files = [Path(folder) / f"seed-{seed}" / f"{name}.json" for seed in settings.seeds]
        if not all(file.exists() for file in files):
            continue
        found = [_read(file) for file in files]
        row: dict[str, Any] = {
            "what": "the network, first training" if name == "network" else VARIANTS[name].what
        }
        for part in ("train", "test"):
            if part in found[0]:
                keys = [key for key in SCORES if key in found[0][part]]
                row[part] = {key: _spread([one[part][key] for one in found]) for key in keys}
        if "seconds" in found[0]:
            row["seconds"] = _spread([one["seconds"] for one in found])
        for extra in ("parameters", "test_iterations"):
            if extra in found[0]:
                row[extra] = [one[extra] for one in found]
        rows[name] = row
    if "control" in rows:
        control = rows["control"]["test"]
        for row in rows.values():
            # Paired: each seed's gain is over its own control.
            row["gain"] = {
                key: _spread(
                    [a - b for a, b in zip(row["test"][key]["each"], control[key]["each"],
                                           strict=True)]
                )
                for key in ("accuracy", "iou")
            }  # fmt: skip
    return rows


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "each": list(values),
    }


def _keep(path: Path, content: Mapping[str, Tensor]) -> None:
    with replacing(path) as temporary:
        torch.save(dict(content), temporary)


def _read(path: Path) -> dict[str, Any]:
    """A row's file, its scores by today's definitions where there are counts to make them from."""
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    counts = path.with_suffix(".npz")
    if counts.exists():
        with numpy.load(counts) as file:
            row |= {part: asdict(Score.of(torch.from_numpy(file[part]))) for part in file.files}
    return row


def _keep_counts(path: Path, counts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Every image's confusion matrix, so that a score defined otherwise needs no network."""
    train, test = (stacked(counts[part]).to(torch.int32).numpy() for part in ("train", "test"))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        numpy.savez_compressed(file, train=train, test=test)
