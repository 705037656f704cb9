"""Checkpoints that cannot be written: the old one stays, the training goes on."""

import errno
import os
from dataclasses import replace

import pytest
import torch

from legato.errors import CheckpointWarning
from legato.studies.segment.checkpoints import AtomicCheckpoints


def fill_the_disk(content, path, *rest):
    path.write_bytes(b"half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


def as_torch_reports_it(content, path, *rest):
    path.write_bytes(b"half of it")
    raise RuntimeError("[enforce fail at inline_container.cc:664] unexpected pos 64 vs 0")


@pytest.mark.parametrize("failing", [fill_the_disk, as_torch_reports_it])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "last.ckpt"
    writer = AtomicCheckpoints()
    writer.save_checkpoint({"epoch": 1}, path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", failing)
        with pytest.warns(CheckpointWarning, match=r"could not be written.*untouched"):
            writer.save_checkpoint({"epoch": 2}, path)
    assert torch.load(path, weights_only=True) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_failing_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    writer = AtomicCheckpoints()
    writer.save_checkpoint({"epoch": 1}, path)

    def denied(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", denied)
        with pytest.warns(CheckpointWarning, match="Permission denied"):
            writer.save_checkpoint({"epoch": 2}, path)
    assert torch.load(path, weights_only=True) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_training_goes_on_with_a_full_disk(study, straight, same_weights, tmp_path, monkeypatch):
    real, count = torch.save, []

    def second_fails(content, path, *rest):
        count.append(1)
        return (fill_the_disk if len(count) == 2 else real)(content, path, *rest)

    monkeypatch.setattr(torch, "save", second_fails)
    with pytest.warns(CheckpointWarning, match="The disk is full"):
        model = study.train(tmp_path)
    assert len(count) == 3
    same_weights(straight[1], model)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 2


def test_the_last_epoch_is_saved_whatever_the_rhythm(study, tmp_path, monkeypatch):
    real, count = torch.save, []
    monkeypatch.setattr(torch, "save", lambda *args: (count.append(1), real(*args)))
    study.train(tmp_path, recipe=replace(study.recipe, save_every=2))
    assert len(count) == 2  # after the second epoch and after the third
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 2
