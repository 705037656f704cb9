"""Where benchmarks reach into legato's fused kernels; all they use besides its public names.

Kernels that cannot run here are imported only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor

from legato.nn.kernels.tv_iterates import Coupling, momentum, step_size

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
    import_module("legato.nn.kernels.numba_bands").pool.clear()


def potts_function(kernel: str, **options: Any) -> Potts:
    """The Potts iteration by the kernel of that name, steps given."""
    return _potts(import_module(f"legato.nn.kernels.potts_{kernel}").potts, options)


def _potts(function: Callable[..., Any], options: dict[str, Any]) -> Potts:
    return lambda *x: function(*x[:4], iterations=x[4], **options).probabilities


def potts_launches(labels: int, width: int) -> dict[str, Potts]:
    """The launch that is chosen for a problem on a GPU, and its neighbours."""
    from legato.nn.kernels.potts_operator import make_operator
    from legato.nn.kernels.potts_triton import TritonPotts
    from legato.nn.kernels.potts_triton_launch import choose_launch

    chosen = choose_launch(labels, width, lean=True)
    tried = {
        "chosen": chosen,
        "overlap the other way": replace(chosen, overlap=not chosen.overlap),
        "tiles twice as high": replace(chosen, tile_y=2 * chosen.tile_y),
        "registers not limited": replace(chosen, registers=None),
    }
    if labels > chosen.held:
        tried["unrolled twice"] = replace(chosen, unroll=2)
    return {
        name: _potts(make_operator(f"launch_{labels}_{width}_{i}", TritonPotts(launch)), {})
        for i, (name, launch) in enumerate(tried.items())
    }


def tv_launches(iterations: int, isotropic: bool, name: str) -> dict[str, TV]:
    """Ways to lay the kernels of total variation on a GPU; ``name`` is not used twice."""
    from legato.nn.kernels.tv_operator import make_operator
    from legato.nn.kernels.tv_triton import TritonTV
    from legato.nn.kernels.tv_triton_launch import Launch

    tried = {f"{y}x{x}": Launch(y, x) for y, x in ((2, 32), (4, 32), (8, 32), (1, 128))}
    tried["4x32, 64 registers"] = Launch(4, 32, registers=64)
    tried["4x32, no overlap"] = Launch(4, 32, overlap=False)

    def with_launch(number: int, launch: Launch) -> TV:
        tv = make_operator(f"launch_{name}_{number}", TritonTV(launch))
        return lambda y, w: tv(y, w, iterations=iterations, coupling=Coupling(isotropic, False)).x

    return {key: with_launch(i, launch) for i, (key, launch) in enumerate(tried.items())}
