"""The front door: what `solve` returns, and everything that must flow through it."""

import pytest
import torch
from torch import nn

import legato as lg
from legato import errors
from legato.errors import InputError
from makers import rand, randn

A, b = randn(8, 5, seed=1), randn(8, seed=2)


def lasso(weight=0.7, matrix=A, data=b):
    return lg.Composite(lg.LeastSquares(matrix, data), lg.L1(weight))


def tv(noisy, weight):
    term = lg.SquaredDistance(noisy)
    return lg.Saddle(lg.Differences(), lg.L1(weight), nonsmooth=term)


def test_solution_reports_what_happened():
    s = lg.solve(lasso(), lg.ForwardBackward(), stop=lg.Stop(5000, tol=1e-12), trace=True)
    assert s.converged is True
    assert float(s.residual) <= 1e-12
    assert s.iterations == len(s.trace.objective) == len(s.trace.residual) < 5000
    assert s.trace.residual[-1] == s.residual
    assert float(s.trace.objective[-1]) == pytest.approx(float(lasso().objective(s.x)), rel=1e-12)
    assert all(
        later <= earlier + 1e-12
        for earlier, later in zip(s.trace.objective, s.trace.objective[1:], strict=False)
    )
    expected = 1 / torch.linalg.matrix_norm(A, ord=2) ** 2
    assert float(s.steps["step"]) == pytest.approx(float(expected), rel=1e-9)
    assert s.y is None
    assert s.backward.residual is None


def test_stop_by_iterations_by_residual_and_by_both():
    by_count = lg.solve(lasso(), lg.ForwardBackward(), stop=lg.Stop(7))
    assert (by_count.iterations, by_count.converged, by_count.trace) == (7, None, None)
    with pytest.warns(errors.NotConvergedWarning, match="after 7 iterations"):
        missed = lg.solve(lasso(), lg.ForwardBackward(), stop=lg.Stop(7, tol=1e-14))
    assert (missed.iterations, missed.converged) == (7, False)
    every = lg.solve(lasso(), lg.ForwardBackward(), stop=lg.Stop(5000, tol=1e-8, every=50))
    assert every.iterations % 50 == 0
    assert every.converged


def test_the_trace_costs_nothing_when_it_is_off():
    class Counting(lg.Composite):
        calls = 0

        def objective(self, x):
            Counting.calls += 1
            return super().objective(x)

    problem = Counting(lg.LeastSquares(A, b), lg.L1(0.7))
    lg.solve(problem, lg.ForwardBackward())
    assert Counting.calls == 0
    lg.solve(problem, lg.ForwardBackward(), trace=True)
    assert Counting.calls == 100


def test_the_solution_of_the_same_problem_continues_the_iteration():
    algorithm = lg.ForwardBackward(inertia=lg.Nesterov())
    problem = lasso()
    whole = lg.solve(problem, algorithm, stop=lg.Stop(30))
    half = lg.solve(problem, algorithm, stop=lg.Stop(12))
    rest = lg.solve(problem, algorithm, half, stop=lg.Stop(18))
    torch.testing.assert_close(rest.x, whole.x, rtol=0, atol=0)
    problem, averaged = tv(randn(6, 5, seed=3), 0.3), lg.PrimalDual(average=True)
    whole = lg.solve(problem, averaged, stop=lg.Stop(30))
    half = lg.solve(problem, averaged, stop=lg.Stop(12))
    rest = lg.solve(problem, averaged, half, stop=lg.Stop(18))
    torch.testing.assert_close(rest.x, whole.x, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "gradient", [lg.Unroll(), lg.Implicit(lg.GMRES(1e-12)), lg.FixedPoint(5000, 1e-12)], ids=repr
)
def test_gradients_reach_tensors_hidden_in_closures_and_modules(gradient):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Softplus()).double()
    scale = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    nn.init.constant_(module[0].bias, 0.1)

    def energy(x):
        return scale * 0.05 * module(x).square() + 0.0

    def loss():
        smooth = lg.Smooth(lambda x: energy(x).sum() + 0.5 * (A @ x - b).square().sum())
        problem = lg.Composite(smooth, lg.L1(0.1))
        s = lg.solve(
            problem,
            lg.ForwardBackward(0.03),
            torch.zeros(5).double(),
            gradient=gradient,
            stop=lg.Stop(1000),
        )
        return s.x.square().sum()

    tensors = [scale, *module.parameters()]
    grads = torch.autograd.grad(loss(), tensors)
    for tensor, grad in zip(tensors, grads, strict=True):
        direction = randn(*tensor.shape, seed=4) if tensor.ndim else torch.ones(()).double()
        h, values = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                tensor += sign * h * direction
                values.append(float(loss()))
                tensor -= sign * h * direction
        slope = (values[0] - values[1]) / (2 * h)
        assert float((grad * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_a_module_itself_can_be_the_smooth_term():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.target = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            return 0.5 * (x - self.target).square()

    energy = Energy()
    s = lg.solve(
        lg.Composite(lg.Smooth(energy, constant=1.0)), lg.ForwardBackward(), torch.zeros(2)
    )
    s.x.sum().backward()
    torch.testing.assert_close(energy.target.grad, torch.ones(2))


def test_gradcheck_in_the_data_and_the_start():
    def function(matrix, data, weight, x0):
        problem = lg.Composite(lg.LeastSquares(matrix, data), lg.L1(weight))
        return lg.solve(problem, lg.ForwardBackward(0.03), x0, stop=lg.Stop(8)).x

    inputs = [A, b, torch.full((5,), 0.4).double(), randn(5, seed=5)]
    assert torch.autograd.gradcheck(function, [t.clone().requires_grad_() for t in inputs])


def test_double_backward_through_unroll():
    def function(data, weight):
        problem = lg.Composite(lg.LeastSquares(A, data), lg.Simplex())
        algorithm = lg.ForwardBackward(0.03, lg.Entropy())
        return (lg.solve(problem, algorithm, stop=lg.Stop(6)).x * weight).sum()

    inputs = (b.clone().requires_grad_(), randn(5, seed=6).requires_grad_())
    assert torch.autograd.gradgradcheck(function, inputs)


def test_double_backward_through_the_fixed_point_family_is_refused():
    weight = torch.tensor(0.7).double().requires_grad_()
    s = lg.solve(
        lasso(weight), lg.ForwardBackward(), gradient=lg.Implicit(), stop=lg.Stop(5000, tol=1e-12)
    )
    with pytest.raises(lg.errors.GradientError, match="Second derivatives"):
        torch.autograd.grad(s.x.square().sum(), weight, create_graph=True)


def _batched_cases():
    data, costs = randn(4, 8, seed=7), randn(4, 3, 5, 6, seed=8)
    potts = lg.PrimalDual(0.3, 0.3, geometry=lg.Entropy(), dual_geometry=lg.Interval(-1.0, 1.0))
    return {
        "lasso": (lambda d: lasso(data=d), lg.ForwardBackward(), data),
        "simplex": (
            lambda d: lg.Composite(lg.LeastSquares(A, d), lg.Simplex()),
            lg.ForwardBackward(geometry=lg.Entropy()),
            data,
        ),
        "one matrix each": (
            lambda m: lg.Composite(lg.LeastSquares(m, b), lg.NonNegative()),
            lg.ForwardBackward(),
            randn(4, 8, 5, seed=9),
        ),
        "TV": (lambda d: tv(d, 0.3), lg.PrimalDual(), randn(4, 6, 5, seed=10)),
        "Potts": (
            lambda c: lg.Saddle(
                lg.Differences(), lg.L1(), nonsmooth=lg.Simplex(dim=-3) + lg.Linear(c)
            ),
            potts,
            costs,
        ),
    }


@pytest.mark.parametrize("name", _batched_cases())
def test_a_batch_equals_single_solves(name):
    build, algorithm, data = _batched_cases()[name]
    data = data.requires_grad_()
    start = None
    if name == "one matrix each":
        start = torch.zeros(4, 5).double()
    together = lg.solve(build(data), algorithm, start, stop=lg.Stop(25)).x
    singles = [
        lg.solve(build(d), algorithm, None if start is None else start[0], stop=lg.Stop(25)).x
        for d in data
    ]
    torch.testing.assert_close(together, torch.stack(singles), rtol=1e-12, atol=1e-12)
    weights = randn(*together.shape, seed=11)
    (batch,) = torch.autograd.grad((weights * together).sum(), data)
    (alone,) = torch.autograd.grad((weights * torch.stack(singles)).sum(), data)
    torch.testing.assert_close(batch, alone, rtol=1e-11, atol=1e-12)


def test_functional_transforms():
    def value(weight):
        return lg.solve(lasso(weight), lg.ForwardBackward(0.03), stop=lg.Stop(15)).x

    weight = torch.tensor(0.7).double()
    reverse, forward = torch.func.jacrev(value)(weight), torch.func.jacfwd(value)(weight)
    torch.testing.assert_close(reverse, forward)
    both = torch.func.vmap(value)(torch.stack([weight, 2 * weight]))
    torch.testing.assert_close(both, torch.stack([value(weight), value(2 * weight)]))

    def smooth(weight):
        problem = lg.Composite(lg.Smooth(lambda x: 0.5 * (A @ x - b) ** 2), lg.L1(weight))
        start = torch.zeros(5).double()
        return lg.solve(problem, lg.ForwardBackward(0.03), start, stop=lg.Stop(15)).x

    torch.testing.assert_close(torch.func.jacrev(smooth)(weight), reverse)

    def implicit(weight):
        algorithm = lg.ForwardBackward(0.03)
        return lg.solve(lasso(weight), algorithm, gradient=lg.Implicit()).x

    with pytest.raises(lg.errors.GradientError, match=r"torch\.func"):
        torch.func.jacrev(implicit)(weight)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at it
def test_torch_compile():
    problem = lasso(torch.tensor(0.7).double().requires_grad_())

    def value(scale):
        algorithm = lg.ForwardBackward(0.03)
        data = lg.LeastSquares(A, scale * b)
        return lg.solve(lg.Composite(data, problem.nonsmooth), algorithm, stop=lg.Stop(10)).x

    scale = torch.tensor(1.1).double().requires_grad_()
    compiled = torch.compile(value, backend="aot_eager")
    torch.testing.assert_close(compiled(scale), value(scale))
    ours = torch.autograd.grad(compiled(scale).sum(), scale)
    torch.testing.assert_close(ours, torch.autograd.grad(value(scale).sum(), scale))
    whole = torch.compile(value, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(scale), value(scale))


def test_nothing_is_attached_where_no_gradient_is_wanted():
    for gradient in (lg.Unroll(last=3), lg.Implicit(), lg.FixedPoint(), lg.OneStep()):
        s = lg.solve(lasso(), lg.ForwardBackward(), gradient=gradient)
        assert not s.x.requires_grad
        weight = torch.tensor(0.7).double().requires_grad_()
        with torch.no_grad():
            s = lg.solve(lasso(weight), lg.ForwardBackward(), gradient=gradient)
        assert not s.x.requires_grad


def test_gap_bounds_the_distance_to_the_optimum():
    noisy = randn(6, 5, seed=3)
    problem = tv(noisy, 0.3)
    best = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(5000)).x
    for n in (5, 50, 500):
        s = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(n))
        gap = float(problem.gap(s.x, s.y))
        assert gap >= float(problem.objective(s.x) - problem.objective(best)) - 1e-12
    assert gap < 1e-4
    both = lg.Saddle(A, lg.L1(1.0), lg.Quadratic(torch.eye(5).double(), b[:5]), lg.L1(1.0))
    with pytest.raises(lg.errors.MissingConjugateError, match="gap"):
        both.gap(b[:5], b)


def test_values_follow_dtype_of_the_data():
    for dtype in (torch.float32, torch.float64):
        s = lg.solve(lasso(matrix=A.to(dtype), data=b.to(dtype)), lg.ForwardBackward())
        assert s.x.dtype == dtype
        weights = rand(2, 6, 5, dtype=dtype)
        problem = lg.Saddle(
            lg.Differences(weights=weights),
            lg.Box(-1.0, 1.0),
            nonsmooth=lg.SquaredDistance(randn(6, 5, dtype=dtype)),
        )
        s = lg.solve(problem, lg.PrimalDual())
        assert s.x.dtype == s.y.dtype == dtype


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit()], ids=repr)
def test_autocast_never_reaches_inside_a_solver(gradient):
    def run():
        weight = torch.tensor(0.7, requires_grad=True)
        problem = lg.Composite(lg.LeastSquares(A.float(), b.float()), lg.L1(weight))
        s = lg.solve(problem, lg.ForwardBackward(0.03), gradient=gradient, stop=lg.Stop(300))
        s.x.square().sum().backward()
        return s.x.detach(), weight.grad

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run()
    for a, b_ in zip(plain, cast, strict=True):
        torch.testing.assert_close(a, b_, rtol=1e-6, atol=1e-7)


def test_the_residual_of_very_large_numbers_is_a_number():
    """In float32 the norm of 1e20 overflows; a change divided by it would look like convergence."""
    data = lg.LeastSquares(torch.eye(3), torch.full((3,), 1e20))
    problem = lg.Composite(data)
    found = lg.solve(problem, lg.ForwardBackward(0.01), stop=lg.Stop(5000, tol=1e-6))
    assert found.converged
    assert found.iterations > 500
    torch.testing.assert_close(found.x, torch.full((3,), 1e20), rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [1e-290, 1e-170, 1e-80, 1e80, 1e170])
@pytest.mark.parametrize("strategy", [lg.Unroll(), lg.Implicit(), lg.FixedPoint()], ids=repr)
def test_data_beyond_the_range_of_double_precision_are_refused(size, strategy):
    """Squares of such data are no numbers: a residual of 0 would end the solve after one step."""
    A, b = randn(6, 4, seed=1), randn(6, seed=2) * size
    weight = torch.tensor(0.3 * size, dtype=torch.float64, requires_grad=True)
    with pytest.raises(InputError, match=r"\bb\b.*between 1e-75 and 1e\+75"):
        lg.solve(
            lg.LeastSquares(A, b) + lg.L1(weight), gradient=strategy, stop=lg.Stop(500, tol=1e-6)
        )


@pytest.mark.parametrize("size", [1e-70, 1e-30, 1.0, 1e30, 1e70])
@pytest.mark.parametrize(
    "strategy", [lg.Unroll(), lg.Implicit(), lg.Implicit(lg.CG()), lg.FixedPoint(500)], ids=repr
)
def test_units_do_not_matter_inside_it(size, strategy):
    A, b = randn(6, 4, seed=1), randn(6, seed=2)

    def solved(scale):
        weight = torch.tensor(0.3 * scale, dtype=torch.float64, requires_grad=True)
        stop = lg.Stop(5000, tol=1e-10)
        x = lg.solve(lg.LeastSquares(A, b * scale) + lg.L1(weight), gradient=strategy, stop=stop).x
        x.sum().backward()
        return x.detach() / scale, weight.grad

    (x, slope), (x_one, slope_one) = solved(size), solved(1.0)
    torch.testing.assert_close(x, x_one)
    torch.testing.assert_close(slope, slope_one, rtol=1e-5, atol=1e-8)


def test_a_small_weight_is_no_matter_of_range():
    energy = lg.LeastSquares(torch.eye(2).double(), torch.ones(2).double())
    tiny = torch.full((2,), 1e-300, dtype=torch.float64)
    assert lg.solve(energy + lg.L1(tiny)).x.tolist() == [1.0, 1.0]
    bounds = torch.full((2,), float("inf"), dtype=torch.float64)
    assert lg.solve(energy + lg.Box(-bounds, bounds)).x.tolist() == [1.0, 1.0]
