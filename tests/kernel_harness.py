"""What the tests of fused kernels share: where they run, and how they are held to a reference.

Numba runs everything. Triton runs everything on a GPU; without one it runs the small cases, which
take every path of its source, in its interpreter (a thousand times slower, so in a process of its
own: see :func:`passed_by_the_interpreter`). FULL_MATRIX=1 gives the interpreter everything.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

Solver = Callable[..., Any]
"""From tensors to a NamedTuple of tensors."""
Tensors = dict[str, Tensor | None]
Results = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Values and gradients by name."""

INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available() and not INTERPRETER
SLOW = INTERPRETER and os.environ.get("FULL_MATRIX") != "1"
KERNELS = ["triton"] if INTERPRETER else ["numba", "triton"] if GPU else ["numba"]

# Triton's interpreter reads numbers from arrays in a way that NumPy is about to forbid.
conversions_allowed = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
not_interpreted = pytest.mark.skipif(SLOW, reason="SMALL covers it, the interpreter is slow")
numba_only = pytest.mark.skipif(INTERPRETER, reason="this process is for Triton")
triton_only = pytest.mark.skipif("triton" not in KERNELS, reason="this process is for Numba")
interpreter_needed = pytest.mark.skipif(
    INTERPRETER or GPU or importlib.util.find_spec("triton") is None,
    reason="Triton runs in this process, or not at all",
)


@dataclass(frozen=True)
class Kernel:
    """A kernel under test, and where it runs."""

    name: str
    solve: Solver
    device: str


def load(layer: str, name: str) -> Kernel:
    """The kernel of a layer (potts, tv) by its name."""
    folder = {"potts": "potts", "tv": "total_variation"}[layer]
    place = {"numba": "numba", "triton": "triton.host"}[name]
    module = importlib.import_module(f"legato.nn.{folder}.{place}")
    return Kernel(name, getattr(module, layer), "cuda" if name == "triton" and GPU else "cpu")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Images are cut into bands when there are more threads than images."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


class Case(Protocol):
    """A problem of random data, drawn in float64."""

    def tensors(self) -> Tensors: ...

    def run(self, solve: Solver, tensors: Tensors) -> Any: ...


def leaves(tensors: Tensors, dtype: torch.dtype, device: str) -> Tensors:
    return {
        name: None if t is None else t.to(device, dtype).detach().requires_grad_()
        for name, t in tensors.items()
    }


def values_and_gradients(
    case: Case, solve: Solver, dtype: torch.dtype, device: str = "cpu"
) -> Results:
    """All outputs, and the gradients of a random combination of them."""
    inputs = leaves(case.tensors(), dtype, device)
    outputs = case.run(solve, inputs)._asdict()
    outputs = {name: value for name, value in outputs.items() if value is not None}
    generator = torch.Generator().manual_seed(11)
    loss = torch.zeros((), dtype=dtype, device=device)
    for value in outputs.values():
        bar = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        loss = loss + (value * bar.to(device, dtype)).sum()
    named = {name: t for name, t in inputs.items() if t is not None}
    gradients = torch.autograd.grad(loss, list(named.values()))
    return (
        {name: value.detach().cpu().double() for name, value in outputs.items()},
        {name: gradient.cpu().double() for name, gradient in zip(named, gradients, strict=True)},
    )


def assert_close(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float, size: float = 1.0
) -> None:
    """The same, relative to the largest entry of each, or to ``size`` where that is larger."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        largest = max(size, float(value.abs().max()))
        error = float((got[name] - value).abs().max()) / largest
        assert error <= tolerance, f"{name} is {error:.1e} off"


def in_both_precisions(
    small: Mapping[str, Case], large: Mapping[str, Case], single: Collection[str]
) -> list[Any]:
    """Cases and dtypes; the interpreter takes ``small``, and only ``single`` in float32 too."""
    return [
        pytest.param(case, dtype, id=f"{name}-{str(dtype)[6:]}")
        for name, case in (small if SLOW else {**small, **large}).items()
        for dtype in (torch.float32, torch.float64)
        if not SLOW or dtype == torch.float64 or name in single
    ]


def passed_by_the_interpreter(file: str) -> int:
    """How many tests of a file Triton's interpreter passes; all that run have to.

    In a process of its own: Triton reads the variable when it is first imported.
    """
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*pytest_, file, "-k", "triton and not interpreter"],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    return int(passed[1])
