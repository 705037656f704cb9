"""Under autocast a layer takes half precision as softmax does: it computes in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from legato import nn
from legato.nn.segmentation import Scale

HALF = [torch.bfloat16, torch.float16]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "Potts": (nn.Potts(5), (numbers(1, 3, 6, 7), numbers(1, 3, 2, 6, 7).abs())),
    "Potts, scaled": (lambda z: nn.Potts(5)(Scale(5)(z)), (numbers(1, 3, 6, 7),)),
    "TotalVariation": (nn.TotalVariation(5), (numbers(1, 2, 6, 7), numbers(1, 1, 6, 7).abs())),
    "AnalysisDenoiser": (nn.AnalysisDenoiser(3, 3), (numbers(1, 1, 6, 7),)),
    "NonNegativeLeastSquares": (nn.NonNegativeLeastSquares(50), (numbers(5, 3), numbers(5))),
    "SimplexLeastSquares": (nn.SimplexLeastSquares(50), (numbers(5, 3), numbers(5))),
    "MatrixGame": (nn.MatrixGame(iterations=50), (numbers(3, 4),)),
    "SparseCoding": (nn.SparseCoding(6, 4), (numbers(2, 4),)),
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_layer_casts_what_autocast_made(name: str, dtype: torch.dtype) -> None:
    call, inputs = CALLS[name]
    half = [t.to(dtype).requires_grad_() for t in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(*half)
    # As torch recommends, outside of autocast.
    (found[0] if isinstance(found, tuple) else found).square().sum().backward()
    full = [t.detach().float().requires_grad_() for t in half]
    expected = call(*full)
    (expected[0] if isinstance(expected, tuple) else expected).square().sum().backward()
    torch.testing.assert_close(found, expected)
    for h, f in zip(half, full, strict=True):
        assert f.grad is not None
        torch.testing.assert_close(h.grad, f.grad.to(dtype))
