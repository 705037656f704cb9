"""Trainings killed at random moments and started again end with the numbers of one left alone."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import warnings
from pathlib import Path

from killing import End, Plan, draw_plan, run_child
from tally import Tally
from victims import Victim, victims

KILLS = 40
"""Kills of a chunk."""
MOST = 6
"""Ends of a folder's work before it is let alone and compared."""
OF_A_STUDY = 8
"""Kills of a study in a chunk: its epochs take longer than all else."""

_WRITING_FAILED = ("OSError", "RuntimeError", "SafetensorError", "cannot be written")
"""What may stand in the last line of a training that could not write."""


def chunk(number: int, tally: Tally) -> None:
    """Forty kills of a few victims, determined by ``number`` but for the clock."""
    numbers = random.Random(number)
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None  # a kill loses no page that the system holds
    folder = Path(tempfile.mkdtemp(prefix="legato-kills-", dir=place))
    try:
        targets = [Target(v, folder / v.name, numbers, tally) for v in _chosen(number)]
        targets = [t for t in targets if t.sound]
        kills, turn = 0, 0
        while kills < KILLS and targets and turn < 10 * KILLS:
            target = targets[turn % len(targets)]
            turn += 1
            if target.study and target.kills >= OF_A_STUDY:
                continue
            kills += target.survives()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally.count("chunks of kills")


def _chosen(number: int) -> list[Victim]:
    """Two or three small victims, and every other time a study: all of them after a few chunks."""
    small = [v for v in victims() if not v.study]
    large = [v for v in victims() if v.study]
    mine = [small[(3 * number + i) % len(small)] for i in range(3)]
    return [*mine, large[number // 2 % len(large)]] if number % 2 else mine


class Target:
    """A victim with its numbers undisturbed, which is killed over and over."""

    def __init__(self, victim: Victim, folder: Path, numbers: random.Random, tally: Tally) -> None:
        self.victim, self.folder, self.numbers, self.tally = victim, folder, numbers, tally
        self.study = victim.study
        self.kills = self.sequences = 0
        warm, straight = folder / "warm", folder / "straight"
        for each in (warm, straight):
            each.mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            victim.work(warm)  # in this process: its children find everything imported
        begun = time.monotonic()
        end = run_child(victim.work, straight, Plan())
        self.longest = time.monotonic() - begun
        self.sound = end.how == "finished"
        if not self.sound:
            tally.finding("a training does not end", f"{victim.name}: {end.how}: {end.said}")
            return
        self.right = victim.numbers(straight)
        if victim.numbers(warm) != self.right:
            tally.finding("a forked training differs", victim.name)

    def survives(self) -> int:
        """Kill it several times in one folder, let it end, compare; returns the number of kills."""
        victim, tally = self.victim, self.tally
        self.sequences += 1
        run = self.folder / f"run{self.sequences}"
        run.mkdir()
        kills, history = 0, []
        for _ in range(self.numbers.randint(2, MOST)):
            plan = draw_plan(self.numbers, self.longest, victim.writes)
            history.append(repr(plan))
            end = run_child(victim.work, run, plan)
            if end.how == "killed":
                kills += 1
                tally.count(f"kills: {victim.name}")
                tally.count("kills with files to take up", int(any(run.iterdir())))
            else:
                tally.count(f"ends that are no kills: {end.how}")
            self._judge(end, plan, history)
            try:
                victim.whole(run)
            except Exception as error:
                words = f"{victim.name} after {history}: {type(error).__name__}: {error}"
                tally.finding("a file is damaged", words)
            tally.count("folders looked at after an end")
            if end.how == "finished":
                break
        end = run_child(victim.work, run, Plan())
        tally.count(f"killed trainings compared: {victim.name}")
        if end.how != "finished":
            words = f"{victim.name} after {history}: {end.how}: {end.said}"
            tally.finding("a killed training cannot be taken up", words)
        elif victim.numbers(run) != self.right:
            tally.finding("a resumed training differs", f"{victim.name} after {history}")
        tally.count("temporary files left by kills", len(list(run.rglob("*.part"))))
        shutil.rmtree(run, ignore_errors=True)
        self.kills += kills
        return kills

    def _judge(self, end: End, plan: Plan, history: list[str]) -> None:
        """A child ends by a kill, by itself, or, where writing was made to fail, in an OSError."""
        name, tally = self.victim.name, self.tally
        if end.how == "hung":
            tally.finding("a training hangs", f"{name}: {history}")
        tally.count("runs in which writes fail", int(plan.fails))
        if end.how != "failed":
            return
        last = ([line for line in end.said.splitlines() if line.strip()] or ["no word"])[-1]
        words = f"{name}: {history[-1]}: {last}"
        if not plan.fails:
            tally.finding("a training fails", words)
        elif not any(word in last for word in _WRITING_FAILED):
            tally.finding("a failed write ends a training with another error", words)
        elif self.victim.goes_on and "write_text" not in end.said and "save_model" not in end.said:
            tally.finding("a failed checkpoint ends a training", words)
        else:
            tally.count("trainings ended by a failed write, in words")
