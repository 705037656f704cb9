"""A start a million times larger than the solution: where the iterate went is found out."""

import warnings

import pytest
import torch

import legato as lg
from legato import errors

Q = torch.tensor([1.0, 0.05]).double()


def differentiated(centre, weight, strategy, tol=1e-8):
    w = torch.tensor(weight).double().requires_grad_()
    c = torch.tensor(centre).double()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(Q), -Q * c), lg.L1(w))
    start = torch.ones(2).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        algorithm = lg.ForwardBackward(inertia=0.0)
        stop = lg.Stop(5000, tol=tol)
        found = lg.solve(problem, algorithm, start, gradient=strategy, stop=stop)
        assert bool(torch.as_tensor(found.converged).all())
        (slope,) = torch.autograd.grad(found.x.sum(), w)
    return float(slope), [w for w in said if issubclass(w.category, errors.LegatoWarning)]


STRATEGIES = {
    "GMRES": lg.Implicit(),
    "Direct": lg.Implicit(lg.Direct()),
    "CG": lg.Implicit(lg.CG()),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_beyond_a_kink(strategy):
    """x = (c₁ − w, 0), as 0.05·c₂ < w, but the second entry, on its way there, is still above."""
    slope, said = differentiated([5e-9, 5e-9], 1e-9, STRATEGIES[strategy])
    assert slope == pytest.approx(-21.0, rel=1e-3)  # of the wrong piece: the truth is −1
    assert len(said) == 1
    assert "start was so much larger" in str(said[0].message)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_arrived(strategy):
    slope, said = differentiated([5e-9, 5e-9], 1e-9, STRATEGIES[strategy], tol=1e-13)
    assert slope == pytest.approx(-1.0, rel=1e-6)
    assert said == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_its_way_to_zero(strategy):
    """Without a kink in between a small iterate has the derivative of its limit, dx/dc = 1."""
    c = torch.zeros(2).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(Q), -Q * c))
    start, stop = torch.ones(2).double(), lg.Stop(5000, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm = lg.ForwardBackward(inertia=0.0)
        found = lg.solve(problem, algorithm, start, gradient=STRATEGIES[strategy], stop=stop)
        (slope,) = torch.autograd.grad(found.x.sum(), c)
    assert 0 < float(found.x[1].detach()) < 1e-6
    torch.testing.assert_close(slope, torch.ones(2).double(), rtol=1e-4, atol=0)


DATA = torch.tensor([0.3, -0.4, 1.6, 1.2, -0.9, 0.2]).double()
LOSS = torch.tensor([1.0, -2.0, 0.5, 0.8, -0.3, 0.7]).double()


def stiff(size, dtype=torch.float64, start=None, tol=1e-6, balance=1.0, strategy=None):
    """The slope in w of ⟨c, x⟩/s for x = argmin |x − s·b|²/(2s) + w·TV(x), one number for all s.

    x has the size s, its dual that of w.
    """
    w = torch.tensor(0.25, dtype=dtype, requires_grad=True)
    b = (size * DATA).to(dtype)
    energy = (1 / size) * lg.SquaredDistance(b) + lg.L1(w) @ lg.Differences(dims=(-1,))
    algorithm = lg.PrimalDual(balance=balance)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = lg.solve(
            energy,
            algorithm,
            start,
            gradient=strategy or lg.Implicit(),
            stop=lg.Stop(3000, tol=tol),
        )
        (slope,) = torch.autograd.grad(found.x @ LOSS.to(dtype), w)
    words = [str(one.message) for one in said if issubclass(one.category, errors.LegatoWarning)]
    return float(slope) / size, bool(found.converged), words


@pytest.fixture(scope="module")
def known():
    slope, converged, said = stiff(1.0, tol=1e-13)
    assert converged
    assert not said
    return slope


@pytest.mark.parametrize(
    ("size", "dtype", "tol", "strategy"),
    [
        (1e-3, torch.float32, 1e-6, "GMRES"),
        (1e-3, torch.float32, 1e-6, "Direct"),
        (1e-3, torch.float64, 1e-12, "GMRES"),
        (1e-6, torch.float64, 1e-13, "GMRES"),
        (1e-6, torch.float64, 1e-13, "Direct"),
        (1e-9, torch.float64, 1e-15, "GMRES"),
        (1e-9, torch.float64, 1e-15, "Direct"),
    ],
)
def test_a_small_x_beside_its_dual_in_a_balance_that_suits_both(size, dtype, tol, strategy, known):
    slope, converged, said = stiff(
        size, dtype, balance=size, tol=tol, strategy=STRATEGIES[strategy]
    )
    assert converged
    assert slope == pytest.approx(known, rel=1e-3)
    assert said == []


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "CG"])
@pytest.mark.parametrize("size", [1e-7, 1e-9])
def test_a_dual_that_has_only_begun_to_grow(size, strategy):
    """Against a start of size 1 nothing moves any more, while the dual has 1/s steps to go."""
    slope, converged, said = stiff(
        size, start=torch.ones(6).double(), strategy=STRATEGIES[strategy]
    )
    assert converged
    assert slope == 0  # of a dual that is nowhere at its bound
    assert len(said) == 1
    assert "by an unknown amount" in said[0]


def pinned(size, dtype, start, strategy):
    """x in a ball of radius s, Kx ≥ 0; a start of size 1 leaves a dual that holds x at a corner."""
    K = torch.tensor([[0.5, -0.3], [0.4, 0.8]], dtype=dtype, requires_grad=True)
    data = size * torch.tensor([0.2, 0.9], dtype=dtype)
    g = lg.SquaredDistance(data) + lg.LInfBall(size)
    problem = lg.Saddle(K, lg.NonNegative(), nonsmooth=g)
    begun = start * torch.ones(2, dtype=dtype)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = lg.solve(
            problem, lg.PrimalDual(), begun, gradient=strategy, stop=lg.Stop(20000, tol=1e-6)
        )
        (slope,) = torch.autograd.grad(found.x.sum() / size, K)
    words = [str(one.message) for one in said if issubclass(one.category, errors.LegatoWarning)]
    return found, slope, words


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "CG"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-14])
def test_a_corner_where_a_far_larger_dual_holds_x(size, dtype, strategy):
    """Kx ≥ 0 is active, x/s = (0.45, 0.75): the point on its line next to b."""
    found, slope, said = pinned(size, dtype, size, STRATEGIES[strategy])
    torch.testing.assert_close(
        found.x / size, torch.tensor([0.45, 0.75], dtype=dtype), rtol=1e-4, atol=0
    )
    expected = torch.tensor([[0.0882353, 0.1470588], [0.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-6)
    assert said == []
    found, slope, said = pinned(size, dtype, 1.0, STRATEGIES[strategy])
    assert found.converged
    assert not torch.allclose(slope, expected, rtol=0.1)
    assert len(said) == 1  # in which words depends on what a solver sees of the eigenvalue 1
