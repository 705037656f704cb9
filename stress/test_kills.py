"""Trainings killed at random moments and started again end with the numbers of one left alone."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

from legato.studies.segment.data import SyntheticScenes

KILLS = int(os.environ.get("LEGATO_STRESS_KILLS", "20"))
HERE = Path(__file__).parent
PATIENCE = 600
"""Seconds after which a training that does not end counts as hung."""


class Trainings:
    """Runs one command in numbered folders, killing it at random until it was killed enough."""

    def __init__(self, command: Callable[[Path], list[str]], saved: str, seed: int) -> None:
        self.command = command
        self.saved = saved
        self.random = random.Random(seed)
        self.kills = 0
        self.after_a_save = 0
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

    def start(self, folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=self.environment,
        )  # fmt: skip

    def finish(self, folder: Path) -> None:
        process = self.start(folder)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said

    def killed(self, folder: Path, longest: float) -> bool:
        """Whether the process was killed; False if it came to its end before.

        Every other time the moment is drawn from the whole of a run, start-up included; else it
        falls shortly after a checkpoint was replaced, or while the next one is written.
        """
        process = self.start(folder)
        begun = time.monotonic()
        path = folder / self.saved
        before = path.stat().st_mtime_ns if path.exists() else 0
        if self.random.random() < 0.5:
            delay = self.random.uniform(0, longest)
        else:
            saves = self.random.randint(1, 2)
            while process.poll() is None and saves and time.monotonic() - begun < PATIENCE:
                now = path.stat().st_mtime_ns if path.exists() else 0
                if now != before:
                    before, saves = now, saves - 1
                time.sleep(0.001)
            delay = self.random.uniform(0, 0.05) + time.monotonic() - begun
        try:
            process.communicate(timeout=max(0.0, delay - (time.monotonic() - begun)))
        except subprocess.TimeoutExpired:
            process.kill()  # SIGKILL: nothing can be tidied up
            process.communicate()
            self.kills += 1
            self.after_a_save += path.exists()
            return True
        assert process.returncode == 0
        return False


def survives(
    trainings: Trainings, folder: Path, same: Callable[[Path, Path], str | None], tally: Any,
    budget: Any, name: str,
) -> None:  # fmt: skip
    """Kill runs until KILLS is reached, each folder taken up until it ends; compare every one."""
    straight = folder / "straight"
    straight.mkdir()
    begun = time.monotonic()
    trainings.finish(straight)
    longest = time.monotonic() - begun
    finished = 0
    while trainings.kills < KILLS and (finished == 0 or budget.left > 0):
        run = folder / f"run{finished}"
        run.mkdir()
        while trainings.kills < KILLS and budget.left > 0:
            if not trainings.killed(run, longest):
                break
        trainings.finish(run)
        finished += 1
        difference = same(straight, run)
        tally.count("comparisons")
        if difference is not None:
            tally.finding("a resumed training differs", f"{name}: {difference}")
        assert difference is None, difference
        left = [p.name for p in run.rglob("*.part")]
        tally.count("temporary files left by kills", len(left))
    tally.count(f"kills: {name}", trainings.kills)
    tally.count(f"kills with a checkpoint to take up: {name}", trainings.after_a_save)
    tally.count(f"killed trainings that ended alike: {name}", finished)
    assert trainings.kills > 0, "there was no time for a single kill"


# --- fit ------------------------------------------------------------------------------------------


def _same_results(one: Path, other: Path) -> str | None:
    left, right = (json.loads((f / "results.json").read_text()) for f in (one, other))
    return None if left == right else "results.json"


def test_killed_fits(tmp_path, tally, budget):
    def command(folder: Path) -> list[str]:
        return [sys.executable, str(HERE / "fit_to_kill.py"), str(folder)]

    trainings = Trainings(command, "fit.pt", seed=1)
    survives(trainings, tmp_path, _same_results, tally, budget.share(0.3), "fit")


# --- legato segment train -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    """Eight drawn scenes as files."""
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    for sample in SyntheticScenes(8, size=(32, 40)):
        picture = Image.fromarray(sample.image.permute(1, 2, 0).contiguous().numpy())
        picture.save(folder / "images" / f"{sample.name}.png")
        Image.fromarray(sample.labels.numpy()).save(folder / "masks" / f"{sample.name}.png")
    return folder


def _same_training(one: Path, other: Path) -> str | None:
    left, right = (load_file(f / "model.safetensors") for f in (one, other))
    for name, tensor in left.items():
        if not bool((tensor == right[name]).all()):
            return f"{name} in model.safetensors"
    left, right = (json.loads((f / "results.json").read_text()) for f in (one, other))
    for part in ("train", "test"):
        if left[part] != right[part]:
            return f"{part} in results.json"
    lines = [(f / "log.csv").read_text().splitlines() for f in (one, other)]
    rows = [list(csv.DictReader(each)) for each in lines]
    for a, b in zip(*rows, strict=True):
        for column in a:
            if "second" not in column and "time" not in column and a[column] != b[column]:
                return f"{column} of epoch {a.get('epoch')} in log.csv"
    return None


def test_killed_segmentation_trainings(scenes, tmp_path, tally, budget):
    def command(folder: Path) -> list[str]:
        return [
            sys.executable, "-m", "legato", "segment", "train", "--images",
            str(scenes / "images"), "--masks", str(scenes / "masks"), "--layer", "learned",
            "--iterations", "5", "--epochs", "24", "--batch", "2", "--device", "cpu",
            "--out", str(folder),
        ]  # fmt: skip

    trainings = Trainings(command, "last.ckpt", seed=2)
    survives(trainings, tmp_path, _same_training, tally, budget, "segment train")
