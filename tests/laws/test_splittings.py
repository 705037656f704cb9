"""ADMM, Douglas–Rachford, half-quadratic splitting, Anderson: solutions, derivatives, batches."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

import legato as lg
from draws import crandn, rand, randn
from legato.errors import GradientError, InputError, NotConvergedWarning
from legato.functions import conjugate_gradients
from legato.functions.quadratics import System, is_quadratic
from legato.testing import check_algorithm
from legato.testing.operators import written_out

A = torch.linalg.qr(randn(7, 5, seed=1)).Q * torch.linspace(1, 1.5, 5).double()
B = randn(7, seed=2)
Y = randn(4, 3, seed=3)
KERNEL = torch.tensor([[0.0, 0.1, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.0]]).double()
COILS = crandn(2, 4, 3, seed=4)
MASK = rand(4, 3, seed=5) > 0.3


def lasso(w=0.3, b=B):
    return lg.LeastSquares(A, b) + lg.L1(w)


def deblurred(w=0.2, y=Y):
    """By frequencies."""
    return lg.SquaredDistance(y) @ lg.Blur(KERNEL) + lg.L1(w) @ lg.Wavelet(1, dims=(-2,))


def bounded(w=0.2, y=Y):
    """By conjugate gradients, with a second term beside the penalty."""
    return lg.SquaredDistance(y) + lg.L1(w) @ lg.Differences() + lg.NonNegative()


def scanned(w=0.2, y=COILS):
    """Complex, by conjugate gradients."""
    measured = lg.SquaredDistance(y) @ lg.Fourier(MASK, COILS) + lg.SquaredNorm(0.1)
    return measured + w * lg.IsotropicTV()


SETTLED = lg.Stop(1500, tol=1e-10)
CASES = {
    "ADMM": (lg.ADMM(2.0), lasso),
    "ADMM, relaxed": (lg.ADMM(2.0, relaxation=1.6), lasso),
    "ADMM, frequencies": (lg.ADMM(0.5), deblurred),
    "ADMM, conjugate gradients": (lg.ADMM(0.7), bounded),
    "ADMM, complex": (lg.ADMM(0.7), scanned),
    "DouglasRachford": (lg.DouglasRachford(), lasso),
    "DouglasRachford, relaxed": (lg.DouglasRachford(0.6, relaxation=1.5), lasso),
    "Anderson of ForwardBackward": (lg.Anderson(lg.ForwardBackward()), lasso),
    "Anderson of PrimalDual": (lg.Anderson(lg.PrimalDual(), memory=4), bounded),
    "Anderson of ADMM": (lg.Anderson(lg.ADMM(2.0)), lasso),
}


@pytest.mark.parametrize("name", CASES)
def test_laws_and_the_solution(name):
    algorithm, make = CASES[name]
    if make not in (scanned, bounded):
        report = check_algorithm(algorithm, lg.split(make()), stop=SETTLED)
        assert report["fresh start"] is not None
    usual = lg.solve(make(), stop=lg.Stop(5000, tol=1e-10)).x
    found = lg.solve(make(), algorithm, stop=SETTLED)
    assert found.converged
    torch.testing.assert_close(found.x, usual, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ["ADMM, conjugate gradients", "ADMM, frequencies"])
def test_the_multipliers_are_the_dual_variable(name):
    algorithm, make = CASES[name]
    found = lg.solve(make(), algorithm, stop=SETTLED)
    problem = found.problem
    slope = problem.operator.adjoint(found.y)
    nearest = problem.penalty.conjugate().prox(found.y + problem.operator(found.x))
    torch.testing.assert_close(nearest, found.y, atol=1e-8, rtol=0)
    assert slope.shape == found.x.shape
    with pytest.raises(InputError, match="Composite has no dual variable"):
        _ = lg.solve(lasso(), lg.ADMM(2.0), stop=lg.Stop(3)).gap


STRATEGIES = {
    "Unroll": lg.Unroll(),
    "Unroll, checkpoints": lg.Unroll(checkpoint=20),
    "Unroll, last": lg.Unroll(last=100),
    "GMRES": lg.Implicit(lg.GMRES(tol=1e-11)),
    "Direct": lg.Implicit(lg.Direct()),
    "FixedPoint": lg.FixedPoint(3000, tol=1e-10),
    "Forward": None,
}
DERIVED = [
    (name, strategy)
    for name in ("ADMM", "ADMM, frequencies", "ADMM, complex", "DouglasRachford")
    for strategy in STRATEGIES
    if name != "ADMM, complex" or strategy == "Unroll"
    if name == "ADMM" or strategy != "Unroll, last"
] + [("Anderson of ForwardBackward", "GMRES"), ("Anderson of ADMM", "Unroll")]


def _loss(x):
    return (x.abs() ** 2 * torch.linspace(1, 2, x.shape[-1])).sum() + x.real.sum()


def _differences(value, theta):
    chance = torch.Generator().manual_seed(0)
    for t in theta:
        direction = torch.randn(t.shape, dtype=t.dtype, generator=chance)
        before, ends = t.detach().clone(), []
        with torch.no_grad():
            for h in (1e-6, -1e-6):
                t.copy_(before + h * direction)
                ends.append(float(value()))
            t.copy_(before)
        yield t, direction, (ends[0] - ends[1]) / 2e-6


@pytest.mark.parametrize(("name", "strategy"), DERIVED)
def test_derivatives_agree_with_differences(name, strategy):
    algorithm, make = CASES[name]
    data = {"lasso": B, "deblurred": Y, "scanned": COILS}[make.__name__].clone().requires_grad_()
    weight = torch.tensor(0.2).double().requires_grad_()
    gradient = lg.Forward(weight) if strategy == "Forward" else STRATEGIES[strategy]
    settled = strategy in ("GMRES", "Direct", "FixedPoint", "Unroll, last")
    stop = lg.Stop(150 if settled and "Anderson" not in name else 12)

    def value(gradient=None):
        energy = make(weight, data.detach() if strategy == "Forward" else data)
        return _loss(lg.solve(energy, algorithm, gradient=gradient, stop=stop).x)

    value(gradient).backward()
    theta = [weight] if strategy == "Forward" else [weight, data]
    for t, direction, expected in _differences(value, theta):
        found = float((t.grad.conj() * direction).real.sum())
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-8)


def test_steps_matrices_kernels_and_coils_get_their_derivatives():
    """Of few iterations, where a factor or a step matters."""
    matrix, rho = A.clone().requires_grad_(), torch.tensor(0.8).double().requires_grad_()
    kernel, coils = KERNEL.clone().requires_grad_(), COILS.clone().requires_grad_()
    stop = lg.Stop(4)

    def value():
        first = lg.LeastSquares(matrix, B) + lg.L1(0.3)
        second = lg.SquaredDistance(Y) @ lg.Blur(kernel) + 0.1 * lg.L1()
        third = lg.SquaredDistance(COILS.detach()) @ lg.Fourier(MASK, coils) + lg.L1(0.1)
        solved = (
            lg.solve(first, lg.ADMM(rho), stop=stop).x,
            lg.solve(first, lg.DouglasRachford(rho), stop=stop).x,
            lg.solve(first, lg.HalfQuadratic(rho, decay=0.8), stop=stop).x,
            lg.solve(second, lg.ADMM(rho), stop=stop).x,
            lg.solve(third, lg.ADMM(rho), stop=stop).x,
        )
        return sum(_loss(x) for x in solved)

    theta = [matrix, rho, kernel, coils]
    gradients = torch.autograd.grad(value(), theta)
    for (_, direction, expected), found in zip(_differences(value, theta), gradients, strict=True):
        slope = float((found.conj() * direction).real.sum())
        assert slope == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["ADMM", "DouglasRachford", "HalfQuadratic", "Anderson"])
def test_a_batch_stops_element_by_element(kind):
    b = torch.stack([B, 10 * B, 0.1 * randn(7, seed=9)])
    algorithm = {
        "ADMM": lg.ADMM(torch.tensor([1.0, 2.0, 3.0]).double()),
        "DouglasRachford": lg.DouglasRachford(torch.tensor([[0.4], [1.0], [2.0]]).double()),
        "HalfQuadratic": lg.HalfQuadratic(0.5),
        "Anderson": lg.Anderson(lg.ForwardBackward()),
    }[kind]
    stop = lg.Stop(3000, tol=1e-11)
    together = lg.solve(lasso(b=b), algorithm, stop=stop)
    assert together.converged.shape == (3,)
    for k in range(3):
        own = algorithm
        if kind == "ADMM":
            own = lg.ADMM(algorithm.rho[k])
        if kind == "DouglasRachford":
            own = lg.DouglasRachford(algorithm.step_size[k])
        alone = lg.solve(lasso(b=b[k]), own, stop=stop)
        assert abs(int(together.iterations[k]) - alone.iterations) <= 1
        torch.testing.assert_close(together.x[k], alone.x, atol=1e-9, rtol=1e-9)


def test_a_batch_of_conjugate_gradients_is_its_elements():
    images, stop = torch.stack([Y, 100 * Y]), lg.Stop(20)
    together = lg.solve(bounded(y=images), lg.ADMM(0.7), stop=stop).x
    alone = lg.solve(bounded(y=100 * Y), lg.ADMM(0.7), stop=stop).x
    torch.testing.assert_close(together[1], alone, atol=1e-8, rtol=0)


def test_half_quadratic_splitting_solves_its_own_problem():
    """The minimiser in z of the Moreau envelope of f, plus g."""
    f, g, alpha = lg.LeastSquares(A, B), lg.L1(0.3), 0.7
    found = lg.solve(f + g, lg.HalfQuadratic(alpha), stop=SETTLED).x

    def slope(z):  # of the envelope of f
        system = torch.eye(5).double() + alpha * A.T @ A
        return (z - torch.linalg.solve(system, z + alpha * A.T @ B)) / alpha

    torch.testing.assert_close(g.prox(found - slope(found)), found, atol=1e-9, rtol=0)
    shrinking = lg.HalfQuadratic(1.0, decay=0.97, least=3e-2)
    near = lg.solve(f + g, shrinking, stop=lg.Stop(500)).x
    true = lg.solve(f + g, stop=SETTLED).x
    assert float((near - true).abs().max()) < 0.2 * float((found - true).abs().max())


FORMS = {
    "entries": lg.SquaredDistance(Y, rand(4, 3, seed=6)) + 0.5 * lg.SquaredNorm(0.4),
    "mask": lg.LeastSquares(lg.Mask(MASK), Y) + lg.SquaredNorm(0.3),
    "matrix": lg.LeastSquares(randn(6, 5, seed=7), randn(4, 6, seed=8), rand(6, seed=9)),
    "quadratic": lg.Quadratic(A.T @ A, randn(5, seed=8)) + lg.Linear(randn(5, seed=7)),
    "blur": 2.0 * (lg.SquaredDistance(Y) @ lg.Blur(KERNEL)).shifted(Y) + lg.SquaredNorm(0.3),
    "convolution": lg.SquaredDistance(randn(3, 4, 3, seed=8))
    @ lg.Convolution(randn(3, 1, 3, 3, seed=7), "circular"),
    "mirror": lg.SquaredDistance(Y) @ lg.Blur(KERNEL, "mirror"),
    "tv": lg.SquaredDistance(Y) + 0.5 * lg.SquaredNorm() @ lg.Differences(),
    "fourier": lg.SquaredDistance(COILS[0]) @ lg.Fourier(MASK),
    "coils": lg.SquaredDistance(COILS) @ lg.Fourier(None, COILS),
    "coils and mask": lg.SquaredDistance(COILS) @ lg.Fourier(MASK, COILS),
}


@pytest.mark.parametrize("name", FORMS)
def test_linear_systems_are_solved(name):
    f = FORMS[name]
    x = f.start() if f.start() is not None else torch.zeros(5).double()
    assert is_quadratic(f)
    system = System(f, (lg.Identity(),))
    factor = system.factor(x, 0.7)
    by_hand = type(factor).__name__ == "tuple"
    assert by_hand == (name in ("mirror", "tv", "coils and mask"))
    r = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    found = system.solve(factor, r, 0.7, torch.zeros_like(x), 0)
    left = f.grad(found) - f.grad(torch.zeros_like(x)) + 0.7 * found - r
    assert float(left.abs().max()) < 1e-10


def test_bad_input():
    with pytest.raises(InputError, match="rho must be positive"):
        lg.ADMM(-1.0)
    for make in (lg.ADMM, lg.DouglasRachford):
        with pytest.raises(InputError, match=r"\(0, 2\)"):
            make(1.0, relaxation=2.0)
    with pytest.raises(InputError, match="Use ADMM"):
        lg.solve(bounded(), lg.DouglasRachford())
    logistic = lg.Logistic(A, torch.sign(B)) + lg.L1()
    for algorithm in (lg.ADMM(1.0), lg.DouglasRachford(1.0), lg.HalfQuadratic(1.0)):
        with pytest.raises(InputError, match="prox"):
            lg.solve(logistic, algorithm)
    with pytest.raises(InputError, match="steps that do not change"):
        lg.Anderson(lg.ForwardBackward(lg.Backtracking()))
    with pytest.raises(InputError, match="curved"):
        lg.solve(lg.Linear(B) + lg.Simplex(), lg.Anderson(lg.ForwardBackward(1.0, lg.Entropy())))
    unseen = lg.LeastSquares(lg.Mask(MASK), Y) + lg.L1() @ lg.Mask(MASK)
    with pytest.raises(InputError, match="no unique solution"):
        lg.solve(unseen, lg.ADMM(1.0))


def test_a_system_that_is_left_open_says_so(monkeypatch):
    monkeypatch.setattr(conjugate_gradients, "ITERATIONS", 2)
    with pytest.warns(NotConvergedWarning, match="2 conjugate gradients"):
        lg.solve(bounded(), lg.ADMM(0.7), stop=lg.Stop(1))


class Contraction(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.filter = torch.nn.Parameter(torch.tensor([0.2, 0.5, 0.2]).double() * size)

    def forward(self, y):
        return lg.Blur(self.filter)(y) + 0.05 * torch.tanh(y)


@pytest.mark.parametrize(
    "algorithm", [lg.HalfQuadratic(0.7), lg.DouglasRachford(0.7), lg.ADMM(1.4)], ids=repr
)
def test_a_network_as_a_prox_unrolled_and_as_an_equilibrium(algorithm):
    network = Contraction(0.9)
    data = lg.LeastSquares(A, B)

    def value(gradient=None):
        energy = lg.Composite(data, lg.Denoiser(network))
        return _loss(lg.solve(energy, algorithm, gradient=gradient, stop=lg.Stop(120)).x)

    for gradient in (lg.Unroll(), lg.Implicit(lg.GMRES(tol=1e-11))):
        (found,) = torch.autograd.grad(value(gradient), network.filter)
        for _, direction, expected in _differences(value, [network.filter]):
            assert float((found * direction).sum()) == pytest.approx(expected, rel=1e-5)


def test_own_weights_in_every_iteration():
    stages = [Contraction(0.6 + 0.1 * k) for k in range(3)]
    algorithm, data = lg.HalfQuadratic(0.7), lg.LeastSquares(A, B)

    def value():
        problems = [lg.Composite(data, lg.Denoiser(stage)) for stage in stages]
        state = algorithm.init(problems[0], None)
        for problem in problems:
            state = algorithm.step(problem, state)
        return _loss(algorithm.solution(state))

    filters = [stage.filter for stage in stages]
    gradients = torch.autograd.grad(value(), filters)
    for (_, direction, slope), found in zip(_differences(value, filters), gradients, strict=True):
        assert float((found * direction).sum()) == pytest.approx(slope, rel=1e-6)


def test_what_a_denoiser_says_of_itself():
    network = Contraction(0.9)
    g, y = lg.Denoiser(network), randn(5, seed=4)
    J = torch.func.jacrev(lambda t: network(t) - t)(y)
    true = float(torch.linalg.matrix_norm(J.detach(), ord=2))
    assert g.expansion(y, 200) == pytest.approx(true, rel=1e-3)
    with pytest.raises(InputError, match="no value"):
        g(y)
    with pytest.raises(InputError, match="keep both"):
        lg.Denoiser(lambda t: t[:2]).prox(y)
    scaled = lg.Denoiser(lambda t, sigma: t / (1 + sigma), sigma=torch.tensor(0.5).double())
    torch.testing.assert_close(scaled.prox(y), y / 1.5)


def _lopsided():
    M = randn(5, 5, seed=6)
    return 0.9 * M / torch.linalg.matrix_norm(M, ord=2)


@pytest.mark.parametrize("place", ["prox", "gradient"])
def test_a_network_has_no_symmetric_jacobian_to_solve_with(place):
    """CG says so before it solves, whichever of the two the network stands for."""
    M, b = _lopsided(), B.clone().requires_grad_()
    data = lg.LeastSquares(A, b)
    if place == "prox":
        problem = lg.Composite(data, lg.Denoiser(lambda y: y @ M.T))
    else:
        problem = lg.Composite(data + lg.functions.DenoiserResidual(lambda y: y @ M.T, 0.3))
    gradient, stop = lg.Implicit(lg.CG()), lg.Stop(20000, tol=1e-12)
    x = lg.solve(problem, lg.ForwardBackward(0.02), gradient=gradient, stop=stop).x
    with pytest.raises(lg.errors.GradientError, match="symmetric"):
        x.sum().backward()


def test_a_network_as_a_gradient():
    """(AᵀA + w(1 − M))x = Aᵀb for an M that is not symmetric, a linear system; its derivative."""
    M = _lopsided()
    weight = torch.tensor(0.3).double().requires_grad_()
    red = lg.functions.DenoiserResidual(lambda y: y @ M.T, weight)
    L = float(torch.linalg.matrix_norm(A, ord=2)) ** 2
    algorithm = lg.ForwardBackward(1 / (L + 0.6))
    left = A.T @ A + 0.3 * (torch.eye(5).double() - M)
    truth = torch.linalg.solve(left, A.T @ B)
    slope = -torch.linalg.solve(left, truth - M @ truth)
    stop = lg.Stop(20000, tol=1e-13)
    for gradient in (lg.Implicit(), lg.Implicit(lg.Direct()), lg.Unroll()):
        found = lg.solve(lg.LeastSquares(A, B) + red, algorithm, gradient=gradient, stop=stop)
        torch.testing.assert_close(found.x.detach(), truth, atol=1e-8, rtol=1e-8)
        (own,) = torch.autograd.grad(found.x.sum(), weight)
        torch.testing.assert_close(own, slope.sum(), rtol=1e-5, atol=0)
    with pytest.raises(InputError, match="no value"):
        red(truth)
    with pytest.raises(InputError, match="no value"):
        lg.solve(lg.LeastSquares(A, B) + red, lg.ForwardBackward(lg.Backtracking()))
    with pytest.raises(InputError, match="keep both"):
        lg.functions.DenoiserResidual(lambda y: y[:2]).grad(truth)
    with pytest.raises(lg.errors.StepError, match="Lipschitz"):
        lg.solve(lg.LeastSquares(A, B) + red, lg.ForwardBackward())
    known = lg.functions.DenoiserResidual(lambda y: y @ M.T, 0.3, constant=0.6)
    found = lg.solve(lg.LeastSquares(A, B) + known, lg.ForwardBackward(), stop=stop)
    assert float(found.steps["step"]) == pytest.approx(1 / (L + 0.6), rel=0.02)
    torch.testing.assert_close(found.x, truth, atol=1e-8, rtol=1e-8)


def test_anderson_takes_back_what_leads_astray():
    """A map whose pieces fool the extrapolation still converges, and its bound never grows."""
    energy = lg.LeastSquares(A, B) + lg.Box(-0.01, 0.02)
    algorithm = lg.Anderson(lg.ForwardBackward(), memory=5, regularisation=1e-14)
    problem = lg.split(energy)
    state = algorithm.init(problem, 1000 * randn(5, seed=3))
    for _ in range(60):
        state = algorithm.step(problem, state)
    truth = lg.solve(energy, stop=SETTLED).x
    torch.testing.assert_close(algorithm.solution(state), truth, atol=1e-9, rtol=0)


def test_anderson_converges_where_plain_steps_increase_the_residual():
    """A fused lasso at several scales; the truth by least squares with bounds, on the dual."""
    scale = torch.logspace(-1, 1, 12).double()
    M, c = scale[:, None, None] * randn(12, 6, 4, seed=5), randn(12, 6, seed=6)
    energy = lg.LeastSquares(M, c) + lg.L1(0.5) @ lg.Differences((-1,))
    solution = lg.solve(energy, lg.Anderson(lg.PrimalDual()), stop=lg.Stop(3000, tol=1e-9))
    assert solution.converged.all()
    D = np.diff(np.eye(4), axis=0)
    for x, A_, b_ in zip(solution.x.numpy(), M.numpy(), c.numpy(), strict=True):
        inverse = np.linalg.inv(np.linalg.cholesky(A_.T @ A_))
        fit = lsq_linear(inverse @ D.T, inverse @ A_.T @ b_, (-0.5, 0.5), tol=1e-14)
        truth = inverse.T @ inverse @ (A_.T @ b_ - D.T @ fit.x)
        np.testing.assert_allclose(x, truth, atol=1e-5 * np.abs(truth).max())


def test_engines_and_transforms():
    plain = lg.solve(lasso(), lg.ADMM(2.0), stop=lg.Stop(50)).x
    with lg.Replayed():
        torch.testing.assert_close(lg.solve(lasso(), lg.ADMM(2.0), stop=lg.Stop(50)).x, plain)
    slope = torch.func.grad(lambda w: lg.solve(lasso(w), lg.ADMM(2.0), stop=lg.Stop(50)).x.sum())(
        torch.tensor(0.3).double()
    )
    weight = torch.tensor(0.3).double().requires_grad_()
    lg.solve(lasso(weight), lg.ADMM(2.0), stop=lg.Stop(50)).x.sum().backward()
    torch.testing.assert_close(slope, weight.grad)
    with pytest.raises(GradientError):
        lg.solve(lasso(weight), lg.ADMM(2.0), gradient=lg.Piggyback(), stop=lg.Stop(50))


def test_total_generalised_variation_of_two_unknowns():
    """In two lines, against Clarabel (cvxpy) on the matrices of the operators."""
    y, D, E = randn(4, 4, seed=6) + torch.arange(4), lg.Differences(), lg.SymmetrisedGradient()
    u, w = lg.operators.parts(y, D(y))
    tgv = lg.GroupL1(0.4, dim=-3) @ (D @ u - w) + lg.GroupL1(0.7, dim=-3) @ E @ w
    image, field = cp.Variable(16), cp.Variable(32)
    slopes = cp.reshape(written_out(D, y).numpy() @ image - field, (2, 16), order="C")
    bends = cp.reshape(written_out(E, D(y)).numpy() @ field, (3, 16), order="C")
    penalty = 0.4 * cp.sum(cp.norm(slopes, axis=0)) + 0.7 * cp.sum(cp.norm(bends, axis=0))
    truth = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(image - y.flatten().numpy()) + penalty))
    truth.solve(solver=cp.CLARABEL)
    for f in (tgv, tgv + lg.Box(-9.0, 9.0) @ u):
        found = lg.solve(lg.SquaredDistance(y) @ u + f, stop=lg.Stop(4000, tol=1e-7))
        assert float(found.objective) == pytest.approx(truth.value, rel=1e-5)
        torch.testing.assert_close(
            found.x[0].flatten(), torch.from_numpy(image.value), atol=2e-3, rtol=0
        )
    with pytest.raises(InputError, match="one of 2 unknowns"):
        u(y)
    with pytest.raises(InputError, match="at least two"):
        lg.operators.parts(y)
