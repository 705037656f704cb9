"""Settings for the long tests: one thread a process, a clock, and a tally that ends in a file."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch
from tally import Budget, Tally

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def _tally():
    return Tally()


@pytest.fixture
def tally(_tally):
    """Counts and findings of this session, written after every test: a hang loses nothing."""
    yield _tally
    path = os.environ.get("LEGATO_STRESS_TALLY")
    if path:
        _tally.write(Path(path))


SECONDS = float(os.environ.get("LEGATO_STRESS_SECONDS", "60"))


@pytest.fixture
def budget():
    """The time that a test may take."""
    return Budget(SECONDS)


@pytest.fixture(scope="session")
def clock():
    """The time that all tests of this session may take together."""
    return Budget(SECONDS)
