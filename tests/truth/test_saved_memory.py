"""What a solve keeps in memory, at 50 and at 500 iterations.

Measured twice: as the peak of all live tensor storages during forward and backward, which also sees
what a recomputation or a linear solve needs for a moment; and by saved-tensor hooks, which see what
autograd keeps between the two. Only the first is honest about checkpoints (they keep their inputs
outside autograd) and about Forward (its graphs live for one iteration each).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import legato as lg
from problems import random

FEW, MANY = 50, 500
SIZE = 1000

Strategy = Callable[..., lg.GradientStrategy]
CONSTANT: dict[str, Strategy] = {
    "FixedPoint": lambda *theta: lg.FixedPoint(terms=100, tol=None),
    "Implicit": lambda *theta: lg.Implicit(lg.GMRES(tol=1e-6)),
    "OneStep": lambda *theta: lg.OneStep(tol=None),
    "Unroll(last=20)": lambda *theta: lg.Unroll(last=20),
}
PIGGYBACK: dict[str, Strategy] = {"Piggyback": lambda *theta: lg.Piggyback()}


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of storages that operations create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._see(tensor, new=False)  # what came from outside does not count
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self._see(tensor, new=True)
        return result

    def _see(self, tensor: Any, new: bool) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if new else 0

        def freed(_: Any) -> None:
            self.now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def lasso(d: Tensor, b: Tensor) -> tuple[lg.Composite, lg.Algorithm]:
    data = lg.LeastSquares(lg.Diagonal(d), b * torch.ones_like(d))
    return lg.Composite(data, lg.L1(0.1)), lg.ForwardBackward(step_size=0.5)


def tv(d: Tensor, b: Tensor) -> tuple[lg.Saddle, lg.Algorithm]:
    problem = lg.Saddle(
        lg.Differences(dims=(-1,)),
        penalty=lg.L1(0.1),
        nonsmooth=lg.SquaredDistance(b * d),
    )
    return problem, lg.PrimalDual()


def parameters() -> tuple[Tensor, Tensor]:
    d = 1 + 0.1 * torch.sin(random(60, SIZE))
    return d.requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)


Build = Callable[[Tensor, Tensor], tuple[Any, lg.Algorithm]]


@cache
def peak_bytes(build: Build, strategy: Strategy, iterations: int) -> int:
    theta = parameters()
    with LiveMemory() as memory:
        solution = lg.solve(*build(*theta), gradient=strategy(*theta), stop=lg.Stop(iterations))
        solution.x.square().sum().backward()
    assert theta[1].grad is not None
    return memory.peak


@cache
def saved_bytes(build: Build, strategy: Strategy, iterations: int) -> int:
    """Bytes that autograd holds for the backward pass, each storage once."""
    theta = parameters()
    saved: dict[int, Tensor] = {}  # holding the tensors keeps their addresses from being reused

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        lg.solve(*build(*theta), gradient=strategy(*theta), stop=lg.Stop(iterations))
    return sum(t.untyped_storage().nbytes() for t in saved.values())


def growth(measure: Callable[..., int], build: Build, strategy: Strategy) -> float:
    return measure(build, strategy, MANY) / measure(build, strategy, FEW)


def unroll(*theta: Tensor) -> lg.GradientStrategy:
    return lg.Unroll()


def checkpointed(*theta: Tensor) -> lg.GradientStrategy:
    return lg.Unroll(checkpoint="sqrt")


both = pytest.mark.parametrize("build", [lasso, tv])


def test_the_meter_counts() -> None:
    """A loop whose peak is known: k kept vectors and one on the way."""
    with LiveMemory() as memory:
        kept = [torch.ones(SIZE, dtype=torch.float64) for _ in range(3)]
        for _ in range(10):
            kept[0] * 2
    assert memory.now == 3 * 8 * SIZE
    assert memory.peak == 4 * 8 * SIZE
    with LiveMemory() as memory:
        view = kept[0][1:]
    assert view.numel() == SIZE - 1
    assert memory.peak == 0


@both
def test_unroll_grows_with_the_iterations(build: Build) -> None:
    """Ten times the iterations, ten times the memory, but for a dozen vectors of the backward."""
    assert 8 < growth(peak_bytes, build, unroll) <= 10
    assert 9.5 < growth(saved_bytes, build, unroll) <= 10


@both
def test_checkpoints_grow_like_the_square_root(build: Build) -> None:
    """√10 ≈ 3.2, and segments have a whole number of iterations."""
    assert growth(peak_bytes, build, checkpointed) <= 3.5
    assert peak_bytes(build, checkpointed, MANY) < 0.25 * peak_bytes(build, unroll, MANY)


@pytest.mark.parametrize("measure", [peak_bytes, saved_bytes])
@pytest.mark.parametrize(
    ("build", "strategy"),
    [
        pytest.param(build, strategy, id=f"{build.__name__}-{name}")
        for build, strategies in ((lasso, CONSTANT), (tv, CONSTANT | PIGGYBACK))
        for name, strategy in strategies.items()
    ],
)
def test_the_others_do_not_grow(
    build: Build, strategy: Strategy, measure: Callable[..., int]
) -> None:
    assert growth(measure, build, strategy) <= 1.01
    # A Krylov basis and the step recorded for its products are a part that stays as it is.
    assert measure(build, strategy, MANY) < 0.5 * measure(build, unroll, MANY)


@both
def test_forward_does_not_grow(build: Build) -> None:
    def one_parameter(d: Tensor, b: Tensor) -> tuple[Any, lg.Algorithm]:
        return build(d.detach(), b)

    def forward(d: Tensor, b: Tensor) -> lg.GradientStrategy:
        return lg.Forward(b)

    assert growth(peak_bytes, one_parameter, forward) <= 1.01
