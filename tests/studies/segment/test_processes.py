"""Two processes compute what one does."""

import os
import subprocess
import sys
from dataclasses import replace

import torch

from legato.studies.segment.data import SyntheticScenes

SCRIPT = """
import sys
import torch
sys.path[:0] = {paths!r}
torch.set_num_threads(1)
from pathlib import Path
from test_processes import train

folder = Path(sys.argv[1])
model = train(folder, devices=2, batch=3)
torch.save(model.state_dict(), folder / f"weights-of-{{model.rank}}.pt")
"""


def train(folder, devices, batch, study=None):
    if study is None:
        from conftest import Study

        study = Study()
    scenes, usual = SyntheticScenes(10, size=(32, 40)).in_memory(), study.data
    # One size, since what a network makes of padding depends on how much of it there is.
    # SGD, since Adam makes whole steps of gradients that are but rounding errors.
    recipe = replace(
        study.recipe, epochs=2, batch=batch, devices=devices, scale=(1.0, 1.0), optimiser="sgd",
        lr=0.03,
    )  # fmt: skip
    study.data = scenes
    try:
        model = study.train(folder, recipe=recipe, validate=True)
    finally:
        study.data = usual
    model.rank = int(os.environ.get("LOCAL_RANK", "0"))
    return model


def lone_environment():
    """Without what pytest-xdist or a launcher left behind for other processes."""
    foreign = ("PYTEST", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "NODE_RANK", "SLURM")
    return {key: value for key, value in os.environ.items() if not key.startswith(foreign)}


def numbers(folder):
    """Epoch, loss, accuracy and IoU of each line of the log."""
    rows = (folder / "log.csv").read_text().splitlines()[1:]
    return torch.tensor([[float(x) for x in row.split(",")[:4]] for row in rows])


def test_two_processes_get_the_numbers_of_one(study, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(paths=[os.path.dirname(__file__)]))
    folder = tmp_path / "together"
    done = subprocess.run(
        [sys.executable, script, folder],
        capture_output=True, text=True, timeout=300, env=lone_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone = train(tmp_path / "alone", 1, 6, study)
    for rank in (0, 1):
        weights = torch.load(folder / f"weights-of-{rank}.pt", weights_only=True)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=2e-5, atol=2e-6, msg=name)
    lone = numbers(tmp_path / "alone")
    assert lone.shape == (2, 4)
    torch.testing.assert_close(numbers(folder), lone, rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.rglob("*.part"))
