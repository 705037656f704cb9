"""Energies as they stand on paper: how they are split, and what comes out, against cvxpy."""

import itertools

import cvxpy as cp
import pytest
import torch

import legato as lg
from legato import errors
from makers import rand, randn

UNTIL = lg.Stop(20000, tol=1e-12)
A, b = randn(12, 6, seed=1), randn(12, seed=2)
SIGNAL = randn(9, seed=3).cumsum(0)
D = lg.Differences(dims=(-1,))


def differences(n):
    return torch.diff(torch.eye(n).double(), dim=0).numpy()


def agrees(energy, objective, variable, constraints=(), algorithm=None):
    """legato's minimiser is the interior-point solver's, whatever the order of the terms."""
    problem = cp.Problem(cp.Minimize(objective), list(constraints))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    truth = torch.from_numpy(variable.value)
    terms = energy.terms
    for order in itertools.islice(itertools.permutations(terms), 4):
        found = lg.solve(sum(order), algorithm, stop=UNTIL)
        assert bool(torch.as_tensor(found.converged).all())
        torch.testing.assert_close(found.x, truth, rtol=1e-5, atol=2e-6)
        assert float(found.objective) == pytest.approx(problem.value, rel=1e-6, abs=1e-7)


def test_fused_lasso():
    energy = lg.LeastSquares(A, b) + lg.L1(0.3) + lg.L1(0.5) @ D
    x = cp.Variable(6)
    smooth = 0.5 * cp.sum_squares(A.numpy() @ x - b.numpy())
    agrees(energy, smooth + 0.3 * cp.norm1(x) + 0.5 * cp.norm1(differences(6) @ x), x)
    problem = lg.split(energy)
    assert isinstance(problem.penalty, lg.L1)
    assert problem.nonsmooth is energy.terms[1]
    assert problem.smooth is energy.terms[0]


def test_deblurring_with_total_variation_and_non_negativity():
    kernel = torch.tensor([0.25, 0.5, 0.25]).double()
    blur = lg.Convolution(kernel.reshape(1, 1, 3))
    seen = (0.3 + rand(1, 9, seed=4)).clone()
    fit = lg.SquaredDistance(seen) @ blur
    energy = fit + lg.NonNegative() + lg.L1(0.02) @ lg.Differences(dims=(-1,))
    matrix = torch.zeros(9, 9).double()
    for i, j in itertools.product(range(9), range(9)):
        if abs(i - j) <= 1:
            matrix[i, j] = kernel[1 + j - i]
    x = cp.Variable((1, 9))
    smooth = 0.5 * cp.sum_squares(matrix.numpy() @ x[0] - seen[0].numpy())
    agrees(energy, smooth + 0.02 * cp.norm1(differences(9) @ x[0]), x, [x >= 0])


def test_a_portfolio_with_turnover_costs():
    factor, returns, held = randn(4, 6, seed=5), 0.1 * randn(6, seed=6), rand(6, seed=7)
    energy = (
        lg.SquaredNorm() @ factor + lg.Linear(-returns) + lg.Simplex() + lg.L1(0.05).shifted(held)
    )
    x = cp.Variable(6)
    cost = 0.5 * cp.sum_squares(factor.numpy() @ x) - returns.numpy() @ x
    cost = cost + 0.05 * cp.norm1(x - held.numpy())
    agrees(energy, cost, x, [x >= 0, cp.sum(x) == 1])


def test_four_terms_two_of_them_behind_operators():
    wide = randn(4, 9, seed=8)
    energy = lg.SquaredDistance(SIGNAL) + lg.L1(0.4) @ D + lg.L1(0.3) @ wide + lg.Box(-1.0, 2.0)
    x = cp.Variable(9)
    cost = 0.5 * cp.sum_squares(x - SIGNAL.numpy()) + 0.4 * cp.norm1(differences(9) @ x)
    cost = cost + 0.3 * cp.norm1(wide.numpy() @ x)
    agrees(energy, cost, x, [x >= -1, x <= 2])
    problem = lg.split(energy)
    assert isinstance(problem.operator, lg.Stack)
    assert isinstance(problem.nonsmooth.terms[0], lg.Box)


def test_equality_constraints():
    E = randn(2, 6, seed=9)
    d = E @ rand(6, seed=10)
    energy = lg.LeastSquares(A, b) + lg.Equality(d) @ E + lg.NonNegative()
    x = cp.Variable(6)
    fit = 0.5 * cp.sum_squares(A.numpy() @ x - b.numpy())
    agrees(energy, fit, x, [E.numpy() @ x == d.numpy(), x >= 0])


def test_the_derivative_of_an_equality_constraint():
    E, d = randn(2, 6, seed=9), randn(2, seed=10).requires_grad_()
    weights = randn(6, seed=11)

    def loss(d):
        energy = lg.LeastSquares(A, b) + lg.Equality(d) @ E
        x = lg.solve(energy, gradient=lg.Implicit(lg.GMRES(1e-12)), stop=UNTIL).x
        return x @ weights

    (found,) = torch.autograd.grad(loss(d), d)
    H = torch.zeros(8, 8).double()
    H[:6, :6], H[:6, 6:], H[6:, :6] = A.T @ A, E.T, E
    right = torch.cat([weights, torch.zeros(2).double()])
    torch.testing.assert_close(found, torch.linalg.solve(H, right)[6:], rtol=1e-6, atol=1e-8)


def test_a_separable_energy_is_solved_by_one_step():
    found = lg.solve(lg.SquaredDistance(SIGNAL) + lg.L1(0.4), stop=lg.Stop(1))
    torch.testing.assert_close(found.x, lg.L1(0.4).prox(SIGNAL))


def test_an_entropy_chooses_its_geometry():
    c = randn(5, seed=12)
    found = lg.solve(lg.NegativeEntropy(0.3) + lg.Simplex() + lg.Linear(c), stop=UNTIL)
    torch.testing.assert_close(found.x, torch.softmax(-c / 0.3, 0), rtol=1e-8, atol=1e-10)
    assert isinstance(found.algorithm.geometry, lg.Entropy)


def test_a_smooth_term_without_a_constant_gets_a_line_search():
    energy = lg.Smooth(lambda x: (x - 2) ** 4) + lg.L1(0.1)
    found = lg.solve(energy, x0=torch.zeros(3).double())
    assert isinstance(found.algorithm.step_size, lg.Backtracking)
    expected = 2 - (0.1 / 4) ** (1 / 3)
    torch.testing.assert_close(found.x, torch.full((3,), expected).double(), rtol=1e-3, atol=0)


def test_a_vector_of_quadratic_weights_beside_a_coupling_prox():
    """It must not be absorbed by the prox, whose formula needs one number: it becomes smooth."""
    weights = 0.5 + rand(6, seed=13)
    energy = lg.LeastSquares(A, b) + lg.SquaredNorm(weights) + lg.Simplex()
    x = cp.Variable(6)
    fit = 0.5 * cp.sum_squares(A.numpy() @ x - b.numpy())
    ridge = 0.5 * cp.sum(cp.multiply(weights.numpy(), cp.square(x)))
    agrees(energy, fit + ridge, x, [x >= 0, cp.sum(x) == 1])


def test_what_cannot_be_split_is_said():
    class Strange(lg.Function):
        def summands(self, x):
            return x.abs() ** 1.5

    with pytest.raises(errors.InputError, match=r"No splitting.*Strange.*register_prox"):
        lg.solve(lg.L1() + Strange() @ D, x0=torch.zeros(4))


def test_the_solution_says_what_was_done():
    energy = lg.SquaredDistance(SIGNAL) + lg.L1(0.4) @ D
    found = lg.solve(energy, stop=lg.Stop(2000, tol=1e-10))
    assert isinstance(found.algorithm, lg.PrimalDual)
    assert isinstance(found.problem, lg.Saddle)
    assert "PrimalDual" in repr(found)
    assert "converged" in repr(found)
    assert float(found.gap) == pytest.approx(0, abs=1e-8)
    assert len(repr(found)) < 200


def test_a_parameter_that_changes_between_two_solves():
    weight = torch.tensor(0.4).double()
    matrix = A.clone()
    energy = lg.LeastSquares(matrix, b) + lg.L1(weight)
    lg.solve(energy, stop=UNTIL)
    weight.mul_(2.0)
    matrix.mul_(3.0)
    again = lg.solve(energy, stop=UNTIL).x
    fresh = lg.solve(lg.LeastSquares(3 * A, b) + lg.L1(0.8), stop=UNTIL).x
    torch.testing.assert_close(again, fresh, rtol=1e-8, atol=1e-10)


# --- operators behind factors and shifts ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["factor", "twice", "composed"])
def test_an_operator_behind_factors_and_shifts_is_found(kind):
    y, c, K, M = randn(6, seed=1), randn(6, seed=2), randn(4, 6, seed=3), randn(6, 6, seed=4)
    x = cp.Variable(6)
    term, argument = {
        "factor": (2.0 * (lg.L1(0.2) @ K).shifted(c), K.numpy() @ (x - c.numpy())),
        "twice": (
            (lg.L1(0.4) @ K).shifted(c).shifted(c),
            K.numpy() @ (x - 2 * c.numpy()),
        ),
        "composed": (
            (lg.L1(0.4) @ K).shifted(c) @ M,
            K.numpy() @ (M.numpy() @ x - c.numpy()),
        ),
    }[kind]
    squared = 0.5 * cp.sum_squares(x - y.numpy())
    agrees(lg.SquaredDistance(y) + term, squared + 0.4 * cp.norm1(argument), x)


def test_an_operator_sees_a_shift_as_broadcasting_repeats_it():
    y, K = randn(1, 6, seed=1), lg.Convolution(rand(1, 1, 3, seed=2))
    number = torch.full((1, 1), 0.7).double()
    found = [
        lg.solve(lg.SquaredDistance(y) + (lg.L1() @ K).shifted(c), stop=UNTIL).x
        for c in (number, number.expand(1, 6))
    ]
    torch.testing.assert_close(*found)


def test_blocks_of_a_stack_are_terms_like_any_other():
    y, A, B = randn(3, 5, seed=1), randn(3, 4, 5, seed=2), randn(3, 2, 5, seed=3)
    blocks = lg.Separable(lg.L1(0.3), lg.L1(0.2)) @ lg.Stack(A, B)
    rest = lg.SquaredDistance(y) + lg.L1(0.1) @ D
    found = lg.solve(rest + blocks, stop=UNTIL)
    alone = lg.solve(rest + lg.L1(0.3) @ A + lg.L1(0.2) @ B, stop=UNTIL)
    torch.testing.assert_close(found.x, alone.x)
    assert found.residual.shape == (3,)


# --- the shape of the variable --------------------------------------------------------------------


@pytest.mark.parametrize("K", [D, lg.Dense(randn(4, 6, seed=1))])
def test_one_number_behind_an_operator_tells_no_shape(K):
    y, c = randn(6, seed=2), torch.tensor(0.3).double()
    energy = lg.SquaredDistance(y) + lg.Linear(c) @ K + lg.L1(0.1) @ D
    K1 = K.adjoint(c.expand(K(y).shape))
    expected = lg.solve(lg.SquaredDistance(y) + lg.Linear(K1) + lg.L1(0.1) @ D, stop=UNTIL)
    torch.testing.assert_close(lg.solve(energy, stop=UNTIL).x, expected.x)


def test_terms_of_different_shapes_are_refused():
    with pytest.raises(errors.InputError, match=r"do not act on one variable.*\(4,\).*\(5,\)"):
        lg.solve(lg.SquaredDistance(torch.ones(5)) + lg.Linear(torch.ones(4)))


# --- words and numbers ----------------------------------------------------------------------------


def test_a_weight_that_became_negative_is_refused():
    weight = torch.tensor(0.1)
    for term in (lg.L1(weight), weight * lg.GroupL1() @ torch.eye(2), lg.LInfBall(weight)):
        energy = lg.SquaredDistance(torch.ones(2)) + term
        with torch.no_grad():
            weight.neg_()
        with pytest.raises(errors.InputError, match="must be non-negative"):
            lg.solve(energy)
        weight.neg_()


def test_an_equality_with_a_number_is_exact_in_double_precision():
    energy = lg.SquaredDistance(randn(5, seed=1)) + lg.Equality(0.1) @ torch.ones(1, 5).double()
    total = lg.solve(energy, lg.PrimalDual(), stop=lg.Stop(2000, tol=1e-14)).x.sum()
    assert float(total) == pytest.approx(0.1, abs=1e-14)


def test_several_duals_need_a_product():
    energy = lg.SquaredDistance(randn(5, seed=1)) + lg.L1() @ D + lg.L1() @ randn(3, 5, seed=2)
    with pytest.raises(errors.InputError, match="dual_geometry=Product"):
        lg.solve(energy, lg.PrimalDual(dual_geometry=lg.Interval(-1.0, 1.0)))


# --- starts from elsewhere ------------------------------------------------------------------------


def test_a_state_does_not_make_an_algorithm_solve_another_kind_of_problem():
    y = randn(5, seed=1)
    composite, saddle = (
        lg.split(lg.SquaredDistance(y) + term) for term in (lg.L1(0.1), lg.L1(0.1) @ D)
    )
    with pytest.raises(errors.InputError, match="not Saddle"):
        lg.solve(saddle, lg.ForwardBackward(), lg.solve(composite).state)
    with pytest.raises(errors.InputError, match="not Composite"):
        lg.solve(composite, lg.PrimalDual(), lg.solve(saddle).state)


def test_a_dual_of_another_kind_is_refused():
    y, K = randn(5, seed=1), randn(3, 5, seed=2)
    other = lg.solve(lg.SquaredDistance(y) + lg.L1() @ K + lg.L1() @ D, stop=lg.Stop(5))
    with pytest.raises(errors.InputError, match=r"a tuple of 2.*one tensor"):
        lg.solve(lg.SquaredDistance(y) + lg.L1() @ K, x0=other)


def test_a_solution_in_another_geometry_is_a_start_at_its_point():
    energy = lg.SquaredDistance(rand(4, seed=1)) + lg.Simplex()
    found = lg.solve(energy, lg.ForwardBackward(0.5, lg.Entropy()), stop=lg.Stop(500))
    again = lg.solve(energy, lg.ForwardBackward(1e-3), found, stop=lg.Stop(1))
    torch.testing.assert_close(again.x, found.x, rtol=0, atol=1e-2)


# --- transforms -----------------------------------------------------------------------------------


def test_vmap_over_the_weight_of_the_core():
    y, weights = randn(5, seed=1), rand(3, seed=2)

    def solution(weight):
        return lg.solve(lg.SquaredDistance(y) + lg.L1(weight)).x

    torch.testing.assert_close(
        torch.func.vmap(solution)(weights), torch.stack([solution(w) for w in weights])
    )


def test_an_energy_compiles_as_a_whole():
    def solution(y, weight):
        energy = lg.SquaredDistance(y) + lg.L1(weight)
        return lg.solve(energy, lg.ForwardBackward(0.5), stop=lg.Stop(5)).x

    y, weight = randn(5, seed=1), torch.tensor(0.3).double()
    whole = torch.compile(solution, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(y, weight), solution(y, weight))


def test_a_product_has_a_geometry_for_each_block_as_written():
    y, A, b = randn(5, seed=1), randn(3, 5, seed=2), randn(3, seed=3)
    blocks = lg.Separable(lg.L1(), lg.SquaredDistance(b)) @ lg.Stack(D, A)
    duals = lg.PrimalDual(dual_geometry=lg.Product(lg.Interval(-1.0, 1.0), lg.Euclidean()))
    energy = lg.SquaredDistance(y) + blocks
    found, plain = (lg.solve(energy, a, stop=UNTIL).x for a in (duals, None))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-8)


def test_a_matrix_tells_the_shape_of_the_variable():
    A = randn(6, 4, seed=1)
    terms = lg.L1(0.5) @ A, lg.L1(0.2) @ (2.0 * lg.Dense(A)), lg.Simplex()
    found = lg.solve(sum(terms), stop=UNTIL)
    given = lg.solve(sum(terms), x0=torch.full((4,), 0.25).double(), stop=UNTIL)
    torch.testing.assert_close(found.x, given.x, atol=1e-8, rtol=0)
    batch = lg.solve(lg.L1(0.5) @ torch.stack([A, 2 * A]) + lg.Simplex(), stop=lg.Stop(5))
    assert batch.x.shape == (2, 4)


def test_a_stack_behind_another_operator():
    """‖BCx‖₁/3 + ‖Cx‖₁/5 + ½‖x − d‖², whose operator makes a tuple without being a stack."""
    B, C, d = randn(4, 5, seed=1), randn(5, 3, seed=2), randn(3, seed=3)
    K = lg.Stack(lg.Dense(B), lg.Identity()) @ lg.Dense(C)
    penalty = lg.Separable(lg.L1(1 / 3), lg.L1(1 / 5))
    problem = lg.Saddle(K, penalty, nonsmooth=lg.SquaredDistance(d))
    product = lg.Product(lg.Euclidean(), lg.Euclidean())
    found = lg.solve(problem, lg.PrimalDual(dual_geometry=product), stop=UNTIL)
    x = cp.Variable(3)
    image = C.numpy() @ x
    objective = cp.norm1(B.numpy() @ image) / 3 + cp.norm1(image) / 5
    objective += cp.sum_squares(x - d.numpy()) / 2
    cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    torch.testing.assert_close(found.x, torch.from_numpy(x.value), rtol=1e-5, atol=1e-6)


def test_the_matrix_at_the_right_of_a_product_tells_the_shape_of_the_variable():
    """Min of ‖BCx‖₁ + ½‖x‖² over 1 ≤ x ≤ 2, where nothing but C has the length of x."""
    B, C = randn(4, 5, seed=1), randn(5, 3, seed=2)
    problem = lg.Saddle(
        lg.Dense(B) @ lg.Dense(C), lg.L1(), smooth=lg.SquaredNorm(), nonsmooth=lg.Box(1.0, 2.0)
    )
    found = lg.solve(problem, lg.PrimalDual(), stop=UNTIL)
    x = cp.Variable(3)
    objective = cp.norm1((B @ C).numpy() @ x) + cp.sum_squares(x) / 2
    cp.Problem(cp.Minimize(objective), [x >= 1, x <= 2]).solve(solver=cp.CLARABEL)
    torch.testing.assert_close(found.x, torch.from_numpy(x.value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("box", [lg.Box(2.0, 3.0), lg.NonNegative()])
def test_boxes_without_a_common_point_are_refused_by_solve(box):
    """No x is in both; an ℓ1 norm in place of one of them leaves the end of the other."""
    energy = lg.SquaredDistance(torch.ones(3)) + lg.Box(-1.0, -0.5)
    with pytest.raises(errors.EmptyDomainError, match="no common point"):
        lg.solve(energy + box)
    found = lg.solve(energy + lg.L1(0.2), stop=lg.Stop(100, tol=1e-6)).x
    torch.testing.assert_close(found, torch.full((3,), -0.5))
