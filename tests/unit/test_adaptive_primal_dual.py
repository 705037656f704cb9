"""Restarts, a balance that adapts, and scaling: the same solutions, sooner."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import legato as lg
from engines import compare
from legato import errors
from makers import randn

RESTART, BALANCE, SCALING = lg.Restart(), lg.AdaptiveBalance(), lg.Ruiz()
ALL = lg.PrimalDual(restart=RESTART, balance=BALANCE, scaling=SCALING)


# --- a linear program in bad units ----------------------------------------------------------------


def program(scale=1e3):
    """min ⟨c, x⟩ with Ax = b, x ≥ 0, whose rows and columns have sizes from 1/scale to scale."""
    g = np.random.default_rng(0)
    A = g.standard_normal((5, 9)) * np.logspace(-1, 1, 9) * np.geomspace(1, scale, 5)[:, None]
    c = np.abs(g.standard_normal(9)) + A.T @ (g.standard_normal(5) / scale)
    return A, A @ g.random(9), 1e3 * c


def saddle(A, b, c):
    A, b, c = map(torch.as_tensor, (A, b, c))
    return lg.Saddle(A, lg.Equality(b), nonsmooth=lg.Linear(c) + lg.NonNegative())


@pytest.mark.parametrize("sparse", [False, True])
def test_a_linear_program_is_solved_as_highs_does(sparse):
    A, b, c = program()
    truth = linprog(c, A_eq=A, b_eq=b)
    matrix = torch.tensor(A).to_sparse_csr() if sparse else A
    found = lg.solve(saddle(matrix, b, c), ALL, stop=lg.Stop(3000, tol=1e-10))
    assert found.converged
    np.testing.assert_allclose(found.x, truth.x, atol=1e-6 * np.abs(truth.x).max())
    np.testing.assert_allclose(found.y, -truth.eqlin.marginals, atol=1e-5)


@pytest.mark.parametrize("without", ["restart", "scaling", "balance"])
def test_each_part_of_it_helps(without):
    parts = {"restart": RESTART, "balance": BALANCE, "scaling": SCALING}
    parts[without] = 1.0 if without == "balance" else None
    A, b, c = program()
    best = linprog(c, A_eq=A, b_eq=b).x
    done = lg.Stop(800)
    error = [
        np.linalg.norm(lg.solve(saddle(A, b, c), how, stop=done).x.numpy() - best)
        for how in (ALL, lg.PrimalDual(**parts))
    ]
    assert 100 * error[0] < error[1]


# --- batches --------------------------------------------------------------------------------------

SIZES = torch.tensor([1.0, 1e3, 1e-3]).double()


def noisy(scale, y=randn(40, seed=3)):
    """Total variation whose weight, unlike its data, is larger or smaller."""
    K = lg.Differences((-1,))
    return lg.Saddle(K, lg.L1(0.3 * scale[..., None, None]), nonsmooth=lg.SquaredDistance(y))


@pytest.mark.parametrize("restart", [None, RESTART])
def test_elements_of_a_batch_move_as_alone(restart):
    how = lg.PrimalDual(restart=restart, balance=BALANCE, scaling=SCALING)
    stop = lg.Stop(800, tol=1e-9)
    y = randn(40, seed=3) * torch.tensor([[1.0], [30.0], [0.3]]).double()
    weight = torch.tensor([0.5, 2.0, 0.1]).double()
    together = lg.solve(noisy(weight, y), how, stop=stop)
    assert together.converged.all()
    for k in range(3):
        alone = lg.solve(noisy(weight[k], y[k]), how, stop=stop)
        torch.testing.assert_close(together.x[k], alone.x, rtol=1e-9, atol=1e-9)
        assert int(together.iterations[k]) == alone.iterations
        torch.testing.assert_close(together.steps["balance"][k], alone.steps["balance"])
    assert len(set(together.steps["balance"].tolist())) == 3


@pytest.mark.parametrize("restart", [None, RESTART])
def test_points_of_a_million_on_the_way_make_no_residual_small(restart):
    y = torch.tensor([0.0, 1.0]).double()
    how = lg.PrimalDual(restart=restart, balance=BALANCE)
    far = torch.full((2,), 1e9).double()
    found = lg.solve(noisy(SIZES[0], y), how, far, stop=lg.Stop(2000, tol=1e-8))
    assert found.converged
    torch.testing.assert_close(found.x, torch.tensor([0.3, 0.7]).double(), rtol=0, atol=1e-6)


def test_it_goes_on_as_if_it_had_not_stopped():
    problem = noisy(SIZES[0])
    half = lg.solve(problem, ALL, stop=lg.Stop(37))
    rest = lg.solve(problem, ALL, half, stop=lg.Stop(23))
    whole = lg.solve(problem, ALL, stop=lg.Stop(60))
    torch.testing.assert_close(rest.x, whole.x, rtol=0, atol=0)


# --- derivatives ----------------------------------------------------------------------------------

Q = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.1]]).double()
A = torch.tensor([[10.0, 1.0, -1.0]]).double()


def kkt(b, c):
    """x and dx/db, dx/dc of min ½xᵀQx + cᵀx with Ax = b, by its linear system."""
    system = torch.cat([torch.cat([Q, A.mT], 1), torch.cat([A, torch.zeros(1, 1)], 1).double()])
    inverse = torch.linalg.inv(system)
    return inverse[:3] @ torch.cat([-c, b]), inverse[:3, 3:], -inverse[:3, :3]


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        (ALL, lg.Implicit()),
        (ALL, lg.Piggyback(tol=1e-8)),
        (ALL, lg.Unroll()),
        (lg.PrimalDual(balance=BALANCE), lg.Implicit()),
    ],
)
def test_derivatives_at_the_solution(how, strategy):
    b = torch.tensor([3.0]).double().requires_grad_()
    c = torch.tensor([1e2, -1.0, 0.5]).double().requires_grad_()
    problem = lg.Saddle(A, lg.Equality(b), smooth=lg.Quadratic(Q, c))
    found = lg.solve(problem, how, gradient=strategy, stop=lg.Stop(2000, tol=1e-11))
    x, by_b, by_c = kkt(b.detach(), c.detach())
    torch.testing.assert_close(found.x.detach(), x, rtol=1e-7, atol=1e-7)
    cotangent = randn(3, seed=1)
    db, dc = torch.autograd.grad(found.x, (b, c), cotangent)
    torch.testing.assert_close(db, by_b.mT @ cotangent, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(dc, by_c.mT @ cotangent, rtol=1e-5, atol=1e-7)
    assert not found.steps["balance"].requires_grad


@pytest.mark.parametrize("engine", [lg.Replayed()], ids=repr)
@pytest.mark.parametrize("stop", [lg.Stop(25), lg.Stop(100, tol=1e-4)], ids=["fixed", "tolerance"])
def test_engines_run_it(engine, stop):
    def build(y, weight):
        return noisy(weight, y), ALL

    def leaves():
        return randn(3, 20, seed=3).requires_grad_(), SIZES.clone().requires_grad_()

    found = compare(build, leaves, gradient=lg.Unroll(), stop=stop)
    assert not found.fell_back, found.reasons


# --- shapes and numbers ---------------------------------------------------------------------------


def test_in_single_precision_and_behind_a_stack_with_a_norm_that_couples():
    y = randn(6, 5, seed=2).float()
    energy = lg.SquaredDistance(y) + lg.IsotropicTV(0.2) + lg.L1(0.1) @ lg.Differences((-1,))
    found = lg.solve(energy, ALL, stop=lg.Stop(1000, tol=1e-6))
    truth = lg.solve(lg.split(energy), lg.PrimalDual(), stop=lg.Stop(1000))
    assert found.converged
    assert found.x.dtype == torch.float32
    torch.testing.assert_close(found.x, truth.x, rtol=1e-4, atol=1e-4)


def test_scaled_operators_have_rows_and_columns_of_size_one():
    K = randn(6, 4, seed=1) * torch.logspace(-3, 3, 4).double()
    columns, rows = lg.Ruiz(20).sizes(lg.Dense(K), torch.ones(4).double(), torch.ones(6).double())
    scaled = rows.rsqrt()[:, None] * K * columns.rsqrt()
    assert float(torch.linalg.matrix_norm(scaled, 2)) <= 1 + 1e-12
    ends = scaled.abs().sum(0), scaled.abs().sum(1)
    assert float(ends[0].amax() / ends[0].amin()) < 1.1
    assert float(ends[1].amax() / ends[1].amin()) < 1.1
    empty = lg.Ruiz().sizes(lg.Dense(0 * K), torch.ones(4).double(), torch.ones(6).double())
    assert all(part.isfinite().all() for part in empty)


def test_a_learned_balance_beside_restarts_keeps_its_derivative():
    def value(r):
        how = lg.PrimalDual(balance=r, restart=RESTART)
        return lg.solve(noisy(SIZES[0]), how, stop=lg.Stop(6)).x.square().sum()

    r = torch.tensor(2.0).double().requires_grad_()
    value(r).backward()
    by_differences = (value(2.0 + 1e-5) - value(2.0 - 1e-5)) / 2e-5
    assert float(r.grad) == pytest.approx(float(by_differences), rel=1e-6)


# --- what is refused ------------------------------------------------------------------------------

REFUSED = {
    "geometry": lambda: lg.PrimalDual(geometry=lg.Entropy(), restart=RESTART),
    "dual geometry": lambda: lg.PrimalDual(dual_geometry=lg.Entropy(), balance=BALANCE),
    "average": lambda: lg.PrimalDual(average=True, restart=RESTART),
    "tau": lambda: lg.PrimalDual(tau=0.1, balance=BALANCE),
    "tau, scaling": lambda: lg.PrimalDual(tau=0.1, scaling=SCALING),
    "both": lambda: lg.PrimalDual(precondition=True, scaling=SCALING),
    "True": lambda: lg.PrimalDual(restart=True),
    "class": lambda: lg.PrimalDual(scaling=lg.Ruiz),
    "class of balance": lambda: lg.PrimalDual(balance=lg.AdaptiveBalance),
    "shares": lambda: lg.Restart(sufficient=0.9),
    "share": lambda: lg.Restart(longest=1.0),
    "start": lambda: lg.AdaptiveBalance(start=0.0),
    "learned start": lambda: lg.AdaptiveBalance(torch.tensor(1.0)),
    "theta": lambda: lg.AdaptiveBalance(share=0.0),
    "changes": lambda: lg.AdaptiveBalance(changes=0),
    "passes": lambda: lg.Ruiz(0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    with pytest.raises((errors.InputError, errors.StepError)) as said:
        REFUSED[name]()
    assert len(str(said.value)) > 40


# --- nothing is called converged that has only stopped moving -------------------------------------


def test_a_dual_that_is_zero_but_for_rounding_does_not_set_the_balance():
    """min λ/2 x² + max(0, 1 − ax) has its solution at the kink, x = 1/a."""
    a = torch.tensor([[-2.0156998500967633]]).double()
    energy = lg.SquaredNorm(0.1) + lg.Hinge(torch.ones(1).double()) @ lg.Dense(a)
    found = lg.solve(energy, stop=lg.Stop(5000, tol=1e-6))
    assert found.converged
    assert abs(float(found.x) - 1 / float(a)) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_small_costs_are_not_taken_for_a_solution(seed):
    """min ⟨c, x⟩ + |⟨a, x⟩| over −1 ≤ x ≤ 1, where c is ten thousand times smaller than a."""
    a, c = randn(1, 4, seed=seed), 1e-4 * randn(4, seed=seed + 100)
    rows = np.block([[a.numpy(), -np.ones((1, 1))], [-a.numpy(), -np.ones((1, 1))]])
    truth = linprog([*c, 1.0], A_ub=rows, b_ub=[0.0, 0.0], bounds=[(-1, 1)] * 4 + [(0, None)])
    energy = lg.Linear(c) + lg.Box(-1.0, 1.0) + lg.L1() @ lg.Dense(a)
    found = lg.solve(energy, stop=lg.Stop(20000, tol=1e-8))
    assert found.converged
    assert float(found.objective) - truth.fun < 1e-3 * float(c.abs().sum())


def test_a_variable_of_no_axes():
    energy = lg.SquaredDistance(torch.tensor(-3.0).double()) + lg.L1(0.5) @ (2.0 * lg.Identity())
    for algorithm in (None, lg.PrimalDual(restart=RESTART), lg.PrimalDual(balance=BALANCE)):
        found = lg.solve(energy, algorithm, stop=lg.Stop(1000, tol=1e-9)).x
        assert float(found) == pytest.approx(-2.0, abs=1e-8)


@pytest.mark.parametrize("more", [{"precondition": True}, {"scaling": SCALING}])
def test_restarts_with_several_unknowns_and_diagonal_steps(more):
    u, v = lg.operators.parts(torch.zeros(3).double(), torch.zeros(5).double())
    both = lg.Dense(randn(6, 3, seed=60)) @ u + lg.Dense(randn(6, 5, seed=61)) @ v
    data = lg.SquaredDistance(randn(3, seed=62)) @ u + lg.SquaredDistance(randn(5, seed=63)) @ v
    stop = lg.Stop(5000, tol=1e-11)
    found = lg.solve(data + lg.L1(0.2) @ both, lg.PrimalDual(restart=RESTART, **more), stop=stop)
    plain = lg.solve(data + lg.L1(0.2) @ both, lg.PrimalDual(), stop=stop)
    assert found.converged
    for one, other in zip(found.x, plain.x, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


def test_a_fixed_balance_goes_on_from_one_that_adapted():
    smooth = 100.0 * lg.SquaredDistance(1e3 * randn(30, seed=64))
    problem = lg.Saddle(lg.Differences((-1,)), lg.L1(3.0), smooth=smooth)
    begun = lg.solve(problem, lg.PrimalDual(restart=RESTART, balance=BALANCE), stop=lg.Stop(5))
    found = lg.solve(problem, lg.PrimalDual(restart=RESTART), begun, stop=lg.Stop(5000, tol=1e-10))
    assert found.converged
    assert float(found.gap) < 1e-6
