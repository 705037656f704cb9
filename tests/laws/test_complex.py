"""The laws over complex numbers: operators, functions and proxes, with Re⟨x, y⟩."""

import cvxpy as cp
import pytest
import torch

import legato as lg
from draws import crandn, rand, randn
from legato.errors import InputError
from legato.functions import (
    L0,
    MCP,
    SCAD,
    ExponentialType,
    Geman,
    GroupL0Ball,
    KSupport,
    L0Ball,
    L0BallEnvelope,
    L2Sphere,
    LogSum,
    TruncatedQuadratic,
)
from legato.testing import check_function, check_operator, check_prox
from makers import PROX_CASES, E, complex_operators

OPERATORS = complex_operators()


@pytest.mark.parametrize("name", OPERATORS)
def test_laws_of_operators(name):
    case = OPERATORS[name]
    report = check_operator(case.operator, case.point(0))
    assert report["norm over true norm"] <= case.tight * (1 + 1e-9)


W, C = 0.2 + rand(3, 4, seed=12), crandn(3, 4, seed=13)
Y = 2 * crandn(3, 4, seed=11)
FUNCTIONS = {
    "L1": lg.L1(W),
    "L1 of weight 0": lg.L1(torch.tensor([0.0, 1.0, 0.5, 2.0]).double()),
    "L1, shifted": lg.L1(0.7).shifted(C),
    "L1 + Linear + SquaredNorm": lg.L1(0.4) + lg.Linear(C) + lg.SquaredNorm(0.6),
    "LInfBall": lg.LInfBall(W),
    "LInfNorm": lg.LInfNorm(1.3),
    "L1Ball": lg.L1Ball(2.5),
    "GroupL1": lg.GroupL1(0.8, dim=-2),
    "GroupL1 by labels": lg.GroupL1(0.8, groups=torch.tensor([0, 1, 0, 1])),
    "L2Ball": lg.L2Ball(1.2),
    "L2Norm": lg.L2Norm(1.5, (-2, -1)),
    "SortedL1": lg.SortedL1(torch.tensor([1.0, 0.8, 0.3, 0.0]).double()),
    "SparseGroupL1": lg.SparseGroupL1(0.4, 0.9),
    "Nuclear": lg.Nuclear(0.9),
    "SpectralBall": lg.SpectralBall(1.1),
    "SpectralNorm": lg.SpectralNorm(1.1),
    "NuclearBall": lg.NuclearBall(1.1),
    "Hankel": lg.functions.Hankel(),
    "Huber": lg.Huber(0.7, 1.3),
    "Equality": lg.Equality(C),
    "Linear": lg.Linear(C),
    "SquaredNorm": lg.SquaredNorm(0.4),
    "SquaredDistance": lg.SquaredDistance(C, W),
    "Zero": lg.Zero(),
    "Conjugate": (0.5 * lg.L1(W)).conjugate(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_laws_of_functions_and_proxes(name):
    f = FUNCTIONS[name]
    check_function(f, f.prox(0.5 * Y))
    check_prox(f, E, Y, 0.7)


def _hermitian():
    A = crandn(5, 4, seed=3)
    return A.mH @ A


SMOOTH = {
    "LeastSquares": lg.LeastSquares(crandn(5, 4, seed=1), crandn(5, seed=2), 0.7),
    "LeastSquares of a real matrix": lg.LeastSquares(randn(5, 4, seed=1), crandn(5, seed=2)),
    "Quadratic": lg.Quadratic(_hermitian(), crandn(4, seed=4)),
    "SquaredDistance @ Fourier": lg.SquaredDistance(crandn(4, seed=5)) @ lg.Fourier(dims=(-1,)),
    "Smooth": lg.Smooth(lambda x: torch.cosh(x.abs()).sum(-1), coupled=1),
    "SmoothAbsolute": lg.L1(0.7).smoothed(0.3),
    "Huber @ Dense": lg.Huber() @ lg.Dense(crandn(5, 4, seed=1)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_laws_of_smooth_functions(name):
    check_function(SMOOTH[name], crandn(4, seed=6))


NOT_CONVEX = [
    L0(0.5), L0Ball(2), MCP(0.7), SCAD(0.7), LogSum(0.7, 0.5), ExponentialType(0.7), Geman(0.7),
    TruncatedQuadratic(0.7, 0.1), GroupL0Ball(2), L2Sphere(0.6), KSupport(2, 0.6),
    L0BallEnvelope(2, 0.6),
]  # fmt: skip


@pytest.mark.parametrize("g", NOT_CONVEX, ids=repr)
def test_penalties_that_are_not_convex_keep_phases(g):
    x = g.prox(Y, 0.4)
    torch.testing.assert_close(x.abs(), g.prox(Y.abs(), 0.4))
    moved = x.abs() > 0
    torch.testing.assert_close((x / Y)[moved].imag, torch.zeros(int(moved.sum())).double())
    torch.testing.assert_close(g(x), g(x.abs()))


def test_what_compares_numbers_refuses_complex_ones():
    """Every function with a maker either has the laws above, or says so, in value and prox."""
    tried = 0
    for _, case in PROX_CASES:
        g, geometry = case.build(*case.parameters)
        if isinstance(case.y, tuple) or g.takes_complex or g.of_moduli:
            continue
        tried += 1
        y = torch.complex(case.y, case.y)
        with pytest.raises(InputError, match="real numbers"):
            g(y)
        with pytest.raises(InputError, match="real numbers"):
            g.prox(y, 1.0, lg.Euclidean()) if geometry is E else lg.prox(g, geometry, y, 1.0)
    assert tried > 10
    labels = torch.tensor([1.0, -1.0]).double()
    with pytest.raises(InputError, match="real numbers"):
        lg.Logistic(crandn(2, 3), labels).grad(crandn(3))


def test_complex_weights_ends_and_other_geometries_are_refused():
    for make in (lg.L1, lg.GroupL1, lg.LInfBall, lg.SquaredNorm, lambda w: lg.Box(w, 2 * w)):
        with pytest.raises(InputError, match="no order"):
            make(C)
    f = lg.SquaredDistance(C)
    with pytest.raises(InputError, match="geometry of real numbers"):
        lg.solve(f, lg.ForwardBackward(geometry=lg.Entropy()))
    with pytest.raises(InputError, match="returned complex"):
        lg.Smooth(lambda x: x * x)(C)
    with pytest.raises(InputError, match="symmetric"):
        lg.Quadratic(crandn(4, 4), crandn(4))


def _cvxpy_answer(A, b, penalty):
    x = cp.Variable(A.shape[1], complex=True)
    energy = 0.5 * cp.sum_squares(A.numpy() @ x - b.numpy()) + penalty(x)
    tight = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
    cp.Problem(cp.Minimize(energy)).solve(solver=cp.CLARABEL, **tight)
    return torch.from_numpy(x.value)


A, B = torch.linalg.qr(crandn(8, 5, seed=31)).Q * torch.linspace(1, 1.5, 5), crandn(8, seed=32)
D = lg.Dense(torch.linalg.qr(crandn(5, 4, seed=33)).Q.mH.resolve_conj())
AGAINST_CVXPY = {
    "lasso": (lambda w: lg.L1(w), lambda x: 0.6 * cp.norm1(x)),
    "norm behind an operator": (
        lambda w: lg.L2Norm(w) @ D,
        lambda x: 0.6 * cp.norm(D.matrix.numpy() @ x, 2),
    ),
    "l1 behind an operator": (
        lambda w: lg.L1(w) @ D,
        lambda x: 0.6 * cp.norm1(D.matrix.numpy() @ x),
    ),
    "total variation": (
        lambda w: lg.L1(w) @ lg.Differences((-1,)),
        lambda x: 0.6 * cp.norm1(x[1:] - x[:-1]),
    ),
}


@pytest.mark.parametrize("name", AGAINST_CVXPY)
def test_solutions_agree_with_cvxpy(name):
    make, penalty = AGAINST_CVXPY[name]
    found = lg.solve(lg.LeastSquares(A, B) + make(0.6), stop=lg.Stop(20000, tol=1e-11))
    torch.testing.assert_close(found.x, _cvxpy_answer(A, B, penalty), rtol=1e-5, atol=1e-5)
    if name != "lasso":
        assert found.x.is_complex()
        assert found.y.is_complex()


STRATEGIES = {
    "Unroll": lg.Unroll(),
    "Unroll(last)": lg.Unroll(last=1000),
    "Unroll(checkpoint)": lg.Unroll(checkpoint=20),
    "FixedPoint": lg.FixedPoint(2000, tol=1e-10),
    "GMRES": lg.Implicit(lg.GMRES(tol=1e-11)),
    "BiCGStab": lg.Implicit(lg.BiCGStab(tol=1e-11)),
    "Direct": lg.Implicit(lg.Direct()),
    "CG": lg.Implicit(lg.CG(tol=1e-11)),
    "MINRES": lg.Implicit(lg.MINRES(tol=1e-11)),
    "Forward": None,
    "Piggyback": lg.Piggyback(2000, tol=1e-11),
}


def _loss(x):
    return (x.abs() ** 2 * torch.arange(1, x.shape[-1] + 1)).sum() + x[..., 0].real.sum()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("behind", [False, True], ids=["prox", "dual"])
def test_every_strategy_has_the_derivative_in_real_and_imaginary_parts(name, behind):
    if (name == "CG" and behind) or (name in ("Piggyback", "MINRES") and not behind):
        pytest.skip("not of this kind of problem")
    theta = [A.clone(), B.clone(), torch.tensor(0.3).double()]

    def solved(gradient):
        energy = lg.LeastSquares(theta[0], theta[1]) + lg.L1(theta[2]) @ (
            lg.Dense(D.matrix) if behind else lg.Identity()
        )
        count = 300 if behind else 80
        steps = lg.PrimalDual() if behind else lg.ForwardBackward(inertia=0.0)
        return lg.solve(energy, steps, gradient=gradient, stop=lg.Stop(count))

    for t in theta:
        t.requires_grad_()
    gradient = lg.Forward(*theta) if name == "Forward" else STRATEGIES[name]
    if name == "Forward" and behind:
        pytest.skip("slow; the other kind of problem says the same")
    _loss(solved(gradient).x).backward()
    chance = torch.Generator().manual_seed(0)
    for t in theta:
        direction = torch.randn(t.shape, dtype=t.dtype, generator=chance)
        before, ends = t.detach().clone(), []
        with torch.no_grad():
            for h in (1e-6, -1e-6):
                t.copy_(before + h * direction)
                ends.append(float(_loss(solved(lg.Unroll()).x)))
            t.copy_(before)
        expected = (ends[0] - ends[1]) / 2e-6
        found = float((t.grad.conj() * direction).real.sum())
        assert found == pytest.approx(expected, rel=1e-5), (name, t.shape)


def test_a_batch_is_its_elements_and_a_complex_problem_its_real_views():
    b = crandn(3, 8, seed=40)
    stop = lg.Stop(5000, tol=1e-12)
    found = lg.solve(lg.LeastSquares(A, b) + lg.L1(0.5), stop=stop)
    assert found.iterations.shape == found.converged.shape == (3,)
    for k in range(3):
        alone = lg.solve(lg.LeastSquares(A, b[k]) + lg.L1(0.5), stop=stop).x
        torch.testing.assert_close(found.x[k], alone, rtol=1e-9, atol=1e-9)
    real = torch.cat([torch.cat([A.real, -A.imag], 1), torch.cat([A.imag, A.real], 1)])
    pairs = torch.arange(5).repeat(2)
    energy = lg.LeastSquares(real, torch.cat([b.real, b.imag], 1)) + lg.GroupL1(0.5, groups=pairs)
    view = lg.solve(energy, stop=stop).x
    torch.testing.assert_close(torch.cat([found.x.real, found.x.imag], 1), view, atol=1e-9, rtol=0)


def test_a_real_variable_behind_a_complex_operator():
    y = crandn(6, seed=41)
    K = lg.Fourier(torch.tensor([1, 1, 0, 1, 0, 1]), dims=(-1,))
    seen = K @ lg.operators.AsComplex()
    found = lg.solve(lg.SquaredDistance(y) @ seen + lg.NonNegative(), stop=lg.Stop(500)).x
    x = cp.Variable(6)
    F = torch.fft.fft(torch.eye(6).to(y), norm="ortho")[K.mask].numpy()
    cp.Problem(cp.Minimize(cp.sum_squares(F @ x - y[K.mask].numpy())), [x >= 0]).solve()
    torch.testing.assert_close(found, torch.from_numpy(x.value), atol=1e-4, rtol=0)
    with pytest.raises(InputError, match="AsComplex"):
        lg.solve(lg.SquaredDistance(y) @ K, x0=torch.zeros(6).double())
    with pytest.raises(InputError, match="AsComplex"):
        lg.solve(lg.SquaredDistance(y.real) + lg.L1() @ K)


def test_multi_coil_imaging_with_learned_coils_through_an_engine_and_a_line_search():
    coils = crandn(2, 4, 4, seed=42).requires_grad_()
    mask = rand(4, 4, seed=43) > 0.3
    y = lg.Fourier(mask, coils.detach())(crandn(4, 4, seed=44))

    def energy():
        return lg.SquaredDistance(y) @ lg.Fourier(mask, coils) + 0.1 * lg.IsotropicTV()

    stop = lg.Stop(40)
    with lg.Replayed():
        replayed = lg.solve(energy(), stop=stop).x
    (by_engine,) = torch.autograd.grad(_loss(replayed), coils)
    plain = lg.solve(energy(), stop=stop).x
    (by_steps,) = torch.autograd.grad(_loss(plain), coils)
    torch.testing.assert_close(replayed, plain)
    torch.testing.assert_close(by_engine, by_steps)
    assert float(lg.solve(energy(), stop=lg.Stop(5000, tol=1e-8)).residual) <= 1e-8
    data = lg.SquaredDistance(y) @ lg.Fourier(mask, coils.detach()) + lg.L1(0.1)
    searched = lg.solve(data, lg.ForwardBackward(lg.Backtracking(grow=2.0)), stop=lg.Stop(400))
    torch.testing.assert_close(
        searched.x, lg.solve(data, stop=lg.Stop(400)).x, atol=1e-6, rtol=1e-6
    )


def test_bad_masks_and_coils():
    with pytest.raises(InputError, match="other numbers"):
        lg.Fourier(torch.tensor([0.5, 1.0]))
    with pytest.raises(InputError, match="does not fit"):
        lg.Fourier(torch.ones(4, 4))(crandn(5, 4))
    with pytest.raises(InputError, match="must be alike"):
        lg.Fourier(None, crandn(2, 4, 4))(crandn(5, 4))
    with pytest.raises(InputError, match="complex maps"):
        lg.Fourier(None, randn(2, 4, 4))
    with pytest.raises(InputError, match="2 coils"):
        lg.Fourier(None, crandn(2, 4, 4)).adjoint(crandn(3, 4, 4))
    with pytest.raises(InputError, match="complex128"):
        lg.solve(lg.SquaredDistance(randn(3).float()), x0=crandn(3))
    broken = crandn(3)
    broken[0] = complex(float("nan"), 1.0)
    with pytest.raises(InputError, match="NaN"):
        lg.solve(lg.SquaredDistance(broken))


def test_newton_says_that_its_hessians_are_real():
    with pytest.raises(InputError, match="real Hessians"):
        lg.solve(lg.LeastSquares(A, B) + lg.SquaredNorm(), lg.Newton())
