"""The engine on a GPU: the same numbers as on the CPU, and no waiting inside the loop."""

import pytest
import torch

import legato as lg

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def randn(*shape, seed=0):
    """As in tests/makers.py, which needs packages that a GPU machine may not have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


STRATEGIES = [
    lg.Unroll(),
    lg.Unroll(last=20),
    lg.Unroll(checkpoint="sqrt"),
    lg.FixedPoint(2000),
    lg.Implicit(lg.GMRES(1e-10)),
    lg.Implicit(lg.BiCGStab(1e-10)),
]


def lasso(device, weight):
    A, b = randn(30, 12, seed=1).to(device), randn(30, seed=2).to(device)
    # Plain: where momentum restarts is a matter of rounding at the end.
    return lg.Composite(lg.LeastSquares(A, b), lg.L1(weight)), lg.ForwardBackward(inertia=0.0)


def simplex(device, weight):
    A, b = randn(30, 12, seed=1).to(device), weight * randn(30, seed=2).to(device)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.Simplex())
    return problem, lg.ForwardBackward(0.02, lg.Entropy())


def total_variation(device, weight):
    term = lg.SquaredDistance(randn(9, 8, seed=3).to(device))
    return lg.Saddle(lg.Differences(weights=weight), lg.L1(), nonsmooth=term), lg.PrimalDual()


def potts(device, weight):
    cost = randn(2, 3, 6, 5, seed=4).to(device)
    term = lg.Simplex(dim=-3) + lg.Linear(cost) + lg.NegativeEntropy(0.5)
    operator = lg.Differences(weights=weight, offsets=((1, 0), (0, 1), (1, 1), (1, -1)))
    penalty = (lg.Box(-1.0, 1.0) + lg.BregmanTerm(UNIT, 0.5)).conjugate()
    problem = lg.Saddle(operator, penalty, nonsmooth=term)
    return problem, lg.PrimalDual(0.2, 0.2, lg.Entropy(), UNIT)


UNIT = lg.Interval(-1.0, 1.0)
PROBLEMS = [lasso, simplex, total_variation, potts]


def run(build, device, strategy, dtype=torch.float64):
    weight = torch.tensor(0.7, dtype=torch.float64, device=device, requires_grad=True)
    problem, algorithm = build(device, weight)
    s = lg.solve(problem, algorithm, gradient=strategy, stop=lg.Stop(1500))
    weights = torch.linspace(0, 1, s.x.numel(), dtype=torch.float64, device=device)
    (s.x.flatten() * weights).sum().backward()
    return s.x.detach().cpu(), weight.grad.cpu()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("build", PROBLEMS)
def test_the_gpu_agrees_with_the_cpu(build, strategy):
    for ours, theirs in zip(run(build, "cuda", strategy), run(build, "cpu", strategy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("build", PROBLEMS)
def test_a_fixed_number_of_iterations_never_waits(build):
    weight = torch.tensor(0.7, dtype=torch.float64, device="cuda", requires_grad=True)
    problem, algorithm = build("cuda", weight)
    state = algorithm.init(problem, None)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            state = algorithm.step(problem, state)
        algorithm.solution(state).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_mixed_devices_are_refused():
    A, b = randn(4, 3).cuda(), randn(4)
    with pytest.raises(lg.errors.InputError, match="devices"):
        lg.solve(lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0)), lg.ForwardBackward(0.1))
    problem = lg.Composite(lg.LeastSquares(A, b.cuda()), lg.L1(1.0))
    with pytest.raises(lg.errors.InputError, match="x0 is on cpu"):
        lg.solve(problem, lg.ForwardBackward(0.1), torch.zeros(3).double())


def test_repeated_solves_leave_memory_flat():
    def once():
        run(lasso, "cuda", lg.Implicit())
        run(total_variation, "cuda", lg.Unroll(checkpoint="sqrt"))

    once()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        once()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 4096


def test_a_solve_can_be_captured_in_a_cuda_graph():
    cost = randn(3, 16, 16).cuda().float()
    problem = lg.Saddle(lg.Differences(), lg.L1(), nonsmooth=lg.Simplex(dim=-3) + lg.Linear(cost))
    algorithm = lg.PrimalDual(0.3, 0.3, lg.Entropy(), UNIT)
    state = algorithm.init(problem, None)

    def steps():
        now = state
        for _ in range(10):
            now = algorithm.step(problem, now)
        return algorithm.solution(now)

    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            expected = steps()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = steps()
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(captured, expected)


def test_a_default_device():
    with torch.device("cuda"):
        weight = torch.tensor(0.1, requires_grad=True)
        form = lg.Quadratic(torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([1.0, -1.0]))
        for solver in (lg.GMRES(), lg.BiCGStab(), lg.CG(), lg.Direct(), lg.Neumann()):
            x = lg.solve(form + lg.L1(weight), gradient=lg.Implicit(solver), stop=lg.Stop(300)).x
            (slope,) = torch.autograd.grad(x.sum(), weight)
            assert slope.device.type == "cuda"
            assert slope.isfinite()
