"""The reconstruction study: its tasks against dense algebra, and its page against its results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import legato as lg
from legato.studies.denoise.images import draw_picture, middles

pytest.importorskip("safetensors")
from legato.studies.reconstruct.rows import Model, Settings, measure, new_model, train
from legato.studies.reconstruct.tasks import Deblurring, Tomography, motion

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


def test_rows_train_and_are_measured() -> None:
    task = Deblurring("motion", motion(5))
    settings = Settings(
        iterations=4, last=2, batch=2, patch=24, steps=2, seconds=9.0, seeds=(1, 2), chunk=2
    )
    images = [draw_picture(seed, 32, 32) for seed in range(2)]
    device, learned = torch.device("cpu"), {}
    for row in ("TV, λ(y)", "filters", "filters, λ(y)"):
        model = new_model(row, task, 0.004, settings, learned)
        before = [p.detach().clone() for p in model.prior.parameters()]
        train(model, images, settings, device, lg.Eager())
        assert any(
            not torch.equal(a, b) for a, b in zip(before, model.prior.parameters(), strict=True)
        )
        learned[row] = model
        scores = measure(model, task, {"drawn": images}, settings, device)["drawn"]
        assert isinstance(model, Model)
        assert len(scores["each"]) == 2
        assert 10 < scores["psnr"] < 50
