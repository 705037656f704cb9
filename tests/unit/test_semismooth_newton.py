"""Newton's method for nonsmooth energies: closed forms, differences, batches, ties, refusals."""

import warnings

import pytest
import torch

import legato as lg
from legato.errors import InexactGradientWarning, InputError, NonContractiveWarning
from makers import rand, randn

A, b, SLOPE = randn(20, 8, seed=1), randn(20, seed=2), randn(8, seed=3)
SORTED = SLOPE.abs().sort().values.flip(0)
BEHIND, NOISY = randn(6, 8, seed=8), randn(5, 4, seed=7)
UNTIL = lg.Stop(60, tol=1e-12)


def lasso(weight, matrix=A, data=b):
    return lg.Composite(lg.LeastSquares(matrix, data), lg.L1(weight))


def loss(x):
    flat = x.flatten()
    return (torch.linspace(-1, 2, len(flat)).to(x) * flat).sum() + flat.square().sum()


def solved(problem, gradient=None, stop=UNTIL):
    return lg.solve(problem, lg.Newton(), gradient=gradient, stop=stop)


@torch.no_grad()
def along(make, theta, direction, h=1e-6):
    """The derivative of the loss, by differences of solutions in one direction."""
    ends = [loss(solved(make(theta + s * h * direction)).x) for s in (1, -1)]
    return (ends[0] - ends[1]) / (2 * h)


CASES = {
    "lasso, weights": (lasso, 0.5 + rand(8, seed=4)),
    "lasso, matrix": (lambda t: lasso(3.0, t), A),
    "box": (lambda t: lg.Composite(lg.LeastSquares(A, t), lg.Box(-0.1, 0.2)), b),
    "simplex": (lambda t: lg.Composite(lg.LeastSquares(A, t), lg.Simplex()), b),
    "groups": (
        lambda t: lg.Composite(
            lg.LeastSquares(A, b), lg.GroupL1(t, groups=torch.arange(8) // 2)
        ),
        0.5 + rand(4, seed=5),
    ),
    "sorted": (lambda t: lg.Composite(lg.LeastSquares(A, t), lg.SortedL1(SORTED)), b),
    "logistic": (
        lambda t: lg.Composite(lg.Logistic(A, torch.sign(b)), lg.L1(t) + lg.SquaredNorm(0.1)),
        0.1 + rand(8, seed=6),
    ),
    "a callable": (
        lambda t: lg.Composite(lg.Smooth(lambda x: torch.cosh(A @ x - t)), lg.L1(0.5)),
        0.3 * b,
    ),
    "total variation": (
        lambda t: lg.SquaredDistance(t) + lg.L1(0.3) @ lg.Differences(),
        NOISY,
    ),
    "isotropic": (lambda t: lg.SquaredDistance(t) + lg.IsotropicTV(0.3), NOISY),
    "behind a matrix": (
        lambda t: lg.Saddle(
            BEHIND, lg.L1(1.0), lg.LeastSquares(A, t), lg.NonNegative()
        ),
        b,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", [lg.OneStep(), lg.Implicit(), lg.Unroll()])
def test_every_strategy_is_exact_at_a_solution(name, strategy):
    make, theta = CASES[name]
    theta = theta.clone().requires_grad_()
    x0 = torch.zeros(8).double() if name == "a callable" else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if x0 is None:
            x = solved(make(theta), strategy).x
        else:
            x = lg.solve(make(theta), lg.Newton(), x0, gradient=strategy, stop=UNTIL).x
        loss(x).backward()
    direction = randn(*theta.shape, seed=9)

    def value(s):
        problem = make(theta.detach() + s * direction)
        return loss(lg.solve(problem, lg.Newton(), x0, stop=UNTIL).x)

    with torch.no_grad():
        expected = (value(1e-6) - value(-1e-6)) / 2e-6
    torch.testing.assert_close((theta.grad * direction).sum(), expected, rtol=2e-7, atol=1e-8)


def test_total_variation_of_sequences_to_the_last_digits():
    y = torch.repeat_interleave(randn(12, seed=10), 10) + 0.2 * randn(120, seed=11)
    found = solved(lg.SquaredDistance(y) + lg.L1(0.5) @ lg.Differences((-1,)))
    expected = lg.TotalVariation1D(0.5).prox(y)
    torch.testing.assert_close(found.x, expected, rtol=0, atol=1e-12)


def test_optimality_of_a_wide_lasso_and_its_small_systems():
    matrix, truth = randn(60, 200, seed=12), torch.zeros(200).double()
    truth[::25] = 2.0
    data = matrix @ truth + 0.1 * randn(60, seed=13)
    weight = 0.1 * (matrix.T @ data).abs().max()
    x = solved(lasso(weight, matrix, data)).x
    slope = matrix.T @ (matrix @ x - data)
    active = x != 0
    assert 8 <= int(active.sum()) < 40
    torch.testing.assert_close(slope[active], -weight * x[active].sign(), rtol=1e-11, atol=1e-11)
    assert bool((slope[~active].abs() <= weight).all())


@pytest.mark.parametrize(
    "penalty", [lg.L1(0.4), lg.L1(0.4) + lg.SquaredNorm(0.1), lg.Box(-0.05, 0.1), lg.NonNegative()]
)
def test_working_sets_end_at_the_solution_of_all_entries(penalty):
    matrix = randn(50, 300, seed=17)
    problem = lg.Composite(lg.Logistic(matrix, torch.sign(matrix[:, 0] + 0.5)), penalty)
    ridge = lg.Composite(lg.LeastSquares(matrix, randn(50, seed=18)), penalty + lg.SquaredNorm(1.0))
    for each in (problem, ridge) if isinstance(penalty, lg.L1) else (ridge,):
        found = solved(each)
        x, tau = found.x, 1 / each.smooth.lipschitz()
        assert bool(found.converged)
        again = each.nonsmooth.prox(x - tau * each.smooth.grad(x), tau)
        torch.testing.assert_close(again, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [
    lambda d: lasso(torch.tensor([[0.5], [1e-3], [1e4]]).double(), A, d),
    lambda d: lg.Composite(lg.LeastSquares(A, d), lg.Simplex()),
    lambda d: lg.Saddle(lg.Differences((-1,)), lg.L1(0.3), nonsmooth=lg.SquaredDistance(d)),
])  # fmt: skip
def test_a_batch_is_a_loop_and_each_element_stops_by_itself(make):
    data = (torch.tensor([[1.0], [1e-3], [10.0]]).double() * randn(3, 20, seed=14)).requires_grad_()
    whole = solved(make(data), lg.OneStep())
    assert bool(whole.converged.all())
    (together,) = torch.autograd.grad(loss(whole.x), data)
    for i in range(3):
        problem = make(data)
        if isinstance(problem, lg.Composite) and isinstance(problem.nonsmooth, lg.L1):
            problem = lasso(problem.nonsmooth.weight[i], A, data[i])
        else:
            problem = make(data[i])
        one = solved(problem, lg.OneStep())
        torch.testing.assert_close(whole.x[i], one.x, rtol=1e-10, atol=1e-12)
    assert together.isfinite().all()


def test_a_dual_that_is_not_unique_is_no_reason_to_warn():
    y = torch.tensor([[0.0, 0.1], [1.0, 1.2], [0.1, 0.0]]).double().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = solved(lg.SquaredDistance(y) + lg.L1(0.9) @ lg.Differences(), lg.OneStep()).x
        x[0, 0].backward()
    torch.testing.assert_close(y.grad, torch.full((3, 2), 1 / 6).double())  # one region


def test_equal_columns_are_told_where_the_loss_sees_them():
    double = torch.cat([A[:, :3], A[:, :1]], 1)
    weight = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    with pytest.warns(NonContractiveWarning, match="outside the range"):
        solved(lasso(weight, double), lg.OneStep()).x[0].backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = solved(lasso(weight, double), lg.OneStep()).x
        (x[0] + x[3]).backward()  # which is determined


def test_a_solution_on_a_kink_is_told():
    """The entry leaves 0 at this very weight: dx/dw is 0 on one side and −1 on the other."""
    weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    data = torch.tensor([1.0, 3.0]).double()
    with pytest.warns(InexactGradientWarning, match="Complementarity is not strict"):
        solved(lasso(weight, torch.eye(2).double(), data), lg.OneStep()).x.sum().backward()
    assert float(weight.grad) in (-1.0, -2.0)


def test_weights_of_zero():
    weights = torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1]).double()
    x = solved(lasso(weights)).x
    slope = A.T @ (A @ x - b)
    torch.testing.assert_close(slope[:4], torch.zeros(4).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(x, lg.solve(lasso(weights), stop=lg.Stop(20000, tol=1e-14)).x)


def test_starts_of_other_problems():
    cold = solved(lasso(1.0))
    warm = lg.solve(lasso(1.01), lg.Newton(), cold.state, stop=UNTIL)
    torch.testing.assert_close(warm.x, solved(lasso(1.01)).x, rtol=1e-11, atol=1e-13)
    assert warm.iterations <= 3
    smooth = lg.Composite(lg.LeastSquares(A, b), lg.SquaredNorm(1.0))
    there = lg.solve(smooth, lg.Newton(), cold.state, stop=UNTIL).x
    torch.testing.assert_close(there, solved(smooth).x)
    torch.testing.assert_close(
        lg.solve(lasso(1.0), lg.Newton(), solved(smooth).state, stop=UNTIL).x, cold.x
    )


def test_what_is_refused():
    curved = lg.ForwardBackward(geometry=lg.Entropy())
    with pytest.raises(InputError, match="Euclidean geometry"):
        lg.Newton(base=curved)
    with pytest.raises(InputError, match=r"Newton\(base=PrimalDual"):
        lg.solve(
            lg.Saddle(A, lg.L1(), nonsmooth=lg.SquaredNorm()), lg.Newton(base=lg.ForwardBackward())
        )
    problem = lg.Saddle(A, lg.L1(), nonsmooth=lg.SquaredNorm())
    with pytest.raises(InputError, match="Averages are no fixed points"):
        lg.solve(problem, lg.Newton(base=lg.PrimalDual(average=True)))
    for adapts in lg.PrimalDual(restart=lg.Restart()), lg.PrimalDual(balance=lg.AdaptiveBalance()):
        with pytest.raises(InputError, match="Newton takes single steps of its base"):
            lg.solve(problem, lg.Newton(base=adapts))


def test_checkpoints_compute_their_segments_once():
    """A product with a Hessian belongs to the segment that asks for it, and computes no other."""
    A, calls = randn(6, 9, seed=3), 0

    def softplus(x):
        nonlocal calls
        calls += 1
        return torch.nn.functional.softplus(x @ A).sum(-1)

    counts, slopes = [], []
    for checkpoint in (None, 4):
        radius, calls = torch.tensor(0.7).double().requires_grad_(), 0
        smooth = lg.Smooth(softplus, constant=20.0, coupled=1) + lg.SquaredDistance(
            randn(6, seed=4)
        )
        problem = lg.Composite(smooth, lg.L2Ball(radius))
        strategy = lg.Unroll(checkpoint=checkpoint)
        lg.solve(problem, lg.Newton(), gradient=strategy, stop=lg.Stop(16)).x.sum().backward()
        counts.append(calls)
        slopes.append(radius.grad)
    assert counts[0] <= counts[1] <= 2 * counts[0]
    torch.testing.assert_close(*slopes)
