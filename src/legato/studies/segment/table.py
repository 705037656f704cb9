"""The paper's table: a network with and without the global layer, and what each part is worth."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from legato._support.files import replacing
from legato.errors import InputError
from legato.studies.segment.data import Dataset, Sample, Split
from legato.studies.segment.evaluation import evaluate, weight_pictures
from legato.studies.segment.model import Segmenter, build
from legato.studies.segment.networks import FCN32
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
    on_train: bool = False  # also score the training set


_LEARNED = LayerSettings(Weights.LEARNED, neighbours=8, balance=1.0)

VARIANTS: dict[str, Variant] = {
    "control": Variant("the network alone, trained on as long as the others", on_train=True),
    "skip": Variant("the network with finer scores, no layer", refine=True, on_train=True),
    "global": Variant("+ layer, learned weights, 8 neighbours", _LEARNED, on_train=True),
    "contrast": Variant(
        "+ layer, contrast weights", LayerSettings(Weights.CONTRAST), on_train=True
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

    network: Network = Network.FCN32
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
    folder = Path(folder) / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    classes = tuple(data.class_names)
    recipe = replace(settings.recipe, seed=seed)
    sets = {"train": _loaded(data.subset(split.train)), "test": _loaded(data.subset(split.test))}

    def scores(model: Segmenter, names: Sequence[str], keep: dict[str, Tensor] | None) -> Any:
        found = {}
        for name in names:
            kept = keep if name == "test" else None
            found[name] = asdict(
                evaluate(model, sets[name], len(classes), device, recipe.precision, kept)
            )
        return found

    def finish(name: str, model: Segmenter, seconds: float, on_train: bool) -> None:
        labels: dict[str, Tensor] = {}
        names = ("train", "test") if on_train else ("test",)
        row: dict[str, Any] = {"seconds": seconds} | scores(model, names, labels)
        if model.layer is not None:
            row["parameters"] = _scalars(model)
        if name == "global":
            row["test_iterations"] = _at_test(model, settings.test_iterations, scores)
            _keep(folder / "weights.pt", weight_pictures(model, sets["test"], device))
        if name in ("control", "global"):
            _keep(folder / f"labels-{name}.pt", labels)
        _keep_json(folder / f"{name}.json", row)
        test = row["test"]
        report(f"seed {seed}  {name:<12} acc {test['accuracy']:.2f}  IoU {test['iou']:.2f}")

    first = ModelSettings(classes, settings.network)
    start = folder / "network.pt"
    network = _first(first, replace(recipe, epochs=settings.first_epochs, lr=settings.lr), vgg,
                     data.subset(split.train), folder, start, finish)  # fmt: skip
    if isinstance(network, FCN32):
        _keep_coarse(folder / "coarse.pt", network, sets, device)
    for name in settings.variants:
        if (folder / f"{name}.json").exists():
            continue
        variant = VARIANTS[name]
        torch.manual_seed(1000 + seed)
        layer = variant.layer
        if layer is not None and settings.iterations is not None:
            layer = replace(layer, iterations=settings.iterations)
        described = ModelSettings(classes, settings.network, layer, variant.refine)
        model = build(described)
        model.network.load_state_dict(torch.load(start, weights_only=True))
        began = time.perf_counter()
        train(
            model,
            described,
            replace(
                recipe,
                epochs=settings.extra_epochs,
                lr=settings.extra_lr * variant.lr_factor,
                layer_lr=recipe.layer_lr * variant.lr_factor,
                loss=variant.loss,
                optimiser=variant.optimiser,
                freeze_network=variant.freeze_network,
            ),
            data.subset(split.train),
            folder / name,
            log=False,
        )
        finish(name, model, time.perf_counter() - began, variant.on_train)
        (folder / name / "last.ckpt").unlink(missing_ok=True)


def collect(folder: Path, settings: TableSettings) -> dict[str, Any]:
    """Mean and standard deviation over the seeds, for each variant that all of them finished."""
    rows: dict[str, Any] = {}
    for name in ("network", *settings.variants):
        files = [Path(folder) / f"seed-{seed}" / f"{name}.json" for seed in settings.seeds]
        if not all(file.exists() for file in files):
            continue
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        row: dict[str, Any] = {
            "what": "the network, first training" if name == "network" else VARIANTS[name].what
        }
        for part in ("train", "test"):
            if part in found[0]:
                row[part] = {
                    key: _spread([one[part][key] for one in found]) for key in ("accuracy", "iou")
                }
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


def _first(
    described: ModelSettings, recipe: Recipe, vgg: Path | None, data: Dataset, folder: Path,
    start: Path, finish: Callable[[str, Segmenter, float, bool], None],
) -> torch.nn.Module:  # fmt: skip
    """The network trained alone; its weights are kept in ``start``."""
    torch.manual_seed(recipe.seed)
    model = build(described)
    if start.exists() and (folder / "network.json").exists():
        model.network.load_state_dict(torch.load(start, weights_only=True))
        return model.network
    if isinstance(model.network, FCN32):
        model.network.load_features(vgg)
    began = time.perf_counter()
    train(model, described, recipe, data, folder / "network", log=False)
    seconds = time.perf_counter() - began
    with replacing(start) as temporary:
        torch.save({k: v.cpu() for k, v in model.network.state_dict().items()}, temporary)
    finish("network", model, seconds, True)
    (folder / "network" / "last.ckpt").unlink(missing_ok=True)
    return model.network


def _loaded(data: Dataset) -> list[Sample]:
    """All samples, decoded once: they are scored many times."""
    return [data[index] for index in range(len(data))]


def _scalars(model: Segmenter) -> dict[str, float]:
    assert model.layer is not None
    return {name: float(p.detach()) for name, p in model.layer.named_parameters() if p.ndim == 0}


def _at_test(model: Segmenter, counts: Sequence[int], scores: Callable[..., Any]) -> dict[str, Any]:
    """The trained model with another number of iterations: labels need no temperature."""
    assert model.layer is not None
    usual = model.layer.potts.iterations
    found = {}
    for count in counts:
        model.layer.potts.iterations = count
        found[str(count)] = scores(model, ("test",), None)["test"]
    model.layer.potts.iterations = usual
    return found


def _keep(path: Path, content: Mapping[str, Tensor]) -> None:
    with replacing(path) as temporary:
        torch.save(dict(content), temporary)


def _keep_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def _keep_coarse(
    path: Path, network: FCN32, sets: Mapping[str, Sequence[Sample]], device: str
) -> None:
    """The logits at stride 32, from which any peer can start: a few hundred bytes an image."""
    if path.exists():
        return
    network = network.to(device).eval()
    found = {}
    for samples in sets.values():
        for sample in samples:
            image = sample.image[None].to(device).float() / 255
            found[sample.name] = network.coarse(image)[0][0].float().cpu()
    _keep(path, found)
