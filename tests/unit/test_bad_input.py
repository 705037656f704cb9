"""Bad input gets a named error or warning that says what happened, why, and what to try."""

import pytest
import torch

import legato as lg
from error_words import raises
from legato import errors
from makers import randn

A, b = randn(8, 5, seed=1), randn(8, seed=2)
DATA = lg.LeastSquares(A, b)


def lasso(weight=0.7):
    return lg.Composite(DATA, lg.L1(weight))


def weight(value=0.7):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


# --- prox table -----------------------------------------------------------------------------------


def test_a_missing_pair_lists_the_existing_ones():
    with raises(errors.MissingProxError, r"\(GroupL1, Entropy\)", "Euclidean", "register_prox"):
        lg.prox(lg.GroupL1(1.0), lg.Entropy(), torch.ones(3), 1.0)


def test_users_register_their_own_pair():
    class Cube(lg.Function):
        def value(self, x):
            return (x.abs() ** 3).sum()

    with raises(errors.MissingProxError, r"\(Cube, Euclidean\)"):
        lg.prox(Cube(), lg.Euclidean(), torch.ones(2), 1.0)

    @lg.register_prox(Cube, lg.Euclidean)
    def _(g, geometry, y, alpha):
        return 2 * y / (1 + torch.sqrt(1 + 12 * alpha * y.abs()))

    y = randn(5)
    x = lg.prox(Cube(), lg.Euclidean(), y, 0.3)
    torch.testing.assert_close(x + 0.3 * 3 * x.abs() * x, y)


def test_two_prox_friendly_terms_have_no_common_prox():
    both = lg.Composite(DATA, lg.Simplex() + lg.L2Ball())
    with raises(errors.InputError, r"L2Ball\(\) has no closed-form prox", "Give the energy to"):
        lg.solve(both, lg.ForwardBackward())


def test_a_kernel_belongs_to_its_geometry():
    problem = lg.Composite(DATA, lg.Simplex() + lg.NegativeEntropy(0.1))
    with raises(errors.InputError, r"Entropy\(\)", r"Euclidean\(\)", "Give the algorithm"):
        lg.solve(problem, lg.ForwardBackward())


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "start"),
    [
        (lg.Entropy(), [1.0, 1.0, 0.0, 1.0, 1.0]),
        (lg.Entropy(), [1.0, -1.0, 1.0, 1.0, 1.0]),
        (lg.Burg(), [1.0, 1.0, 1.0, 1.0, 0.0]),
        (lg.Interval(0.0, 2.0), [1.0, 1.0, 2.0, 1.0, 1.0]),
    ],
    ids=repr,
)
def test_a_start_must_be_interior(geometry, start):
    algorithm = lg.ForwardBackward(0.01, geometry)
    with raises(errors.DomainError, "strictly inside", "1 of 5", "x0=None"):
        lg.solve(lg.Composite(DATA), algorithm, torch.tensor(start).double())


def test_a_product_says_which_block_is_outside():
    geometry = lg.Product(lg.Euclidean(), lg.Entropy())
    with raises(errors.DomainError, r"x0\[1\]"):
        geometry.require_interior((torch.zeros(2), torch.zeros(2)))
    with raises(errors.InputError, "tuples of 2"):
        geometry.mirror(torch.ones(2))


def test_shape_dtype_device_and_content_of_the_start():
    algorithm = lg.ForwardBackward(0.01)
    with raises(errors.InputError, r"\(4,\)", r"\(5,\)"):
        lg.solve(lasso(), algorithm, torch.zeros(4).double())
    with raises(errors.InputError, "float32", "float64", "never mixes"):
        lg.solve(lasso(), algorithm, torch.zeros(5))
    with raises(errors.InputError, "meta", "cpu"):
        lg.solve(lasso(), algorithm, torch.zeros(5, device="meta").double())
    with raises(errors.InputError, "floating-point", "int64"):
        lg.solve(lasso(), algorithm, torch.zeros(5, dtype=torch.int64))
    with raises(errors.InputError, "NaN"):
        lg.solve(lasso(), algorithm, torch.full((5,), torch.nan).double())
    with raises(errors.InputError, "empty"):
        lg.solve(lg.Composite(lg.Smooth(torch.square)), algorithm, torch.zeros(0))
    with raises(errors.InputError, "shape of its variable", "x0"):
        lg.solve(lg.Composite(lg.Smooth(torch.square)), algorithm)


EMPTY_ALGORITHMS = {
    "fixed step": lg.ForwardBackward(0.1),
    "derived step": lg.ForwardBackward(),
    "backtracking": lg.ForwardBackward(lg.Backtracking()),
    "Nesterov": lg.ForwardBackward(inertia=lg.Nesterov()),
    "chosen": None,
}
EMPTY_STRATEGIES = (
    lg.Unroll(),
    lg.Unroll(last=2),
    lg.Unroll(checkpoint=2),
    lg.Unroll(tol=1e-3),
    lg.Implicit(),
    lg.FixedPoint(),
    lg.OneStep(),
)


@pytest.mark.parametrize("tol", [None, 1e-6])
@pytest.mark.parametrize("name", EMPTY_ALGORITHMS)
def test_a_batch_without_elements(name, tol):
    algorithm, stop = EMPTY_ALGORITHMS[name], lg.Stop(5, tol=tol)
    nothing = torch.zeros(0, len(b)).double().requires_grad_()
    weights = torch.ones(0, 5).double().requires_grad_()
    for gradient in (*EMPTY_STRATEGIES, lg.Forward(nothing, weights)):
        energies = (
            lg.LeastSquares(A, nothing) + lg.L1(0.1),
            lg.LeastSquares(A, b) + lg.L1(weights),
        )
        for energy in energies:
            for x0 in (None, torch.zeros(5).double()):
                with raises(errors.InputError, "empty", r"\(0, ", "nothing to solve for"):
                    lg.solve(energy, algorithm, x0, gradient=gradient, stop=stop)


def test_other_problems_without_elements():
    nothing = torch.zeros(0, 4).double()
    eye = torch.eye(4).double()
    saddle = lg.SquaredDistance(nothing) + lg.L1(0.1) @ lg.Differences(dims=(-1,))
    for energy in (saddle, lg.Quadratic(eye, nothing), lg.Quadratic(eye[None][:0], nothing)):
        with raises(errors.InputError, "empty", "nothing to solve for"):
            lg.solve(energy, stop=lg.Stop(5, tol=1e-6))
    ridge = lg.SquaredDistance(nothing) + lg.SquaredNorm(0.1)
    with raises(errors.InputError, "empty", "nothing to solve for"):
        lg.solve(ridge, lg.Newton())
    with raises(errors.StepError, "step_size is empty"):
        lg.ForwardBackward(nothing[:, :1])


def test_a_module_may_keep_an_empty_buffer():
    class Energy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("unused", torch.zeros(0))

        def forward(self, x):
            return (x - 1) ** 2

    found = lg.solve(lg.Smooth(Energy()), lg.ForwardBackward(0.25), torch.zeros(2)).x
    torch.testing.assert_close(found, torch.ones(2))


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_data_must_be_finite(bad):
    data = b.clone()
    data[3] = bad
    with raises(errors.InputError, r"smooth\.b", "1 of 8", r"\(3,\)"):
        lg.solve(lg.Composite(lg.LeastSquares(A, data), lg.L1(1.0)), lg.ForwardBackward())


def test_infinite_ends_are_fine_but_nan_is_not():
    ends = torch.tensor([0.0, -torch.inf, 0.0, 0.0, 0.0]).double()
    lg.solve(lg.Composite(DATA, lg.Box(ends, torch.inf)), lg.ForwardBackward())
    with raises(errors.InputError, "lower end"):
        lg.Box(ends + torch.nan, 1.0)


def test_mixed_dtypes_and_devices_in_a_problem():
    with raises(errors.InputError, "dtypes", "float64", r"smooth\.b is torch\.float32"):
        mixed = lg.Composite(lg.LeastSquares(A, b.float()), lg.L1(1.0))
        lg.solve(mixed, lg.ForwardBackward(0.01))
    with raises(errors.InputError, "devices", "meta"):
        lg.solve(lasso(torch.ones(5, device="meta").double()), lg.ForwardBackward(0.01))


def test_data_inside_sums_and_stacks_are_checked_too():
    bad = torch.full((5,), torch.nan).double()
    with raises(errors.InputError, r"nonsmooth\.terms\[1\]\.c", "5 of 5"):
        lg.solve(lg.Composite(DATA, lg.L1(1.0) + lg.Linear(bad)), lg.ForwardBackward())
    stack = lg.Stack(lg.Identity(), lg.Diagonal(bad))
    saddle = lg.Saddle(stack, lg.Separable(lg.L1(), lg.L1()), smooth=DATA)
    with raises(errors.InputError, r"operator\.operators\[1\]\.entries"):
        lg.solve(saddle, lg.PrimalDual())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    with raises(errors.InputError, "float32 or float64", r"\.float\(\)"):
        half = lg.Composite(lg.LeastSquares(A.to(dtype), b.to(dtype)), lg.L1(1.0))
        lg.solve(half, lg.ForwardBackward(0.01))


def test_a_state_of_another_algorithm():
    state = lg.solve(lasso(), lg.ForwardBackward()).state
    with raises(errors.InputError, "InertialState", "not a state of PrimalDual"):
        lg.solve(lg.Saddle(A, lg.L1(), smooth=DATA), lg.PrimalDual(), state)


WRONG = torch.ones(3).double()
MISFITS = {
    "L1": (lg.L1(WRONG), "weight"),
    "AsymmetricL1": (lg.AsymmetricL1(-WRONG, WRONG), "lo"),
    "GroupL1": (lg.GroupL1(WRONG), "weight"),
    "Box": (lg.Box(-WRONG, WRONG), "lo"),
    "LInfBall": (lg.LInfBall(WRONG), "radius"),
    "L2Ball": (lg.L2Ball(WRONG), "radius"),
    "SquaredNorm": (lg.SquaredNorm(WRONG), "weight"),
    "SquaredDistance": (lg.SquaredDistance(WRONG), "y"),
    "Linear": (lg.Linear(WRONG), "c"),
    "Equality": (lg.Equality(WRONG), "b"),
    "L1().shifted": (lg.L1().shifted(WRONG), "c"),
    "L1 of a multiple": (2.0 * lg.L1(WRONG), "weight"),
    "L1 in a sum": (lg.L1(WRONG) + lg.SquaredNorm(0.1), "weight"),
    "L1 of a conjugate": ((2.0 * lg.L1(WRONG)).conjugate(), "weight"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_term_that_does_not_fit_is_named_with_both_shapes(name):
    term, attribute = MISFITS[name]
    x = torch.ones(4).double()
    words = (name.partition("(")[0].partition(" ")[0], attribute, r"\(3,\)")
    for use in (term, term.prox):
        with raises(errors.InputError, *words):
            use(x)


def test_terms_behind_operators_and_solves_name_them_too():
    x = torch.ones(4, 4).double()
    with raises(errors.InputError, "L1", "weight", r"\(3,\)", r"\(2, 4, 4\)"):
        (lg.L1(WRONG) @ lg.Differences())(x)
    with raises(errors.InputError, "LInfBall", "conjugate of L1", r"\(3,\)"):
        lg.solve(lg.SquaredDistance(x) + lg.L1(WRONG) @ lg.Differences())
    with raises(errors.InputError, "L1", r"\(3,\)", r"\(5,\)"):
        lg.solve(DATA + lg.L1(WRONG))
    with raises(errors.InputError, "Differences", r"\(3,\)", "does not broadcast"):
        lg.Differences(weights=WRONG)(x)
    with raises(errors.InputError, "Diagonal", r"\(3,\)", "does not broadcast"):
        lg.Diagonal(WRONG)(x)


@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy()], ids=repr)
def test_a_simplex_of_one_number(geometry):
    with raises(errors.InputError, "Simplex", "needs an axis", "unsqueeze"):
        lg.prox(lg.Simplex(), geometry, torch.tensor(1.0), 1.0)
    with raises(errors.InputError, "needs an axis"):
        lg.Simplex()(torch.tensor(1.0))
    for term in (lg.Simplex(-3), lg.GroupL1(dim=-3), lg.L2Ball(dim=-3)):
        with raises(errors.InputError, "axis -3", r"\(2,\)"):
            term.prox(torch.ones(2))


def test_labels_and_forms_that_would_be_taken_for_others():
    with raises(errors.InputError, "labels −1 and 1", "2 of 3", r"2 \* b - 1"):
        lg.Logistic(torch.eye(3), torch.tensor([1.0, 0.0, 0.0]))
    with raises(errors.InputError, "labels −1 and 1", "first of them 2"):
        lg.Logistic(torch.eye(2), torch.tensor([1.0, 2.0]))
    lg.Logistic(torch.eye(2), 2 * torch.tensor([0.0, 1.0]) - 1)
    lopsided = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    beside = torch.stack(
        [1e9 * torch.eye(2), lopsided]
    )  # so much larger that its rounding hides it
    for Q in (lopsided, beside, lg.Dense(lopsided) @ lg.Identity()):
        with raises(errors.InputError, "symmetric", r"\(Q \+ Q\.mH\) / 2"):
            lg.Quadratic(Q, torch.zeros(2))
    lg.Quadratic((lopsided + lopsided.mT) / 2, torch.zeros(2))
    B = randn(40, 30, seed=4).float()
    lg.Quadratic(B.mT @ B, torch.zeros(30))  # symmetric up to rounding


def test_shapes_that_do_not_fit():
    with raises(errors.InputError, "each row of A, 8", r"\(7,\)"):
        lg.solve(lg.Composite(lg.LeastSquares(A, b[:7]), lg.L1(1.0)), lg.ForwardBackward())
    with raises(errors.InputError, "last axis of size 5"):
        lg.Dense(A)(torch.zeros(3).double())
    with raises(errors.InputError, "float32"):
        lg.Dense(A)(torch.zeros(5))
    with raises(errors.InputError, "needs a matrix"):
        lg.Dense(b)
    with raises(errors.InputError, "square"):
        lg.Quadratic(A, b)
    with raises(errors.InputError, "at least 2 axes"):
        lg.Differences()(torch.zeros(4))
    with raises(errors.InputError, "2 directions"):
        lg.Differences().adjoint(torch.zeros(3, 4, 5))
    with raises(errors.InputError, "from the end"):
        lg.Differences((0, 1))
    with raises(errors.InputError, "offset"):
        lg.Differences(offsets=((1, 0), (0, 0)))
    with raises(errors.InputError, "beyond a grid"):
        lg.Differences(offsets=((3, 0), (0, 1)))(torch.zeros(2, 4))
    with raises(errors.InputError, "distinct"):
        lg.Differences((-1, -1))
    with raises(errors.InputError, r"\(…, 2, \*, \*\)"):
        lg.Convolution(torch.zeros(3, 2, 3, 3))(torch.zeros(1, 8, 8))
    with raises(errors.InputError, "as large as the kernel"):
        lg.Convolution(torch.zeros(1, 1, 5), "circular")(torch.zeros(1, 4))
    with raises(errors.InputError, "boundary"):
        lg.Convolution(torch.zeros(1, 1, 5), "reflect")
    with raises(errors.InputError, r"\(out, in, \*size\)"):
        lg.Convolution(torch.zeros(5))
    with raises(errors.InputError, "one number"):
        lg.Identity() * torch.ones(3)
    with raises(errors.InputError, "tuple of 2"):
        lg.Stack(lg.Identity(), lg.Identity()).adjoint(torch.ones(2))
    with raises(errors.InputError, "labels 3 entries", "5"):
        lg.GroupL1(1.0, groups=torch.tensor([0, 1, 1])).value(torch.zeros(5))


@pytest.mark.parametrize(
    "build",
    [
        lambda w: lg.L1(w),
        lambda w: lg.GroupL1(w),
        lambda w: lg.SquaredNorm(w),
        lambda w: lg.L2Ball(w),
        lambda w: lg.LInfBall(w),
        lambda w: lg.LeastSquares(A, b, w),
    ],
)
@pytest.mark.parametrize("value", [-1.0, torch.tensor([1.0, -0.5]), torch.tensor(torch.nan)])
def test_weights_must_be_nonnegative(build, value):
    with raises(errors.InputError, "non-negative"):
        build(value)


def test_empty_intervals():
    for build in (lg.Box, lg.AsymmetricL1, lg.Interval):
        with raises(errors.InputError, "lower end"):
            build(1.0, -1.0)
    with raises(errors.InputError, "below"):
        lg.Interval(torch.zeros(2), torch.tensor([1.0, 0.0]))


def test_polyhedral_needs_an_interior_point():
    with raises(errors.InputError, "origin", "start="):
        lg.Polyhedral(torch.tensor([[1.0], [-1.0]]), torch.tensor([3.0, -1.0]))
    inside = torch.tensor([2.0])
    lg.Polyhedral(torch.tensor([[1.0], [-1.0]]), torch.tensor([3.0, -1.0]), start=inside)
    with raises(errors.InputError, r"\(m, n\)"):
        lg.Polyhedral(torch.ones(3), torch.ones(3))


# --- wrong kinds ----------------------------------------------------------------------------------


def test_what_belongs_to_another_argument_is_told_which():
    for misplaced, name in (
        (lg.Implicit(), "gradient"),
        (lg.Stop(10), "stop"),
        (torch.zeros(4), "x0"),
        (lg.solve(lasso()), "x0"),
    ):
        with raises(errors.InputError, "algorithm must be", rf"Did you mean {name}=…\?"):
            lg.solve(lasso(), misplaced)


def test_classes_in_the_place_of_objects():
    with raises(errors.InputError, "the class L1", r"Did you mean L1\(\)"):
        lg.SquaredNorm() + lg.L1
    with raises(errors.InputError, "the class Differences", r"Did you mean Differences\(\)"):
        lg.L1() @ lg.Differences
    with raises(errors.InputError, "the class GMRES", r"Did you mean GMRES\(\)"):
        lg.Implicit(solver=lg.GMRES)


def test_what_is_no_energy():
    for wrong, said in ((lambda x: x.sum(), "function"), (torch.zeros(3), r"shape \(3,\)")):
        with raises(errors.InputError, said, "SquaredDistance", r"Smooth\(callable\)"):
            lg.solve(wrong)


def test_data_that_do_not_fit_the_rows_of_a_matrix():
    with raises(errors.InputError, "each row of A, 3 for A of shape", r"b has shape \(4,\)"):
        lg.LeastSquares(torch.ones(3, 2), torch.ones(4))
    lg.LeastSquares(torch.ones(3, 2), torch.ones(1))  # the same for all rows


def test_a_term_stands_before_its_operator():
    with raises(errors.InputError, "before its operator"):
        torch.eye(3) @ lg.L1()


def test_axes_are_a_tuple():
    with raises(errors.InputError, r"dims=\(-1,\)"):
        lg.Differences(-1)


@pytest.mark.parametrize(
    "term",
    [
        lambda whole: lg.SquaredDistance(whole[0]),
        lambda whole: lg.LeastSquares(torch.eye(3), whole[0]),
        lambda whole: lg.Dense(whole),
        lambda whole: lg.Linear(whole[0]),
        lambda whole: lg.Quadratic(torch.eye(3), whole[0]),
        lambda whole: lg.Blur(whole),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_whole_numbers_are_no_data(term, dtype):
    with raises(errors.InputError, str(dtype), r"\.float\(\)"):
        term(torch.ones(3, 3, dtype=dtype))


def test_arguments_of_the_wrong_kind():
    with raises(errors.InputError, "the class Unroll", r"Did you mean Unroll\(\)"):
        lg.solve(lasso(), lg.ForwardBackward(), gradient=lg.Unroll)
    with raises(errors.InputError, "algorithm must be"):
        lg.solve(lasso(), "fista")
    with raises(errors.InputError, "stop must be"):
        lg.solve(lasso(), lg.ForwardBackward(), stop=100)
    with raises(errors.InputError, "Composite", "Saddle"):
        lg.solve(lg.Saddle(A, lg.L1()), lg.ForwardBackward())
    with raises(errors.InputError, "Saddle", "Composite"):
        lg.solve(lasso(), lg.PrimalDual())
    with raises(errors.InputError, r"legato\.Smooth"):
        lg.Composite(lambda x: x.sum())
    with raises(errors.InputError, "no gradient", "smoothed"):
        lg.Composite(lg.L1(1.0), lg.NonNegative())
    with raises(errors.InputError, "no gradient", "smoothed"):
        lg.Saddle(A, lg.L1(), smooth=lg.L1(1.0))
    with raises(errors.InputError, "operator must be"):
        lg.Saddle("gradient", lg.L1())
    with raises(errors.InputError, "does not depend on x"):
        lg.Smooth(lambda x: x.detach().sum()).grad(torch.ones(2))


# --- steps and stops ------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, -3, 2.5, True])
def test_iterations_must_be_positive_integers(iterations):
    with raises(errors.InputError, "positive integer"):
        lg.Stop(iterations)


def test_other_settings_of_stop():
    with raises(errors.InputError, "tol must be positive"):
        lg.Stop(10, tol=0.0)
    with raises(errors.InputError, "every"):
        lg.Stop(10, tol=1e-3, every=0)


def test_steps_that_violate_their_condition():
    for step in (0.0, -0.1, float("inf"), float("nan")):
        with raises(errors.StepError, "positive"):
            lg.ForwardBackward(step)
    with raises(errors.StepError, r"2\(1 − β\)/L", "smaller step"):
        lg.solve(lasso(), lg.ForwardBackward(10.0))
    with raises(errors.StepError, r"β = 0\.5"):
        lg.solve(lasso(), lg.ForwardBackward(1.5 / float(DATA.lipschitz()), inertia=0.5))
    problem = lg.Saddle(A, lg.L1(), nonsmooth=lg.SquaredNorm())
    start = torch.zeros(5).double()
    with raises(errors.StepError, "tau = 1 and sigma = 1 violate", "‖K‖²"):
        lg.solve(problem, lg.PrimalDual(1.0, 1.0), start)
    smooth = lg.Saddle(A, lg.L1(), smooth=DATA)
    with raises(errors.StepError, "below 1/L_f"):
        lg.solve(smooth, lg.PrimalDual(tau=1.0))
    with raises(errors.StepError, "positive"):
        lg.PrimalDual(tau=-1.0)
    with raises(errors.StepError, "precondition"):
        lg.PrimalDual(tau=1.0, precondition=True)


def test_steps_that_cannot_be_derived():
    unknown = lg.Composite(lg.Smooth(lambda x: x**4), lg.L1(1.0))
    with raises(errors.StepError, "Lipschitz", "Backtracking"):
        lg.solve(unknown, lg.ForwardBackward(), torch.ones(3))
    with raises(errors.StepError, "how strongly convex", "unknown", "Backtracking"):
        lg.solve(lg.Composite(DATA, lg.NonNegative()), lg.ForwardBackward(geometry=lg.Entropy()))
    with raises(errors.StepError, "how strongly convex", "unknown", "Backtracking"):
        half_open = lg.Composite(DATA, lg.Box(0.0, torch.inf))  # not a step of 0 and the start
        lg.solve(half_open, lg.ForwardBackward(geometry=lg.Entropy()))
    with raises(errors.StepError, "how strongly convex", "unknown", "tau and sigma"):
        saddle = lg.Saddle(A, lg.L1(), nonsmooth=lg.NonNegative())
        start = torch.ones(5).double()
        lg.solve(saddle, lg.PrimalDual(geometry=lg.Entropy()), start)
    with raises(errors.StepError, "tau and sigma"):
        saddle = lg.Saddle(A, lg.L1(), smooth=lg.Smooth(lambda x: x**4))
        lg.solve(saddle, lg.PrimalDual(), torch.ones(5).double())
    with raises(errors.InputError, "absolute"):

        class Mystery(lg.Identity):
            absolute = lg.Operator.absolute

        saddle = lg.Saddle(Mystery(), lg.L1(), nonsmooth=lg.SquaredNorm())
        lg.solve(saddle, lg.PrimalDual(precondition=True), torch.ones(5))


def test_settings_of_algorithms():
    with raises(errors.InputError, "inertia"):
        lg.ForwardBackward(inertia=1.0)
    with raises(errors.InputError, "shrink"):
        lg.Backtracking(shrink=1.5)
    for inertia in (0.5, lg.Nesterov()):
        with raises(errors.InputError, "grow", "momentum may diverge"):
            lg.ForwardBackward(lg.Backtracking(grow=1.5), inertia=inertia)
        with raises(errors.InputError, "Euclidean geometry only", "Entropy"):
            lg.ForwardBackward(lg.Backtracking(), lg.Entropy(), inertia)
    for relaxation in (0.0, 1.5, float("nan")):
        with raises(errors.InputError, "relaxation", "momentum"):
            lg.ForwardBackward(relaxation=relaxation)
    with raises(errors.InputError, "means of points", "Burg"):
        lg.ForwardBackward(geometry=lg.Burg(), relaxation=0.5)
    with raises(errors.InputError, "1..N or 0..N"):
        lg.Average(2)


def test_divergence_is_an_error_not_a_nan():
    runaway = lg.Composite(lg.Smooth(lambda x: 0.5 * x**2))
    with raises(errors.DivergenceError, "diverged", "smaller step"):
        lg.solve(runaway, lg.ForwardBackward(1e10), torch.ones(3), stop=lg.Stop(50))
    linear = lg.Composite(lg.Smooth(lambda x: -x))
    with raises(errors.DomainError, "range of ∇ψ", "smaller step"):
        lg.solve(linear, lg.ForwardBackward(1.0, lg.Burg()), torch.ones(3))
    hopeless = lg.Composite(lg.Smooth(lambda x: (x * torch.nan).sum() + 0 * x))
    with raises(errors.StepError, "no step", "NaN"):
        lg.solve(hopeless, lg.ForwardBackward(lg.Backtracking()), torch.ones(3))


def test_smoothing():
    with raises(errors.InputError, "mu must be positive"):
        lg.smoothed(lasso(), 0.0)
    with raises(errors.InputError, "Composite or Saddle problem or an energy, not Tensor"):
        lg.smoothed(A, 0.1)
    with raises(errors.InputError, "No smoothing of L2Ball"):
        lg.smoothed(lg.Composite(DATA, lg.L2Ball()), 0.1)


# --- gradients ------------------------------------------------------------------------------------


def test_settings_of_gradients():
    for build in (
        lambda: lg.Unroll(last=0),
        lambda: lg.Unroll(checkpoint="cube"),
        lambda: lg.Unroll(checkpoint=0),
        lambda: lg.Unroll(tol=2.0),
        lambda: lg.Unroll(tol=0.1, checkpoint=3),
        lambda: lg.FixedPoint(terms=0),
        lambda: lg.Piggyback(iterations=0),
        lambda: lg.GMRES(tol=0.0),
        lambda: lg.Neumann(iterations=0),
        lambda: lg.Forward(),
        lambda: lg.Forward(torch.ones(2)),
    ):
        with pytest.raises(errors.InputError):
            build()


def test_a_non_contractive_map_under_fixed_point():
    w = weight()
    plane = torch.tensor([[1.0, 1.0]]).double()  # infinitely many minimisers
    problem = lg.Composite(lg.LeastSquares(plane, w * torch.ones(1).double()))
    s = lg.solve(problem, lg.ForwardBackward(), gradient=lg.FixedPoint(50))
    with pytest.warns(
        errors.NonContractiveWarning, match=r"(?s)spectral radius.*is about 1.*Unroll"
    ):
        s.x[0].backward()
    assert s.backward.converged is False
    assert s.backward.spectral_radius == pytest.approx(1.0)
    assert s.backward.bound > 1e6


def test_a_gmres_that_missed_its_tolerance():
    w = weight()
    stiff = torch.diag(torch.logspace(0, -1.5, 30)).double()
    problem = lg.Composite(lg.LeastSquares(stiff, w * torch.ones(30).double()))
    s = lg.solve(
        problem,
        lg.ForwardBackward(),
        gradient=lg.Implicit(lg.GMRES(tol=1e-10, iterations=3)),
        stop=lg.Stop(50000, tol=1e-8),
    )
    with pytest.warns(errors.InexactGradientWarning, match="(?s)3 products.*residual.*Allow more"):
        s.x.sum().backward()
    assert s.backward.converged is False
    assert s.backward.residual > 1e-3
    assert s.backward.iterations == 3


def test_a_solve_that_has_not_converged_is_no_fixed_point():
    slow = lg.Composite(lg.LeastSquares(A, weight() * b))
    with pytest.warns(
        errors.NotConvergedWarning, match=r"(?s)after 3 iterations.*residual.*Unroll"
    ):
        lg.solve(slow, lg.ForwardBackward(0.001), gradient=lg.Implicit(), stop=lg.Stop(3))


def test_one_element_of_a_batch_that_has_not_converged_is_enough():
    """The first is solved from the start, x = 0; the second is not."""
    target = torch.stack((torch.zeros(8).double(), b)) * weight()
    slow = lg.Composite(lg.LeastSquares(A, target))
    with pytest.warns(errors.NotConvergedWarning, match="after 3 iterations"):
        lg.solve(slow, lg.ForwardBackward(0.001), gradient=lg.Implicit(), stop=lg.Stop(3))


def test_one_step_says_when_most_of_the_gradient_is_missing():
    problem = lg.Composite(lg.LeastSquares(A, weight() * b))
    s = lg.solve(
        problem, lg.ForwardBackward(0.005), gradient=lg.OneStep(), stop=lg.Stop(9000, tol=1e-10)
    )
    with pytest.warns(errors.InexactGradientWarning, match="OneStep leaves out"):
        s.x.sum().backward()


def test_conjugate_gradients_refuse_an_unsymmetric_system():
    w = weight()
    each = torch.linspace(0.001, 0.01, len(A[0]), dtype=A.dtype)  # a step per coordinate
    s = lg.solve(
        lasso(w),
        lg.ForwardBackward(each),
        gradient=lg.Implicit(lg.CG()),
        stop=lg.Stop(90000, tol=1e-12),
    )
    with raises(errors.GradientError, "symmetric", "GMRES"):
        s.x.sum().backward()


def test_strategies_that_do_not_apply():
    w = weight()
    with raises(errors.GradientError, "Piggyback", "ForwardBackward"):
        lg.solve(lasso(w), lg.ForwardBackward(), gradient=lg.Piggyback())
    noisy = lg.SquaredDistance(w * randn(4, 4))
    problem = lg.Saddle(lg.Differences(), lg.L1(0.1), nonsmooth=noisy)
    with raises(errors.GradientError, "averaged", "Unroll"):
        lg.solve(problem, lg.PrimalDual(average=True), gradient=lg.Implicit())
    with raises(errors.GradientError, "400 × 400"):
        big = lg.Composite(lg.LeastSquares(lg.Identity(), w * torch.ones(400).double()))
        s = lg.solve(big, lg.ForwardBackward(), gradient=lg.Implicit(lg.Direct(largest=10)))
        s.x.sum().backward()


def test_forward_mode_names_what_it_leaves_out():
    w, scale = weight(), weight(1.0)
    problem = lg.Composite(lg.LeastSquares(A, scale * b), lg.L1(w))
    with pytest.warns(errors.InexactGradientWarning, match=r"not given to\s+Forward"):
        lg.solve(problem, lg.ForwardBackward(), gradient=lg.Forward(w))
    with raises(errors.GradientError, "None of the parameters"):
        lg.solve(lasso(0.7), lg.ForwardBackward(), gradient=lg.Forward(w))


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_the_norm_of_a_matrix_of_any_size(scale):
    """Squares of such entries are 0 or infinite in float32, but the norm is a number."""
    A = torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 1.0]])
    assert float(lg.Dense(scale * A).norm()) == pytest.approx(5 * scale, rel=1e-5)
    batch = lg.Dense(torch.stack((scale * A, A))).norm()
    assert batch.flatten().tolist() == pytest.approx([5 * scale, 5], rel=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e30])
def test_data_for_which_there_is_no_step(scale):
    """A step of 0 would return the start, and call it the solution."""
    A, b = scale * torch.eye(2), scale * torch.ones(2)
    for smooth in (lg.LeastSquares(A, b), lg.Logistic(A, torch.tensor([1.0, -1.0]))):
        with pytest.raises(errors.StepError, match="float64"):
            lg.solve(lg.Composite(smooth, lg.L1(0.1)), lg.ForwardBackward())
    double = lg.Composite(lg.LeastSquares(A.double(), b.double()), lg.NonNegative())
    x = lg.solve(double, lg.ForwardBackward()).x
    assert x.tolist() == pytest.approx([1.0, 1.0])
