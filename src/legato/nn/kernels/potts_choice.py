"""Which kernel computes the Potts layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from legato._support.compiling import constant_when_compiled
from legato.nn.kernels.choice import Layer
from legato.nn.kernels.potts_iterates import PottsIterates

LAYER = Layer("potts", "the Potts layer", data="cost", most=64, what="labels")


def choose_kernel(
    cost: Tensor, override: str | None = None
) -> tuple[str, Callable[..., PottsIterates]]:
    """The name and function of the kernel for this cost."""
    name = _choose(cost.device.type, int(cost.shape[1]), override)
    return name, LAYER.loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@constant_when_compiled
def _choose(device: str, labels: int, override: str | None) -> str:
    return LAYER.choose(device, labels, override)
