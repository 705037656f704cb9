"""Bad input of the Potts layer and its losses gets a clear error, or a fallback that says so."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import legato as lg
from error_words import raises
from legato import errors
from legato.nn import (
    ContrastWeights,
    Potts,
    PottsState,
    Scale,
    SimilarityWeights,
)
from legato.nn.fused import choice
from legato.nn.potts import layer as potts_layer
from makers import randn

COST = randn(2, 3, 4, 5)


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_cost_must_be_finite(bad: float) -> None:
    cost = COST.clone()
    cost[0, 1, 2, 3] = bad
    with raises(errors.InputError, "cost", "1 NaN or infinite", "of 120", "nan_to_num"):
        Potts(3)(cost)


@pytest.mark.parametrize("shape", [(3, 4, 5), (3,), (1, 1, 2, 2, 2, 2)])
def test_cost_has_four_or_five_axes(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, r"\(B, L, H, W\)", str(shape[0])):
        Potts(3)(torch.zeros(shape))


def test_cost_is_a_tensor() -> None:
    with raises(errors.InputError, "cost", "ndarray"):
        Potts(3)(COST.numpy())


@pytest.mark.parametrize("labels", [0, 1])
def test_two_labels_at_least(labels: int) -> None:
    with raises(errors.InputError, f"{labels} label", "at least 2", r"\(0, c\)"):
        Potts(3)(torch.zeros(1, labels, 4, 5))


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (1, 3, 0, 5), (1, 3, 4, 0), (1, 3, 2, 0, 5)])
def test_images_have_pixels(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, "empty"):
        Potts(3)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_full_precision_only(dtype: torch.dtype) -> None:
    with raises(errors.InputError, str(dtype), "float32 or float64", r"\.float\(\)"):
        Potts(3)(COST.to(dtype))


def test_meta_tensors_hold_nothing() -> None:
    with raises(errors.InputError, "meta"):
        Potts(3)(COST.to("meta"))


def test_diagonals_exist_in_the_plane_only() -> None:
    with raises(errors.InputError, "plane", "neighbours=4"):
        Potts(3, neighbours=8)(torch.zeros(1, 2, 3, 3, 3))
    with raises(errors.InputError, "plane", "neighbours=4"):
        Potts(3, neighbours=((1, 0), (0, 1), (2, 0)))(torch.zeros(1, 2, 3, 3, 3))
    with raises(errors.InputError, r"\(0, 4\) lies beyond an image of size \(5, 3\)"):
        Potts(3, neighbours=((1, 0), (0, 1), (0, 4)))(torch.zeros(1, 2, 5, 3))


# --- weights --------------------------------------------------------------------------------------


def test_weights_are_not_negative() -> None:
    weights = torch.ones(1, 1, 2, 4, 5).double()
    weights[0, 0, 1, 2, 2] = -0.25
    with raises(errors.InputError, "non-negative", "-0.25", "softplus"):
        Potts(3)(COST, weights)
    with raises(errors.InputError, "non-negative", "-1"):
        Potts(3)(COST, -1.0)


@pytest.mark.parametrize(
    "shape",
    [
        (4, 5),
        (2, 4, 5),
        (2, 1, 4, 5),
        (2, 1, 3, 4, 5),
        (3, 1, 2, 4, 5),
        (2, 2, 2, 4, 5),
        (2, 1, 2, 5, 4),
        (0,),
        (1, 1, 0, 4, 5),
    ],
)
def test_weights_have_all_axes(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, "weights of shape", r"\(2, 3, 2, 4, 5\)", "scalar"):
        Potts(3)(COST, torch.ones(shape, dtype=COST.dtype))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_are_finite(bad: float) -> None:
    with raises(errors.InputError, "weights", "1 NaN or infinite"):
        Potts(3)(COST, bad)


def test_weights_match_the_cost() -> None:
    with raises(errors.InputError, "weights and cost", "torch.float32 and torch.float64"):
        Potts(3)(COST, torch.ones(()))
    with raises(errors.InputError, "weights and cost", "on meta and cpu"):
        Potts(3)(COST, torch.ones((), device="meta").double())
    with raises(errors.InputError, "number or a tensor", "list"):
        Potts(3)(COST, [1.0, 2.0])


@pytest.mark.parametrize("weight", [0.0, 1e-42, 1e-36])
def test_vanishing_weights_are_fine(weight: float) -> None:
    """Too small to divide by: then the steps are those of unit weights."""
    cost = COST.float()
    u = Potts(10)(cost, weight).exp()
    torch.testing.assert_close(u, torch.softmax(-10 * 8**-0.5 * cost, 1))


# --- iterations and steps -------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, -3, 2.5, True, None])
def test_iterations_are_positive(iterations: Any) -> None:
    with raises(errors.InputError, "positive number of iterations", repr(iterations)):
        Potts(iterations)


@pytest.mark.parametrize("options", [{"tau": 0.1}, {"sigma": 0.1}], ids=str)
def test_steps_come_in_pairs(options: dict[str, float]) -> None:
    with raises(errors.StepError, "both tau and sigma"):
        Potts(3, **options)


@pytest.mark.parametrize("value", [0.0, -1.0, torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["balance", "tau", "sigma"])
def test_steps_are_positive(name: str, value: float) -> None:
    steps = {"tau": 0.1, "sigma": 0.1} if name != "balance" else {}
    with raises(errors.StepError, name, "positive"):
        Potts(3, **(steps | {name: value}))


def test_steps_respect_the_norm_for_the_given_weights() -> None:
    layer = Potts(3, tau=0.5, sigma=0.25)
    layer(COST, 0.99)  # τσ·8 = 1
    with raises(errors.StepError, "1.21", "exceeds 1", "smaller steps"):
        layer(COST, 1.1)
    with raises(errors.StepError, "exceeds 1"):
        layer(COST, 1.1 * torch.ones(1, 1, 2, 4, 5).double())


def test_given_steps_leave_no_balance() -> None:
    with raises(errors.StepError, "no balance to learn"):
        Potts(3, tau=0.1, sigma=0.1, learn_balance=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": torch.nan}, "epsilon"),
        ({"neighbours": 6}, "4, 8 or offsets"),
        ({"neighbours": ((1, 0), (3, 0))}, "begin with"),
        ({"gradient": "unroll"}, r"Unroll\(\)"),
        ({"gradient": lg.Unroll(last=2, checkpoint=2)}, "not both"),
        ({"gradient": lg.Unroll(tol=1e-3)}, "last=K"),
        ({"kernel": "cuda"}, "triton, numba, reference"),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], words: str) -> None:
    with raises(errors.InputError, words):
        Potts(3, **options)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [lg.Implicit(), lg.FixedPoint(), lg.Piggyback()], ids=repr)
def test_fixed_points_need_an_entropy(gradient: lg.GradientStrategy) -> None:
    with raises(errors.GradientError, type(gradient).__name__, "unique", "epsilon"):
        Potts(3, gradient=gradient)
    with raises(errors.GradientError, "averaged", "average=False"):
        Potts(3, gradient=gradient, epsilon=0.1, average=True)


def test_a_mean_cannot_be_truncated() -> None:
    with raises(errors.GradientError, "last=K", "average"):
        Potts(3, gradient=lg.Unroll(last=2), average=True)(COST)


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b: (a[:1], b), ["mirror", r"\(1, 3, 4, 5\)", r"\(2, 3, 4, 5\)"]),
        (lambda a, b: (a, b[:, :, :1]), ["dual", r"\(2, 3, 1, 4, 5\)", r"\(2, 3, 2, 4, 5\)"]),
        (lambda a, b: (a.float(), b), ["mirror", "float32", "float64"]),
        (lambda a, b: (a, b.to("meta")), ["dual", "meta", "cpu"]),
        (lambda a, b: (a, b + torch.nan), ["dual", "NaN"]),
    ],
    ids=["mirror's shape", "dual's shape", "dtype", "device", "NaN"],
)
def test_states_fit_the_cost(change: Any, words: list[str]) -> None:
    state = Potts(3).solve(COST).state
    with raises(errors.InputError, *words):
        Potts(3).solve(COST, None, PottsState(*change(*state)))


@pytest.mark.parametrize("state", [COST, (COST,), (COST, 1.0)], ids=["tensor", "one", "number"])
def test_states_come_in_pairs(state: Any) -> None:
    with raises(errors.InputError, "PottsState", "earlier output"):
        Potts(3).solve(COST, None, state)


# --- kernels --------------------------------------------------------------------------------------


def stand_in(device: str, labels: int) -> Tensor:
    """What the choice of a kernel looks at, for devices that are not here."""
    return SimpleNamespace(device=torch.device(device), shape=(1, labels, 4, 5))  # type: ignore[return-value]


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_said", set())
    monkeypatch.setattr(potts_layer, "KERNELS", replace(potts_layer.KERNELS, loaded={}))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.usefixtures("nothing_said")
def test_cuda_without_triton_falls_back_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available", lambda package: package != "triton")
    with pytest.warns(errors.LegatoWarning, match="Triton is not installed.*reference"):
        assert potts_layer.choose_kernel(stand_in("cuda", 3))[0] == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert potts_layer.choose_kernel(stand_in("cuda", 3))[0] == "reference"


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("override", [None, "triton"])
def test_too_many_labels_for_the_fused_kernels(
    monkeypatch: pytest.MonkeyPatch, override: str | None
) -> None:
    monkeypatch.setattr(choice, "available", lambda package: True)
    registry = replace(potts_layer.KERNELS, load=lambda name: name, loaded={})
    monkeypatch.setattr(potts_layer, "KERNELS", registry)
    assert potts_layer.choose_kernel(stand_in("cuda", 64), override) == ("triton", "triton")
    with pytest.warns(errors.LegatoWarning, match="up to 64 labels, and there are 65"):
        assert potts_layer.choose_kernel(stand_in("cuda", 65), override)[0] == "reference"


def test_the_cpu_kernel_has_no_such_limit() -> None:
    cost = randn(1, 70, 3, 4)
    output = Potts(4).solve(cost)
    assert output.kernel == "numba"
    right = Potts(4, kernel="reference").solve(cost)
    torch.testing.assert_close(output.x, right.x)


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize(("kernel", "device"), [("triton", "cpu"), ("numba", "cuda")])
def test_a_kernel_belongs_to_its_device(kernel: str, device: str) -> None:
    home = {"triton": "cuda", "numba": "cpu"}[kernel]
    with raises(errors.InputError, kernel, f"on {home}", f"cost is on {device}", "kernel=None"):
        potts_layer.choose_kernel(stand_in(device, 3), kernel)


@pytest.mark.usefixtures("nothing_said")
def test_a_kernel_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Any:
        raise ImportError("No module named 'numba'")

    monkeypatch.setattr(choice.importlib, "import_module", missing)
    monkeypatch.setattr(potts_layer, "KERNELS", replace(potts_layer.KERNELS, load=missing))
    with raises(errors.InputError, "numba kernel", "No module named 'numba'", "kernel=None"):
        potts_layer.choose_kernel(COST, "numba")
    assert choice.available("numba") is False


# --- where weights and costs come from ------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"beta": 0.0}, {"kappa": -1.0}, {"epsilon": 1.5}, {"epsilon": -0.1}], ids=str
)
def test_contrast_weights(options: dict[str, float]) -> None:
    with raises(errors.InputError, "beta > 0, kappa > 0"):
        ContrastWeights(**options)


def test_contrast_of_an_image() -> None:
    with raises(errors.InputError, "image", r"\(3, 4, 5\)"):
        ContrastWeights()(torch.zeros(3, 4, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"channels": 0}, {"beta": 0.0}, {"beta": math.nan}, {"width": -1.0}, {"width": math.inf},
        {"epsilon": 0.0}, {"epsilon": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_similarity_weights(options: dict[str, Any]) -> None:
    with raises(errors.InputError, "beta and width > 0"):
        SimilarityWeights(**options)


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 4, 5), (1, 3, 4, 5, 6)])
def test_similarity_in_an_image(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, "image", r"\(B, 3, H, W\)", "channels"):
        SimilarityWeights()(torch.zeros(shape))


def test_similarity_knows_no_such_neighbours() -> None:
    with raises(errors.InputError, "neighbourhood of 6"):
        SimilarityWeights(neighbours=6)


@pytest.mark.parametrize("options", [{"iterations": 0}, {"tau": 0.0}])
def test_scale(options: dict[str, Any]) -> None:
    with raises(errors.InputError, "positive"):
        Scale(**options)


@pytest.mark.parametrize("kernel", ["reference", None])
def test_weights_for_which_there_is_no_step(kernel: str | None) -> None:
    """A step of 0 would return the start, and call it a segmentation."""
    layer = Potts(3, neighbours=8, kernel=kernel)
    with raises(errors.InputError, "weights has a largest entry of 1e\\+38", "float64"):
        layer(COST.float(), torch.tensor(1e38))
