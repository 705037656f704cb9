"""Every layer of legato.nn as a subject, with the kernels and options that the CPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import legato as lg
from legato import nn as lnn
from metamorphic.reconstruction import reconstruction_subjects
from metamorphic.subject import ROUNDED, Inputs, Numbers, Subject


def _layer(make: Callable[[], nn.Module]) -> Callable[[Inputs], nn.Module]:
    """A layer whose parameters are drawn from one seed, in the precision of the inputs."""

    def build(t: Inputs) -> nn.Module:
        # A generator of their own would be better, but nn.init draws from the global one.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            layer = make()
        like = next(iter(t.values()))
        return layer.to(like.dtype)

    return build


def _call(*names: str, read: Callable[[Any], Any] = lambda found: found) -> Any:
    def run(layer: nn.Module, t: Inputs) -> Any:
        return read(layer(*(t[n] for n in names)))

    return run


def _subject(
    name: str, make: Callable[[], nn.Module], draw: Callable[[Numbers], Inputs],
    *names: str, read: Callable[[Any], Any] = lambda found: found, **facts: Any,
) -> Subject:  # fmt: skip
    return Subject(name, "layer", draw, _layer(make), _call(*names, read=read), make=make, **facts)


# --- images ---------------------------------------------------------------------------------------


def _costs(n: Numbers) -> Inputs:
    return {"cost": n.normal(1, 3, 4, 5), "weights": n.uniform(low=0.2, high=0.6)}


def _few(n: Numbers) -> Inputs:
    return {"cost": n.normal(1, 2, 2, 2), "weights": n.uniform(low=0.2, high=0.6)}


def _edges(n: Numbers) -> Inputs:
    return {"cost": n.normal(1, 3, 4, 5), "weights": n.uniform(1, 1, 2, 4, 5, low=0.2, high=0.6)}


def _volume(n: Numbers) -> Inputs:
    return {"cost": n.normal(1, 2, 3, 3, 4), "weights": n.uniform(low=0.2, high=0.6)}


def _potts() -> list[Subject]:
    labels = {"permuted": {"cost": (1,)}, "permuted_output": 1}
    facts = {"batched": ("cost",), "has_batch": True, "rounding": 1e-8, **labels}
    fixed = {**facts, "batched": ("cost", "weights")}  # steps that no other image decides
    scaled = {"homogeneous": ("cost", "weights"), "degree": 0, "slopes_scale": True}
    steps = {"tau": 0.4, "sigma": 0.4}
    found = []
    for kernel in ("numba", "reference"):
        k: dict[str, Any] = {"kernel": kernel}
        options: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
            "plain": ({}, _costs, {**facts, **scaled}),
            "steps": (steps, _edges, fixed),
            "average": ({"average": True}, _costs, facts),
            "eight": ({"neighbours": 8}, _costs, facts),
            "entropy": ({"epsilon": 0.2}, _edges, facts),
            "volume": ({}, _volume, facts),
            "learned balance": ({"learn_balance": True, "balance": 2.0}, _costs, facts),
            "last": ({"gradient": lg.Unroll(last=6)}, _costs, facts),
            "checkpoint": ({"gradient": lg.Unroll(checkpoint=4)}, _costs, facts),
        }
        for name, (more, draw, what) in options.items():
            what = {**what, "tangents": name != "last"}
            found.append(
                _subject(
                    f"Potts, {name}, {kernel}",
                    lambda more=more, k=k: lnn.Potts(15, **more, **k),
                    draw,
                    "cost",
                    "weights",
                    **what,
                )
            )
    for way in (lg.Implicit(lg.GMRES(tol=1e-10)), lg.FixedPoint(500)):
        name = f"Potts, {type(way).__name__}"
        # Solved: before, forward mode has the derivative of iterates, and these of their limit.
        make = lambda way=way: lnn.Potts(400, epsilon=1.0, gradient=way)  # noqa: E731
        found.append(_subject(name, make, _few, "cost", "weights", **{**facts, "rounding": 1e-4}))
    return found


def _image(n: Numbers) -> Inputs:
    return {"image": n.normal(1, 2, 4, 5).cumsum(-1), "weight": n.uniform(low=0.1, high=0.4)}


def _pixels(n: Numbers) -> Inputs:
    return {**_image(n), "weight": n.uniform(1, 1, 4, 5, low=0.1, high=0.4)}


def _total_variation() -> list[Subject]:
    facts = {
        "batched": ("image",), "has_batch": True, "homogeneous": ("image", "weight"),
        "shifted": "image", "permuted": {"image": (1,)}, "permuted_output": 1, "rounding": 1e-8,
    }  # fmt: skip
    found = []
    for kernel in ("numba", "reference"):
        k: dict[str, Any] = {"kernel": kernel}
        options: dict[str, tuple[dict[str, Any], Any]] = {
            "isotropic": ({}, _image),
            "weight per pixel": ({}, _pixels),
            "anisotropic": ({"isotropic": False}, _image),
            "joint": ({"joint_channels": True}, _image),
            "anisotropic, joint": ({"isotropic": False, "joint_channels": True}, _image),
            "last": ({"gradient": lg.Unroll(last=6)}, _image),
            "checkpoint": ({"gradient": lg.Unroll(checkpoint=4)}, _image),
        }
        for name, (more, draw) in options.items():
            batches: dict[str, Any] = {"batched": ("image", "weight")} if draw is _pixels else {}
            batches["tangents"] = name != "last"
            found.append(
                _subject(
                    f"TotalVariation, {name}, {kernel}",
                    lambda more=more, k=k: lnn.TotalVariation(20, **more, **k),
                    draw,
                    "image",
                    "weight",
                    **{**facts, **batches},
                )
            )
    for way in (lg.Implicit(lg.CG(tol=1e-10)), lg.Implicit(), lg.FixedPoint(800)):
        solver = type(getattr(way, "solver", way)).__name__
        found.append(
            _subject(
                f"TotalVariation, {solver}",
                lambda way=way: lnn.TotalVariation(300, gradient=way),
                _image,
                "image",
                "weight",
                **{**facts, "rounding": 1e-4},
            )
        )
    return found


def _denoisers() -> list[Subject]:
    def draw(n: Numbers) -> Inputs:
        return {"image": n.normal(1, 1, 5, 6)}

    facts = {"batched": ("image",), "has_batch": True, "shifted": "image", "rounding": 1e-8}
    facts["bits"] = ROUNDED
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "interval": {"interval": True},
        "Implicit": {"gradient": lg.Implicit(lg.GMRES(tol=1e-10)), "weight": 0.5},
    }
    found = [
        _subject(
            f"AnalysisDenoiser, {name}",
            lambda more=more, name=name: lnn.AnalysisDenoiser(
                4, size=3, iterations=150 if name == "Implicit" else 20, **more
            ),
            draw,
            "image",
            **{**facts, "rounding": 1e-4 if name == "Implicit" else 1e-8},
        )
        for name, more in options.items()
    ]
    found.append(
        _subject(
            "AnalysisDenoiser, conditioned",
            lambda: lnn.AnalysisDenoiser(4, size=3, iterations=20, conditioned=True),
            lambda n: {**draw(n), "sigma": n.uniform(1, low=0.1, high=0.3)},
            "image",
            "sigma",
            **{**facts, "batched": ("image", "sigma")},
        )
    )
    found.append(
        _subject(
            "AnalysisDenoiser, colours",
            lambda: lnn.AnalysisDenoiser(4, size=3, iterations=20, channels=2),
            lambda n: {"image": n.normal(1, 2, 5, 6)},
            "image",
            **facts,
        )
    )
    return found


# --- vectors --------------------------------------------------------------------------------------


def _least_squares() -> list[Subject]:
    def draw(n: Numbers) -> Inputs:
        A = n.matrix(5, 4)
        return {"operator": A, "data": A @ n.normal(4)}

    def bright(n: Numbers) -> Inputs:
        A = n.uniform(6, 3, low=0.1)
        return {"operator": A, "data": A @ n.uniform(3, low=0.2)}

    both = ("operator", "data")
    cone = {"batched": both, "homogeneous": ("data",), "permuted": {"operator": (-1,)}}
    cone["bits"] = ROUNDED
    face = {"batched": both, "permuted": {"operator": (-1,)}, "bits": ROUNDED}
    exact = lg.Implicit(lg.GMRES(tol=1e-10))
    return [
        _subject("NonNegativeLeastSquares", lambda: lnn.NonNegativeLeastSquares(40), draw, *both,
                 **cone),
        _subject("NonNegativeLeastSquares, Entropy",
                 lambda: lnn.NonNegativeLeastSquares(60, geometry=lg.Entropy()), bright, *both,
                 **{**cone, "rounding": 1e-6}),
        _subject("NonNegativeLeastSquares, Burg",
                 lambda: lnn.NonNegativeLeastSquares(60, geometry=lg.Burg()), bright, *both,
                 **{**cone, "rounding": 1e-6}),
        _subject("NonNegativeLeastSquares, Implicit",
                 lambda: lnn.NonNegativeLeastSquares(2000, tol=1e-11, gradient=exact), draw, *both,
                 **{**cone, "rounding": 1e-6}),
        _subject("NonNegativeLeastSquares, tolerance",
                 lambda: lnn.NonNegativeLeastSquares(4000, tol=1e-9), draw, *both,
                 **{**cone, "rounding": 1e-6}),
        _subject("SimplexLeastSquares", lambda: lnn.SimplexLeastSquares(40), draw, *both, **face),
        _subject("SimplexLeastSquares, Entropy",
                 lambda: lnn.SimplexLeastSquares(40, geometry=lg.Entropy()), draw, *both, **face),
        _subject("SimplexLeastSquares, Implicit",
                 lambda: lnn.SimplexLeastSquares(2000, tol=1e-11, gradient=exact), draw, *both,
                 **{**face, "rounding": 1e-6}),
    ]  # fmt: skip


def _coders() -> list[Subject]:
    def draw(n: Numbers) -> Inputs:
        return {"signals": n.normal(1, 4)}

    facts = {"batched": ("signals",), "has_batch": True, "bits": ROUNDED}
    exact = lg.Implicit(lg.GMRES(tol=1e-10))
    return [
        _subject("SparseCoding", lambda: lnn.SparseCoding(5, 4, iterations=30), draw, "signals",
                 **facts),
        _subject("SparseCoding, nonnegative",
                 lambda: lnn.SparseCoding(5, 4, iterations=30, nonnegative=True), draw,
                 "signals", **facts),
        _subject("SparseCoding, Implicit",
                 lambda: lnn.SparseCoding(3, 4, weight=0.3, iterations=1000, tol=1e-9,
                                          gradient=exact),
                 draw, "signals", **{**facts, "rounding": 1e-5}),
    ]  # fmt: skip


def _games() -> list[Subject]:
    def draw(n: Numbers) -> Inputs:
        return {"payoffs": n.normal(3, 4)}

    facts = {"batched": ("payoffs",), "bits": ROUNDED}
    exact = lg.Implicit(lg.GMRES(tol=1e-10))
    return [
        _subject("MatrixGame", lambda: lnn.MatrixGame(iterations=40), draw, "payoffs", **facts),
        _subject("MatrixGame, average", lambda: lnn.MatrixGame(0.0, average=True, iterations=40),
                 draw, "payoffs", homogeneous=("payoffs",), degree=0, **facts),
        _subject("MatrixGame, Implicit",
                 lambda: lnn.MatrixGame(0.5, iterations=3000, tol=1e-11, gradient=exact), draw,
                 "payoffs", **{**facts, "rounding": 1e-5}),
    ]  # fmt: skip


def _segmentation() -> list[Subject]:
    def scene(n: Numbers) -> Inputs:
        return {"logits": n.normal(1, 3, 4, 4), "image": n.uniform(1, 3, 4, 4),
                "features": n.normal(1, 2, 2, 2)}  # fmt: skip

    facts = {"batched": ("logits", "image", "features"), "has_batch": True, "rounding": 1e-8}
    facts["bits"] = ROUNDED

    def run_edges(layer: nn.Module, t: Inputs) -> Tensor:
        return layer(t["image"], [t["features"]])

    def run_global(layer: nn.Module, t: Inputs) -> Tensor:
        return layer(t["logits"], t["image"], [t["features"]])

    def one(name: str, make: Callable[[], nn.Module], draw: Any, run: Any, **more: Any) -> Subject:
        return Subject(name, "layer", draw, _layer(make), run, make=make, **more)

    def picture(n: Numbers) -> Inputs:
        return {"image": n.uniform(1, 3, 4, 4)}

    pictures = {"batched": ("image",), "has_batch": True}
    two = {**facts, "batched": ("image", "features")}
    return [
        one("ContrastWeights", lambda: lnn.ContrastWeights(), picture, _call("image"), **pictures),
        one("ContrastWeights, eight", lambda: lnn.ContrastWeights(neighbours=8), picture,
            _call("image"), **pictures),
        one("SimilarityWeights", lambda: lnn.SimilarityWeights(neighbours=8), picture,
            _call("image"), **pictures),
        one("UniformWeights", lambda: lnn.UniformWeights(0.5), picture, _call("image")),
        one("FineFeatures", lambda: lnn.FineFeatures((2,), hidden=3),
            lambda n: {k: v for k, v in scene(n).items() if k != "logits"}, run_edges, **two),
        one("LearnedEdges", lambda: lnn.LearnedEdges((2,), classes=3, hidden=3),
            lambda n: {k: v for k, v in scene(n).items() if k != "logits"}, run_edges, **two),
        one("GlobalLayer",
            lambda: lnn.GlobalLayer(lnn.LearnedEdges((2,), 3, hidden=3), iterations=10,
                                    max_weight=1.0),
            scene, run_global, **facts),
        one("Scale", lambda: lnn.Scale(10), lambda n: {"logits": n.normal(1, 3, 4, 4)},
            _call("logits"), batched=("logits",), has_batch=True, homogeneous=("logits",)),
        one("SoftmaxLoss", lambda: lnn.SoftmaxLoss(reduction="none"),
            lambda n: {"logits": n.normal(1, 3, 4, 4)},
            lambda layer, t: layer(t["logits"].log_softmax(1), torch.ones(
                t["logits"].shape[0], 4, 4, dtype=torch.long)),
            batched=("logits",), has_batch=True),
        Subject("noise_level", "layer", lambda n: {"image": n.normal(1, 1, 6, 6)},
                lambda t: lnn.noise_level, lambda f, t: f(t["image"]), covers=("noise_level",),
                differentiable=False, batched=("image",), has_batch=True,
                homogeneous=("image",)),
    ]  # fmt: skip


def layer_subjects() -> list[Subject]:
    return [
        *_potts(), *_total_variation(), *_denoisers(), *_least_squares(), *_coders(), *_games(),
        *_segmentation(), *reconstruction_subjects(),
    ]  # fmt: skip
