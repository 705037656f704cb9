"""From options to settings, models and data, with what suits each where nothing was said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from legato.console.loading import call_factory
from legato.console.options import device_of
from legato.console.runs import settings_of
from legato.errors import InputError
from legato.studies.segment.data import (
    Dataset,
    ImageFolder,
    Split,
    StanfordBackground,
    SyntheticScenes,
    split,
)
from legato.studies.segment.data.stanford import CLASS_NAMES
from legato.studies.segment.model import Segmenter, build, require_logits
from legato.studies.segment.networks import VGG32
from legato.studies.segment.settings import (
    RECIPES,
    LayerSettings,
    ModelSettings,
    Network,
    Optimiser,
    Precision,
    Recipe,
    Weights,
)

QUICK_EPOCHS = {Network.SMALL: 12, Network.VGG32: 1, Network.CUSTOM: 6}
QUICK_ITERATIONS = 30
SCENES, QUICK_SCENES = (200, (96, 128)), (60, (48, 64))
SGD_FACTOR = 30.0  # plain gradients are not rescaled, so they need larger steps


def kind_of(network: str) -> Network:
    """What ``--network`` names."""
    if ":" in network:
        return Network.CUSTOM
    if network not in (Network.SMALL, Network.VGG32):
        raise InputError(f"--network is small, vgg32 or FILE.py:factory, not {network!r}.")
    return Network(network)


def layer_of(
    kind: str, neighbours: int | None, iterations: int, average: bool = False
) -> LayerSettings | None:
    """The layer that ``--layer`` names, with the neighbours and balance that suit its weights."""
    if kind == "none":
        if average:
            raise InputError("--average is for a --layer: without one there are no iterates.")
        return None
    if kind not in tuple(Weights):
        raise InputError(f"--layer is none, uniform, contrast or learned, not {kind!r}.")
    if kind == Weights.LEARNED:
        found = LayerSettings(Weights.LEARNED, True, neighbours or 8, iterations, balance=1.0)
    else:
        found = LayerSettings(Weights(kind), True, neighbours or 4, iterations)
    return replace(found, average=average)


def usual_recipe(network: Network, optimiser: Optimiser, quick: bool) -> Recipe:
    """How this network is trained where the options do not say otherwise."""
    usual = RECIPES[network]
    factor = SGD_FACTOR if optimiser == Optimiser.SGD else 1.0
    return replace(
        usual,
        epochs=QUICK_EPOCHS[network] if quick else usual.epochs,
        lr=usual.lr * factor,
        layer_lr=usual.layer_lr * factor,
        optimiser=optimiser,
    )


def precision_of(precision: str | None, device: str) -> Precision:
    """Half precision for the network where the hardware was made for it."""
    if precision is not None:
        return Precision(precision)
    return Precision.MIXED if device_of(device).startswith("cuda") else Precision.FULL


def own_network(target: str | None) -> Callable[[int], nn.Module] | None:
    """The maker of a network of the user's own; None where ``target`` is None."""
    if target is None:
        return None
    if ":" not in target:
        raise InputError(
            f"--network is FILE.py:factory here, not {target!r}: models of legato's own networks "
            "know theirs."
        )

    def make(classes: int) -> nn.Module:
        network = call_factory(target, classes)
        if not isinstance(network, nn.Module):
            raise InputError(f"{target} made a {type(network).__name__}, not an nn.Module.")
        require_logits(network, classes)
        return network

    return make


def new_model(described: ModelSettings, network: str, weights: str | None) -> Segmenter:
    """A model of these settings, with VGG-16's convolutions where they belong."""
    if described.network == Network.CUSTOM:
        return build(described, own_network(network))
    model = build(described)
    if isinstance(model.network, VGG32):
        if weights != "random":
            model.network.load_features(vgg_file(weights))
    elif weights not in (None, "random"):
        raise InputError(f"--weights is for vgg32; {described.network} starts from nothing.")
    return model


def vgg_file(weights: str | None) -> Path | None:
    """The file of ``--weights``; None for torchvision."""
    return None if weights in (None, "torchvision") else Path(str(weights))


@dataclass(frozen=True)
class Source:
    """Where labelled images come from: Stanford's, the user's own, or scenes drawn on the spot."""

    stanford: str | None = None
    classes: str = "surfaces"
    images: str | None = None
    masks: str | None = None
    names: tuple[str, ...] | None = None
    scenes: int | None = None
    size: tuple[int, int] | None = None

    def open(self) -> Dataset:
        """The data set, checked."""
        if self.images is not None and self.masks is not None:
            return ImageFolder(self.images, self.masks, self.names)
        if self.stanford is not None:
            return StanfordBackground(self.stanford, self.classes).in_memory()  # type: ignore[arg-type]
        assert self.scenes is not None
        assert self.size is not None
        return SyntheticScenes(self.scenes, size=self.size).in_memory()


def source_of(
    data: Path | None,
    images: Path | None,
    masks: Path | None,
    *,
    classes: str = "surfaces",
    names: Sequence[str] | None = None,
    quick: bool = False,
) -> Source:
    """The source that the options name; those that contradict each other raise InputError."""
    if (images is None) != (masks is None):
        raise InputError("Give both --images and --masks: a mask for every image.")
    if data is not None and images is not None:
        raise InputError("Give --data, or --images and --masks, not both.")
    if classes not in CLASS_NAMES:
        raise InputError(f"--classes is surfaces or regions, not {classes!r}.")
    if names is not None and images is None:
        raise InputError("--names is for masks of your own; other data sets name their classes.")
    # Absolute: `evaluate` finds the data again from another folder.
    if images is not None and masks is not None:
        own = None if names is None else tuple(names)
        return Source(images=str(images.absolute()), masks=str(masks.absolute()), names=own)
    if data is not None:
        return Source(stanford=str(data.absolute()), classes=classes)
    if classes != "surfaces":
        raise InputError(
            "The scenes that legato draws have the classes surfaces; give --data for others."
        )
    count, size = QUICK_SCENES if quick else SCENES
    return Source(scenes=count, size=size)


def open_split(data: Dataset, file: Path | None, own: Path) -> Split:
    """The split in ``file``, else in the run's own file, else a fresh one: always the same."""
    if file is not None:
        return Split.load(file)
    return Split.load(own) if own.exists() else split(data.names, 0.2, seed=0)


class ImageOptions(NamedTuple):
    """The options that name images to test a model on."""

    data: Path | None
    images: Path | None
    masks: Path | None
    split: Path | None

    def open(
        self, folder: Path, classes: Sequence[str] | None, kind: str | None = None
    ) -> tuple[Dataset, str]:
        """The images, and which these are, in words.

        Without options the data that the settings in the model's ``folder`` name; of these the
        test images of the split given, or of that in the folder, or all where neither fits.
        ``kind`` tells which of Stanford's classes are meant; those of the model's ``classes`` if
        None.
        """
        if self.data is None and self.images is None and self.masks is None:
            source = _source_in(folder) or source_of(None, None, None)
        else:
            if kind is None:
                regions = classes is not None and tuple(classes) == CLASS_NAMES["regions"]
                kind = "regions" if regions else "surfaces"
            names = None if self.images is None else classes
            source = source_of(self.data, self.images, self.masks, classes=kind, names=names)
        found = source.open()
        if classes is not None and tuple(found.class_names) != tuple(classes):
            raise InputError(
                f"The model tells {', '.join(classes)} apart, and the data set has "
                f"{', '.join(found.class_names)}. Give data of the model's classes."
            )
        file = self.split or folder / "split.json"
        if self.split is not None or file.exists():
            parts = Split.load(file)
            if self.split is not None or set(parts.test) <= set(found.names):
                return found.subset(parts.test), f"the {len(parts.test)} test images of {file}"
        return found, f"all {len(found)} images"


def _source_in(folder: Path) -> Source | None:
    """The source that a run's settings name; None where there are none to read."""
    with contextlib.suppress(OSError, InputError, KeyError, TypeError):
        stored = dict((settings_of(folder) or {})["data"])
        for name in ("names", "size"):
            stored[name] = None if stored[name] is None else tuple(stored[name])
        return Source(**stored)
    return None
