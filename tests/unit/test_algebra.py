"""The algebra of functions: values, gradients, proxes and conjugates of what is made of others."""

import copy
import pickle

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from legato import errors
from makers import crandn, rand, randn

X = randn(3, 4, seed=1)
MATRIX = randn(5, 4, seed=2)
STOP = lg.Stop(5000, tol=1e-10)

FUNCTIONS = {
    "L1": lg.L1(0.3 + rand(4, seed=3)),
    "AsymmetricL1": lg.AsymmetricL1(-0.2, 0.9),
    "GroupL1": lg.GroupL1(0.8),
    "labelled": lg.GroupL1(0.8, groups=torch.tensor([0, 1, 0, 1])),
    "NonNegative": lg.NonNegative(),
    "Box": lg.Box(-0.5, 1.5),
    "LInfBall": lg.LInfBall(0.8),
    "L2Ball": lg.L2Ball(1.2),
    "Simplex": lg.Simplex(),
    "Zero": lg.Zero(),
    "Linear": lg.Linear(randn(4, seed=4)),
    "Equality": lg.Equality(randn(4, seed=5)),
    "SquaredNorm": lg.SquaredNorm(0.4),
    "SquaredDistance": lg.SquaredDistance(randn(4, seed=6), 0.5 + rand(4, seed=7)),
    "scaled": 0.7 * lg.L1(0.4),
    "shifted": lg.L1(0.4).shifted(randn(4, seed=8)),
    "shifted set": lg.Simplex().shifted(randn(4, seed=8)),
    "sum": lg.L1(0.3) + lg.SquaredNorm(0.4) + lg.Linear(randn(4, seed=9)),
    "scaled sum": 2.0 * (lg.Box(-1.0, 2.0) + 0.5 * lg.SquaredDistance(randn(4, seed=10))),
}
every = pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)


@every
def test_the_conjugate_of_the_conjugate_is_the_function(f):
    assert f.conjugate().conjugate() is f
    assert f.conjugate() is f.conjugate()
    again = pickle.loads(pickle.dumps(f))
    assert again.conjugate().conjugate() is again
    twin = copy.deepcopy(f.conjugate())
    assert twin.conjugate().conjugate() is twin


@every
@pytest.mark.parametrize("step", [0.6, torch.tensor(1.7).double()])
def test_moreau(f, step):
    """prox of f at y and of f* at y/α add up to y, for every function that has a prox."""
    y = 2 * X
    x, p = f.prox(y, step), f.conjugate().prox(y / step, 1 / step)
    torch.testing.assert_close(x + step * p, y, rtol=1e-11, atol=1e-11)


@every
def test_fenchel_young(f):
    """f(x) + f*(p) ≥ ⟨x, p⟩, with equality where p is a subgradient at x; in both directions."""
    for g in (f, f.conjugate()):
        for seed in range(4):
            y = 2 * randn(3, 4, seed=seed + 20)
            x = g.prox(y, 0.6)
            p = (y - x) / 0.6
            total = float(g(x) + g.conjugate()(p))
            assert total == pytest.approx(float((x * p).sum()), rel=1e-9, abs=1e-9)
            other = g.prox(2 * randn(3, 4, seed=seed + 50), 0.6)
            assert float(g(other) + g.conjugate()(p)) >= float((other * p).sum()) - 1e-9


@every
def test_values_of_a_batch_are_those_of_its_elements(f):
    x = f.prox(X, 0.6)
    each = torch.stack([f(row) for row in x])
    torch.testing.assert_close(f.values(x, 1), each)
    torch.testing.assert_close(f.values(x, 1).sum(), f(x))


def test_scaled_shifted_composed_by_hand():
    f, c, K = lg.SquaredDistance(randn(5, seed=3)), randn(4, seed=4), MATRIX
    x = randn(4, seed=5)
    torch.testing.assert_close((0.3 * f @ K)(x), 0.15 * ((K @ x - f.y) ** 2).sum())
    torch.testing.assert_close((f @ K).shifted(c)(x), 0.5 * ((K @ (x - c) - f.y) ** 2).sum())
    torch.testing.assert_close((0.3 * (f @ K)).grad(x), 0.3 * K.T @ (K @ x - f.y))
    torch.testing.assert_close((f @ K).hessian(x), K.T @ K)
    least_squares = lg.LeastSquares(K, f.y)
    torch.testing.assert_close(
        torch.as_tensor((f @ K).lipschitz()), torch.as_tensor(least_squares.lipschitz())
    )
    total = sum([lg.L1(), f @ K, lg.L1()])
    torch.testing.assert_close(total(x), 2 * x.abs().sum() + (f @ K)(x))


def test_composition_reads_from_the_left():
    first, second = lg.Dense(randn(3, 5, seed=6)), lg.Dense(MATRIX)
    f = lg.L1() @ first @ second
    x = randn(4, seed=7)
    torch.testing.assert_close(f(x), (first.matrix @ MATRIX @ x).abs().sum())
    assert lg.L1() @ lg.Identity() @ second != f
    assert repr(lg.L1(0.1) @ lg.Identity()) == "L1(0.1)"


def test_representations_are_what_was_written():
    energy = lg.SquaredDistance(X) + 0.5 * lg.L1(0.1) @ lg.Differences() + lg.NonNegative()
    assert repr(energy) == (
        "SquaredDistance(tensor(3×4)) + (0.5 * L1(0.1)) @ Differences() + NonNegative()"
    )
    assert repr(lg.L1().shifted(X).conjugate()) == "LInfBall() + Linear(tensor(3×4))"
    assert repr(lg.SquaredNorm(X.abs())) == "SquaredNorm(tensor(3×4))"
    assert repr(lg.SquaredNorm(2.0) + lg.NegativeEntropy()) == "SquaredNorm(2) + NegativeEntropy()"
    assert repr(lg.GroupL1(dim=-3)) == "GroupL1(dim=-3)"


@pytest.mark.parametrize("factor", [2, 2.0, np.float64(2), torch.tensor(2.0)])
def test_numbers_scale(factor):
    assert float((factor * lg.L1())(torch.ones(3))) == 6.0


def test_what_cannot_be_done_is_said():
    with pytest.raises(errors.InputError, match="argument of the term"):
        torch.ones(3) * lg.L1()
    with pytest.raises(errors.InputError, match="non-negative"):
        -1.0 * lg.L1()
    with pytest.raises(errors.InputError, match="added, not subtracted"):
        lg.SquaredNorm() - lg.L1()
    with pytest.raises(errors.InputError, match=r"legato\.Smooth"):
        lg.L1() + (lambda x: x)
    with pytest.raises(errors.InputError, match=r"torch\.as_tensor"):
        lg.L1() @ np.eye(3)
    with pytest.raises(errors.InputError, match="no closed-form prox"):
        (lg.Simplex() + lg.L2Ball()).prox(X)
    with pytest.raises(errors.MissingConjugateError, match="not known in closed form"):
        lg.LeastSquares(MATRIX, randn(5)).conjugate()(randn(4))


def test_nothing_goes_stale():
    """Factors, shifts and weights count with the values that they have when they are used."""
    weight = torch.tensor(1.0).double().requires_grad_()
    y = randn(4, seed=8).requires_grad_()
    f = weight * lg.L1() + lg.SquaredDistance(y) + lg.L1(weight).shifted(y).conjugate().conjugate()
    dual = (weight * lg.L1()).conjugate()
    x = randn(4, seed=9)
    with torch.no_grad():
        before = f(x), dual.prox(x)
        weight.mul_(2.0)
        y.add_(1.0)
    fresh = weight * lg.L1() + lg.SquaredDistance(y) + lg.L1(weight).shifted(y)
    torch.testing.assert_close(f(x), fresh(x))
    torch.testing.assert_close(dual.prox(x), x.clamp(-2, 2))
    assert not torch.allclose(f(x), before[0])


def test_steps_may_not_vary_where_a_prox_couples():
    steps = 0.5 + rand(4, seed=10)
    for f in (lg.Simplex(), lg.L2Ball(0.5), lg.GroupL1(), lg.Simplex().conjugate()):
        with pytest.raises(errors.InputError, match="couples the entries along axis -1"):
            f.prox(X, steps)
        f.prox(X, 0.5 + rand(3, 1, seed=11))
    with pytest.raises(errors.InputError, match="couples the entries"):
        (lg.Simplex() + lg.SquaredNorm(steps)).prox(X)
    lg.L1().prox(X, steps)


def test_steps_that_vary_do_not_pass_through_a_wavelet():
    """Energies in float64, against Clarabel: 6.70996; by steps that vary it was 7.558."""
    b, w = torch.tensor([1.0, -2, 3, 0.5]).double(), torch.tensor([1.0, 4, 9, 2]).double()
    g = lg.L1() @ lg.Wavelet(1, dims=(-1,))
    x, basis = cp.Variable(4), g.operator(torch.eye(4).double()).mT.numpy()
    energy = 0.5 * cp.sum(cp.multiply(w.numpy(), cp.square(x - b.numpy()))) + cp.norm1(basis @ x)
    best = cp.Problem(cp.Minimize(energy)).solve(solver=cp.CLARABEL)
    f = lg.SquaredDistance(b, w)
    for algorithm in (lg.ForwardBackward(), lg.Newton(), lg.Anderson(lg.ForwardBackward())):
        found = lg.solve(lg.Composite(f, g), algorithm, torch.zeros(4).double(), stop=STOP)
        assert found.converged
        assert float((f + g)(found.x)) == pytest.approx(best, abs=1e-7)
    for refused in (g + lg.SquaredNorm(w), lg.SquaredDistance(b) @ g.operator + lg.SquaredNorm(w)):
        with pytest.raises(errors.InputError, match="couples the entries"):
            refused.prox(b)
    with pytest.raises(errors.InputError, match="couples the entries"):
        lg.solve(lg.Composite(f, g), lg.ForwardBackward(0.02 * w), stop=STOP)


def test_infinite_slopes_stay_infinite_behind_a_factor():
    """x = (y − c − 0.2)⁺, so that dx/dc = −1 where x > 0."""
    y = torch.tensor([2.0, -1, 3]).double()
    for c, expected in ((0.9, [0.9, 0, 1.9]), (0.0, [1.8, 0, 2.8])):
        for factor in (c, torch.tensor(c).double().requires_grad_()):
            g = factor * lg.AsymmetricL1(-torch.inf, 1.0) + lg.L1(0.2)
            x = g.prox(y)
            torch.testing.assert_close(x, torch.tensor(expected).double())
            if isinstance(factor, torch.Tensor):
                (grad,) = torch.autograd.grad(x.sum(), factor)
                assert float(grad) == -2
                torch.testing.assert_close(lg.solve(lg.SquaredDistance(y) + g, stop=STOP).x, x)


def test_a_gap_at_a_solution_is_small_beside_an_open_box():
    """Fenchel's equality holds at (prox y, y − prox y), up to the rounding of y − x."""
    y = 2 * randn(6, seed=14)
    for g in (lg.L1(0.2) + lg.Box(-0.4, torch.inf), lg.L1(0.2) + lg.Box(0.0, torch.inf)):
        x = g.prox(y)
        equality = g(x) + g.conjugate()(y - x + 1e-12)
        torch.testing.assert_close(equality, (x * (y - x)).sum(), atol=1e-9, rtol=1e-9)
        assert float(g.conjugate()(torch.full_like(y, 0.21))) == torch.inf


def test_quadratic_terms_take_steps_of_zero_and_of_any_size():
    """(αAᵀA + 1)x = y + αAᵀb, by NumPy."""
    A, b, y = randn(2, 3, seed=15), randn(2, seed=16), randn(3, seed=17)
    f = lg.LeastSquares(A, b)
    for alpha in (0.0, 1e-300, 0.7, 1e6):
        left, right = alpha * A.mT @ A + torch.eye(3), y + alpha * A.mT @ b
        expected = torch.from_numpy(np.linalg.solve(left.numpy(), right.numpy()))
        step = torch.tensor(alpha).double().requires_grad_()
        for x in (f.prox(y, step), (step * f).prox(y), f.prox(y, alpha)):
            torch.testing.assert_close(x, expected, rtol=1e-8, atol=1e-8)
        (grad,) = torch.autograd.grad(f.prox(y, step).sum(), step)
        slope = -np.linalg.solve(left.numpy(), f.grad(expected).numpy()).sum()
        assert float(grad) == pytest.approx(slope, rel=1e-6, abs=1e-12)
    with pytest.raises(errors.InputError, match="one of them is 0"):
        f.prox(y, torch.tensor([0.0, 1.0, 1.0]).double())
    each = f.prox(torch.stack([y, y]), torch.tensor([[0.0], [0.7]]).double())
    torch.testing.assert_close(each, torch.stack([y, f.prox(y, 0.7)]))


def test_weights_of_frequencies_that_are_all_measured():
    """Diagonal behind the transform: (w + 1)Fx = Fy + wb."""
    w, b, y = 0.1 + rand(4, 4, seed=18), crandn(4, 4, seed=19), crandn(4, 4, seed=20)
    found = np.fft.fft2(lg.LeastSquares(lg.Fourier(), b, w).prox(y).numpy(), norm="ortho")
    expected = (np.fft.fft2(y.numpy(), norm="ortho") + w.numpy() * b.numpy()) / (1 + w.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_complex_diagonal_keeps_a_real_variable_real():
    g = lg.SquaredDistance(torch.ones(2) + 0j) @ lg.Diagonal(torch.tensor([1 + 1j, 2]))
    with pytest.raises(errors.InputError, match="AsComplex"):
        g.prox(torch.ones(2))


def test_equal_ends_keep_their_derivative():
    c = randn(4, seed=12).requires_grad_()
    for y in (c.detach() + 1, c.detach() - 1):
        (grad,) = torch.autograd.grad(lg.Box(c, c).prox(y).sum(), c)
        torch.testing.assert_close(grad, torch.ones_like(c))


def test_a_weight_of_zero_has_its_one_sided_derivative():
    weight = torch.zeros(4).double().requires_grad_()
    y = torch.tensor([2.0, -3.0, 0.5, -0.1]).double()
    (grad,) = torch.autograd.grad(lg.L1(weight).prox(y).sum(), weight)
    torch.testing.assert_close(grad, -y.sign())


def test_weights_of_groups_must_belong_to_groups():
    square = randn(3, 3, seed=13)
    with pytest.raises(errors.InputError, match="one group norm for each"):
        lg.GroupL1(torch.ones(3).double())(square)
    with pytest.raises(errors.InputError, match="one group norm for each"):
        lg.L2Ball(torch.ones(3).double()).prox(square)
    assert float(lg.GroupL1(torch.ones(3, 1).double())(square)) > 0


def test_steps_for_each_block_reach_what_is_added_to_the_blocks():
    """A factor or a quadratic term around blocks counts with one step a block, too."""
    blocks = lg.Separable(lg.L1(0.3), lg.L1(0.2))
    x, steps = (randn(3, seed=1), randn(2, seed=2)), (0.5, 2.0)
    for g, f in (
        (blocks + lg.SquaredNorm(0.7), lambda b: b + lg.SquaredNorm(0.7)),
        (3.0 * blocks, lambda b: 3.0 * b),
        ((3.0 * blocks).conjugate(), lambda b: (3.0 * b).conjugate()),
    ):
        expected = tuple(
            f(b).prox(t, step) for b, t, step in zip(blocks.blocks, x, steps, strict=True)
        )
        torch.testing.assert_close(g.prox(x, steps), expected)


def test_preconditioned_steps_solve_the_same_problem_on_a_tuple():
    A, B, b = randn(4, 3, seed=1), randn(4, 2, seed=2), randn(4, seed=3)
    g = lg.Separable(lg.L1(0.1), lg.L1(0.2)) + lg.SquaredNorm(1.0)
    problem = lg.Saddle(lg.Stack(A.mT, B.mT).T, lg.SquaredDistance(b), nonsmooth=g)
    start = (torch.zeros(3).double(), torch.zeros(2).double())
    plain, diagonal = (
        lg.solve(problem, lg.PrimalDual(precondition=p), start, stop=lg.Stop(5000, tol=1e-12)).x
        for p in (False, True)
    )
    torch.testing.assert_close(plain, diagonal)


def test_gap_with_a_scaled_kernel():
    K = randn(3, 4, seed=1)
    energy = lg.Simplex() + 0.5 * lg.NegativeEntropy() + lg.L1(0.1) @ K
    found = lg.solve(energy, x0=torch.full((4,), 0.25).double(), stop=lg.Stop(5000, tol=1e-12))
    assert abs(float(found.gap)) < 1e-9


def test_a_weight_of_zero_makes_no_nan_of_the_gap():
    weight = torch.tensor([1.0, 0.0, 1.0]).double()
    data, tv = lg.SquaredDistance(randn(3, seed=1), weight), lg.L1(0.1) @ lg.Differences((-1,))
    found = lg.solve(data + tv, stop=lg.Stop(5000, tol=1e-13))
    assert abs(float(found.gap)) < 1e-9
    with pytest.raises(errors.MissingConjugateError, match="weight 0"):
        _ = lg.solve(data + lg.L1(0.3) + tv).gap


def test_smoothing_goes_through_an_operator():
    x = randn(5, seed=1)
    smooth = lg.smoothed(lg.SquaredDistance(x) + lg.L1(0.2) @ lg.Differences((-1,)), 1e-9)
    assert smooth.is_smooth
    torch.testing.assert_close(smooth(x), 0.2 * x.diff().abs().sum(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [np.float32(0.5), np.float64(0.5), np.int64(2)])
def test_a_numpy_number_scales(factor):
    torch.testing.assert_close((factor * lg.L1())(X), float(factor) * lg.L1()(X))


def test_what_is_no_tensor_is_refused_in_words():
    with pytest.raises(errors.InputError, match="shifted by a tensor, not by float"):
        lg.L1().shifted(0.5)
    with pytest.raises(errors.InputError, match="a number or a tensor, not list"):
        lg.L1([1.0])


@pytest.mark.parametrize("factor", [0.0, 0.5, torch.tensor(0.0, dtype=torch.float64)])
def test_a_factor_does_not_lift_a_constraint(factor):
    """The prox of 0·g projects, so that its value is infinite outside, not NaN."""
    g, outside, inside = factor * lg.NonNegative(), -X.abs(), X.abs()
    assert g(outside) == torch.inf
    assert g(inside) == 0
    assert g.conjugate()(outside) == 0
    assert g.conjugate()(inside) == torch.inf
    assert g(g.prox(outside)) == 0


def test_the_value_of_a_multiple_has_a_gradient_beside_infinite_ones():
    factor = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    values = (factor * lg.Box(-1.0, 1.0)).values(X, 1)
    torch.where(values.isinf(), 0.0, values).sum().backward()
    assert factor.grad == 0


@pytest.mark.parametrize("first", [0, 1])
def test_bounds_do_not_depend_on_the_order(first):
    terms = [lg.L1().shifted(X[0]), lg.Simplex()]
    assert (terms[first] + terms[1 - first]).bounds() == (0.0, 1.0)


def test_infinite_slopes_leave_the_derivative_of_the_value_alone():
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    lg.AsymmetricL1(-torch.inf, weight)(x).backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]
    assert weight.grad == 3


def test_geometries_of_equal_numbers_are_the_same():
    y = randn(4, seed=1)
    term = lg.BregmanTerm(lg.Interval(-1.0, 1.0), 0.3)
    found = term.prox(y, 0.5, lg.Interval(-1, 1))
    same = lg.Interval()
    torch.testing.assert_close(found, lg.BregmanTerm(same, 0.3).prox(y, 0.5, same))
    with pytest.raises(lg.errors.LegatoError, match="its own geometry"):
        term.prox(y, 0.5, lg.Interval(-1.0, 2.0))
