"""Going on from a solution of another kind; what terms say of themselves; errors passed on."""

import pytest
import torch

import legato as lg
from legato.errors import InputError
from makers import randn


def saddle():
    signal = torch.tensor([0.1, 0.2, 0.0, 1.1, 0.9, 1.0]).double()
    return lg.Saddle(lg.Differences((-1,)), lg.L1(0.2), nonsmooth=lg.SquaredDistance(signal))


@pytest.mark.parametrize("average", [True, False])
def test_averages_begin_anew_after_a_solution_without_them(average):
    """The other way round they are left behind."""
    problem, plain, averaging = saddle(), lg.PrimalDual(), lg.PrimalDual(average=True)
    first, second = (plain, averaging) if average else (averaging, plain)
    before = lg.solve(problem, first, stop=lg.Stop(400))
    after = lg.solve(problem, second, before, stop=lg.Stop(1))
    expected = lg.solve(problem, plain, before.state if average else None, stop=lg.Stop(400)).x
    assert hasattr(after.state, "x_mean") == average
    if average:
        torch.testing.assert_close(after.x, expected, atol=1e-6, rtol=0)
        assert float(after.state.number) == 1


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_lipschitz_constant_of_the_logistic_loss_is_attained(weight):
    """∇² = Aᵀ diag(¼) A where all margins are 0."""
    A = randn(7, 4)
    f = weight * lg.Logistic(A, randn(7, seed=1).sign())
    curvature = torch.linalg.eigvalsh(f.hessian(torch.zeros(4).double()))[-1]
    torch.testing.assert_close(torch.as_tensor(f.lipschitz()), curvature, rtol=1e-2, atol=0)
    assert float(f.lipschitz()) >= float(curvature) * (1 - 1e-12)


def test_a_product_of_batches_that_do_not_fit_is_refused():
    """Two matrices and five vectors are no batch together: never a None instead of a product."""
    A = lg.Dense(torch.ones(2, 3, 3))
    vectors = torch.ones(5, 3)
    for product in A, A.adjoint:
        with pytest.raises(InputError, match="do not broadcast"):
            product(vectors)


def test_forward_wants_tensors_only():
    theta = torch.ones(2, requires_grad=True)
    with pytest.raises(InputError, match="Forward needs the tensors"):
        lg.Forward([theta, 3.0])


@pytest.mark.parametrize(
    "term",
    [lg.L1(), lg.NonNegative(), lg.Box(0.0, 1.0), lg.SquaredNorm(), lg.AsymmetricL1()],
    ids=repr,
)
def test_terms_of_single_entries_couple_no_axis(term):
    """Every entry may then be an element of a batch, with a tolerance of its own."""
    assert term.coupled == 0


def test_bicgstab_counts_its_products():
    """(I − 0)w = ξ takes one step, of one product."""
    result = lg.BiCGStab().solve(torch.zeros_like, torch.ones(3).double())
    assert result.iterations == 1
    torch.testing.assert_close(result.solution, torch.ones(3).double())


def test_the_solver_of_a_linear_system_does_not_decide_how_exactly_it_is_solved():
    """M = ½I leaves 2⁻ᵏ after k terms of the series, and 2⁻²⁰ is the first below 1e-6."""
    assert {solver().tol for solver in (lg.CG, lg.BiCGStab, lg.GMRES, lg.MINRES, lg.Neumann)} == {
        1e-6
    }
    assert lg.Neumann().solve(lambda w: 0.5 * w, torch.ones(3).double()).iterations == 20


def test_as_many_linear_terms_as_blocks():
    """⟨c, x⟩ with a part too many has no meaning, and is not cut to fit."""
    K = lg.Stack(lg.Identity(), lg.Identity())
    problem = lg.Saddle(K, lg.Separable(lg.L1(), lg.L1()), nonsmooth=lg.SquaredNorm())
    part = torch.ones(2)
    problem.with_linear_terms(part, (part, part))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        problem.with_linear_terms(part, (part, part, part))


@pytest.mark.parametrize("kind", ["point", "state"])
@pytest.mark.parametrize("dual", [False, True])
def test_a_start_without_the_batch_axis_judges_each_element_by_its_own_size(kind, dual):
    """x₂ = 2 beside an element a million times as large, at a rate of 0.99."""
    A = torch.diag(torch.tensor([1.0, 0.1])).double()
    b = torch.tensor([[3e6, 0.0], [3.0, 0.2]]).double()

    def energy(b):
        return lg.LeastSquares(A, b) + (
            lg.NonNegative() @ torch.eye(2).double() if dual else lg.L1(0.0)
        )

    start = torch.zeros(2).double()
    if kind == "state":
        start = lg.solve(energy(0 * b[0]), stop=lg.Stop(1)).state
    found = lg.solve(energy(b), x0=start, stop=lg.Stop(20000, tol=1e-9))
    assert found.converged.shape == (2,)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.x[1, 1], torch.tensor(2.0).double(), rtol=1e-5, atol=0)
