"""Each element of a batch stops by itself: what it returns is what it would return alone."""

import pytest
import torch

import legato as lg
from engines import REPLAYED
from makers import randn

ENGINES = pytest.mark.parametrize("engine", [lg.Eager(), REPLAYED], ids=repr)
SIZES = torch.tensor([1.0, 1e-3, 1e3, 30.0], dtype=torch.float64)
"""Elements whose solutions differ in size by a factor of a million."""
MATRICES = torch.stack(
    [
        randn(12, 5, seed=i) * torch.logspace(0, -end, 5, dtype=torch.float64)
        for i, end in enumerate((0.0, 0.5, 1.0, 0.2))
    ]
)
DATA = randn(4, 12, seed=9) * SIZES[:, None]
WEIGHTS = 0.1 * SIZES[:, None]
STOP = lg.Stop(3000, tol=1e-7)


def lasso(A, b, w, algorithm, gradient, engine, stop=STOP):
    weight = w.clone().requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(weight))
    solution = lg.solve(problem, algorithm, gradient=gradient, stop=stop, engine=engine)
    (gradient_of,) = torch.autograd.grad(solution.x.sum(), weight)
    return solution, gradient_of


@ENGINES
@pytest.mark.parametrize(
    "gradient",
    [lg.Unroll(), lg.Unroll(last=15), lg.Implicit(lg.GMRES(1e-12))],
    ids=repr,
)
@pytest.mark.parametrize("inertia", [0.0, lg.Nesterov(restart=True)], ids=repr)
def test_a_batch_is_its_elements(gradient, inertia, engine):
    algorithm = lg.ForwardBackward(inertia=inertia)
    batch, slopes = lasso(MATRICES, DATA, WEIGHTS, algorithm, gradient, engine)
    assert batch.iterations.shape == batch.residual.shape == batch.converged.shape == (4,)
    assert len(set(batch.iterations.tolist())) > 2
    assert bool(batch.converged.all())
    for i in range(4):
        one, slope = lasso(MATRICES[i], DATA[i], WEIGHTS[i], algorithm, gradient, engine)
        assert one.iterations == int(batch.iterations[i])
        torch.testing.assert_close(batch.x[i], one.x, rtol=1e-9, atol=1e-12 * float(SIZES[i]))
        torch.testing.assert_close(batch.residual[i], one.residual, rtol=1e-3, atol=0)
        torch.testing.assert_close(slopes[i], slope, rtol=1e-7, atol=1e-9)


@ENGINES
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lg.Unroll(), lg.Unroll(checkpoint="sqrt")),
        (lg.Unroll(), lg.Unroll(tol=1e-14)),
        (lg.Unroll(last=8), lg.Unroll(last=8, checkpoint=3)),
    ],
    ids=repr,
)
def test_elements_of_their_own_length_are_swept_alike(one, other, engine):
    algorithm = lg.ForwardBackward()
    found = [lasso(MATRICES, DATA, WEIGHTS, algorithm, g, engine) for g in (one, other)]
    assert len(set(found[0][0].iterations.tolist())) > 1
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


@ENGINES
@pytest.mark.filterwarnings("ignore::legato.errors.NotConvergedWarning")
@pytest.mark.parametrize("every", [1, 7, 5000])
def test_looking_now_and_then(every, engine):
    stop = lg.Stop(40, tol=1e-4, every=every)
    algorithm = lg.ForwardBackward(inertia=0.0)
    batch, slopes = lasso(MATRICES, DATA, WEIGHTS, algorithm, lg.Unroll(), engine, stop)
    for i in range(4):
        args = (MATRICES[i], DATA[i], WEIGHTS[i], algorithm, lg.Unroll(), engine, stop)
        one, slope = lasso(*args)
        assert one.iterations == int(batch.iterations[i])
        assert one.converged == bool(batch.converged[i])
        torch.testing.assert_close(slopes[i], slope, rtol=1e-9, atol=1e-12)
    assert all(n % every == 0 or n == 40 for n in batch.iterations.tolist())


@ENGINES
def test_an_element_that_has_arrived_stays_where_it_is(engine):
    """Frozen at its tolerance, although another element needs many more iterations."""
    with torch.no_grad():
        loose = lg.Stop(3000, tol=1e-3)
        problem = lg.Composite(lg.LeastSquares(MATRICES, DATA), lg.L1(WEIGHTS))
        together = lg.solve(problem, lg.ForwardBackward(), stop=loose, engine=engine)
        first = int(together.iterations.argmin())
        alone = lg.solve(
            lg.Composite(lg.LeastSquares(MATRICES[first], DATA[first]), lg.L1(WEIGHTS[first])),
            lg.ForwardBackward(), stop=lg.Stop(int(together.iterations[first])), engine=engine,
        )  # fmt: skip
    torch.testing.assert_close(together.x[first], alone.x, rtol=1e-12, atol=1e-15)


@ENGINES
def test_a_missed_tolerance_is_told_for_its_element_alone(engine):
    with torch.no_grad():
        problem = lg.Composite(lg.LeastSquares(MATRICES, DATA), lg.L1(WEIGHTS))
        plain = lg.ForwardBackward(inertia=0.0)
        with pytest.warns(lg.errors.NotConvergedWarning):
            found = lg.solve(problem, plain, stop=lg.Stop(60, tol=1e-4), engine=engine)
    assert found.converged.any()
    assert not found.converged.all()
    assert bool((found.iterations[~found.converged] == 60).all())
    assert bool((found.iterations[found.converged] < 60).all())
    assert bool(((found.residual <= 1e-4) == found.converged).all())


@ENGINES
def test_saddles_of_a_batch(engine):
    y = torch.stack([randn(9, seed=i) * s for i, s in enumerate((1.0, 1e-3, 1e3))])
    weights = 0.2 * torch.tensor([1.0, 1e-3, 1e3], dtype=torch.float64).reshape(3, 1, 1)

    def solve(y, w):
        weight = w.clone().requires_grad_()
        problem = lg.Saddle(lg.Differences((-1,)), lg.L1(weight), nonsmooth=lg.SquaredDistance(y))
        stop = lg.Stop(3000, tol=1e-6)
        s = lg.solve(problem, lg.PrimalDual(), gradient=lg.Unroll(), stop=stop, engine=engine)
        return s, torch.autograd.grad(s.x.square().sum(), weight)[0]

    batch, slopes = solve(y, weights)
    for i in range(3):
        one, slope = solve(y[i], weights[i])
        assert one.iterations == int(batch.iterations[i])
        torch.testing.assert_close(batch.x[i], one.x, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(slopes[i], slope, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_elements_that_share_a_line_search_stop_together(count):
    """Three is also how many numbers Newton keeps in its state for all of them."""
    A = (
        randn(count, 20, 4, seed=1)
        * torch.logspace(0, 2, count, dtype=torch.float64)[:, None, None]
    )
    labels, weights = randn(count, 20, seed=2).sign(), torch.full((count, 1), 0.1).double()

    def solve(i):
        problem = lg.Composite(lg.Logistic(A[i], labels[i]), lg.SquaredNorm(weights[i]))
        return lg.solve(problem, lg.Newton(), stop=lg.Stop(100, tol=1e-10))

    batch = solve(slice(None))
    assert bool(batch.converged.all())
    assert len(set(batch.iterations.tolist())) == 1
    for i in range(count):
        torch.testing.assert_close(batch.x[i], solve(i).x, rtol=1e-8, atol=1e-10)
