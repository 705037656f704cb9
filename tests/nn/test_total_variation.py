"""The total variation layer: truths, certificates, gradients, bad input."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import legato as lg
from error_words import raises
from legato import errors
from legato.nn import TotalVariation
from legato.nn.fused import choice
from legato.nn.total_variation.layer import KERNELS, choose_kernel
from legato.nn.total_variation.model import Coupling, TVFunction
from legato.operators import Differences
from makers import rand, randn

each_norm = pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])


# --- truth ----------------------------------------------------------------------------------------


def programme(y: np.ndarray, w: np.ndarray, isotropic: bool, joint: bool) -> np.ndarray:
    """The minimiser for one image (C, H, W) and weights (E, H, W) by an interior-point solver."""
    channels, height, width = y.shape
    u = [cp.Variable((height, width)) for _ in range(channels)]
    down = [cp.vstack([v[1:] - v[:-1], np.zeros((1, width))]) for v in u]
    across = [cp.hstack([v[:, 1:] - v[:, :-1], np.zeros((height, 1))]) for v in u]

    def norms(parts: list[Any]) -> Any:
        stacked = cp.vstack([cp.reshape(p, (1, height * width), order="C") for p in parts])
        return cp.norm(stacked, 2, axis=0)

    groups: list[tuple[list[Any], int]] = []
    if isotropic and joint:
        groups = [(down + across, 0)]
    elif isotropic:
        groups = [([d, a], 0) for d, a in zip(down, across, strict=True)]
    elif joint:
        groups = [(down, 0), (across, 1)]
    else:
        groups = [([d], 0) for d in down] + [([a], 1) for a in across]
    penalty = sum(w[e].reshape(-1) @ norms(parts) for parts, e in groups)
    fidelity = sum(cp.sum_squares(v - y[i]) for i, v in enumerate(u)) / 2
    cp.Problem(cp.Minimize(fidelity + penalty)).solve(
        solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9
    )
    return np.stack([v.value for v in u])


@each_norm
@pytest.mark.parametrize(("channels", "joint"), [(1, False), (2, False), (2, True)])
def test_against_an_interior_point_solver(isotropic: bool, channels: int, joint: bool) -> None:
    y, w = randn(1, channels, 8, 9), 0.1 + 0.5 * rand(1 if isotropic else 2, 8, 9)
    layer = TotalVariation(4000, isotropic=isotropic, joint_channels=joint)
    output = layer.solve(y, w[None, None])
    right = programme(y[0].numpy(), w.numpy(), isotropic, joint)
    assert np.abs(output.x[0].numpy() - right).max() <= 1e-5
    assert float(output.gap.sum()) <= 1e-8


def exact_pieces(y: np.ndarray, weight: float) -> np.ndarray:
    """1-D total variation exactly: a quadratic programme finds the pieces on which u is constant,
    and their values follow, mean + λ(sign of the next jump − sign of the last)/length."""
    n = len(y)
    p = cp.Variable(n - 1)
    D = np.diff(np.eye(n), axis=0)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - D.T @ p) / 2), [cp.abs(p) <= weight])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    # Where the solver's jumps are clear, the pieces are known, and their values are exact.
    u = y - D.T @ p.value
    jumps = np.flatnonzero(np.abs(np.diff(u)) > 1e-6) + 1
    pieces = np.split(np.arange(n), jumps)
    signs = np.sign(np.diff([u[piece].mean() for piece in pieces]))
    values = []
    for i, piece in enumerate(pieces):
        left = signs[i - 1] if i > 0 else 0.0
        right = signs[i] if i < len(signs) else 0.0
        values.append(y[piece].mean() + weight * (right - left) / len(piece))
    return np.repeat(values, [len(piece) for piece in pieces])


@each_norm
@pytest.mark.parametrize("shape", [(1, 30), (30, 1)], ids=str)
def test_signals_against_the_exact_pieces(isotropic: bool, shape: tuple[int, int]) -> None:
    y = randn(30, seed=4) + torch.linspace(0, 3, 30).round()
    u = TotalVariation(5000, isotropic=isotropic)(y.reshape(1, 1, *shape), 0.7)
    right = torch.from_numpy(exact_pieces(y.numpy(), 0.7))
    torch.testing.assert_close(u.flatten(), right, rtol=0, atol=1e-7)


def test_against_scikit_image() -> None:
    restoration = pytest.importorskip("skimage.restoration", reason="scikit-image not installed")
    y = rand(24, 31)
    right = restoration.denoise_tv_chambolle(y.numpy(), weight=0.2, eps=0, max_num_iter=20000)
    u = TotalVariation(5000)(y[None, None], 0.2)
    assert np.abs(u[0, 0].numpy() - right).max() <= 1e-3


@each_norm
@pytest.mark.parametrize("spatial", [(6, 7), (3, 4, 5)], ids=str)
def test_no_weight_changes_nothing(isotropic: bool, spatial: tuple[int, ...]) -> None:
    y = randn(2, 3, *spatial)
    assert torch.equal(TotalVariation(20, isotropic=isotropic)(y, 0.0), y)


@each_norm
@pytest.mark.parametrize("spatial", [(6, 7), (3, 4, 5)], ids=str)
def test_a_huge_weight_leaves_the_mean(isotropic: bool, spatial: tuple[int, ...]) -> None:
    y = randn(2, 3, *spatial)
    axes = tuple(range(2, y.ndim))
    u = TotalVariation(2000, isotropic=isotropic)(y, 1e4)
    torch.testing.assert_close(u, y.mean(axes, keepdim=True).expand_as(y), rtol=0, atol=1e-5)


def test_a_constant_image_stays() -> None:
    y = torch.full((1, 1, 9, 8), 0.3)
    output = TotalVariation(30).solve(y, 0.5)
    assert torch.equal(output.x, y)
    assert float(output.gap.sum()) == 0


@pytest.mark.parametrize("axes", [2, 3])
def test_the_value_follows_from_the_dual(axes: int) -> None:
    """u = y − ∇ᵀp for the adjoint that ⟨∇u, p⟩ = ⟨u, ∇ᵀp⟩ defines."""
    spatial = (5, 6, 7)[:axes]
    y = randn(2, 2, *spatial)
    output = TotalVariation(10).solve(y, 0.3)
    gradient = Differences(dims=tuple(range(-axes, 0)))
    torch.testing.assert_close(output.x, y - gradient.adjoint(output.y))
    x = randn(2, 2, *spatial, seed=5)
    left, right = (gradient(x) * output.y).sum(), (x * gradient.adjoint(output.y)).sum()
    torch.testing.assert_close(left, right)


@each_norm
@pytest.mark.parametrize("joint", [False, True])
def test_the_gap_certifies(isotropic: bool, joint: bool) -> None:
    y = randn(1, 2, 12, 11)
    gaps, energies = [], []
    for iterations in (5, 20, 80, 320, 2000):
        layer = TotalVariation(iterations, isotropic=isotropic, joint_channels=joint)
        output = layer.solve(y, 0.4)
        gaps.append(float(output.gap.sum()))
        energies.append(float(output.energy.sum()))
        # A norm over both has both on one axis in the engine.
        dual = output.y.flatten(1, 2) if isotropic and joint else output.y
        right = output.problem.gap(output.x, dual).sum()
        assert abs(gaps[-1] - float(right)) <= 1e-9
    assert all(later < earlier for earlier, later in pairwise(gaps))
    assert gaps[-1] <= 1e-6
    assert all(e - energies[-1] <= g + 1e-9 for e, g in zip(energies, gaps, strict=True))


def test_float32_gap_is_not_rounding() -> None:
    output = TotalVariation(3000).solve(randn(1, 1, 40, 40, dtype=torch.float32), 0.2)
    assert 0 <= float(output.gap.sum()) <= 1e-3
    assert output.x.dtype == output.gap.dtype == torch.float32


def test_a_batch_is_its_images() -> None:
    y, w = randn(8, 2, 9, 10), 0.1 + rand(8)
    whole = TotalVariation(30)(y, w)
    for i in range(8):
        one = TotalVariation(30)(y[i : i + 1], float(w[i]))
        torch.testing.assert_close(whole[i : i + 1], one)


def test_the_layer_returns_the_image_of_its_record() -> None:
    y, layer = randn(2, 3, 6, 7), TotalVariation(10)
    assert torch.equal(layer(y, 0.3), layer.solve(y, 0.3).x)


def test_a_warm_start_is_closer() -> None:
    y = randn(1, 1, 20, 20)
    first = TotalVariation(100).solve(y, 0.5)
    again = TotalVariation(100).solve(y, 0.5, first.y)
    assert float(again.gap.sum()) < 0.5 * float(first.gap.sum())


# --- gradients ------------------------------------------------------------------------------------


def central(function: Any, x: Tensor, direction: Tensor, h: float = 1e-6) -> float:
    with torch.no_grad():
        return float(function(x + h * direction) - function(x - h * direction)) / (2 * h)


@each_norm
@pytest.mark.parametrize("kernel", ["numba", "reference"])
@pytest.mark.parametrize("of", ["image", "weight", "scalar"])
def test_gradients_against_differences(isotropic: bool, kernel: str, of: str) -> None:
    y, target = randn(1, 2, 9, 8), randn(1, 2, 9, 8, seed=3)
    w = 0.1 + 0.3 * rand(1, 2, 1, 9, 8)
    layer = TotalVariation(40, isotropic=isotropic, kernel=kernel)

    def loss(x: Tensor) -> Tensor:
        image, weight = (x, w) if of == "image" else (y, x)
        return (layer(image, weight) - target).square().sum()

    point = {"image": y, "weight": w, "scalar": torch.tensor(0.2).double()}[of]
    direction = randn(*point.shape, seed=9) if point.ndim else torch.ones_like(point)
    x = point.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x)
    right = central(loss, point, direction)
    assert abs(float((gradient * direction).sum()) - right) <= 1e-6 * abs(right)


STRATEGIES = [lg.Implicit(), lg.FixedPoint(terms=2000), lg.Piggyback(iterations=4000)]


@each_norm
@pytest.mark.parametrize("gradient", STRATEGIES, ids=lambda g: type(g).__name__)
def test_strategies_agree_at_the_solution(isotropic: bool, gradient: lg.GradientStrategy) -> None:
    y, target = randn(1, 1, 6, 5), randn(1, 1, 6, 5, seed=3)

    def gradients(strategy: lg.GradientStrategy) -> list[Tensor]:
        image, w = y.clone().requires_grad_(), torch.tensor(0.3).double().requires_grad_()
        u = TotalVariation(4000, isotropic=isotropic, gradient=strategy)(image, w)
        loss = (u - target).square().sum()
        return list(torch.autograd.grad(loss, [image, w]))

    with warnings.catch_warnings():
        # The dual solution is not unique, so the map has the eigenvalue one; the cotangent does
        # not see it.
        warnings.simplefilter("ignore", errors.LegatoWarning)
        got = gradients(gradient)
    for one, other in zip(got, gradients(lg.Unroll()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_truncation_and_checkpoints() -> None:
    y = randn(1, 1, 9, 8)

    def gradient(strategy: lg.GradientStrategy, kernel: str) -> tuple[Tensor, Tensor]:
        x = y.clone().requires_grad_()
        u = TotalVariation(30, gradient=strategy, kernel=kernel)(x, 0.2)
        return u.detach(), torch.autograd.grad(u.square().sum(), x)[0]

    value, whole = gradient(lg.Unroll(), "numba")
    for interval in (7, "sqrt"):
        u, same = gradient(lg.Unroll(checkpoint=interval), "numba")
        assert torch.equal(u, value)
        torch.testing.assert_close(same, whole)
    u, truncated = gradient(lg.Unroll(last=10), "numba")
    torch.testing.assert_close(u, value)
    torch.testing.assert_close(truncated, gradient(lg.Unroll(last=10), "reference")[1])
    assert not torch.allclose(truncated, whole)
    torch.testing.assert_close(gradient(lg.Unroll(last=99), "numba")[1], whole)


def test_forward_mode_strategy() -> None:
    w = torch.tensor(0.3).double().requires_grad_()
    y = randn(1, 1, 5, 6)
    layer = TotalVariation(25, gradient=lg.Forward([w]))
    (got,) = torch.autograd.grad(layer(y, w).square().sum(), w)
    (right,) = torch.autograd.grad(TotalVariation(25)(y, w).square().sum(), w)
    torch.testing.assert_close(got, right)


def test_a_weight_learns() -> None:
    """Bilevel: the λ that gradient descent finds is the grid's best."""
    clean = torch.zeros(1, 1, 24, 24)
    clean[..., 6:18, 8:20] = 1.0
    y = clean + 0.2 * randn(1, 1, 24, 24, dtype=torch.float32)
    layer = TotalVariation(200)
    log_w = torch.tensor(-3.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_w], lr=0.1)
    for _ in range(60):
        loss = (layer(y, log_w.exp()) - clean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    grid = torch.linspace(-3, 0, 61)
    losses = [float((layer(y, float(g.exp())) - clean).square().mean()) for g in grid]
    assert float(loss.detach()) <= 1.01 * min(losses)


# --- bad input ------------------------------------------------------------------------------------

IMAGE = randn(2, 3, 4, 5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_image_must_be_finite(bad: float) -> None:
    image = IMAGE.clone()
    image[0, 1, 2, 3] = bad
    with raises(errors.InputError, "image", "1 NaN or infinite", "of 120", "nan_to_num"):
        TotalVariation(3)(image, 0.1)


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (1, 1, 2, 2, 2, 2)])
def test_image_has_four_or_five_axes(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, r"\(B, C, H, W\)", str(shape[0])):
        TotalVariation(3)(torch.zeros(shape), 0.1)


def test_image_is_a_tensor() -> None:
    with raises(errors.InputError, "image", "ndarray"):
        TotalVariation(3)(IMAGE.numpy(), 0.1)


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (1, 0, 4, 5), (1, 3, 0, 5), (1, 3, 2, 0, 5)])
def test_images_have_pixels(shape: tuple[int, ...]) -> None:
    with raises(errors.InputError, "empty"):
        TotalVariation(3)(torch.zeros(shape), 0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8])
def test_full_precision_only(dtype: torch.dtype) -> None:
    with raises(errors.InputError, str(dtype), "float32 or float64", r"\.float\(\)"):
        TotalVariation(3)(IMAGE.to(dtype), 0.1)


def test_meta_tensors_hold_nothing() -> None:
    with raises(errors.InputError, "meta"):
        TotalVariation(3)(IMAGE.to("meta"), 0.1)


def test_autocast_does_not_reach_the_solver() -> None:
    image = IMAGE.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = TotalVariation(9, kernel="reference")(image, 0.1)
    torch.testing.assert_close(inside, TotalVariation(9, kernel="reference")(image, 0.1))


def test_weight_is_not_negative() -> None:
    weight = torch.ones(1, 1, 4, 5).double()
    weight[0, 0, 2, 2] = -0.25
    for bad, least in ((weight, "-0.25"), (-1.0, "-1")):
        with raises(errors.InputError, "non-negative", least, "softplus"):
            TotalVariation(3)(IMAGE, bad)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weight_is_finite(bad: float) -> None:
    with raises(errors.InputError, "weight", "1 NaN or infinite"):
        TotalVariation(3)(IMAGE, bad)


@pytest.mark.parametrize(
    "shape", [(4, 5), (3,), (0,), (3, 1, 4, 5), (2, 3, 3, 4, 5), (2, 2, 2, 4, 5), (2, 3, 2, 5, 4)]
)
def test_weight_has_the_axes_of_the_image(shape: tuple[int, ...]) -> None:
    layer = TotalVariation(3, isotropic=False)
    with raises(errors.InputError, "weight of shape", r"\(2, 3, 2, 4, 5\)", "scalar"):
        layer(IMAGE, torch.ones(shape, dtype=IMAGE.dtype))


def test_a_euclidean_norm_has_one_weight() -> None:
    w = torch.ones(1, 1, 2, 4, 5).double()
    with raises(errors.InputError, r"\(2, 3, 1, 4, 5\)", "norm over directions", "one weight"):
        TotalVariation(3)(IMAGE, w)
    layer = TotalVariation(3, joint_channels=True)
    with raises(errors.InputError, "norm over channels and directions"):
        layer(IMAGE, torch.ones_like(IMAGE))


def test_weight_matches_the_image() -> None:
    with raises(errors.InputError, "weight and image", "torch.float32 and torch.float64"):
        TotalVariation(3)(IMAGE, torch.ones(()))
    with raises(errors.InputError, "weight and image", "on meta and cpu"):
        TotalVariation(3)(IMAGE, torch.ones((), device="meta").double())
    with raises(errors.InputError, "number or a tensor", "list"):
        TotalVariation(3)(IMAGE, [0.1])


@pytest.mark.parametrize("iterations", [0, -3, 2.5, True, None])
def test_iterations_are_positive(iterations: Any) -> None:
    with raises(errors.InputError, "positive number of iterations", repr(iterations)):
        TotalVariation(iterations)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient": "unroll"}, r"Unroll\(\)"),
        ({"gradient": lg.Unroll(last=2, checkpoint=2)}, "not both"),
        ({"gradient": lg.Unroll(tol=1e-3)}, "last=K"),
        ({"kernel": "cuda"}, "triton, numba, reference"),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], words: str) -> None:
    with raises(errors.InputError, words):
        TotalVariation(3, **options)


@pytest.mark.parametrize("dual", [IMAGE, 1.0], ids=["shape", "number"])
def test_a_start_has_the_shape_of_the_dual(dual: Any) -> None:
    with raises(errors.InputError, r"\(2, 3, 2, 4, 5\)", "earlier output"):
        TotalVariation(3).solve(IMAGE, 0.1, dual)


def test_a_start_is_sound() -> None:
    dual = TotalVariation(3).solve(IMAGE, 0.1).y
    with raises(errors.InputError, "dual", "NaN"):
        TotalVariation(3).solve(IMAGE, 0.1, dual * torch.nan)
    with raises(errors.InputError, "dual and image", "torch.float32 and torch.float64"):
        TotalVariation(3).solve(IMAGE, 0.1, dual.float())


# --- which kernel ---------------------------------------------------------------------------------


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_said", set())


def on_gpu(override: str | None = None, channels: int = 1, joint: bool = False) -> str:
    """Which kernel an image on a GPU gets; no GPU is needed to ask."""
    image: Any = SimpleNamespace(device=torch.device("cuda"), shape=(1, channels, 4, 5))
    return choose_kernel(image, Coupling(True, joint), override)[0]


def test_a_gpu_takes_triton() -> None:
    pytest.importorskip("triton")
    assert on_gpu() == "triton"
    assert on_gpu(channels=99) == "triton"
    assert on_gpu(channels=KERNELS.triton_limit, joint=True) == "triton"


@pytest.mark.usefixtures("nothing_said")
def test_a_gpu_without_triton_takes_the_reference_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "available", lambda package: False)
    with pytest.warns(errors.LegatoWarning, match=r"Triton is not installed.*reference"):
        assert on_gpu() == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_gpu() == "reference"


@pytest.mark.usefixtures("nothing_said")
def test_more_channels_under_a_norm_than_triton_holds() -> None:
    pytest.importorskip("triton")
    with pytest.warns(errors.LegatoWarning, match=r"up to 8 channels.*there are 9.*reference"):
        assert on_gpu(channels=9, joint=True) == "reference"


@pytest.mark.usefixtures("nothing_said")
def test_without_numba_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available", lambda package: False)
    with pytest.warns(errors.LegatoWarning, match="Numba is not installed"):
        assert TotalVariation(3).solve(IMAGE, 0.1).kernel == "reference"


def test_a_kernel_belongs_to_its_device() -> None:
    with raises(errors.InputError, "numba kernel", "on cpu", "image is on cuda", "kernel=None"):
        on_gpu("numba")
    with raises(errors.InputError, "triton kernel", "on cuda", "image is on cpu", "kernel=None"):
        TotalVariation(3, kernel="triton")(IMAGE, 0.1)


def test_a_kernel_whose_package_is_missing() -> None:
    def missing(name: str) -> TVFunction:
        raise ImportError("No module named 'numba'")

    registry = replace(KERNELS, load=missing, loaded={})
    with raises(errors.InputError, "numba kernel", "No module named 'numba'", "kernel=None"):
        registry.choose("cpu", 1, "numba")


def test_it_says_what_it_is() -> None:
    assert "iterations=7, isotropic=True, joint_channels=False" in repr(TotalVariation(7))
    assert TotalVariation(3).solve(IMAGE, 0.1).kernel == "numba"
