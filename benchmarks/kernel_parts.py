"""Where benchmarks reach into legato's fused kernels; all they use besides its public names.

Kernels that cannot run here are imported only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor

from legato.nn.total_variation.model import Coupling, momentum, step_size, tv_function

__all__ = [
    "momentum",
    "potts_function",
    "potts_launches",
    "release_buffers",
    "step_size",
    "tv_launches",
]

Potts = Callable[..., Tensor]  # (cost, weights, τ, σ, iterations) to the last u
TV = Callable[[Tensor, Tensor], Tensor]  # (image, λ) to u


def release_buffers() -> None:
    """Give back what the kernels for CPUs keep for their next call."""
    import_module("legato.nn.fused.bands").pool.clear()


def potts_function(kernel: str, **options: Any) -> Potts:
    """The Potts iteration by the kernel of that name, steps given."""
    module = {"triton": "triton.host"}.get(kernel, kernel)
    return _potts(import_module(f"legato.nn.potts.{module}").potts, options)


def _potts(function: Callable[..., Any], options: dict[str, Any]) -> Potts:
    return lambda *x: function(*x[:4], iterations=x[4], **options).probabilities


def potts_launches(labels: int, width: int) -> dict[str, Potts]:
    """The launch that is chosen for a problem on a GPU, and its neighbours."""
    from legato.nn.fused.operator import register
    from legato.nn.potts.model import potts_function as operator
    from legato.nn.potts.triton.host import TritonPotts, choose_launch

    chosen = choose_launch(labels, width, few_registers=True)
    tried = {
        "chosen": chosen,
        "overlap the other way": replace(chosen, overlap=not chosen.overlap),
        "tiles twice as high": replace(chosen, tile_y=2 * chosen.tile_y),
        "registers not limited": replace(chosen, registers=None),
    }
    if labels > chosen.held:
        tried["unrolled twice"] = replace(chosen, unroll=2)
    return {
        key: _potts(operator(register(_named(TritonPotts(launch), f"{labels}_{width}_{i}"))), {})
        for i, (key, launch) in enumerate(tried.items())
    }


def _named(kernel: Any, suffix: str) -> Any:
    """A kernel that torch can know beside the library's own."""
    kernel.name = f"{kernel.name}_launch_{suffix}"
    return kernel


def tv_launches(iterations: int, isotropic: bool, name: str) -> dict[str, TV]:
    """Ways to lay the kernels of total variation on a GPU; ``name`` is not used twice."""
    from legato.nn.fused.launch import Launch
    from legato.nn.fused.operator import register
    from legato.nn.total_variation.triton.host import TritonTV

    tried = {f"{y}x{x}": Launch(y, x) for y, x in ((2, 32), (4, 32), (8, 32), (1, 128))}
    tried["4x32, 64 registers"] = Launch(4, 32, registers=64)
    tried["4x32, no overlap"] = Launch(4, 32, overlap=False)

    def with_launch(number: int, launch: Launch) -> TV:
        tv = tv_function(register(_named(TritonTV(launch), f"{name}_{number}")))
        return lambda y, w: tv(y, w, iterations=iterations, coupling=Coupling(isotropic, False)).x

    return {key: with_launch(i, launch) for i, (key, launch) in enumerate(tried.items())}
