"""Which kernel computes total variation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from legato._support.compiling import constant_when_compiled
from legato.nn.kernels.choice import Layer
from legato.nn.kernels.tv_iterates import Coupling, TVIterates

# Channels under one norm are all held at once.
LAYER = Layer("tv", "total variation", data="image", most=8, what="channels under one norm")


def choose_kernel(
    image: Tensor, coupling: Coupling, override: str | None = None
) -> tuple[str, Callable[..., TVIterates]]:
    """The name and function of the kernel for this image."""
    coupled = int(image.shape[1]) if coupling.channels else 1
    name = _choose(image.device.type, coupled, override)
    return name, LAYER.loaded[name]


# torch.compile evaluates this once and takes the name for a constant, which it is.
@constant_when_compiled
def _choose(device: str, coupled: int, override: str | None) -> str:
    return LAYER.choose(device, coupled, override)
