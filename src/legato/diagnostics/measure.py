"""One gradient strategy, measured: its error, its time, its memory and its warnings."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from legato._support import tree
from legato.algorithms import PrimalDual
from legato.diagnostics.setting import Setting
from legato.diagnostics.spectrum import LARGEST_DENSE, Adjoint
from legato.errors import GradientError, LegatoWarning
from legato.gradients import (
    CG,
    GMRES,
    BiCGStab,
    Direct,
    FixedPoint,
    Forward,
    GradientStrategy,
    Implicit,
    OneStep,
    Piggyback,
    Unroll,
)
from legato.gradients.fixed_point import FixedPointGradient
from legato.running import Stop, most
from legato.solving import Solution

FORWARD_ENTRIES = 16
"""Entries of θ up to which forward mode is tried."""
FORWARD_ITERATIONS = 1000
"""Iterations up to which forward mode is tried."""


# --- strategies -----------------------------------------------------------------------------------


def candidates(setting: Setting, solution: Solution) -> list[GradientStrategy]:
    """All strategies that may apply, in order of preference where two cost the same."""
    found: list[GradientStrategy] = [
        OneStep(),
        Implicit(GMRES()),
        Implicit(CG()),
        Implicit(BiCGStab()),
        FixedPoint(10),
        FixedPoint(100),
    ]
    if isinstance(setting.algorithm, PrimalDual):
        found.append(Piggyback())
    found += [Unroll(last=k) for k in (10, 30, 100) if k < most(solution.iterations)]
    found += [Unroll(), Unroll(checkpoint="sqrt")]
    entries = sum(p.numel() for p in setting.theta)
    if entries <= FORWARD_ENTRIES and most(solution.iterations) <= FORWARD_ITERATIONS:
        found.append(Forward(setting.theta))
    variables = (solution.x, () if solution.y is None else solution.y)
    if sum(t.numel() for t in tree.leaves(variables)) <= LARGEST_DENSE:
        found.append(Implicit(Direct()))
    return found


def label(gradient: Any) -> str:
    """The call that makes a strategy or solver, with the arguments that are not defaults."""
    name = type(gradient).__name__
    if not dataclasses.is_dataclass(gradient):
        return f"{name}(θ)" if isinstance(gradient, Forward) else f"{name}()"
    given = []
    for field in dataclasses.fields(gradient):
        value = getattr(gradient, field.name)
        if name == "Implicit":
            given.append(label(value))
        elif value != field.default or field.name == "terms":
            given.append(f"{field.name}={value!r}")
    return f"{name}({', '.join(given)})"


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """What one strategy gave; ``skipped`` says why if it does not apply, and then the rest is None.

    ``error`` is ‖g − ḡ‖/‖ḡ‖ for the reference ḡ (absolute where ḡ = 0) and ``cosine`` their angle.
    ``bound`` is never below ``error``: the part that comes from an unfinished forward solve,
    measured, plus the part that comes from the backward solve, from its residual. ``estimate`` is
    ‖r‖/(1 − ρ), relative to ‖ξ‖, as the strategy itself reports it. ``products`` counts iterations
    of the backward pass. ``warnings`` are the names of the warnings that the strategy gave.

    >>> [row.error < 1e-6 for row in diagnosis.rows if row.gradient == lg.Implicit()]
    [True]
    """

    gradient: GradientStrategy
    skipped: str | None = None
    value: Tensor | None = None
    error: float | None = None
    cosine: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    residual: float | None = None
    products: int | None = None
    bound: float | None = None
    estimate: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return label(self.gradient)


def measure(
    setting: Setting,
    gradient: GradientStrategy,
    stop: Stop,
    reference: Tensor,
    local: Adjoint | None,
) -> Row:
    """Run a strategy twice: once for its memory, once for its time, its gradient and its words.

    Args:
        setting: what is differentiated.
        gradient: the strategy.
        stop: when the forward solve ends.
        reference: ḡ.
        local: the adjoint system at the iterate where that solve ends, for the bound.
    """

    def once() -> tuple[Solution, Tensor]:
        with torch.enable_grad():
            solution = setting.solve(gradient, stop)
            return solution, setting.gradient(setting.value(solution.x))

    device = setting.theta[0].device
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            memory = peak_bytes(once, device)
            heard.clear()
            begin = time.perf_counter()
            solution, found = once()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - begin
        except GradientError as error:
            return Row(gradient, skipped=str(error))
    ours = _pass_on(heard)
    found = found.to(reference)
    products = solution.backward.iterations
    if products is None:  # unrolling: one product for each iteration kept
        last = getattr(gradient, "last", None)
        count = most(solution.iterations)
        products = count if last is None else min(last, count)
    elif isinstance(gradient, Implicit) and isinstance(gradient.solver, BiCGStab):
        products *= 2
    eps = torch.finfo(tree.leaves(solution.x)[0].dtype).eps
    return Row(
        gradient,
        value=found,
        error=float(torch.linalg.vector_norm(found - reference)) / _scale(reference),
        cosine=_cosine(found, reference),
        seconds=seconds,
        peak_bytes=memory,
        residual=solution.backward.residual,
        products=products,
        bound=_bound(gradient, solution.backward.residual, reference, local, eps),
        estimate=solution.backward.bound,
        warnings=tuple(sorted({w.category.__name__ for w in ours})),
    )


def _bound(
    gradient: GradientStrategy,
    residual: float | None,
    reference: Tensor,
    local: Adjoint | None,
    eps: float,
) -> float | None:
    """‖ĝ − ḡ‖, measured, plus the bound on ‖g − ĝ‖ from the residual, relative to ‖ḡ‖.

    ĝ solves the adjoint system at the same iterate exactly, so that the first part is what an
    unfinished forward solve costs, and the second what an unfinished backward solve costs. The
    product with A_θᵀ that turns w into g is rounded too, in the working precision.
    """
    if not isinstance(gradient, FixedPointGradient) or residual is None or local is None:
        return None
    if local.gradient is None or not math.isfinite(local.influence):
        return math.inf
    forward = float(torch.linalg.vector_norm(local.gradient - reference))
    rounding = 20 * eps * float(torch.linalg.vector_norm(local.gradient))
    return (forward + local.bound(residual, eps) + rounding) / _scale(reference)


def _pass_on(heard: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    """legato's own warnings; those of others, e.g. of the loss, are given once more."""
    ours = [w for w in heard if issubclass(w.category, LegatoWarning)]
    for w in heard:
        if w not in ours:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return ours


def _scale(reference: Tensor) -> float:
    """‖ḡ‖, or 1 where the reference is zero and only absolute errors mean something."""
    size = float(torch.linalg.vector_norm(reference))
    return size if size > 0 else 1.0


def _cosine(found: Tensor, reference: Tensor) -> float | None:
    sizes = float(tree.norm(found)), float(tree.norm(reference))
    return None if 0 in sizes else float(found @ reference) / sizes[0] / sizes[1]


# --- memory ---------------------------------------------------------------------------------------


class PeakMemory(TorchDispatchMode):
    r"""Counts the bytes of storages that come to life inside, and remembers their largest sum.

    .. math:: \max_t \sum \{\,\text{bytes of storages born inside and alive at } t\,\}

    ``with PeakMemory() as memory: …`` then ``memory.peak``. Views share their storage and count
    once; what existed before does not count.

    >>> from legato.diagnostics import PeakMemory
    >>> with PeakMemory() as memory:
    ...     x = torch.ones(1000) + torch.ones(1000)
    >>> memory.peak
    12000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: dict[int, Any] = {}  # a weak reference to each storage alive
        self._aliases: dict[Any, bool] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = self._aliases.get(func)
        if aliases is None:
            aliases = any(r.alias_info is not None for r in func._schema.returns)
            self._aliases[func] = aliases
        if not aliases:
            for out in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(out, Tensor):
                    self._count(out)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()

        def release(_: Any) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, release)
        self.live += size
        self.peak = max(self.peak, self.live)


def peak_bytes(compute: Callable[[], Any], device: torch.device) -> int:
    """The largest number of bytes that ``compute`` holds at once, on its own device.

    By :class:`PeakMemory` on the CPU, by torch's own counter on a GPU.

    >>> from legato.diagnostics import peak_bytes
    >>> peak_bytes(lambda: torch.zeros(256), torch.device("cpu"))
    1024
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        compute()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with PeakMemory() as memory:
        compute()
    return memory.peak
