"""Settings that hold for every test: one thread a process, no display, no deadlines; the order."""

import gc
import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"

import torch
from hypothesis import settings

torch.set_num_threads(1)  # pytest-xdist already uses every core

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")

# Files with tests of many seconds, the longest first. They begin a run: processes that have nothing
# left take over tests of others, and the last ones should be short. What stands first compiles the
# kernels that others then find in Numba's cache.
LONG = (
    "nn/test_potts_kernels",
    "nn/test_total_variation_kernels",
    "browser/",
    "docs/",
    "cli/test_denoise",
    "cli/test_toy",
    "studies/denoise/",
    "install/",
    "test_gallery",
    "test_docs",
    "test_readme",
    "laws/test_layer_batches",
    "truth/test_boundary",
    "laws/test_batches",
    "laws/test_resuming",
    "laws/test_metamorphic",
    "nn/",
    "cli/",
)


def pytest_collection_modifyitems(items):
    items.sort(key=place)  # stable: a file's tests, which share fixtures, stay together


def place(item):
    """How early a test runs, from 0."""
    name = item.nodeid.removeprefix("tests/")
    return next((k for k, start in enumerate(LONG) if name.startswith(start)), len(LONG))


def pytest_collection_finish():
    """What is imported stays: it need not be looked through by every garbage collection."""
    gc.collect()
    gc.freeze()
