"""Trainings killed at random moments and started again end with the numbers of one left alone."""

from __future__ import annotations

import os
from itertools import count

import kills

WANTED = 2 * int(os.environ.get("LEGATO_STRESS_KILLS", "20"))


def test_kills(tally, budget):
    """Chunks of forty kills until there were enough of them, or until time is short."""
    for number in count():
        kills.chunk(number, tally)
        done = sum(v for k, v in tally.counts.items() if k.startswith("kills: "))
        if done >= WANTED or budget.left <= 0:
            break
    tally.require_none()
