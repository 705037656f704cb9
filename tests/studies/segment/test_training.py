"""Trainings that are repeated, interrupted, killed, diverging or asked for the impossible."""

import csv
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from legato.errors import CheckpointError, InputError, NonFiniteLossError
from legato.studies.segment.data import IGNORE, InMemory, Sample
from legato.studies.segment.model import Segmenter
from legato.studies.segment.networks import SmallNet
from legato.studies.segment.settings import LayerSettings
from legato.studies.segment.training import train


class StopAt(Callback):
    """Raise at the start of an epoch, or in the middle of it."""

    def __init__(self, epoch, error=KeyboardInterrupt, batch=0):
        self.epoch, self.error, self.batch = epoch, error, batch

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.current_epoch == self.epoch and index == self.batch:
            raise self.error


def log_of(folder):
    with open(folder / "log.csv", encoding="utf-8") as file:
        return [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader(file)
        ]


def test_the_same_seed_gives_the_same_numbers(study, straight, same_weights, tmp_path):
    folder, model = straight
    same_weights(model, study.train(tmp_path, validate=True))
    assert log_of(tmp_path) == log_of(folder)


def test_another_seed_does_not(study, straight, tmp_path):
    model = study.train(tmp_path, recipe=replace(study.recipe, seed=1, epochs=1))
    assert not torch.equal(model.network.first.weight, straight[1].network.first.weight)


@pytest.mark.parametrize(("epoch", "batch"), [(1, 0), (2, 1)])
def test_an_interrupted_run_ends_with_the_numbers_of_a_straight_one(
    study, straight, same_weights, tmp_path, epoch, batch
):
    with pytest.raises(KeyboardInterrupt):
        study.train(tmp_path, StopAt(epoch, batch=batch), validate=True)
    assert len(log_of(tmp_path)) == epoch
    same_weights(straight[1], study.train(tmp_path, validate=True))
    assert log_of(tmp_path) == log_of(straight[0])


def test_a_finished_training_is_loaded_and_not_repeated(study, straight, same_weights, tmp_path):
    model = study.train(tmp_path)
    steps = []

    class Count(Callback):
        def on_train_batch_end(self, *args):
            steps.append(1)

    again = study.train(tmp_path, Count())
    assert not steps
    same_weights(model, again)
    same_weights(model, straight[1])  # validation does not disturb training


def test_ctrl_c_works_again_afterwards(study, tmp_path):
    def own(*args):
        pass

    class AtOnce(Callback):
        def setup(
            self, *args, **more
        ):  # Lightning restores handlers after an interrupt later than this
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.raises(KeyboardInterrupt):
            study.train(tmp_path, AtOnce())
        assert signal.getsignal(signal.SIGINT) is own  # Lightning had it ignored
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_does_not_look_like_success(study, tmp_path):
    """Batch systems send it; an exit code of 0 would let their scripts go on without a model."""

    class Told(Callback):
        def on_train_batch_end(self, *args):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *args: None)
    try:
        with pytest.raises(SystemExit) as ended:
            study.train(tmp_path, Told())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143


def test_the_log_has_a_line_an_epoch(straight, study):
    rows = log_of(straight[0])
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[2]["loss"]) < float(rows[0]["loss"])
    assert 0 < float(rows[2]["iou"]) < float(rows[2]["accuracy"]) < 1


def test_a_loss_that_is_not_a_number_says_so_and_is_not_saved(study, tmp_path):
    class Poison(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                with torch.no_grad():
                    module.model.network.first.weight.fill_(float("nan"))

    with pytest.raises(NonFiniteLossError, match=r"diverged.*epoch 1.*learning rate"):
        study.train(tmp_path, Poison())
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert stored["epoch"] == 0
    assert all(value.isfinite().all() for value in stored["state_dict"].values())


def test_weights_that_diverged_in_the_last_step_are_noticed(study, tmp_path):
    class Poison(Callback):
        def on_train_batch_end(self, trainer, module, *args):
            if trainer.is_last_batch:
                with torch.no_grad():
                    module.model.network.first.weight[0].fill_(float("inf"))

    recipe = replace(study.recipe, epochs=1)
    with pytest.raises(NonFiniteLossError, match="weights became NaN or infinite"):
        study.train(tmp_path, Poison(), recipe=recipe)
    assert not (tmp_path / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": None}, "another model"),
        ({"layer": LayerSettings("learned", iterations=4)}, "layer.iterations was 3 and is now 4"),
    ],
)
def test_a_checkpoint_of_another_model(study, straight, change, words):
    folder = straight[0]
    before = (folder / "last.ckpt").read_bytes()
    with pytest.raises(CheckpointError, match=words):
        study.train(folder, settings=replace(study.settings, **change))
    assert (folder / "last.ckpt").read_bytes() == before


def test_a_checkpoint_of_another_recipe(study, straight):
    with pytest.raises(CheckpointError, match=r"another recipe: lr was 0\.003 and is now 0\.1"):
        study.train(straight[0], recipe=replace(study.recipe, lr=0.1))


def test_a_checkpoint_may_be_taken_up_elsewhere(study, straight, same_weights):
    recipe = replace(study.recipe, workers=1, save_every=5)
    same_weights(straight[1], study.train(straight[0], recipe=recipe))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half of an archive", "truncated", "other"])
def test_a_damaged_checkpoint(study, straight, tmp_path, content):
    path = tmp_path / "last.ckpt"
    if content == "truncated":
        whole = (straight[0] / "last.ckpt").read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "other":
        torch.save({"state_dict": {}}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"cannot be read .*Delete it to start over"):
        study.train(tmp_path)


def test_a_checkpoint_cannot_run_code(study, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"state_dict": Payload()}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        study.train(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_version(study, straight, tmp_path):
    stored = torch.load(straight[0] / "last.ckpt", weights_only=True)
    tensors = stored["state_dict"]
    tensors["model.layer.weights.older"] = tensors.pop("model.layer.weights.head.bias")
    torch.save(stored, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=r"another version of legato: 2 .* start over"):
        study.train(tmp_path)


def test_impossible_hardware(study, tmp_path):
    recipe = replace(study.recipe, accelerator="gpu")
    if torch.cuda.is_available():
        recipe = replace(recipe, devices=64)
    with pytest.raises(InputError, match="This machine cannot train"):
        study.train(tmp_path, recipe=recipe)


def test_tensorboard_that_is_not_installed(study, tmp_path, monkeypatch):
    from legato.studies.segment import training

    def missing(*args, **more):
        raise ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available.")

    monkeypatch.setattr(training, "TensorBoardLogger", missing)
    with pytest.raises(InputError, match="pip install tensorboard"):
        study.train(tmp_path, recipe=replace(study.recipe, tensorboard=True))


def test_a_batch_without_labels_does_no_harm(study, tmp_path):
    empty = Sample(study.data[0].image, torch.full_like(study.data[0].labels, IGNORE), "empty")

    class Padded(InMemory):
        def __init__(self):
            super().__init__(study.data)
            self.names = [*self.names, "empty"]

        def __getitem__(self, index):
            return empty if index == len(self) - 1 else super().__getitem__(index)

    model = Segmenter(SmallNet(3))
    settings = replace(study.settings, layer=None)
    train(model, settings, replace(study.recipe, batch=1, epochs=1), Padded(), tmp_path)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_frozen_network_stays_as_it_is(study, tmp_path, same_weights):
    start = study.model(study.settings)
    recipe = replace(study.recipe, freeze_network=True, epochs=1)
    model = study.train(tmp_path, recipe=recipe)
    same_weights(start.network, model.network)
    assert not torch.equal(start.layer.weights.head.bias, model.layer.weights.head.bias)


KILLED = """
    import os, sys, torch
    sys.path.insert(0, {tests!r})
    torch.set_num_threads(1)
    from pathlib import Path
    from conftest import Study
    real = torch.save
    count = 0
    def save(content, path, *rest):  # the machine dies in the middle of the second save
        global count
        count += 1
        real(content, path, *rest)
        if count == 2:
            with open(path, "r+b") as file:
                file.truncate(1000)
            os.kill(os.getpid(), 9)
    torch.save = save
    Study().train(Path(sys.argv[1]), validate=True)
"""


def test_a_kill_in_the_middle_of_a_save(study, straight, same_weights, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED.format(tests=os.path.dirname(__file__))))
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -9, done.stderr
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 0
    same_weights(straight[1], study.train(folder, validate=True))
    assert log_of(folder) == log_of(straight[0])
