"""Every problem, term, operator, algorithm and strategy gives the same numbers by an engine."""

import pytest
import torch
from random_problems import FAMILIES, Recipe
from random_problems import build as built

import legato as lg
from engines import compare
from legato._support.tree import tree_map
from makers import PROX_CASES, operators, randn
from problems import PROBLEMS

STRATEGIES = {
    "Unroll()": lambda *theta: lg.Unroll(),
    "Unroll(last=4)": lambda *theta: lg.Unroll(last=4),
    # To the last digit: an engine takes other roundings to its backward tolerance.
    "Implicit()": lambda *theta: lg.Implicit(lg.GMRES(tol=1e-13)),
    "FixedPoint()": lambda *theta: lg.FixedPoint(),
    "OneStep()": lambda *theta: lg.OneStep(),
}
FEW = lg.Stop(5)
STEP_BY_STEP = {"ridge", "logistic", "lasso by Newton", "polytope"}
"""Newton looks at values to choose its steps, and so does the mirror map of a polyhedron."""


@pytest.mark.parametrize(
    ("name", "strategy"),
    [(n, s) for n in PROBLEMS for s in STRATEGIES if n not in STEP_BY_STEP or s == "Unroll()"],
)
def test_a_fixed_number_of_iterations(name, strategy):
    small = PROBLEMS[name]
    found = compare(small.build, small.leaves, gradient=STRATEGIES[strategy], stop=FEW)
    assert found.fell_back == (name in STEP_BY_STEP)


@pytest.mark.parametrize("name", [n for n in PROBLEMS if n not in STEP_BY_STEP])
@pytest.mark.parametrize("strategy", ["Unroll()", "Unroll(last=4)", "Implicit()"])
def test_a_tolerance(name, strategy):
    small = PROBLEMS[name]
    stop = lg.Stop(30, tol=1e-3)
    found = compare(small.build, small.leaves, gradient=STRATEGIES[strategy], stop=stop)
    assert not found.fell_back


@pytest.mark.parametrize("name", ["lasso", "simplex least squares", "tv 1d", "potts"])
def test_single_precision(name):
    small = PROBLEMS[name]
    found = compare(
        small.build, lambda: small.leaves(torch.float32), stop=lg.Stop(30), gradient=lg.Unroll()
    )
    assert not found.fell_back


@pytest.mark.parametrize(
    "strategy", [lambda *t: lg.Forward(*t), lambda *t: lg.Unroll(checkpoint=3)]
)
@pytest.mark.parametrize("name", ["lasso", "tv 1d"])
def test_strategies_with_loops_of_their_own(name, strategy):
    small = PROBLEMS[name]
    compare(small.build, small.leaves, gradient=strategy, stop=FEW)


def test_piggyback():
    small = PROBLEMS["tv 1d"]
    compare(small.build, small.leaves, gradient=lg.Piggyback(), stop=lg.Stop(300))


ONE_IMAGE = [n for n, case in operators().items() if not isinstance(case.operator, lg.Stack)]


@pytest.mark.parametrize("name", ONE_IMAGE)
def test_every_operator(name):
    case = operators()[name]
    data = case.point(3)

    def build(y, weight):
        term = lg.SquaredDistance(y)
        return lg.Saddle(case.operator, lg.L1(weight), nonsmooth=term), lg.PrimalDual(0.01, 0.01)

    found = compare(build, lambda: leaves(data, torch.tensor(0.2, dtype=data.dtype)), stop=FEW)
    # Derivatives of circular padding and of Fourier transforms write in place; SciPy is not seen.
    unrecorded = {"Convolution, circular", "Blur", "Blur 1-D, zero", "Blur 2-D, zero"}
    unrecorded |= {"Blur 2-D, mirror", "from_scipy"}
    assert found.fell_back == (name in unrecorded), found.reasons


def test_stacks():
    def build(y, w):
        return (lg.SquaredDistance(y) + w * lg.L1() @ lg.Differences() + lg.L1(0.1),)

    found = compare(build, lambda: leaves(randn(6, 5), torch.tensor(0.2).double()), stop=FEW)
    assert not found.fell_back


UNRECORDED = {
    "L1-Interval-1", "LInfBall-Interval-1", "Box-Interval-2", "GroupL1-Euclidean-1",
    "SparseGroupL1-Euclidean-1", "SecondOrderCone-Euclidean-0", "SecondOrderCone-Euclidean-1",
    "Quadratic-Euclidean-0",
}  # fmt: skip
"""Learned ends, whose derivative in clamp torch computes in place; groups, which are counted;
norms of cones, whose derivative at 0 it masks in place; conjugate gradients, which count."""


@pytest.mark.parametrize(("name", "case"), PROX_CASES, ids=[n for n, _ in PROX_CASES])
def test_every_prox(name, case):
    """min ½‖x − c‖² + g in the geometry of the pair, with a small step."""
    centre = tuple(randn(*t.shape, seed=5) for t in case.y) if isinstance(case.y, tuple) else None

    def build(c, *parameters):
        g, geometry = case.build(*parameters)
        if centre is None:
            smooth = lg.Smooth(lambda x: 0.5 * ((x - c) ** 2).sum())
        else:
            smooth = lg.Smooth(
                lambda x: sum(
                    0.5 * ((u - c.mean() * t) ** 2).sum() for u, t in zip(x, centre, strict=True)
                )
            )
        inside = case.feasible(7)
        if not isinstance(geometry, lg.Euclidean):  # their starts lie strictly inside
            inside = tree_map(lambda t: t + 1e-3 * (t == 0), inside)
        return lg.Composite(smooth, g), lg.ForwardBackward(0.05, geometry), inside

    y = case.y if centre is None else case.y[0]
    try:
        build(torch.zeros_like(y), *case.parameters)
    except lg.errors.InputError as error:
        pytest.skip(str(error))
    found = compare(build, lambda: leaves(0.3 * y, *case.parameters), stop=FEW)
    assert found.fell_back == (name in UNRECORDED), found.reasons


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_and_variants(family):
    for number, variant in enumerate(FAMILIES[family][1]):
        batch = 1 if family in ("logistic", "potts", "game", "group lasso") else 3
        recipe = Recipe(family, variant, "float64", 4, 3.0, 0.1, batch, number)
        case = built(recipe)
        for stop in (FEW, lg.Stop(25, tol=1e-2)):
            found = compare(case.make, case.leaves, stop=stop, gradient=lg.Unroll())
            expected = variant == "backtracking" or family in UNRECORDED_FAMILIES
            assert found.fell_back == expected, (variant, found.reasons)


UNRECORDED_FAMILIES = {"group lasso", "box", "polytope"}
"""Groups are counted, ends of a box are computed from each other, a polyhedron searches."""


def test_two_unknowns_in_two_geometries():
    geometry = lg.Product(lg.Entropy(), lg.Interval(-1.0, 1.0))

    def build(c, d):
        smooth = lg.Smooth(lambda x: 0.5 * ((x[0] - c) ** 2).sum() + 0.5 * ((x[1] - d) ** 2).sum())
        g = lg.Separable(lg.Simplex(), lg.Zero())
        start = (torch.full((4,), 0.25, dtype=c.dtype), torch.zeros_like(d))
        return lg.Composite(smooth, g), lg.ForwardBackward(0.3, geometry), start

    found = compare(build, lambda: leaves(randn(4), 0.3 * randn(3)), stop=lg.Stop(25))
    assert not found.fell_back


@pytest.mark.parametrize(
    "algorithm",
    [
        lg.ForwardBackward(0.05),
        lg.ForwardBackward(0.05, inertia=0.3),
        lg.ForwardBackward(inertia=lg.Nesterov()),
        lg.ForwardBackward(inertia=lg.Nesterov(restart=True)),
        lg.ForwardBackward(inertia=lg.Nesterov(restart=4)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("stop", [lg.Stop(30), lg.Stop(200, tol=1e-6)], ids=repr)
def test_momentum_and_restarts(algorithm, stop):
    A = randn(20, 8, seed=1) * torch.logspace(0, -1, 8, dtype=torch.float64)

    def build(b, w):
        return lg.Composite(lg.LeastSquares(A, b), lg.L1(w)), algorithm

    found = compare(
        build, lambda: leaves(randn(3, 20, seed=2), torch.tensor(0.1).double()), stop=stop
    )
    assert not found.fell_back


@pytest.mark.parametrize("average", [True, lg.Average()], ids=repr)
@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Unroll(last=5)], ids=repr)
def test_averages(average, gradient):
    def build(y, w):
        problem = lg.Saddle(lg.Differences((-1,)), lg.L1(w), nonsmooth=lg.SquaredDistance(y))
        return problem, lg.PrimalDual(average=average)

    found = compare(
        build, lambda: leaves(randn(2, 9), torch.tensor(0.2).double()), stop=lg.Stop(25),
        gradient=gradient,
    )  # fmt: skip
    assert not found.fell_back


def leaves(*tensors):
    return tuple(t.detach().clone().requires_grad_() for t in tensors)
