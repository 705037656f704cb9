"""Losses are compared to the precision that they have."""

import pytest
import torch

from legato.optim import HeavyBall


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_has_the_precision_of_its_tensor(dtype):
    p = torch.ones(3, dtype=dtype, requires_grad=True)
    optimizer = HeavyBall([p], lr=0.1)

    def closure():
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer._evaluate(closure).eps == torch.finfo(dtype).eps
