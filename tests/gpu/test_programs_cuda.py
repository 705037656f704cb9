"""Programs on a GPU: the same solutions, gradients and statuses as on the CPU."""

import pytest
import torch

from legato.errors import NotConvergedWarning
from legato.nn import LinearProgram, ProgramStatus, QuadraticProgram, Ridge

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def programs(dtype):
    """Sixty-four with everything; two variables are pinned."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(64, *shape, generator=g, dtype=torch.float64)

    L, inside = normal(10, 10), normal(10)
    A, G = normal(2, 10), normal(6, 10)
    lo, hi = inside - 0.5, inside + 0.5
    lo[:, :2] = hi[:, :2] = inside[:, :2]
    sides = [(M @ inside.unsqueeze(-1)).squeeze(-1) for M in (A, G)]
    Q = L @ L.mT / 10 + 0.1 * torch.eye(10, dtype=torch.float64)
    data = (Q, 2 * normal(10), A, sides[0], G, sides[1] + 0.3, lo, hi)
    return [value.to(dtype) for value in data]


def solved(device, dtype):
    given = [value.to(device).requires_grad_() for value in programs(dtype)]
    record = QuadraticProgram().solve(*given)
    record.x.square().sum().backward()
    return record, [value.grad.cpu() for value in given]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_as_on_the_cpu(dtype):
    here, ours = solved("cpu", dtype)
    there, theirs = solved("cuda", dtype)
    assert there.x.device.type == "cuda"
    assert bool(there.solved.all())
    tol = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(there.x.cpu(), here.x, rtol=tol, atol=tol)
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one, other, rtol=tol, atol=tol)


def test_no_solution_is_said():
    Q = torch.eye(2, device="cuda").expand(3, 2, 2)
    b = torch.tensor([[1.0], [5.0], [0.5]], device="cuda")
    A = torch.ones(1, 2, device="cuda")
    with pytest.warns(NotConvergedWarning, match=r"instances 1\): no x satisfies"):
        record = QuadraticProgram().solve(Q, A=A, b=b, lo=0.0, hi=1.0)
    assert record.status.tolist() == [0, int(ProgramStatus.INFEASIBLE), 0]


def test_linear():
    c = torch.tensor([1.0, 1.2], device="cuda", requires_grad=True)
    one = torch.ones(1, device="cuda")
    x = LinearProgram(Ridge(0.5))(c, torch.ones(1, 2, device="cuda"), one, lo=0.0)
    torch.testing.assert_close(x.detach().cpu(), torch.tensor([0.7, 0.3]))
