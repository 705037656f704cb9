"""What pyproximal's tests of terms ask for, in both precisions: values, proxes, conjugates."""

import numpy as np
import pytest
import torch

import legato as lg
from draws import crandn, rand, randn
from legato import functions as fn
from legato.errors import InputError
from peers.objectives import is_prox

SIZES = {"10, float32": (10, 1.0, torch.float32), "11, float64": (11, 2.0, torch.float64)}
BOTH = pytest.mark.parametrize("size", SIZES)


def drawn(size, *shape, seed=0, scale=1.0):
    n, _, dtype = SIZES[size]
    return (scale * randn(*(shape or (n,)), seed=seed)).to(dtype)


def conjugates(f, x, tau, tolerance):
    """Moreau's identity, with the conjugate as a function of its own."""
    other = tau * f.conjugate().prox(x / tau, 1 / tau)
    torch.testing.assert_close(f.prox(x, tau) + other, x, atol=tolerance, rtol=tolerance)


def norm(x):
    return float(np.sqrt((np.abs(x) ** 2).sum()))


def groups(x):
    return np.linalg.norm(x, axis=0).sum()


def total_variation(x):
    """Lengths of forward differences, 0 beyond the last pixel."""
    square = 0.0
    for axis in range(x.ndim):
        step = np.diff(x, axis=axis)
        after = [(0, int(a == axis)) for a in range(x.ndim)]
        square = square + np.pad(step, after) ** 2
    return np.sqrt(square).sum()


def huber(x, alpha):
    return np.where(np.abs(x) <= alpha, x**2 / (2 * alpha), np.abs(x) - alpha / 2).sum()


def circular(x, alpha):
    size = norm(x)
    return size**2 / (2 * alpha) if size <= alpha else size - alpha / 2


def singular_values(x):
    return np.linalg.svd(x, compute_uv=False)


CONVEX = {
    # shape (n is the size), the term for σ, the same in NumPy
    "Euclidean": ((), lambda s: lg.L2Norm(s), lambda x, s: s * norm(x)),
    "L1": ((), lambda s: lg.L1(s), lambda x, s: s * np.abs(x).sum()),
    "L21": (("2", "n"), lambda s: lg.GroupL1(s, dim=0), lambda x, s: s * groups(x)),
    "L21_plus_L1": (
        ("4", "n"),
        lambda s: lg.SparseGroupL1(0.8 * s, 0.2 * s, dim=0),
        lambda x, s: 0.8 * s * np.abs(x).sum() + 0.2 * s * groups(x),
    ),
    "Huber": ((), lambda s: (1 / s) * lg.Huber(s), huber),
    "HuberCircular": ((), lambda s: (lg.L2Ball(1.0) + lg.SquaredNorm(s)).conjugate(), circular),
    "TV of a sequence": (
        (),
        lambda s: lg.TotalVariation1D(s),
        lambda x, s: s * np.abs(np.diff(x)).sum(),
    ),
    "Nuclear": (("n", "7"), lambda s: lg.Nuclear(s), lambda x, s: s * singular_values(x).sum()),
    "L2": ((), lambda s: lg.SquaredNorm(s), lambda x, s: s / 2 * norm(x) ** 2),
    "DotProduct": (
        (),
        lambda s: lg.Linear(torch.full((1,), s).double()),
        lambda x, s: s * x.sum(),
    ),
    "Constant": ((), lambda s: lg.Zero(), lambda x, s: 0.0),
}  # fmt: skip


def shaped(size, shape):
    n = SIZES[size][0]
    return tuple(n if axis == "n" else int(axis) for axis in shape) or (n,)


@BOTH
@pytest.mark.parametrize("name", CONVEX)
def test_a_convex_term(name, size):
    shape, make, value = CONVEX[name]
    _, sigma, dtype = SIZES[size]
    single = dtype == torch.float32
    for scale in (0.3, 2.0):
        x = drawn(size, *shaped(size, shape), scale=scale)
        f = make(sigma)
        if name == "DotProduct":
            f = lg.Linear(torch.full_like(x, sigma))
        assert float(f(x)) == pytest.approx(value(x.double().numpy(), sigma), rel=1e-5)
        found = f.prox(x, 2.0)
        assert found.dtype == dtype
        is_prox(
            lambda z: value(z, sigma), found.double().numpy(), x.double().numpy(), 2.0,
            2e-5 if single else 1e-10,
        )  # fmt: skip
        conjugates(f, x, 2.0, 1e-5 if single else 1e-12)


@BOTH
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_total_variation_of_a_grid(axes, size):
    """Its prox is a solve: the value, and that nothing near the solution is better."""
    n, sigma, _dtype = SIZES[size]
    dims = tuple(range(-axes, 0))
    x = drawn(size, *((4, 2, 3)[: axes - 1]), n)
    f = lg.IsotropicTV(sigma, dims)
    assert float(f(x)) == pytest.approx(sigma * total_variation(x.numpy()), rel=1e-5)
    if axes > 2:
        return
    found = lg.solve(lg.SquaredDistance(x) + 2.0 * f, stop=lg.Stop(3000)).x.double().numpy()
    is_prox(lambda z: sigma * total_variation(z), found, x.double().numpy(), 2.0, 1e-4)


def simplex(x, radius):
    return bool((x >= -1e-6).all() and (np.abs(x.sum(-1) - radius) < 1e-5).all())


W = randn(11, seed=9)
SETS = {
    # the set, whether NumPy finds a point in it, the shape
    "Box": (lambda n: lg.Box(-1.0, 1.0), lambda x: (np.abs(x) <= 1 + 1e-6).all(), ()),
    "EuclideanBall": (lambda n: lg.L2Ball(1.0), lambda x: norm(x) <= 1 + 1e-6, ()),
    "EuclideanBall around a point": (
        lambda n: lg.L2Ball(1.0).shifted(W[:n]),
        lambda x: norm(x - W.numpy()[: len(x)]) <= 1 + 1e-6,
        (),
    ),
    "L1Ball": (lambda n: lg.L1Ball(1.0), lambda x: np.abs(x).sum() <= 1 + 1e-5, ()),
    "NuclearBall": (
        lambda n: lg.NuclearBall(1.0),
        lambda x: singular_values(x).sum() <= 1 + 1e-5,
        ("n", "8"),
    ),
    "Simplex": (
        lambda n: lg.Simplex() @ ((1 / 2.5) * lg.Identity()),
        lambda x: simplex(x, 2.5),
        (),
    ),
    "Simplex of rows": (
        lambda n: lg.Simplex() @ (0.5 * lg.Identity()),
        lambda x: simplex(x, 2.0),
        ("8", "n"),
    ),
    "Simplex of columns": (
        lambda n: lg.Simplex(dim=0) @ (0.5 * lg.Identity()),
        lambda x: simplex(x.T, 2.0),
        ("8", "n"),
    ),
    "AffineSet": (
        lambda n: lg.AffineSet(torch.eye(n).double(), torch.ones(n).double()),
        lambda x: (np.abs(x - 1) < 1e-6).all(),
        (),
    ),
    "Hankel": (
        lambda n: fn.Hankel(),
        lambda x: (np.abs(x[1:, :-1] - x[:-1, 1:]) < 1e-5).all(),
        ("n", "8"),
    ),
    "HalfSpace": (
        lambda n: lg.Halfspaces(W[:n], -8.0),
        lambda x: W.numpy()[: len(x)] @ x <= -8.0 + 1e-5,
        (),
    ),
}


@BOTH
@pytest.mark.parametrize("name", SETS)
def test_a_set(name, size):
    """Outside, the projection is the nearest point of the set; inside, nothing moves."""
    make, inside, shape = SETS[name]
    n, _, dtype = SIZES[size]
    g = make(n)
    if name in ("AffineSet", "HalfSpace", "EuclideanBall around a point") and n == 10:
        dtype = torch.float64  # whose data are given in it
    x = drawn(size, *shaped(size, shape), scale=3.0).to(dtype) + 1.0
    assert float(g(x)) == torch.inf
    found = g.prox(x, 2.0)
    assert float(g(found)) == 0
    assert inside(found.double().numpy())
    torch.testing.assert_close(g.prox(found), found, atol=1e-5, rtol=1e-5)
    _nearest(g, inside, x.double().numpy(), found.double().numpy())
    conjugates(g, x, 2.0, 1e-4 if dtype == torch.float32 else 1e-10)


def _nearest(g, inside, x, found):
    """⟨x − Px, z − Px⟩ ≤ 0 for other points z of a convex set."""
    for seed in range(20):
        other = torch.from_numpy(found) + 2 * randn(*found.shape, seed=seed)
        z = g.prox(other).numpy()
        assert inside(z)
        assert float(((x - found) * (z - found)).sum()) <= 1e-4 * (1 + norm(x))


INSIDE = [
    (values, dtype)
    for values in ([0.125, -0.25], [1.0, 0.0], [0.0, 0.0], [0.125 + 0.125j, 0.25 - 0.125j])
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    if dtype.is_complex or not any(isinstance(v, complex) for v in values)
]


@pytest.mark.parametrize(("values", "dtype"), INSIDE, ids=str)
def test_what_is_in_the_l1_ball_stays_as_it_is(values, dtype):
    x = torch.tensor(values, dtype=dtype)
    for step in (0.5, 1.0, 2.0):
        assert torch.equal(lg.L1Ball().prox(x, step), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_the_dual_of_the_l1_ball_is_zero_inside(dtype, tau):
    x = torch.tensor([0.125, -0.25], dtype=dtype)
    assert not lg.L1Ball().conjugate().prox(x, tau).any()
    conjugates(lg.L1Ball(), x, tau, 1e-6)


@BOTH
def test_a_weight_for_each_entry_and_a_centre(size):
    n, _, dtype = SIZES[size]
    x, weight = drawn(size, n, 3), (0.1 + 2 * rand(3, seed=1)).to(dtype)
    for centre in (torch.zeros(n, 1).to(dtype), drawn(size, n, 1, seed=2)):
        f = lg.L1(weight).shifted(centre)
        moved = x - centre
        assert float(f(x)) == pytest.approx(float((weight * moved.abs()).sum()), rel=1e-5)
        shrunk = torch.sign(moved) * torch.clamp(moved.abs() - 2 * weight, min=0)
        torch.testing.assert_close(f.prox(x, 2.0), centre + shrunk)
        dual = torch.maximum(torch.minimum(x - 2 * centre, weight), -weight)
        torch.testing.assert_close(f.conjugate().prox(x, 2.0), dual)


@BOTH
@pytest.mark.parametrize("kind", ["diagonal", "dense", "operator", "difference", "none"])
def test_a_square_behind_an_operator(kind, size):
    """σ/2 ‖Ax − b‖² + ⟨q, x⟩: its prox solves a linear system, held against NumPy's."""
    n, sigma, dtype = SIZES[size]
    x, b, q = drawn(size), torch.ones(n, dtype=dtype), drawn(size, seed=3)
    d, A = drawn(size, seed=4), drawn(size, n, n, seed=5)
    K, matrix = {
        "diagonal": (lg.Diagonal(d), torch.diag(d)),
        "dense": (lg.Dense(A), A),
        "operator": (lg.operators.from_function(lambda v: v @ A.mT, (n,), dtype), A),
        "difference": (lg.Identity(), torch.eye(n)),
        "none": (lg.Identity(), torch.eye(n)),
    }[kind]
    f = lg.LeastSquares(K, b, sigma) + lg.Linear(q)
    M, wide = matrix.double().numpy(), [t.double().numpy() for t in (x, b, q)]
    value = sigma / 2 * norm(M @ wide[0] - wide[1]) ** 2 + wide[2] @ wide[0]
    assert float(f(x)) == pytest.approx(value, rel=1e-5)
    slope = sigma * M.T @ (M @ wide[0] - wide[1]) + wide[2]
    torch.testing.assert_close(f.grad(x).double(), torch.from_numpy(slope), atol=1e-4, rtol=1e-4)
    left = np.eye(n) + 2 * sigma * M.T @ M
    expected = np.linalg.solve(left, wide[0] + 2 * (sigma * M.T @ wide[1] - wide[2]))
    found = (2.0 * f).prox(x)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=2e-4, rtol=2e-4)


@BOTH
@pytest.mark.parametrize("shape", [("n",), ("n", "4"), ("4", "n")], ids=str)
def test_a_square_behind_a_convolution(shape, size):
    """Along one axis, around the circle; the prox divides by a symbol, NumPy solves a system."""
    n, sigma, dtype = SIZES[size]
    x = drawn(size, *shaped(size, shape))
    axis = shape.index("n")
    kernel = torch.full([3 if a == axis else 1 for a in range(x.ndim)], 1 / 3, dtype=dtype)
    f = lg.LeastSquares(lg.Blur(kernel), torch.zeros_like(x), sigma)
    wide = x.double().numpy()
    blurred = sum(np.roll(wide, k, axis) for k in (-1, 0, 1)) / 3
    assert float(f(x)) == pytest.approx(sigma / 2 * norm(blurred) ** 2, rel=1e-5)
    C = sum(np.roll(np.eye(n), k, 0) for k in (-1, 0, 1)) / 3
    left = np.linalg.inv(np.eye(n) + 2 * sigma * C.T @ C)
    expected = np.moveaxis(np.tensordot(left, wide, (1, axis)), 0, axis)
    found = f.prox(x, 2.0)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
    conjugates(f, x, 2.0, 1e-4 if dtype == torch.float32 else 1e-10)


@BOTH
def test_a_quadratic_form(size):
    n, _, dtype = SIZES[size]
    A, x = drawn(size, n, n, seed=1), drawn(size)
    Q, b = A.mT @ A, torch.ones(n, dtype=dtype)
    f = lg.Quadratic(Q, b)
    torch.testing.assert_close(f.grad(x), Q @ x + b, atol=1e-4, rtol=1e-4)
    expected = np.linalg.solve(np.eye(n) + 2 * Q.double().numpy(), (x - 2 * b).double().numpy())
    torch.testing.assert_close(
        f.prox(x, 2.0).double(), torch.from_numpy(expected), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        (lg.Quadratic(Q, 0 * b) + lg.Linear(-b)).prox(x, 2.0), lg.Quadratic(Q, -b).prox(x, 2.0),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip
    with pytest.raises(InputError, match="square"):
        lg.Quadratic(drawn(size, n, n + 1), b)


@BOTH
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_norm_behind_a_multiple_of_an_orthogonal_map(factor, size):
    n, _, dtype = SIZES[size]
    x, b = drawn(size), torch.arange(n, dtype=dtype)
    f = lg.L1().shifted(-b) @ (factor * lg.Identity())
    assert float(f(x)) == pytest.approx(float((factor * x + b).abs().sum()), rel=1e-5)
    wide, c = x.double().numpy(), b.double().numpy()
    inner = factor * wide + c
    shrunk = np.sign(inner) * np.maximum(np.abs(inner) - 2.0 * factor**2, 0)
    expected = torch.from_numpy(wide + (shrunk - inner) / factor)
    torch.testing.assert_close(f.prox(x, 2.0).double(), expected, atol=1e-5, rtol=1e-5)
    conjugates(f, x, 2.0, 1e-5)


@BOTH
def test_terms_of_a_tuple(size):
    n, _, _dtype = SIZES[size]
    x = drawn(size)
    parts = x.split([n // 4] * 3 + [n - 3 * (n // 4)])
    square, stack = lg.SquaredNorm(), lg.Separable(*[lg.SquaredNorm()] * 4)
    torch.testing.assert_close(stack(parts), square(x))
    torch.testing.assert_close(torch.cat(stack.prox(parts, 2.0)), square.prox(x, 2.0))
    for wrong in (x, parts[:3]):
        for use in (stack, lambda v: stack.prox(v, 2.0)):
            with pytest.raises(InputError, match="4 blocks"):
                use(wrong)


# --- sums -----------------------------------------------------------------------------------------


@BOTH
def test_sums_of_norms(size):
    _n, _, _dtype = SIZES[size]
    x, tolerance = drawn(size, scale=3.5), 1e-5
    first, second = lg.L1(0.3), lg.L1(0.9)
    for total in (first + second, second + first):
        torch.testing.assert_close(total.prox(x), lg.L1(1.2).prox(x))
        conjugates(total, x, 1.0, tolerance)
    torch.testing.assert_close(
        (lg.SquaredNorm(0.3) + lg.SquaredNorm(0.9)).prox(x), x / 2.2, atol=1e-6, rtol=1e-6
    )
    for total in (lg.L1(0.3) + lg.GroupL1(0.9), lg.GroupL1(0.9) + lg.L1(0.3)):
        found = total.prox(x).double().numpy()
        is_prox(
            lambda z: 0.3 * np.abs(z).sum() + 0.9 * norm(z), found, x.double().numpy(), 1.0, 1e-5
        )


@BOTH
@pytest.mark.parametrize("terms", [(0, 1), (1, 0, 1), (0, 1, 0, 2), (0, 1, 2, 3)], ids=str)
def test_sums_of_several_terms(terms, size):
    """Each with a prox of its own: an energy that is solved, or a sum that has one."""
    n, _, _dtype = SIZES[size]
    x, g, b, q = (drawn(size, scale=2.5, seed=s) for s in range(4))
    makers = [
        lambda: lg.L1(0.4).shifted(g),
        lambda: lg.SquaredDistance(b, 0.7) + lg.Linear(0.3 * q),
        lambda: lg.GroupL1(0.6),
        lambda: lg.SparseGroupL1(0.2, 0.3),
    ]
    wide = [t.double().numpy() for t in (g, b, q)]
    values = [
        lambda z: 0.4 * np.abs(z - wide[0]).sum(),
        lambda z: 0.35 * norm(z - wide[1]) ** 2 + 0.3 * wide[2] @ z,
        lambda z: 0.6 * norm(z),
        lambda z: 0.2 * np.abs(z).sum() + 0.3 * norm(z),
    ]
    energy = sum((makers[k]() for k in terms), lg.SquaredDistance(x))
    found = lg.solve(energy, stop=lg.Stop(5000, tol=1e-7 if n == 10 else 1e-10)).x
    is_prox(
        lambda z: sum(values[k](z) for k in terms), found.double().numpy(), x.double().numpy(),
        1.0, 2e-5,
    )  # fmt: skip


@BOTH
def test_a_norm_with_bounds(size):
    n, _, dtype = SIZES[size]
    x, g = drawn(size, scale=2.5), drawn(size, scale=2.5, seed=1)
    lo, hi = -(0.1 + rand(n, seed=2)).to(dtype), (0.1 + rand(n, seed=3)).to(dtype)
    both = lg.L1(0.4).shifted(g) + lg.Box(lo, hi)
    found = both.prox(x)
    assert 0 < float(both(found)) < torch.inf
    assert float(both(found + 2.0)) == torch.inf
    conjugates(both, x, 1.0, 1e-5)
    boxes = lg.Box(lo, hi) + lg.Box(-0.5, 0.5)
    torch.testing.assert_close(boxes.prox(x), x.maximum(lo).minimum(hi).clamp(-0.5, 0.5))


@BOTH
@pytest.mark.parametrize("names", ["bx", "hb", "hx", "xx", "hbx", "xbh", "hh", "bb"])
def test_several_sets_at_once(names, size):
    """h: a half-space, b: a ball, x: a box; the nearest point of all, against cvxpy."""
    cp = pytest.importorskip("cvxpy")
    n, _, dtype = SIZES[size]
    w, x = (1 + 0.1 * randn(n, seed=1)).to(dtype), 10 + drawn(size)
    w = w / w.norm()
    lo, hi = -(0.5 + rand(n, seed=2)).to(dtype) / 2, (0.5 + rand(n, seed=3)).to(dtype) / 2
    sets = {"h": lg.Halfspaces(w, 0.3), "b": lg.L2Ball(0.8), "x": lg.Box(lo, hi)}
    energy = sum((sets[k] for k in names), lg.SquaredDistance(x))
    found = lg.solve(energy, stop=lg.Stop(20000, tol=1e-6 if n == 10 else 1e-10)).x
    v = cp.Variable(n)
    theirs = {
        "h": [w.double().numpy() @ v <= 0.3],
        "b": [cp.norm(v) <= 0.8],
        "x": [v >= lo.double().numpy(), v <= hi.double().numpy()],
    }
    constraints = [c for k in names for c in theirs[k]]
    cp.Problem(cp.Minimize(cp.sum_squares(v - x.double().numpy())), constraints).solve(
        solver=cp.CLARABEL
    )
    np.testing.assert_allclose(found.double().numpy(), v.value, atol=2e-4)


def test_an_intersection_of_bounds_on_differences():
    """k sequences whose differences are bounded pairwise, as pyproximal's Intersection has it."""
    x, bound = randn(3, 5, seed=1), torch.tensor([1.5, 0.7, 0.9]).double()[:, None]
    pairs = torch.tensor([[1.0, -1, 0], [1, 0, -1], [0, 1, -1]]).double()
    K = lg.operators.from_function(lambda v: pairs @ v, (3, 5), torch.float64)
    found = lg.solve(
        lg.SquaredDistance(x) + lg.LInfBall(bound) @ K, stop=lg.Stop(5000, tol=1e-10)
    ).x
    assert bool(((pairs @ found).abs() <= bound + 1e-6).all())
    wide, limit = pairs.numpy(), bound.numpy() + 1e-6
    is_prox(
        lambda z: 0.0 if (np.abs(wide @ z) <= limit).all() else np.inf, found.numpy(), x.numpy(),
        1.0, 1e-5,
    )  # fmt: skip


# --- terms that are not convex --------------------------------------------------------------------

FOLDED = {
    # the term, the same in NumPy, a step
    "L0": (lambda s: fn.L0(s), lambda x, s: s * (x != 0).sum(), 2.0),
    "SCAD": (
        lambda s: fn.SCAD(s, 3.7),
        lambda x, s: np.where(
            np.abs(x) <= s,
            s * np.abs(x),
            np.where(
                np.abs(x) <= 3.7 * s,
                (2 * 3.7 * s * np.abs(x) - x**2 - s**2) / (2 * 2.7),
                s**2 * 4.7 / 2,
            ),
        ).sum(),
        2.0,
    ),
    "Log": (
        lambda s: fn.LogSum(s / np.log(5.0), 1 / 4),
        lambda x, s: s / np.log(5.0) * np.log(4 * np.abs(x) + 1).sum(),
        2.0,
    ),
    "Log1": (
        lambda s: fn.LogSum(s, 1e-3),
        lambda x, s: s * (np.log(np.abs(x) + 1e-3) - np.log(1e-3)).sum(),
        2.0,
    ),
    "ETP": (
        lambda s: fn.ExponentialType(s, 0.5 * s**3),
        lambda x, s: s / (1 - np.exp(-0.5 * s**3)) * (1 - np.exp(-0.5 * s**3 * np.abs(x))).sum(),
        2.0,
    ),
    "Geman": (
        lambda s: fn.Geman(s, 0.5 * s**3),
        lambda x, s: s * (np.abs(x) / (np.abs(x) + 0.5 * s**3)).sum(),
        2.0,
    ),
    "RelaxedMumfordShah": (
        lambda s: fn.TruncatedQuadratic(2 * s, 0.7),
        lambda x, s: np.minimum(s * x**2, 0.7).sum(),
        2.0,
    ),
    "RelaxedMumfordShah of one cost": (
        lambda s: fn.TruncatedQuadratic(2.0, s),
        lambda x, s: np.minimum(x**2, s).sum(),
        0.5,
    ),
    "QuadraticEnvelopeCard": (
        lambda s: fn.MCP((2 * s) ** 0.5, 1.0),
        lambda x, s: (s - 0.5 * np.maximum(0, np.sqrt(2 * s) - np.abs(x)) ** 2).sum(),
        0.25,
    ),
    "QuadraticEnvelopeCard, long step": (
        lambda s: fn.MCP((2 * s) ** 0.5, 1.0),
        lambda x, s: (s - 0.5 * np.maximum(0, np.sqrt(2 * s) - np.abs(x)) ** 2).sum(),
        1.25,
    ),
}


@BOTH
@pytest.mark.parametrize("name", FOLDED)
def test_a_term_that_is_not_convex(name, size):
    make, value, step = FOLDED[name]
    _, sigma, _dtype = SIZES[size]
    f, x = make(sigma), drawn(size, scale=3.0)
    assert float(f(x)) == pytest.approx(value(x.double().numpy(), sigma), rel=1e-5)
    found = f.prox(x, step)
    # Entry by entry, on a grid: random changes would not leave a valley.
    for one, y in zip(found.double().numpy(), x.double().numpy(), strict=True):
        grid = np.append(np.linspace(-12, 12, 20001), 0.0)
        energy = [
            0.5 * (z - y) ** 2 + step * value(np.array([z]), sigma) for z in (one, *grid[::20])
        ]
        assert energy[0] <= min(energy) + 1e-5


@BOTH
def test_at_most_so_many_entries(size):
    x = drawn(size) + 1.0
    ball = fn.L0Ball(1)
    assert float(ball(x)) == torch.inf
    found = ball.prox(x, 2.0)
    assert float(ball(found)) == 0
    largest = int(x.abs().argmax())
    torch.testing.assert_close(found[largest], x[largest])
    assert int((found != 0).sum()) == 1


@BOTH
def test_at_most_so_many_columns(size):
    """Against dropping each column: the one that costs least is dropped."""
    n, _, _ = SIZES[size]
    x = drawn(size, 3, n) + 1.0
    ball = fn.GroupL0Ball(n - 1)
    assert float(ball(x)) == torch.inf
    found = ball.prox(x, 2.0)
    assert float(ball(found)) == 0
    costs = [norm(x[:, k].double().numpy()) for k in range(n)]
    dropped = int(np.argmin(costs))
    expected = x.clone()
    expected[:, dropped] = 0
    torch.testing.assert_close(found, expected)


SHAPES = {"float32": (10, 20, torch.float32), "float64": (11, 22, torch.float64)}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_penalty_of_singular_values(kind):
    """NumPy's singular values, each moved to the best of a grid."""
    n, m, dtype = SHAPES[kind]
    g = fn.OfSingularValues(fn.MCP(2.0**0.5, 1.0))
    x = rand(n, m, seed=1).to(dtype)
    U, S, Vh = np.linalg.svd(x.double().numpy(), full_matrices=False)

    def value(s):
        return 1 - 0.5 * np.maximum(0, np.sqrt(2) - s) ** 2

    assert float(g(x)) == pytest.approx(value(S).sum(), rel=1e-5)
    grid = np.linspace(0, 12, 120001)[:, None]
    best = grid[np.argmin(0.5 * (grid - S) ** 2 + 0.75 * value(grid), 0), 0]
    expected = torch.from_numpy(U * best @ Vh)
    torch.testing.assert_close(g.prox(x, 0.75).double(), expected, atol=3e-4, rtol=0)


@BOTH
def test_a_nuclear_norm_with_weights(size):
    n, sigma, dtype = SIZES[size]
    x = drawn(size, n, n + 3)
    weights = (sigma * torch.linspace(0.1, 2.0, n)).to(dtype)
    g = fn.WeightedNuclear(weights)
    U, S, Vh = np.linalg.svd(x.double().numpy(), full_matrices=False)
    w = weights.double().numpy()
    assert float(g(x)) == pytest.approx((w * S).sum(), rel=1e-5)
    found = g.prox(x, 0.75).double()
    expected = torch.from_numpy(U * np.maximum(S - 0.75 * w, 0) @ Vh)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)

    def whole(z):
        return (w * np.linalg.svd(z, compute_uv=False)).sum()

    is_prox(whole, found.numpy(), x.double().numpy(), 0.75, 1e-4)


def half_square(x, count):
    """½ of the k-support norm squared by its formula: the one r of k that fits."""
    z = np.sort(np.abs(x))[::-1]
    for r in range(count):
        rest = z[count - r - 1 :].sum() / (r + 1)
        before = z[count - r - 2] if r < count - 1 else np.inf
        if before > rest >= z[count - r - 1]:
            return 0.5 * ((z[: count - r - 1] ** 2).sum() + (r + 1) * rest**2)
    raise AssertionError("no r fits")


ENVELOPES = {
    # points as theirs are drawn, and their values
    "4 of 10, float32": (10, torch.float32, 94.89988856174841),
    "4 of 11, float64": (11, torch.float64, 145.6421905545182),
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_the_envelope_of_a_limit(name):
    n, dtype, theirs = ENVELOPES[name]
    x = torch.from_numpy(np.random.RandomState(10).normal(0.0, 10.0, n)).to(dtype)
    g, wide = fn.L0BallEnvelope(4), x.double().numpy()
    assert float(g(x)) == pytest.approx(theirs, rel=1e-5)
    assert float(g(x)) == pytest.approx(half_square(wide, 4) - 0.5 * norm(wide) ** 2, rel=1e-5)
    found = g.prox(x, 0.35).double().numpy()
    is_prox(lambda z: half_square(z, 4) - 0.5 * norm(z) ** 2, found, wide, 0.35, 1e-3)


def test_known_examples_of_the_envelope():
    x = torch.tensor([1, 1.5, 1.3, 4.1, 2.1, 1.6, 1.8, 1.8]).double()
    g = fn.L0BallEnvelope(5)
    assert float(g(x)) == pytest.approx(6.20625)
    expected = torch.tensor([0, 0.68571429, 0, 4.1, 2.1, 1.08571429, 1.8, 1.8]).double()
    torch.testing.assert_close(g.prox(x, 0.75), expected, atol=1e-7, rtol=0)
    x, g = torch.tensor([1, -1, 1, -0.1, 1]).double(), fn.L0BallEnvelope(4)
    assert float(g(x)) == pytest.approx(0.09625)
    torch.testing.assert_close(g.prox(x, 0.75), torch.tensor([1.0, -1, 1, 0, 1]).double())


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_envelope_of_a_rank_with_a_square(kind):
    """R(X) + ½‖X − M‖², which is convex: KSupport of singular values, and a linear term."""
    n, m, dtype = (10, 10, torch.float32) if kind == "float32" else (11, 14, torch.float64)
    x = torch.from_numpy(np.random.RandomState(10).normal(0, 1, (n, m))).to(dtype)
    theirs = 5.931525368112523 if n == 10 else 14.146478354862971  # with a norm not squared
    envelope = fn.OfSingularValues(fn.L0BallEnvelope(8))
    assert float(envelope(x)) == pytest.approx(theirs - 0.5 * float(x.norm()), rel=1e-4)
    M = torch.full((n, m), 0.3, dtype=dtype)
    g = fn.OfSingularValues(fn.KSupport(8)) + lg.Linear(-M)
    full = float(envelope(x)) + 0.5 * float((x - M).square().sum())
    assert float(g(x)) + 0.5 * float(M.square().sum()) == pytest.approx(full, rel=1e-5)
    found, wide = g.prox(x, 0.75).double().numpy(), x.double().numpy()

    def value(z):
        return half_square(np.linalg.svd(z, compute_uv=False), 8) - 0.3 * z.sum()

    is_prox(value, found, wide, 0.75, 1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fn.ExponentialType(-1.0), lambda: fn.ExponentialType(1.0, -1.0),
        lambda: fn.Geman(-1.0), lambda: fn.Geman(1.0, -1.0),
        lambda: fn.SCAD(-1.0), lambda: fn.SCAD(1.0, 1.7), lambda: fn.LogSum(-1.0),
        lambda: fn.LogSum(1.0, -1.0), lambda: lg.L2Norm().prox(torch.ones(3), -1),
        lambda: lg.Function()(torch.ones(4)), lambda: lg.L1().shifted(5), lambda: "2" * lg.L1(),
        lambda: lg.L1() + torch.ones(3),
    ],
)  # fmt: skip
def test_what_is_refused(make):
    with pytest.raises(InputError):
        make()


# --- algebra --------------------------------------------------------------------------------------


def test_algebra():
    x, v = randn(11, seed=1), torch.ones(11).double()
    torch.testing.assert_close((2.0 * lg.SquaredNorm()).prox(x, 2.0), x / 5)
    f = lg.L1(2.0)
    torch.testing.assert_close(f.conjugate().prox(x, 2.0), x.clamp(-2, 2))
    assert f.conjugate().conjugate() is f
    moved = lg.L1().shifted(-5 * v) @ (1.0 * lg.Identity())
    torch.testing.assert_close(moved(x), (x + 5).abs().sum())
    torch.testing.assert_close((2.0 * lg.L1())(x), 2 * x.abs().sum())
    torch.testing.assert_close((lg.L1() + lg.Linear(v))(x), x.abs().sum() + x.sum())
    torch.testing.assert_close((lg.L1() + lg.Linear(v)).prox(x), lg.L1().prox(x - v))


# --- gradients ------------------------------------------------------------------------------------

KINDS = {
    "float32": (10, torch.float32), "float64": (11, torch.float64),
    "complex64": (10, torch.complex64), "complex128": (11, torch.complex128),
}  # fmt: skip


def draw(dtype, *shape, seed=0):
    source = crandn if dtype.is_complex else randn
    return source(*shape, seed=seed).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_squares(kind):
    """Along a direction, against differences in double precision."""
    n, dtype = KINDS[kind]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    A, b = draw(dtype, 2 * n, n, seed=1), torch.ones(2 * n, dtype=dtype)
    x, v = draw(dtype, n, seed=2), draw(wide, n, seed=3)
    for f, g in (
        (lg.SquaredNorm(), lg.SquaredNorm()),
        (lg.SquaredDistance(b[:n]), lg.SquaredDistance(b[:n].to(wide))),
        (lg.LeastSquares(A, b), lg.LeastSquares(A.to(wide), b.to(wide))),
    ):
        h = 1e-6
        slope = float(g(x.to(wide) + h * v) - g(x.to(wide) - h * v)) / (2 * h)
        found = float((f.grad(x).to(wide) * v.conj()).sum().real)
        assert found == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_factors_of_a_matrix(kind):
    """½‖UV − D‖² of a tuple of two unknowns, and the map in one while the other stays."""
    n, dtype = KINDS[kind]
    U, V, D = (draw(dtype, *s, seed=k) for k, s in enumerate([(2 * n, 5), (5, n), (2 * n, n)]))
    f = lg.Smooth(lambda t: 0.5 * (t[0] @ t[1] - D).abs().square().sum())
    found = f.grad((U, V))
    rest = U @ V - D
    torch.testing.assert_close(found[0], rest @ V.mH, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found[1], U.mH @ rest, atol=1e-3, rtol=1e-3)
    K = lg.operators.from_function(lambda u: u @ V, (2 * n, 5), dtype)
    torch.testing.assert_close(K(U), U @ V)
    torch.testing.assert_close(K.adjoint(D), D @ V.mH, atol=1e-3, rtol=1e-3)
    weights = 1 + torch.arange(2 * n * n, dtype=torch.float32).reshape(2 * n, n).to(dtype)
    torch.testing.assert_close((lg.Diagonal(weights) @ K)(U), weights * (U @ V))


def test_a_prox_of_any_smooth_function_is_a_solve():
    """1 − sin πx far from its start: a local minimum near ½, as pyproximal's Nonlinear has it."""
    energy = lg.Smooth(lambda x: 1 - torch.sin(torch.pi * x), coupled=0) + lg.SquaredDistance(
        torch.full((1,), 0.5).double(), 1e-5
    )
    x = lg.solve(energy, x0=torch.full((1,), 0.2).double(), stop=lg.Stop(500)).x
    assert float(x) == pytest.approx(0.5, abs=1e-4)


def test_singular_values_of_a_known_example():
    """First-order methods' benchmark: the matrix 1…6, threshold 1."""
    y = torch.arange(1.0, 7.0).double().reshape(2, 3)
    U, S, Vh = np.linalg.svd(y.numpy(), full_matrices=False)
    expected = torch.from_numpy(U * np.maximum(S - 1, 0) @ Vh)
    torch.testing.assert_close(lg.Nuclear().prox(y), expected)
