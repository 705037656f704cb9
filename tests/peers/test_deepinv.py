"""What deepinv's tests of optimisation ask for: data terms, priors, algorithms, equilibria."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from draws import crandn, rand, randn
from peers.objectives import minimises

F64 = torch.float64
B = torch.tensor([[2.0, 1.0], [-1.0, 0.5]], dtype=F64)


def column(*values):
    return torch.tensor(values, dtype=F64)


# --- data terms -----------------------------------------------------------------------------------


def test_squares_of_a_measurement():
    x, y, A = column(1, 4), column(1, 1), torch.diag(column(2, 0.5))
    assert float(lg.LeastSquares(A, y)(x)) == pytest.approx(1.0)
    torch.testing.assert_close(lg.SquaredDistance(y).prox(x), (x + y) / 2)
    torch.testing.assert_close(lg.SquaredDistance(y).grad(x), x - y)
    f = lg.LeastSquares(B, y)
    torch.testing.assert_close(f.grad(x), B.mT @ (B @ x - y))
    expected = torch.linalg.solve(torch.eye(2, dtype=F64) + B.mT @ B, x + B.mT @ y)
    torch.testing.assert_close(f.prox(x), expected)
    own = lg.Smooth(lambda t: 0.5 * (B @ (t - y)).square().sum())
    torch.testing.assert_close(own.grad(x), B.mT @ B @ (x - y))
    near = lg.solve(own + lg.SquaredDistance(x), stop=lg.Stop(1000, tol=1e-12)).x
    right = x + B.mT @ B @ y
    torch.testing.assert_close(near, torch.linalg.solve(torch.eye(2, dtype=F64) + B.mT @ B, right))


def test_a_ball_around_a_measurement():
    x, y, A = column(1, 4), column(1, 1), torch.diag(column(2, 0.5))
    ball = lg.L2Ball(0.5).shifted(y)
    assert float((ball @ A)(x)) == torch.inf
    assert float((lg.L2Ball(1.5).shifted(y) @ A)(x)) == 0  # ‖Ax − y‖ = √2
    torch.testing.assert_close(ball.prox(x), column(1, 1.5))
    found = lg.solve(lg.SquaredDistance(x) + ball @ A, stop=lg.Stop(5000, tol=1e-10)).x
    v = cp.Variable(2)
    cp.Problem(
        cp.Minimize(cp.sum_squares(v - x.numpy())), [cp.norm(A.numpy() @ v - y.numpy()) <= 0.5]
    ).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found.numpy(), v.value, atol=1e-4)
    assert float((A @ found - y).norm()) <= 0.5 + 1e-6


def test_absolute_deviations_and_nothing():
    x, y, A = column(1, 4, -0.5), column(1, 1, 1), torch.diag(column(2, -0.5, 1))
    f = lg.L1().shifted(y)
    assert float((f @ A)(x)) == pytest.approx(float((A @ x - y).abs().sum()))
    torch.testing.assert_close(f.prox(x, 0.5), column(1, 3.5, 0))
    torch.testing.assert_close(f.smoothed(1e-9).grad(x), torch.sign(x - y))
    assert float(lg.Zero()(x)) == 0
    assert not lg.Zero().grad(x).any()
    torch.testing.assert_close(lg.Zero().prox(x, 0.5), x)


def test_without_a_prior_a_least_squares_solution_is_found():
    for seed in range(3):
        y = randn(3, seed=seed)
        x = lg.solve(lg.LeastSquares(torch.eye(3, dtype=F64), y), stop=lg.Stop(500, tol=1e-12)).x
        torch.testing.assert_close(x, y, atol=1e-9, rtol=0)


def test_amplitudes():
    """Σ (|Ax| − √y)² of complex x: torch's gradient of what NumPy would write."""
    A, x = crandn(10, 9, seed=1), crandn(9, seed=2)
    f = lg.Smooth(lambda t: ((A @ t).abs() - 1).square().sum(), coupled=1)
    seen = A @ x
    expected = 2 * A.mH @ ((seen.abs() - 1) * seen / seen.abs())
    torch.testing.assert_close(f.grad(x), expected)


@pytest.mark.parametrize("mode", ["floor", "round"])
def test_wrapped_differences(mode):
    """½‖Dx − w(Dy)‖², w to within half a period: value, slope, prox and the best fit."""
    D, x, y = lg.Differences(), randn(3, 3, seed=3), 4 * randn(3, 3, seed=4)
    wrap = (lambda t: t - torch.floor(t + 0.5)) if mode == "floor" else (lambda t: t - t.round())
    target = wrap(D(y))
    f = lg.LeastSquares(D, target)
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(0.5 * (D(point) - target).square().sum(), point)
    torch.testing.assert_close(f.grad(x), slope)
    assert bool((x + f.grad(f.prox(x)) - x).isfinite().all())
    torch.testing.assert_close(f.prox(x) + f.grad(f.prox(x)), x, atol=1e-8, rtol=0)
    best = lg.solve(f, x0=torch.zeros_like(x), stop=lg.Stop(3000, tol=1e-12)).x
    assert float(f.grad(best).abs().max()) < 1e-6


def test_two_measurements_at_once():
    x = torch.ones(1, dtype=F64)
    f = 0.25 * lg.SquaredDistance(3 * x) + lg.SquaredDistance(2 * x)
    assert float(f(x)) == pytest.approx(4 / 8 + 1 / 2)
    torch.testing.assert_close(f.grad(x), -2 * x / 4 - x)


def test_the_slope_of_total_variation_where_it_has_one():
    x = torch.zeros(3, 3, dtype=F64)
    x[1, 1] = 1.0
    f = lg.IsotropicTV(1.0)
    smooth = f.smoothed(1e-10).grad(x)
    h = 1e-6 * torch.eye(9, dtype=F64)[4].reshape(3, 3)
    expected = (float(f(x + h)) - float(f(x - h))) / 2e-6
    assert float(smooth[1, 1]) == pytest.approx(expected, rel=1e-5)
    assert bool(smooth.isfinite().all())


# --- algorithms -----------------------------------------------------------------------------------

Y = B @ column(10, 10)
LAMBDA = 0.09


def rests(x):
    """∇f = −λ sign(x), where no entry is 0."""
    assert bool((x != 0).all())
    torch.testing.assert_close(B.mT @ (B @ x - Y), -LAMBDA * torch.sign(x), atol=1e-8, rtol=0)


CONVERGENT = {
    "gradient descent": (lg.ForwardBackward(0.3, inertia=0.0), True),
    "gradient descent, Anderson": (lg.Anderson(lg.ForwardBackward(0.3, inertia=0.0)), True),
    "proximal gradient": (lg.ForwardBackward(0.3, inertia=0.0), False),
    "proximal gradient, Anderson": (lg.Anderson(lg.ForwardBackward(0.3, inertia=0.0)), False),
    "ADMM": (lg.ADMM(), False),
    "Douglas–Rachford": (lg.DouglasRachford(), False),
    "FISTA": (lg.ForwardBackward(inertia=lg.Nesterov()), False),
    "mirror descent": (lg.ForwardBackward(0.3, geometry=lg.Euclidean(), inertia=0.0), True),
    "proximal mirror descent": (lg.ForwardBackward(0.3, lg.Euclidean(), 0.0), False),
}


@pytest.mark.parametrize("name", CONVERGENT)
@pytest.mark.parametrize("first", ["data", "prior"])
def test_an_algorithm_ends_where_its_energy_is_smallest(name, first):
    algorithm, by_gradient = CONVERGENT[name]
    prior = lg.Smooth(lambda t: LAMBDA * t.abs().sum()) if by_gradient else lg.L1(LAMBDA)
    terms = [lg.LeastSquares(B, Y), prior]
    energy = sum(terms if first == "data" else terms[::-1])
    start = torch.ones(2, dtype=F64)
    solution = lg.solve(energy, algorithm, x0=start, stop=lg.Stop(5000, tol=1e-13))
    assert bool(solution.converged)
    rests(solution.x)


@pytest.mark.parametrize("accelerated", [False, True])
def test_half_quadratic_splitting_ends_at_an_envelope(accelerated):
    """0 ∈ ∇M(x) + λ∂g(x), M the data term's envelope of the step."""
    algorithm = lg.HalfQuadratic(0.4)
    algorithm = lg.Anderson(algorithm) if accelerated else algorithm
    data = lg.LeastSquares(B, Y)
    solution = lg.solve(
        data + lg.L1(LAMBDA), algorithm, x0=torch.ones(2, dtype=F64), stop=lg.Stop(5000, tol=1e-13)
    )
    x = solution.x
    left = torch.linalg.solve(torch.eye(2, dtype=F64) + 0.4 * B.mT @ B, x + 0.4 * B.mT @ Y)
    slope = (x - left) / 0.4  # of the envelope of the data term at x
    other = lg.L1(LAMBDA).prox(x, 0.4)
    inner = B.mT @ (B @ x - Y) + (x - other) / 0.4  # or the other way round
    ends = [(slope + LAMBDA * torch.sign(x)).abs().max(), inner.abs().max()]
    assert float(min(ends)) < 1e-6


@pytest.mark.parametrize("behind", ["data", "prior", "measured data"])
def test_a_primal_dual_solve_with_an_operator(behind):
    y = column(10, 10) if behind != "measured data" else B @ column(10, 10)
    data, prior = lg.SquaredDistance(y), lg.L1(0.6)
    energy = data + prior @ B if behind == "prior" else data @ B + prior
    problem = (
        lg.Saddle(B, prior, smooth=data)
        if behind == "prior"
        else lg.Saddle(B, data, nonsmooth=prior)
    )
    v = cp.Variable(2)
    seen, k = B.numpy() @ v, y.numpy()
    cost = (
        0.5 * cp.sum_squares(v - k) + 0.6 * cp.norm1(seen)
        if behind == "prior"
        else 0.5 * cp.sum_squares(seen - k) + 0.6 * cp.norm1(v)
    )
    cp.Problem(cp.Minimize(cost)).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    start = torch.zeros(2, dtype=F64)
    for what in (problem, energy):
        algorithm = lg.PrimalDual() if what is problem else None
        found = lg.solve(what, algorithm, x0=start, stop=lg.Stop(20000, tol=1e-12)).x
        np.testing.assert_allclose(found.numpy(), v.value, atol=1e-5)


# --- priors behind a blur -------------------------------------------------------------------------

SHAPE = (2, 8, 8)
KERNEL = torch.tensor([[0.05, 0.1, 0.05], [0.1, 0.4, 0.1], [0.05, 0.1, 0.05]], dtype=F64)
BLUR = lg.Blur(KERNEL)
SEEN = BLUR(rand(*SHAPE, seed=5))
WAVELET = lg.Wavelet(2)

PRIORS = {
    "L1": lambda: lg.L1(0.1),
    "L12": lambda: lg.GroupL1(0.1, dim=-3),
    "Tikhonov": lambda: lg.SquaredNorm(0.1),
    "Wavelet": lambda: lg.L1(0.1) @ WAVELET,
    "Zero": lambda: lg.Zero(),
    "TV": lambda: lg.IsotropicTV(0.1),
    "TVL1": lambda: lg.L1(0.1) @ lg.Differences(),
    "SmoothedTV": lambda: lg.IsotropicTV(0.1).smoothed(0.1),
    "two wavelets": lambda: lg.L1(0.1) @ lg.Wavelet(1) + lg.L1(0.1) @ WAVELET,
}
BY_PROX = ("L1", "L12", "Tikhonov", "Wavelet", "Zero")
METHODS = {
    "PGD": lg.ForwardBackward(inertia=0.0),
    "FISTA": lg.ForwardBackward(inertia=lg.Nesterov()),
    "HQS": lg.HalfQuadratic(0.5, decay=0.9),
    "DRS": lg.DouglasRachford(),
    "ADMM": lg.ADMM(),
    "PDCP": lg.PrimalDual(),
}
PAIRS = (
    [(p, m) for p in BY_PROX for m in METHODS]
    + [(p, m) for p in ("TV", "TVL1", "two wavelets") for m in ("ADMM", "PDCP")]
    + [("SmoothedTV", m) for m in ("PGD", "FISTA")]
)


def objective(prior):
    def value(x):
        x = torch.from_numpy(x)
        return 0.5 * float((BLUR(x) - SEEN).square().sum()) + float(PRIORS[prior]()(x))

    return value


@pytest.mark.parametrize(("prior", "method"), PAIRS)
def test_a_prior_with_an_algorithm(prior, method):
    """No change of the image, of any size, has a smaller energy."""
    data, term = lg.LeastSquares(BLUR, SEEN), PRIORS[prior]()
    problem = data + term
    if prior in BY_PROX:
        problem = lg.Composite(data, term)
        if method == "PDCP":
            problem = lg.Saddle(lg.Identity(), term, smooth=data)
    stop = lg.Stop(200 if method == "ADMM" else 600)
    solution = lg.solve(problem, METHODS[method], x0=torch.zeros_like(SEEN), stop=stop)
    tolerance = {"HQS": 5e-3, "ADMM": 1e-3}.get(method, 1e-4)
    minimises(objective(prior), solution.x.numpy(), tolerance, draws=15)


def total_variation_prox(weight, isotropic):
    """deepinv's TV priors: a prox that is itself a solve, here a layer."""
    from legato.nn import TotalVariation

    layer = TotalVariation(60, isotropic=isotropic)
    return lg.Denoiser(lambda y: layer(y[None], torch.tensor(weight, dtype=F64))[0])


@pytest.mark.parametrize("prior", ["TV", "TVL1"])
@pytest.mark.parametrize("method", ["PGD", "FISTA", "HQS", "DRS"])
def test_total_variation_as_a_prox_that_is_solved(method, prior):
    """The step of the prox is fixed beforehand, as that of a network is."""
    step = 0.5 if method == "HQS" else 1.0
    algorithm = {
        "PGD": lg.ForwardBackward(step, inertia=0.0),
        "FISTA": lg.ForwardBackward(step, inertia=lg.Nesterov()),
        "HQS": lg.HalfQuadratic(step),
        "DRS": lg.DouglasRachford(step),
    }[method]
    problem = lg.Composite(
        lg.LeastSquares(BLUR, SEEN), total_variation_prox(0.1 * step, prior == "TV")
    )
    x = lg.solve(problem, algorithm, x0=torch.zeros_like(SEEN), stop=lg.Stop(30)).x
    if method != "HQS":
        minimises(objective(prior), x.numpy(), 5e-3, draws=10)
    assert bool(x.isfinite().all())


def shrunk(y, sigma=0.05):
    """A denoiser with wavelets, as a callable that knows nothing of proxes."""
    coefficients = WAVELET(y)
    return WAVELET.adjoint(
        torch.sign(coefficients) * torch.clamp(coefficients.abs() - sigma, min=0)
    )


@pytest.mark.parametrize("method", ["PGD", "FISTA", "PDCP", "HQS", "DRS", "ADMM"])
def test_plug_and_play(method):
    algorithm = {
        "PGD": lg.ForwardBackward(1.0, inertia=0.0),
        "FISTA": lg.ForwardBackward(1.0, inertia=lg.Nesterov(restart=True)),
        "PDCP": lg.PrimalDual(tau=1.0, sigma=1.0),
        "HQS": lg.HalfQuadratic(1.0),
        "DRS": lg.DouglasRachford(1.0),
        "ADMM": lg.ADMM(rho=1.0),
    }[method]
    problem = lg.Composite(lg.LeastSquares(BLUR, SEEN), lg.Denoiser(shrunk))
    if method == "PDCP":
        problem = lg.Saddle(BLUR, lg.SquaredDistance(SEEN), nonsmooth=lg.Denoiser(shrunk))
    stop = lg.Stop(3000, tol=1e-8)
    solution = lg.solve(problem, algorithm, x0=torch.zeros_like(SEEN), stop=stop)
    assert bool(solution.converged)
    if method != "HQS":  # D is the prox of 0.05‖W·‖₁ for a step of 1
        same = lg.solve(lg.LeastSquares(BLUR, SEEN) + lg.L1(0.05) @ WAVELET, stop=stop).x
        torch.testing.assert_close(solution.x, same, atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["GD", "PGD", "FISTA"])
def test_regularisation_by_denoising(method):
    """∇f(x) + w(x − D(x)) = 0; PGD takes the prox of the data."""
    data, red = lg.LeastSquares(BLUR, SEEN), lg.functions.DenoiserResidual(shrunk, 0.5)
    problem = lg.Composite(red, data) if method == "PGD" else lg.Composite(data + red)
    inertia = lg.Nesterov(restart=True) if method == "FISTA" else 0.0
    algorithm, stop = lg.ForwardBackward(0.5, inertia=inertia), lg.Stop(5000, tol=1e-11)
    solution = lg.solve(problem, algorithm, x0=torch.zeros_like(SEEN), stop=stop)
    assert bool(solution.converged)
    x = solution.x
    rest = BLUR.adjoint(BLUR(x) - SEEN) + 0.5 * (x - shrunk(x))
    assert float(rest.abs().max()) < 1e-8
    assert float((x - shrunk(x)).abs().max()) > 1e-3


def test_generalised_variation_converges():
    y = rand(8, 8, seed=6)
    D, E = lg.Differences(), lg.SymmetrisedGradient()
    u, w = lg.operators.parts(y, D(y))
    prior = lg.GroupL1(0.2, dim=-3) @ (D @ u - w) + lg.GroupL1(0.4, dim=-3) @ E @ w
    solution = lg.solve(lg.SquaredDistance(y) @ u + prior, stop=lg.Stop(5000, tol=1e-5))
    assert bool(solution.converged)


def test_counts():
    """Poisson's likelihood of a tomogram: a flat image is found again from its sinogram."""
    scan = lg.Dense(lg.Radon(torch.linspace(0, torch.pi, 9)[:-1], 5).matrix(F64))
    truth = torch.ones(25, dtype=F64)
    energy = lg.KullbackLeibler(scan(truth), 1e-6) @ scan + lg.NonNegative()
    x = lg.solve(energy, x0=torch.full((25,), 0.5).double(), stop=lg.Stop(2000)).x
    assert bool((x >= 0).all())
    assert float(energy(x) - energy(truth)) < 1e-3


def test_simultaneous_iterative_reconstruction():
    """SIRT, x ← x + CAᵀR(b − Ax) with R, C over row and column sums: steps of 1 for √R A √C."""
    scan = lg.Radon(torch.linspace(0, torch.pi, 9)[:-1], 5).matrix(F64)
    truth = rand(25, seed=15)
    R, C = (torch.where(t > 0, 1 / t, 0.0) for t in (scan.sum(1), scan.sum(0)))
    data = lg.LeastSquares(R.sqrt()[:, None] * scan * C.sqrt(), R.sqrt() * (scan @ truth))
    M, x = scan.numpy(), np.zeros(25)
    for _ in range(20):
        x = x + C.numpy() * (M.T @ (R.numpy() * (M @ (truth.numpy() - x))))
    algorithm, start = lg.ForwardBackward(1.0, inertia=0.0), torch.zeros(25, dtype=F64)
    found = lg.solve(lg.Composite(data), algorithm, x0=start, stop=lg.Stop(20)).x
    np.testing.assert_allclose((C.sqrt() * found).numpy(), x, atol=1e-12)
    far = lg.solve(lg.Composite(data), algorithm, x0=start, stop=lg.Stop(5000)).x
    torch.testing.assert_close(scan @ (C.sqrt() * far), scan @ truth, atol=1e-2, rtol=0)


# --- linear systems -------------------------------------------------------------------------------

MASK = rand(6, 6, seed=7) > 0.4
INNER = torch.nn.functional.pad(torch.ones(4, 4), (1, 1, 1, 1)) > 0
PHYSICS = {
    "inpainting": (lg.Mask(MASK), F64),
    "super-resolution": (lg.Downsample(2) @ BLUR, F64),
    "deblurring, valid": (lg.Mask(INNER) @ lg.Blur(KERNEL, "zero"), F64),
    "MRI of coils": (lg.Fourier(MASK, crandn(3, 6, 6, seed=8)), torch.complex128),
}  # fmt: skip


@pytest.mark.parametrize("name", PHYSICS)
@pytest.mark.parametrize("per_image", [False, True])
def test_regularised_least_squares(name, per_image):
    """argmin ½‖Ax − y‖² + ‖x − z‖²/(2γ) against NumPy, with one γ, or one for each image."""
    K, dtype = PHYSICS[name]
    draw = crandn if dtype.is_complex else randn
    truth, z = draw(2, 6, 6, seed=9), draw(2, 6, 6, seed=10)
    y = K(truth)
    gamma = torch.tensor([0.5, 2.0], dtype=F64).reshape(2, 1, 1) if per_image else 0.7
    found = lg.LeastSquares(K, y).prox(z, gamma)
    basis = torch.eye(36, dtype=dtype).reshape(36, 6, 6)
    M = torch.stack([K(e).flatten() for e in basis], 1).numpy()
    for k in range(2):
        g = float(gamma[k]) if per_image else gamma
        left = np.eye(36) + g * M.conj().T @ M
        right = z[k].flatten().numpy() + g * M.conj().T @ y[k].flatten().numpy()
        np.testing.assert_allclose(
            found[k].flatten().numpy(), np.linalg.solve(left, right), atol=1e-7
        )
    exact = lg.LeastSquares(K, y).prox(truth, gamma)
    torch.testing.assert_close(exact, truth, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ["deblurring", "super-resolution"])
def test_the_derivative_of_regularised_least_squares(name):
    """In data, point, step and kernel, by differences."""
    z, gamma = randn(2, 6, 6, seed=11), torch.tensor([0.6], dtype=F64)
    inner = lg.Identity() if name == "deblurring" else lg.Downsample(2)
    y = (inner @ BLUR)(randn(2, 6, 6, seed=12))

    def solved(y, z, gamma, kernel):
        return lg.LeastSquares(inner @ lg.Blur(kernel), y).prox(z, gamma[0])

    given = [t.clone().requires_grad_() for t in (y, z, gamma, KERNEL)]
    assert torch.autograd.gradcheck(solved, given, fast_mode=True)


def test_the_derivative_through_a_matrix_from_a_network():
    net = torch.nn.Linear(4, 16).double()
    y, z = randn(2, 4, seed=13), randn(2, 4, seed=14)
    matrix = net(y).mean(0).reshape(4, 4)
    x = lg.LeastSquares(matrix, y).prox(z, 1e-1)
    slopes = torch.autograd.grad(x.square().sum(), list(net.parameters()), retain_graph=True)
    left = torch.eye(4).double() + 1e-1 * matrix.mT @ matrix
    closed = torch.linalg.solve(left, (z + 1e-1 * y @ matrix).mT).mT
    expected = torch.autograd.grad(closed.square().sum(), list(net.parameters()))
    torch.testing.assert_close(slopes, expected, atol=1e-6, rtol=1e-6)


# --- unfolded and at rest -------------------------------------------------------------------------

UNFOLDED = {
    "PGD": lg.ForwardBackward(1.0, inertia=0.0),
    "PGD, Anderson": lg.Anderson(lg.ForwardBackward(1.0, inertia=0.0)),
    "HQS": lg.HalfQuadratic(1.0),
    "HQS, Anderson": lg.Anderson(lg.HalfQuadratic(1.0)),
    "ADMM": lg.ADMM(rho=1.0),
    "FISTA": lg.ForwardBackward(1.0, inertia=lg.Nesterov()),
    "GD": lg.ForwardBackward(0.5, inertia=0.0),
}


@pytest.mark.parametrize("name", UNFOLDED)
def test_weights_of_their_own_in_every_iteration(name):
    algorithm = UNFOLDED[name]
    noise = [torch.full((2, 1, 1), 0.05).double().requires_grad_() for _ in range(5)]
    data = lg.LeastSquares(BLUR, SEEN)
    problems = [lg.Composite(data, lg.Denoiser(shrunk, sigma)) for sigma in noise]
    if name == "GD":
        red = lg.functions.DenoiserResidual
        problems = [lg.Composite(data + red(shrunk, 0.5, sigma)) for sigma in noise]
    state = algorithm.init(problems[0], torch.zeros_like(SEEN))
    for problem in problems:
        state = algorithm.step(problem, state)
    x = algorithm.solution(state)
    assert x.shape == SEEN.shape
    x.square().sum().backward()
    slopes = [s.grad for s in noise if s.grad is not None]  # ADMM's last denoiser comes after x
    assert len(slopes) >= 4
    assert all(bool(s.isfinite().all()) for s in slopes)
    assert sum(bool(s.any()) for s in slopes) >= 3


@pytest.mark.parametrize("strategy", ["exact", "without a Jacobian"])
@pytest.mark.parametrize("name", ["PGD", "PGD, Anderson", "HQS", "HQS, Anderson"])
def test_an_equilibrium(name, strategy):
    gradient = lg.Implicit() if strategy == "exact" else lg.OneStep(tol=None)
    sigma = torch.full((2, 1, 1), 0.05).double().requires_grad_()

    def solved(s):
        problem = lg.Composite(lg.LeastSquares(BLUR, SEEN), lg.Denoiser(shrunk, s))
        start, stop = torch.zeros_like(SEEN), lg.Stop(5000, tol=1e-11)
        return lg.solve(problem, UNFOLDED[name], x0=start, gradient=gradient, stop=stop).x

    x = solved(sigma)
    (slope,) = torch.autograd.grad(x.square().sum(), sigma)
    assert bool(slope.isfinite().all())
    if strategy == "exact":
        h, s = 1e-6, sigma.detach()
        change = float(solved(s + h).square().sum() - solved(s - h).square().sum()) / (2 * h)
        assert float(slope.sum()) == pytest.approx(change, rel=1e-4)
