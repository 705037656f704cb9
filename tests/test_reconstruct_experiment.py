"""The reconstruction study: its tasks against dense algebra, and its page against its results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.console.files import DataError
from legato.studies.denoise.images import draw_picture, middles

pytest.importorskip("safetensors")
from legato.studies.reconstruct.ridges import (
    MeasuredRidges,
    RidgeSettings,
    restorer,
    train_ridges,
)
from legato.studies.reconstruct.rows import Model, Settings, measure, new_model, train_row
from legato.studies.reconstruct.tasks import (
    Cartesian,
    Deblurring,
    Denoising,
    Tomography,
    motion,
)
from legato.studies.reconstruct.windows import Windows

FOLDER = Path(__file__).parents[1] / "experiments" / "reconstruct"


def published() -> Any:
    spec = importlib.util.spec_from_file_location("publish", FOLDER / "publish.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_files_hold() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert published().table_markdown(results) in page
    assert published().weights_markdown(results) in page
    found = json.loads((FOLDER / "mri.json").read_text(encoding="utf-8"))["psnr"]
    best = max(found["TV"], key=lambda weight: found["TV"][weight])
    assert f"{found['zero-filled']:.1f} dB, total\nvariation {found['TV'][best]:.1f} dB" in page
    assert f"for this image, {best}," in page


def test_tomography_is_its_matrix() -> None:
    task = Tomography("ct", angles=9, size=8)
    x, y = torch.randn(2, 1, 8, 8), torch.randn(2, 1, *task.rays)
    seen = (task.radon(x) / task.norm).flatten(-2)
    torch.testing.assert_close(seen, x.flatten(-2) @ task.matrix.mT, atol=1e-4, rtol=1e-4)
    A = task.matrix.double()
    right = x.flatten(-2).double() + task.step * y.flatten(-2).double() @ A
    true = torch.linalg.solve(torch.eye(64).double() + task.step * A.mT @ A, right[:, 0].mT).mT
    found = task.term(y).prox(x, task.step).flatten(1)
    torch.testing.assert_close(found, true.float(), atol=1e-3, rtol=1e-3)


def test_filtered_back_projection_finds_the_picture() -> None:
    task = Tomography("ct", angles=30, size=16, photons=1e7)
    clean = middles([draw_picture(1, 24, 24)], 16)
    y = task.simulate(clean, torch.Generator().manual_seed(0))
    assert (task.plain(y) - clean).norm() < 0.25 * clean.norm()


@pytest.mark.parametrize("alpha", [0.3, 20.0])
def test_cartesian_is_its_matrix(alpha: float) -> None:
    scan = Cartesian("mri", size=12, kept=3)
    assert int(scan.mask.sum()) == 4
    generator = torch.Generator().manual_seed(0)
    y = scan.simulate(torch.rand(2, 1, 12, 12), generator)
    x = torch.randn(2, 1, 12, 12)
    eye = torch.eye(144).reshape(144, 12, 12)
    A = (scan.mask * torch.fft.fft2(eye, norm="ortho")).flatten(1).mT.to(torch.complex128)
    back = (A.mH @ y.flatten(1).to(A).mT).real
    left = torch.eye(144, dtype=torch.float64) + alpha * (A.mH @ A).real
    true = torch.linalg.solve(left, x.flatten(1).double().mT + alpha * back).mT.float()
    found = scan.term(y).prox(x, alpha).flatten(1)
    torch.testing.assert_close(found, true, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scan.plain(y).flatten(1), back.mT.float(), atol=1e-5, rtol=1e-5)


def test_windows_lie_in_the_pictures() -> None:
    """Each window is, up to turning and mirroring, a part of one of the pictures."""
    images = [torch.arange(70.0).reshape(7, 10), 100 + torch.arange(48.0).reshape(8, 6)]
    drawn = Windows(images, 3, 0, torch.device("cpu")).draw(200)[:, 0]
    parts = {
        tuple(part.flatten().tolist())
        for image in images
        for window in image.unfold(0, 3, 1).unfold(1, 3, 1).reshape(-1, 3, 3)
        for turn in range(4)
        for part in (window.rot90(turn), window.rot90(turn).flip(1))
    }
    assert {tuple(window.flatten().tolist()) for window in drawn} <= parts
    assert len({float(window.min()) for window in drawn}) > 40  # of 40 + 24 places
    with pytest.raises(DataError, match="as large as a window"):
        Windows(images, 9, 0, torch.device("cpu"))


def test_ridges_are_trained_by_the_gradient_of_the_solution() -> None:
    images = [draw_picture(seed, 40, 40) for seed in range(2)]
    settings = RidgeSettings(steps=12, batch=2, window=24, iterations=100, solved=150)
    torch.manual_seed(0)
    prior = MeasuredRidges(6, 5, through=3, intervals=8)
    task, device = Denoising(), torch.device("cpu")
    measured = Settings(seeds=(1,), chunk=2)
    before = measure(restorer(prior, settings), task, {"drawn": images}, measured, device)
    course = train_ridges(prior, images, settings, device)
    after = measure(restorer(prior, settings), task, {"drawn": images}, measured, device)
    assert course["steps"] == 12
    assert after["drawn"]["psnr"] > before["drawn"]["psnr"] + 0.1


def test_rows_train_and_are_measured() -> None:
    task = Deblurring("motion", motion(5))
    settings = Settings(
        iterations=4, last=2, batch=2, patch=24, steps=2, seconds=9.0, seeds=(1, 2), chunk=2
    )
    images = [draw_picture(seed, 32, 32) for seed in range(2)]
    device = torch.device("cpu")
    for row in ("TV, λ(y)", "filters", "filters, λ(y)"):
        model = new_model(row, task, 0.004, settings)
        before = [p.detach().clone() for p in model.prior.parameters()]
        train_row(model, images, settings, device)
        assert any(
            not torch.equal(a, b) for a, b in zip(before, model.prior.parameters(), strict=True)
        )
        scores = measure(model, task, {"drawn": images}, settings, device)["drawn"]
        assert isinstance(model, Model)
        assert len(scores["each"]) == 2
        assert 10 < scores["psnr"] < 50
