"""Laws of proximal maps, for every pair (function, geometry) in tests/makers.py."""

import cvxpy as cp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato._support import tree
from legato.functions import Conjugate
from legato.testing import check_function, check_prox
from makers import PROX, PROX_CASES, E, H, crandn, rand, randn

IDS = [name for name, _ in PROX_CASES]
CASES = [case for _, case in PROX_CASES]


def test_every_registered_pair_has_a_maker():
    """But of those that are not convex: most laws below do not hold for them (see test_l0)."""
    ours = {
        p
        for p in lg.registered_pairs()
        if p[0].__module__.startswith("legato.functions") and getattr(p[0], "convex", True)
    }
    assert ours == set(PROX)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_laws(case):
    g, geometry = case.build(*case.parameters)
    check_prox(g, geometry, case.y, case.alpha, case.feasible)


def _say_what_they_couple(g, geometry, y, alpha):
    """Which entries move with one of y, in mirror coordinates: along the axes that are named.

    There a step may not vary. Where others move, a prox with steps that vary must be where the
    gradient says.
    """
    before, moved = lg.mirror_prox(g, geometry, y, alpha), set()
    for index in torch.cartesian_prod(*map(torch.arange, y.shape)):
        other = y.clone()
        other[tuple(index)] += 0.3
        change = (lg.mirror_prox(g, geometry, other, alpha) - before).abs()
        away = (change > 1e-9).nonzero() != index
        moved |= {axis - y.ndim for axis in away.any(0).nonzero().flatten().tolist()}
    core = g.prox_parts(geometry).core
    named = {axis if axis < 0 else axis - y.ndim for axis in core.prox_couples()}
    if not moved <= named:
        steps = 0.3 + rand(*y.shape, seed=5)
        x = g.prox(y, steps)
        torch.testing.assert_close(g.grad(x), (y - x) / steps, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, c in PROX_CASES if n.endswith("-0")])
def test_a_prox_says_what_it_couples(name, case):
    g, geometry = case.build(*case.parameters)
    if isinstance(case.y, torch.Tensor):
        _say_what_they_couple(g, geometry, case.y, case.alpha)


WAVELET, FOURIER = lg.Wavelet(1, dims=(-1,)), lg.Fourier(dims=(-2,))
BEHIND = {
    "L1 @ Wavelet": lg.L1() @ WAVELET,
    "a multiple, transposed": lg.L1() @ (-2.0 * WAVELET.T),
    "GroupL1 @ Wavelet": lg.GroupL1(0.5, dim=-2) @ WAVELET,
    "L1 @ Diagonal": lg.L1() @ lg.Diagonal(0.5 + rand(4, seed=6)),
    "SquaredDistance @ Wavelet": lg.SquaredDistance(randn(4, seed=7)) @ WAVELET,
    "SquaredDistance @ Dense": lg.SquaredDistance(randn(2, seed=7)) @ randn(2, 4, seed=8),
    "shifted": (lg.L1() @ WAVELET).shifted(randn(4, seed=9)),
    "conjugate": (lg.L1() @ WAVELET).conjugate(),
    "L1 @ Wavelet @ Fourier": lg.L1() @ (WAVELET @ FOURIER),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_prox_behind_an_operator_says_what_it_couples(name):
    y = crandn(2, 4, seed=3) if "Fourier" in name else 2 * randn(2, 4, seed=3)
    _say_what_they_couple(BEHIND[name], E, y, 0.7)


@pytest.mark.parametrize(
    "case", [c for n, c in PROX_CASES if n.endswith("-0")], ids=[n for n in IDS if n.endswith("-0")]
)
def test_laws_without_known_feasible_points(case):
    """Each pair once: only where the points come from differs from the laws above."""
    g, geometry = case.build(*case.parameters)
    check_prox(g, geometry, case.y, case.alpha)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.model], ids=[n for n, c in PROX_CASES if c.model]
)
def test_agrees_with_a_generic_convex_solver(case):
    g, geometry = case.build(*case.parameters)
    x = lg.prox(g, geometry, case.y, case.alpha)
    variable = cp.Variable(tuple(case.y.shape))
    energy, constraints = case.model(variable)
    objective = energy - cp.sum(cp.multiply(case.y.numpy(), variable))
    problem = cp.Problem(cp.Minimize(objective), constraints)
    tol = case.solver_tolerance
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
    theirs = torch.from_numpy(variable.value)
    variable.value = x.numpy()
    ours = float(objective.value)
    # Energies agree to 1e-8; points to its square root, for ψ is only locally strongly convex.
    assert ours == pytest.approx(problem.value, rel=1e-8, abs=1e-8)
    assert float((x - theirs).abs().max()) < 1e-4


CONJUGATES = {
    "L1": lg.L1(0.7),
    "L1 tensor": lg.L1(torch.linspace(0, 1, 4).double()),
    "GroupL1": lg.GroupL1(0.8),
    "AsymmetricL1": lg.AsymmetricL1(-0.2, 0.9),
    "NonNegative": lg.NonNegative(),
    "Box": lg.Box(-0.5, 1.5),
    "LInfBall": lg.LInfBall(0.8),
    "Simplex": lg.Simplex(),
    "L2Ball": lg.L2Ball(1.2),
    "SquaredNorm": lg.SquaredNorm(0.4),
    "SquaredNorm + Linear": lg.SquaredNorm(2.0) + lg.Linear(randn(4, seed=7)),
    "L1 + SquaredNorm": lg.L1(0.3) + lg.SquaredNorm(0.4),
    "Zero": lg.Zero(),
    "Linear": lg.Linear(randn(4, seed=8)),
    "Huber": lg.Huber(0.7, 1.3),
    "Quantile": lg.Quantile(0.8, 0.6),
    "Hinge": lg.Hinge(torch.sign(randn(4, seed=5)), 0.7),
    "KullbackLeibler": lg.KullbackLeibler(3 * randn(4, seed=5).abs(), 0.2),
    "KullbackLeibler of no counts": lg.KullbackLeibler(torch.tensor([0.0, 2.0, 0.0, 1.0]).double()),
    "L2Norm": lg.L2Norm(1.4, (-1,)),
    "L2Norm of the whole": lg.L2Norm(1.4),
    "LInfNorm": lg.LInfNorm(1.4),
    "MaxEntry": lg.MaxEntry(1.4),
    "L1Ball": lg.L1Ball(1.4),
    "Nuclear": lg.Nuclear(1.4),
    "SpectralBall": lg.SpectralBall(1.4),
    "SpectralNorm": lg.SpectralNorm(1.4),
    "NuclearBall": lg.NuclearBall(1.4),
    "Hankel": lg.functions.Hankel(),
    "BoxSection": lg.BoxSection(1.5),
    "BoxSection of weights": lg.BoxSection(0.3, randn(4, seed=9), -1.0, torch.inf),
    "SortedL1": lg.SortedL1(torch.tensor([1.7, 1.1, 0.6, 0.3]).double()),
    "SparseGroupL1": lg.SparseGroupL1(0.4, 0.7),
    "SecondOrderCone": lg.SecondOrderCone(),
    "AffineSet": lg.AffineSet(randn(2, 4, seed=9), randn(2, seed=10)),
    "Halfspaces": lg.Halfspaces(randn(4, seed=9), 0.3),
    "Monotone": lg.Monotone(),
    "TotalVariation1D": lg.TotalVariation1D(0.8),
    "Box + Linear": lg.Box(-1.0, 2.0) + lg.Linear(randn(4, seed=8)),
}


@pytest.mark.parametrize("name", CONJUGATES)
def test_laws_of_functions_and_their_conjugates(name):
    g = CONJUGATES[name]
    report = check_function(g, g.prox(2 * randn(3, 4)))
    assert report["Fenchel–Young"] is not None
    assert report["Moreau's identity"] is not None


def test_conjugate_of_entropic_simplex_is_a_soft_maximum():
    c, epsilon, y = randn(3, 4, seed=1), 0.3, randn(3, 4, seed=2)
    g = lg.Simplex() + lg.Linear(c) + lg.NegativeEntropy(epsilon)
    expected = (epsilon * torch.logsumexp((y - c) / epsilon, -1)).sum()
    assert float(g.conjugate()(y)) == pytest.approx(float(expected), rel=1e-12)


def test_conjugates_are_infinite_outside_their_domain():
    far = torch.full((4,), 5.0)
    for g in (lg.L1(1.0), lg.GroupL1(1.0), lg.NonNegative(), lg.Zero(), lg.AsymmetricL1(-1, 1)):
        assert float(g.conjugate()(far)) == torch.inf
    for g in (lg.Box(-1, 1), lg.Simplex(), lg.L2Ball(1.0), lg.NonNegative()):
        assert float(g.value(-far)) == torch.inf


def test_sum_with_linear_only_shifts_the_argument():
    c, y = randn(3, 4, seed=3), randn(3, 4, seed=4)
    for g, geometry in ((lg.L1(0.5), E), (lg.Simplex(), H), (lg.Box(-1.0, 1.0), lg.Interval())):
        together = lg.prox(g + lg.Linear(c), geometry, y, 0.4)
        torch.testing.assert_close(together, lg.prox(g, geometry, y - 0.4 * c, 0.4))


@given(
    scale=st.sampled_from([1e-30, 1e-8, 1.0, 1e8, 1e30]),
    alpha=st.sampled_from([1e-8, 1.0, 1e8]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    index=st.integers(0, len(CASES) - 1),
)
def test_extreme_values_stay_finite(scale, alpha, dtype, index):
    case = CASES[index]
    sign = -1 if bool((tree.flatten(case.y) < 0).all()) else 1
    parameters = [p.to(dtype) for p in case.parameters]
    g, geometry = case.build(*parameters)
    y = tree.tree_map(
        lambda t: (sign * scale * t.abs() if sign < 0 else scale * t).to(dtype), case.y
    )
    if isinstance(geometry, lg.Burg):
        alpha = min(alpha, 1.0)
    if isinstance(g, Conjugate):
        alpha = max(alpha, 1e-6)  # Moreau's identity divides by it: 1e38 is no float32 number
    if isinstance(g, lg.LeastSquares | lg.Quadratic) and dtype == torch.float32:
        alpha = min(alpha, 1.0)  # a wide matrix beside 1e-8 is singular in float32, and refused
    x = tree.flatten(lg.prox(g, geometry, y, alpha))
    assert x.dtype == dtype
    assert bool(torch.isfinite(x).all())


EUCLIDEAN = [
    (n, c)
    for n, c in PROX_CASES
    if isinstance(c.build(*c.parameters)[1], lg.Euclidean) and not isinstance(c.y, tuple)
]


@pytest.mark.parametrize("case", [c for _, c in EUCLIDEAN], ids=[n for n, _ in EUCLIDEAN])
@pytest.mark.parametrize("size", [1.0, 0.1])
def test_the_derivative_is_symmetric_between_zero_and_one(case, size):
    """P = Pᵀ, 0 ≤ P ≤ I, on which CG rests; ``along`` is the projection onto its range."""
    g, geometry = case.build(*case.parameters)
    y = size * case.y
    n = y.numel()
    P = torch.autograd.functional.jacobian(lambda t: lg.prox(g, geometry, t, case.alpha), y)
    P = P.reshape(n, n)
    torch.testing.assert_close(P, P.mT)
    eigenvalues = torch.linalg.eigvalsh(P)
    assert float(eigenvalues.min()) >= -1e-12
    assert float(eigenvalues.max()) <= 1 + 1e-12
    project = g.range_projector(y)
    if project is None:
        return
    basis = torch.eye(n, dtype=y.dtype).reshape(n, *y.shape)
    Pi = torch.stack([project(e).flatten() for e in basis], 1)
    torch.testing.assert_close(Pi, Pi.mT)
    torch.testing.assert_close(Pi @ Pi, Pi)
    torch.testing.assert_close(Pi @ P, P)
    assert torch.linalg.matrix_rank(P) == torch.linalg.matrix_rank(Pi)


def test_along_is_known_where_it_is_needed():
    """A ball is the one whose derivative is no multiple of a projection, and not invertible."""
    y = 10 * randn(7, 3, seed=9)
    y[-1] *= 1e-3  # inside
    radius = torch.full((7, 1), 0.8, dtype=torch.float64)
    radius[0] = 0.0  # a ball that is a point: nothing is seen
    project = lg.L2Ball(radius).range_projector(y)
    assert project is not None
    v = randn(7, 3, seed=10)
    assert not project(v)[0].any()
    torch.testing.assert_close(project(v)[-1], v[-1])
    torch.testing.assert_close((project(v) * y).sum(-1)[1:-1], torch.zeros(5, dtype=torch.float64))


# --- ties -----------------------------------------------------------------------------------------

ONE = torch.ones(1, dtype=torch.float64)
W0, W1 = 0 * ONE, ONE
CONVENTIONS = {
    # the prox of a parameter t at y with step 1: what the docstrings say of d/dy and d/dt
    "L1 on a kink": (lambda t: lg.L1(t), W1, 1.0, 0.0, None),
    "L1 of weight 0": (lambda t: lg.L1(t), W0, 2.0, 1.0, -1.0),
    "L1 of weight 0, y < 0": (lambda t: lg.L1(t), W0, -2.0, 1.0, 1.0),
    "L1 of weight 0, y = 0": (lambda t: lg.L1(t), W0, 0.0, 1.0, 0.0),
    "L1 of the number 0": (lambda t: lg.L1(0.0), W0, 0.0, 1.0, 0.0),
    "0 · L1": (lambda t: t.sum() * lg.L1(), W0, -2.0, 1.0, 1.0),
    "AsymmetricL1 on a kink": (lambda t: lg.AsymmetricL1(-1.0, t), W1, 1.0, 0.0, None),
    "AsymmetricL1 of one slope": (lambda t: lg.AsymmetricL1(t, t), W1, 1.0, 1.0, -1.0),
    "GroupL1 on a kink": (lambda t: lg.GroupL1(t), W1, -1.0, 0.0, None),
    "GroupL1 of weight 0": (lambda t: lg.GroupL1(t), W0, -2.0, 1.0, 1.0),
    "GroupL1 of weight 0, y = 0": (lambda t: lg.GroupL1(t), W0, 0.0, 1.0, 0.0),
    "NonNegative": (lambda t: lg.NonNegative(), W0, 0.0, 1.0, 0.0),
    "Box on an end": (lambda t: lg.Box(-1.0, t), W1, 1.0, 1.0, None),
    "Box of one point, below": (lambda t: lg.Box(t, t), W1, 0.5, 0.0, 1.0),
    "Box of one point, above": (lambda t: lg.Box(t, t), W1, 1.5, 0.0, 1.0),
    "Box of one point, there": (lambda t: lg.Box(t, t), W1, 1.0, 0.0, 1.0),
    "LInfBall on its boundary": (lambda t: lg.LInfBall(t), W1, -1.0, 1.0, None),
    "LInfBall of radius 0": (lambda t: lg.LInfBall(t), W0, -2.0, 0.0, -1.0),
    "LInfBall of radius 0, y = 0": (lambda t: lg.LInfBall(t), W0, 0.0, 0.0, 0.0),
    "L2Ball on its boundary": (lambda t: lg.L2Ball(t), W1, -1.0, 1.0, None),
    "L2Ball of radius 0": (lambda t: lg.L2Ball(t), W0, -2.0, 0.0, -1.0),
    "L2Ball of radius 0, y = 0": (lambda t: lg.L2Ball(t), W0, 0.0, 0.0, 0.0),
    "Equality": (lambda t: lg.Equality(t), W1, 1.0, 0.0, 1.0),
    "Huber on a kink": (lambda t: lg.Huber(t), W1, 2.0, 0.5, None),
    "Huber of weight 0": (lambda t: lg.Huber(1.0, t), W0, 3.0, 1.0, -1.0),
    "Huber of δ 0": (lambda t: lg.Huber(t), W0, 3.0, 1.0, -1.0),
    "Quantile on a kink": (lambda t: lg.Quantile(0.75, t), W1, 0.25, 0.0, None),
    "Quantile of weight 0": (lambda t: lg.Quantile(0.75, t), W0, -2.0, 1.0, 0.75),
    "Quantile of weight 0, y = 0": (lambda t: lg.Quantile(0.75, t), W0, 0.0, 1.0, 0.0),
    "Hinge on a kink": (lambda t: lg.Hinge(ONE, t), W1, 0.0, 0.0, None),
    "Hinge on the other kink": (lambda t: lg.Hinge(ONE, t), W1, 1.0, 0.0, 0.0),
    "Hinge of weight 0": (lambda t: lg.Hinge(ONE, t), W0, -2.0, 1.0, 1.0),
    "KullbackLeibler of no counts": (lambda t: lg.KullbackLeibler(0 * ONE, t), W1, 0.0, 1.0, 0.0),
    "L2Norm on a kink": (lambda t: lg.L2Norm(t), W1, -1.0, 0.0, None),
    "L2Norm of weight 0": (lambda t: lg.L2Norm(t), W0, -2.0, 1.0, 1.0),
    "L2Norm of weight 0, y = 0": (lambda t: lg.L2Norm(t), W0, 0.0, 1.0, 0.0),
    "LInfNorm on a kink": (lambda t: lg.LInfNorm(t), W1, -1.0, 0.0, None),
    "LInfNorm of weight 0": (lambda t: lg.LInfNorm(t), W0, -2.0, 1.0, 1.0),
    "LInfNorm of weight 0, y = 0": (lambda t: lg.LInfNorm(t), W0, 0.0, 1.0, 0.0),
    "MaxEntry of weight 0": (lambda t: lg.MaxEntry(t), W0, -2.0, 1.0, -1.0),
    "L1Ball on its boundary": (lambda t: lg.L1Ball(t), W1, -1.0, 1.0, None),
    "L1Ball of radius 0": (lambda t: lg.L1Ball(t), W0, -2.0, 0.0, -1.0),
    "L1Ball of radius 0, y = 0": (lambda t: lg.L1Ball(t), W0, 0.0, 0.0, 0.0),
    "SpectralNorm on a kink": (lambda t: lg.SpectralNorm(t), W1, -1.0, 0.0, None),
    "SpectralNorm of weight 0": (lambda t: lg.SpectralNorm(t), W0, -2.0, 1.0, 1.0),
    "SpectralNorm of weight 0, y = 0": (lambda t: lg.SpectralNorm(t), W0, 0.0, 1.0, 0.0),
    "NuclearBall on its boundary": (lambda t: lg.NuclearBall(t), W1, -1.0, 1.0, None),
    "NuclearBall of radius 0": (lambda t: lg.NuclearBall(t), W0, -2.0, 0.0, -1.0),
    "NuclearBall of radius 0, y = 0": (lambda t: lg.NuclearBall(t), W0, 0.0, 0.0, 0.0),
    "SortedL1 on a kink": (lambda t: lg.SortedL1(t), W1, 1.0, 0.0, None),
    "SortedL1 of weight 0": (lambda t: lg.SortedL1(t), W0, -2.0, 1.0, 1.0),
    "SortedL1 of weight 0, y = 0": (lambda t: lg.SortedL1(t), W0, 0.0, 1.0, 0.0),
    "SparseGroupL1 on a kink": (lambda t: lg.SparseGroupL1(t, 0.5), W1, 1.5, 0.0, None),
    "SparseGroupL1 without weights": (lambda t: lg.SparseGroupL1(t, 0.0), W0, -2.0, 1.0, 1.0),
}


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize("frozen", [False, True], ids=["", "constant parameter"])
def test_the_derivative_at_a_tie_is_the_one_that_the_docstring_names(name, frozen):
    make, parameter, at, in_y, in_parameter = CONVENTIONS[name]
    t = parameter.clone().requires_grad_(not frozen)
    y = (at * ONE.reshape(1, 1)).requires_grad_()  # a vector and a matrix at once
    found = make(t).prox(y).sum()
    leaves = [y] if frozen else [y, t]
    slopes = [None] * len(leaves)  # as of a constant, which an equality is
    if found.requires_grad:
        slopes = torch.autograd.grad(found, leaves, allow_unused=True)
    slopes = [0.0 if s is None else float(s) for s in slopes]
    assert slopes[0] == in_y
    if not frozen and in_parameter is not None:
        assert slopes[1] == in_parameter


def test_every_prox_says_what_it_does_at_ties():
    for function in {f for f, _ in PROX}:
        assert "tie" in function.__doc__, function


@pytest.mark.parametrize("through", ["function", "factor", "groups"])
def test_total_variation_of_weight_zero_against_one_sided_differences(through):
    y, c = randn(5, 6, seed=30), randn(5, 6, seed=31)
    terms = {
        "function": lambda w: lg.L1(w) @ lg.Differences(),
        "factor": lambda w: w * (lg.L1() @ lg.Differences()),
        "groups": lambda w: lg.GroupL1(w, dim=-3) @ lg.Differences(),
    }

    def loss(w, gradient=None):
        energy = lg.SquaredDistance(y) + terms[through](w)
        return (c * lg.solve(energy, gradient=gradient, stop=lg.Stop(3000, tol=1e-12)).x).sum()

    w = torch.zeros((), dtype=torch.float64)
    h = 1e-6
    right = float(loss(w + h) - loss(w)) / h
    assert abs(right) > 0.1
    for strategy in (lg.Unroll(), lg.Implicit()):
        leaf = w.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(leaf, strategy), leaf)
        assert float(slope) == pytest.approx(right, rel=1e-4)


def test_a_group_shorter_than_one_is_shortened_by_the_weight():
    """(1 − w/‖y‖)y, of length 0.5 − 0.2, and 0 for a group shorter than w."""
    y = torch.tensor([[0.3, 0.4], [0.06, 0.08], [3.0, 4.0]]).double()
    expected = torch.tensor([[0.18, 0.24], [0.0, 0.0], [2.88, 3.84]]).double()
    torch.testing.assert_close(lg.GroupL1(0.2).prox(y), expected)


def test_how_far_an_entry_is_from_the_kink_of_a_projection_onto_the_simplex():
    """(0.9, 0.5, −0.3) goes to (0.7, 0.3, 0): all are lowered by 0.2, or cut off there."""
    y = torch.tensor([0.9, 0.5, -0.3]).double()
    distances = torch.tensor([0.7, 0.3, 0.5]).double()
    torch.testing.assert_close(lg.Simplex().kinks(y, 1.0), distances)
    inside, reached = y.clone(), y.clone()
    inside[2] += 0.49
    reached[2] += 0.51
    assert float(lg.Simplex().prox(inside)[2]) == 0
    assert float(lg.Simplex().prox(reached)[2]) > 0
