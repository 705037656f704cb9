"""The analysis denoiser, its filter bank, and the estimate of the noise."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn.utils.parametrize import register_parametrization

import legato as lg
from legato import errors
from legato.nn import AnalysisDenoiser, TotalVariation, noise_level
from makers import randn


def differences(size: int = 2) -> Tensor:
    """The two forward differences as filters, (2, 1, size, size)."""
    filters = torch.zeros(2, 1, size, size, dtype=torch.float64)
    middle = (size - 1) // 2
    filters[:, 0, middle, middle] = -1
    filters[0, 0, middle + 1, middle] = filters[1, 0, middle, middle + 1] = 1
    return filters


def small(**options: Any) -> AnalysisDenoiser:
    settings: dict[str, Any] = {"filters": 4, "size": 3, "iterations": 30, "weight": 0.1}
    return AnalysisDenoiser(**(settings | options)).double()


# --- the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5])
def test_with_differences_it_is_total_variation(size: int) -> None:
    y = randn(2, 1, 14, 11)
    denoiser = AnalysisDenoiser(2, size, iterations=2000).double()
    denoiser.set_filters(differences(size), 0.3)
    right = TotalVariation(3000, isotropic=False)(y, 0.3)
    output = denoiser.solve(y)
    assert float((output.x - right).detach().abs().max()) <= 1e-5
    assert float(output.gap.sum()) <= 1e-6


def test_filters_start_as_the_dct_and_have_mean_zero() -> None:
    denoiser = AnalysisDenoiser(size=5)
    filters = denoiser.filters.detach()
    assert filters.shape == (24, 1, 5, 5)
    gram = filters.flatten(1) @ filters.flatten(1).T
    torch.testing.assert_close(gram, torch.eye(24), atol=1e-6, rtol=0)
    with torch.no_grad():
        denoiser.coefficients.copy_(randn(*denoiser.coefficients.shape))
    assert float(denoiser.filters.detach().mean((2, 3)).abs().max()) <= 1e-6
    assert AnalysisDenoiser(size=7).filters.shape == (48, 1, 7, 7)
    assert AnalysisDenoiser(80, 5, channels=3).filters.shape == (80, 3, 5, 5)


@pytest.mark.parametrize("interval", [False, True])
def test_it_converges(interval: bool) -> None:
    y = randn(1, 1, 12, 12)
    gaps = [
        float(small(iterations=n, interval=interval).solve(y).gap.sum()) for n in (10, 100, 1000)
    ]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] <= (1e-3 if interval else 1e-6)


def test_a_constant_image_stays() -> None:
    y = torch.full((1, 1, 9, 9), 0.4)
    torch.testing.assert_close(AnalysisDenoiser(size=5, iterations=20)(y), y)


@pytest.mark.parametrize("interval", [False, True])
@pytest.mark.parametrize("of", ["coefficients", "log_weights", "powers", "image"])
def test_gradients_against_differences(interval: bool, of: str) -> None:
    """The steps are detached, so the norm is held while the filters move."""
    y, target = randn(1, 1, 8, 9), randn(1, 1, 8, 9, seed=3)
    denoiser = small(interval=interval, conditioned=True)
    with torch.no_grad():
        denoiser.coefficients += 0.1 * randn(*denoiser.coefficients.shape, seed=2)
    norm = lg.Convolution(denoiser.filters, "mirror").norm(y)
    denoiser._norm_for = lambda operator, image: norm  # type: ignore[method-assign]
    image = y.clone().requires_grad_()

    def loss() -> Tensor:
        return (denoiser(image, 0.9) - target).square().sum()

    x = image if of == "image" else getattr(denoiser, of)
    (gradient,) = torch.autograd.grad(loss(), x)
    direction, h = randn(*x.shape, seed=7), 1e-6
    with torch.no_grad():
        x += h * direction
        above = loss()
        x -= 2 * h * direction
        right = float(above - loss()) / (2 * h)
    assert abs(float((gradient * direction).sum()) - right) <= 1e-6 * max(1.0, abs(right))


@pytest.mark.parametrize(
    "gradient", [lg.Implicit(), lg.Piggyback(iterations=4000)], ids=lambda g: type(g).__name__
)
def test_other_gradients(gradient: lg.GradientStrategy) -> None:
    y, target = randn(1, 1, 6, 6), randn(1, 1, 6, 6, seed=3)

    def gradients(strategy: lg.GradientStrategy) -> list[Tensor]:
        denoiser = small(iterations=1500, gradient=strategy)
        loss = (denoiser(y) - target).square().sum()
        return list(torch.autograd.grad(loss, [denoiser.coefficients, denoiser.log_weights]))

    with warnings.catch_warnings():
        # The dual solution is not unique; the cotangent does not see that.
        warnings.simplefilter("ignore", errors.LegatoWarning)
        got = gradients(gradient)
    for one, other in zip(got, gradients(lg.Unroll()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_training_lowers_the_loss() -> None:
    clean = torch.zeros(1, 1, 20, 20)
    clean[..., 5:15, 6:16] = 1.0
    y = clean + 0.2 * randn(1, 1, 20, 20, dtype=torch.float32)
    denoiser = AnalysisDenoiser(size=3, iterations=30, weight=0.05)
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        loss = (denoiser(y) - clean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


# --- the norm of filters that change --------------------------------------------------------------


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def steps(denoiser: AnalysisDenoiser, y: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return list(denoiser.solve(y).solution.steps.values())


def fresh_steps(denoiser: AnalysisDenoiser, y: Tensor) -> list[Tensor]:
    """Those of a denoiser that has never seen other filters."""
    other = small()
    other.set_filters(denoiser.filters.detach(), denoiser.weights.detach())
    return steps(other, y)


def test_the_norm_follows_a_parametrisation() -> None:
    """Each call makes new coefficients, often where the last ones were."""
    denoiser, y, scaled = small(iterations=2), randn(1, 1, 9, 9), Scaled()
    register_parametrization(denoiser, "coefficients", scaled)
    for factor in (1.0, 4.0, 0.5, 3.0, 1.0):
        scaled.factor = factor
        torch.testing.assert_close(steps(denoiser, y), fresh_steps(denoiser, y))


def test_the_norm_follows_data_that_changed_unnoticed() -> None:
    """Averages of weights are swapped in through .data, which no version counter sees."""
    denoiser, y = small(iterations=2), randn(1, 1, 9, 9)
    steps(denoiser, y)
    denoiser.coefficients.data.mul_(4)
    torch.testing.assert_close(steps(denoiser, y), fresh_steps(denoiser, y))
    denoiser.coefficients.data = denoiser.coefficients.data / 8
    torch.testing.assert_close(steps(denoiser, y), fresh_steps(denoiser, y))
    assert steps(denoiser, randn(1, 1, 30, 9)) != steps(denoiser, y)
    assert steps(denoiser.float(), y.float())[0].dtype == torch.float32


@pytest.mark.parametrize("size", [3, 4])
def test_training_after_a_look_in_inference_mode(size: int) -> None:
    y = randn(1, 1, 9, 9)
    denoiser = small(size=size, iterations=3)
    with torch.inference_mode():
        seen = denoiser(y)
    found = denoiser(y)
    torch.testing.assert_close(found.detach(), seen.clone())
    found.square().sum().backward()
    assert denoiser.coefficients.grad is not None
    with torch.inference_mode():
        made_there = small(size=size, iterations=3)
        torch.testing.assert_close(made_there(y), seen)


def test_functional_gradients() -> None:
    y, denoiser = randn(1, 1, 9, 9), small(iterations=5)
    parameters = {name: p.detach() for name, p in denoiser.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(denoiser, values, (y,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    denoiser(y).square().sum().backward()
    for name, parameter in denoiser.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_a_start() -> None:
    y = randn(1, 1, 9, 9)
    denoiser = small()
    first = denoiser.solve(y)
    on = denoiser.solve(y, x0=first.solution.state)
    torch.testing.assert_close(on.x, small(iterations=60)(y))
    assert float(denoiser.solve(y, x0=on.x.detach()).gap.sum()) < float(
        denoiser.solve(y, x0=0 * y).gap.sum()
    )


def test_images_outside_of_the_range() -> None:
    y = randn(1, 1, 9, 9, dtype=torch.float32)
    denoiser = small(weight=1e-5).float()
    torch.testing.assert_close(denoiser(1e-4 * y), 1e-4 * small().float()(y))
    for size in (1e-12, 1e12):
        with pytest.raises(
            errors.InputError, match=r"image has a largest entry.*Scale the data.*float64"
        ):
            denoiser(size * y)


# --- noise levels ---------------------------------------------------------------------------------


def test_conditioning_on_the_noise() -> None:
    y = randn(2, 1, 10, 10)
    denoiser = small(conditioned=True)
    both = denoiser(y, torch.tensor([0.5, 2.0]))
    for i, sigma in enumerate((0.5, 2.0)):
        torch.testing.assert_close(both[i : i + 1], denoiser(y[i : i + 1], sigma))
    plain = small()
    torch.testing.assert_close(denoiser(y, 1.0), plain(y))
    torch.testing.assert_close(denoiser(y, 0.0), y, atol=1e-4, rtol=0)
    torch.testing.assert_close(denoiser(y), denoiser(y, noise_level(y)))


def test_no_noise_has_a_gradient() -> None:
    denoiser = small(conditioned=True, interval=True)
    denoiser(randn(1, 1, 8, 8), 0.0).square().sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in denoiser.parameters())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize("sigma", [15 / 255, 25 / 255, 50 / 255])
def test_noise_is_recovered_on_photographs(name: str, sigma: float) -> None:
    photograph = torch.from_numpy(load_sample_image(name).copy()).double().permute(2, 0, 1) / 255
    grey = photograph.mean(0)[None, None]
    estimate = float(noise_level(grey + sigma * randn(*grey.shape)))
    assert abs(estimate - sigma) <= 0.1 * sigma


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize("sigma", [15, 25, 50])
def test_noise_is_recovered_where_it_was_clipped(name: str, sigma: float) -> None:
    photograph = torch.from_numpy(load_sample_image(name).copy()).double().permute(2, 0, 1)
    noisy = (photograph + sigma * randn(*photograph.shape)).round().clamp(0, 255)
    assert abs(255 * float(noise_level(noisy[None] / 255)) - sigma) <= 0.08 * sigma


def test_noise_on_black_and_white_is_told_by_what_is_between() -> None:
    """Half of the noise on black and white is clipped away; a tenth of the picture is grey."""
    picture = torch.zeros(1, 1, 300, 100).double()
    picture[..., 30:90] = 1
    picture[..., 90:] = 0.5
    noisy = (picture + 0.1 * randn(*picture.shape)).clamp(0, 1)
    assert abs(float(noise_level(noisy)) - 0.1) <= 0.01
    both = torch.cat([noisy, 0.5 + 0.02 * randn(1, 1, 300, 100)])  # each has its own ends
    torch.testing.assert_close(noise_level(both)[:1], noise_level(noisy))
    torch.testing.assert_close(noise_level(both)[1:], noise_level(both[1:]))


def test_noise_level_is_per_image() -> None:
    levels = torch.tensor([0.05, 0.2]).double()
    y = 0.5 + levels[:, None, None, None] * randn(2, 3, 64, 64)
    torch.testing.assert_close(noise_level(y), levels, rtol=0.05, atol=0)


def test_no_noise_is_zero() -> None:
    ramp = torch.linspace(0, 1, 20).double()
    image = torch.where(ramp > 0.5, ramp[:, None], 2 * ramp[:, None] * ramp)[None, None]
    assert float(noise_level(image)) <= 1e-12
    assert float(noise_level(torch.full((1, 1, 5, 5), 0.3))) <= 1e-7


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (torch.zeros(1, 1, 2, 9), "3×3"),
        (torch.zeros(4, 5), "B, C, H, W"),
        (torch.zeros(1, 1, 2, 9, 9), "B, C, H, W"),
        (torch.full((1, 1, 5, 5), math.nan), "NaN"),
        (torch.zeros(1, 1, 5, 5, dtype=torch.uint8), r"\.float"),
    ],
)
def test_noise_level_refuses(image: Tensor, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        noise_level(image)


# --- files ----------------------------------------------------------------------------------------


def test_a_file_of_a_few_kilobytes(tmp_path: Path) -> None:
    denoiser = AnalysisDenoiser(size=5, conditioned=True, interval=True, iterations=7)
    with torch.no_grad():
        denoiser.coefficients.add_(0.1)
    path = tmp_path / "denoiser.safetensors"
    denoiser.save(path)
    assert path.stat().st_size < 8192
    again = AnalysisDenoiser.load(path, gradient=lg.Unroll(last=3))
    y = randn(1, 1, 9, 9, dtype=torch.float32)
    assert torch.equal(again(y, 0.1), denoiser(y, 0.1))
    assert again.gradient == lg.Unroll(last=3)


def test_state_dict_round_trip() -> None:
    one, other = small(), small()
    with torch.no_grad():
        one.coefficients.add_(0.1)
    y = randn(1, 1, 8, 8)
    assert not torch.equal(one(y), other(y))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(y), other(y))
    assert set(one.state_dict()) == {"coefficients", "log_weights"}


def test_bad_files(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(errors.CheckpointError, match="cannot be read"):
        AnalysisDenoiser.load(tmp_path / "missing.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(2)}, str(foreign))
    with pytest.raises(errors.CheckpointError, match="not those of an AnalysisDenoiser"):
        AnalysisDenoiser.load(foreign)
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(errors.CheckpointError, match="cannot be read"):
        AnalysisDenoiser.load(tmp_path / "broken.safetensors")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (torch.zeros(1, 1, 4, 9), "smaller than the filters, 5×5"),
        (torch.zeros(1, 3, 9, 9), r"3 channel.*for 1.*channels=3"),
        (torch.full((1, 1, 9, 9), math.nan), "81 NaN or infinite"),
        (torch.zeros(9, 9), "B, C, H, W"),
        (torch.zeros(1, 1, 9, 9).double(), "torch.float32 and torch.float64"),
        (torch.zeros(0, 1, 9, 9), "empty"),
        (torch.zeros(1, 1, 9, 9, dtype=torch.uint8), r"\.float"),
    ],
)
def test_bad_images(image: Tensor, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        AnalysisDenoiser(size=5, iterations=2)(image)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 1}, "size"),
        ({"size": 2.5}, "size"),
        ({"channels": 0}, "channels"),
        ({"filters": 0}, "filters"),
        ({"iterations": 0}, "iterations"),
        ({"weight": 0.0}, "weight"),
        ({"balance": -1.0}, "balance"),
        ({"gradient": "unroll"}, r"Unroll\(\)"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        AnalysisDenoiser(**options)


@pytest.mark.parametrize(
    ("sigma", "words"),
    [(-0.1, "non-negative"), (math.nan, "NaN"), (torch.ones(3), "3 entries")],
)
def test_bad_noise_levels(sigma: Any, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        small(conditioned=True)(randn(2, 1, 8, 8), sigma)


def test_sigma_needs_conditioning() -> None:
    with pytest.raises(errors.InputError, match="conditioned=True"):
        small()(randn(1, 1, 8, 8), 0.1)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (torch.ones(4, 1, 3, 3), "mean zero"),
        (torch.zeros(3, 1, 3, 3), "shape"),
        (torch.full((4, 1, 3, 3), math.nan), "NaN"),
    ],
)
def test_bad_filters(filters: Tensor, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        small().set_filters(filters)


def test_parameters_that_diverged_are_said() -> None:
    denoiser = small()
    with torch.no_grad():
        denoiser.log_weights[1] = math.nan
    with pytest.raises(errors.InputError, match="weights"):
        denoiser(randn(1, 1, 8, 8))


def test_the_smallest_image_whose_noise_can_be_estimated() -> None:
    """The filter fits once into 3×3 pixels, and sees nothing of what is bilinear."""
    line = torch.arange(3.0).double()
    plane = (1 + line[:, None] + 2 * line + 0.5 * line[:, None] * line).expand(1, 1, 3, 3)
    assert float(noise_level(plane)) == pytest.approx(0.0, abs=1e-12)
    assert float(noise_level(plane + 0.1 * randn(1, 1, 3, 3))) > 1e-3
    for height, width in ((2, 3), (3, 2)):
        with pytest.raises(errors.InputError, match="at least 3×3"):
            noise_level(torch.zeros(1, 1, height, width))
