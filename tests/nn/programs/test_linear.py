"""Linear programs: solutions against HiGHS, and what is said and done about a zero derivative."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from legato.errors import InexactGradientWarning, InputError, NotConvergedWarning
from legato.nn import LPGD, Entropic, LinearProgram, Perturbed, Ridge

F64 = torch.float64


def random_costs(size, n, m, seed=0):
    """Bounded, feasible, with a unique vertex for almost every draw."""
    g = torch.Generator().manual_seed(seed)
    G = torch.randn(size, m, n, generator=g, dtype=F64)
    h = torch.rand(size, m, generator=g, dtype=F64) + 0.5
    return torch.randn(size, n, generator=g, dtype=F64), G, h


def by_highs(c, G, h):
    found = linprog(c, A_ub=G, b_ub=h, bounds=(-1, 1), method="highs")
    assert found.status == 0
    return found.x


def test_against_highs():
    c, G, h = random_costs(200, 6, 8)
    record = LinearProgram().solve(c, G=G, h=h, lo=-1.0, hi=1.0)
    assert bool(record.solved.all())
    for k in range(200):
        truth = by_highs(c[k].numpy(), G[k].numpy(), h[k].numpy())
        assert np.abs(record.x[k].numpy() - truth).max() < 1e-9


def test_the_zero_in_c_is_said_once_and_constraints_have_their_derivative():
    c, G, h = random_costs(1, 5, 6, seed=1)
    c, G, h = c[0].requires_grad_(), G[0], h[0].requires_grad_()
    layer = LinearProgram()
    with pytest.warns(InexactGradientWarning, match="zero almost everywhere"):
        x = layer(c, G=G, h=h, lo=-1.0, hi=1.0)
    layer(c, G=G, h=h, lo=-1.0, hi=1.0)  # not again: warnings are errors
    w = torch.arange(1.0, 6.0, dtype=F64)
    in_c, in_h = torch.autograd.grad((x * w).sum(), (c, h))
    assert float(in_c.abs().max()) < 1e-8
    for k in range(6):
        ends = []
        for s in (1, -1):
            moved = h.detach().clone()
            moved[k] += s * 1e-6
            ends.append(w.numpy() @ by_highs(c.detach().numpy(), G.numpy(), moved.numpy()))
        assert abs((ends[0] - ends[1]) / 2e-6 - float(in_h[k])) < 1e-6


def test_ridge_is_what_it_says():
    """On the simplex: the projection of −c/w, and a bias below its bound."""
    c = torch.tensor([1.0, 1.3, 2.0], dtype=F64, requires_grad=True)
    A, b = torch.ones(1, 3, dtype=F64), torch.ones(1, dtype=F64)
    x = LinearProgram(Ridge(0.5))(c, A, b, lo=0.0)
    torch.testing.assert_close(x.detach(), torch.tensor([0.8, 0.2, 0.0], dtype=F64))
    x[0].backward()
    torch.testing.assert_close(c.grad, torch.tensor([-1.0, 1.0, 0.0], dtype=F64))
    excess = float(c.detach() @ x.detach() - 1.0)
    assert 0 < excess <= 0.25 * (1 - float(x.detach().square().sum())) + 1e-12


def test_lpgd_is_the_difference_of_two_solves():
    c, G, h = random_costs(4, 5, 6, seed=2)
    given = [t.clone().requires_grad_() for t in (c, G, h)]
    tau = 0.7
    x = LinearProgram(LPGD(tau))(given[0], G=given[1], h=given[2], lo=-1.0, hi=1.0)
    w = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=F64)
    (x * w).sum().backward()
    for k in range(4):
        one = c[k].numpy(), G[k].numpy(), h[k].numpy()
        truth = by_highs(*one)
        moved = by_highs(one[0] + tau * w[k].numpy(), *one[1:])
        assert np.abs(x[k].detach().numpy() - truth).max() < 1e-9
        assert np.abs(given[0].grad[k].numpy() - (moved - truth) / tau).max() < 1e-8
    # the gradients in G and h are those of the envelope (value(c + τw) − value(c))/τ
    k, step = 1, 1e-6
    direction = torch.randn(6, 5, generator=torch.Generator().manual_seed(4), dtype=F64)

    def envelope(G_k, h_k):
        values = [
            linprog(cost, A_ub=G_k.numpy(), b_ub=h_k.numpy(), bounds=(-1, 1)).fun
            for cost in ((c[k] + tau * w[k]).numpy(), c[k].numpy())
        ]
        return (values[0] - values[1]) / tau

    in_G = (envelope(G[k] + step * direction, h[k]) - envelope(G[k] - step * direction, h[k])) / (
        2 * step
    )
    assert abs(in_G - float((given[1].grad[k] * direction).sum())) < 1e-5
    for row in range(6):
        e = step * torch.eye(6, dtype=F64)[row]
        in_h = (envelope(G[k], h[k] + e) - envelope(G[k], h[k] - e)) / (2 * step)
        assert abs(in_h - float(given[2].grad[k, row])) < 1e-5


def test_learning_a_cost_by_lpgd():
    """The cost is moved until the wanted vertex is the cheapest."""
    c = torch.tensor([1.0, 2.1, 3.3], requires_grad=True)
    layer = LinearProgram(LPGD(2.0))
    A, b, wanted = torch.ones(1, 3), torch.ones(1), torch.tensor([0.0, 0.0, 1.0])
    optimizer = torch.optim.SGD([c], lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(c, A, b, lo=0.0) - wanted).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer(c, A, b, lo=0.0).detach(), wanted)


def test_perturbed_solutions_have_the_moments_of_two_costs():
    """On the simplex of two, x₁ is a normal chance, and its derivative the density."""
    c = torch.tensor([[1.0, 1.5], [0.3, 0.0]], dtype=F64, requires_grad=True)
    sigma, A, b = 0.8, torch.ones(1, 2, dtype=F64), torch.ones(1, dtype=F64, requires_grad=True)
    noise = Perturbed(sigma, 4000, torch.Generator().manual_seed(0))
    record = LinearProgram(noise).solve(c, A, b, lo=0.0)
    spread = sigma * 2**0.5
    normal = torch.distributions.Normal(0.0, spread)
    away = c.detach()[:, 1] - c.detach()[:, 0]
    assert float((record.x[:, 0] - normal.cdf(away)).detach().abs().max()) < 0.03
    assert record.solved.tolist() == [True, True]
    record.x[:, 0].sum().backward()
    density = normal.log_prob(away).exp()
    truth = torch.stack([-density, density], -1)
    assert float((c.grad - truth).abs().max()) < 0.04
    assert abs(float(b.grad) - float(normal.cdf(away).sum())) < 0.03  # b moves x₁ where that is 1


def test_perturbed_programs_share_data_and_repeat():
    """A batch in G alone, rows between two ends, the same noise from the same seed."""
    c, G, h = random_costs(3, 4, 5, seed=6)
    c = c[0].clone().requires_grad_()

    def solved():
        noise = Perturbed(0.3, 20, torch.Generator().manual_seed(1))
        return LinearProgram(noise)(c, G=G, lower=-h, upper=h, lo=-1.0, hi=1.0)

    x = solved()
    assert x.shape == (3, 4)
    torch.testing.assert_close(solved(), x, rtol=0, atol=0)
    x.square().sum().backward()
    assert bool((c.grad != 0).all())
    cost = c.detach() + 0.3 * torch.randn(
        20, 3, 4, generator=torch.Generator().manual_seed(1), dtype=F64
    )
    mean = LinearProgram()(cost, G=G, lower=-h, upper=h, lo=-1.0, hi=1.0).mean(0)
    torch.testing.assert_close(x.detach(), mean)


def test_several_solutions_are_flagged():
    record = LinearProgram().solve(torch.ones(2), torch.ones(1, 2), torch.ones(1), lo=0.0)
    assert bool(record.solved)
    assert bool(record.degenerate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ridge(0.0),
        lambda: LPGD(-1.0),
        lambda: LinearProgram(1),
        lambda: Perturbed(0.0),
        lambda: Perturbed(samples=1),
    ],
)
def test_settings(make):
    with pytest.raises(InputError):
        make()


def test_a_cost_is_needed():
    with pytest.raises(InputError, match="needs the cost c"):
        LinearProgram()(None, G=torch.ones(1, 2), h=torch.ones(1))


def test_lpgd_says_where_x_is_not_unique_and_only_there():
    A, b = torch.ones(1, 2, dtype=F64), torch.ones(1, dtype=F64)
    c = torch.tensor([[1.0, 1.5], [1.0, 1.0]], dtype=F64, requires_grad=True)
    with pytest.warns(InexactGradientWarning, match=r"1 of 2 programs \(instances 1\): x is not"):
        LinearProgram(LPGD(0.1))(c, A, b, lo=0.0)
    # Assignments: multipliers are zero at the vertex, but there is one best assignment.
    n = 4
    A = torch.cat([torch.kron(torch.eye(n), torch.ones(1, n)), torch.eye(n).repeat(1, n)]).double()
    c = torch.rand(6, n * n, generator=torch.Generator().manual_seed(0), dtype=F64)
    record = LinearProgram(LPGD(0.1)).solve(c.requires_grad_(), A, A.new_ones(2 * n), lo=0.0)
    assert bool(record.tied.any())


def test_lpgd_of_a_loss_that_does_not_ask_is_zero():
    """Although the second solve has many solutions to choose from."""
    A, b = torch.ones(1, 2, dtype=F64), torch.ones(1, dtype=F64)
    layer = LinearProgram(LPGD(1.0))
    start = layer.solve(torch.tensor([1.0, 1.5], dtype=F64), A, b, lo=0.0)
    c = torch.ones(2, dtype=F64, requires_grad=True)
    with pytest.warns(InexactGradientWarning, match="x is not unique"):
        x = layer.solve(c, A, b, lo=0.0, start=start).x
    (0 * x).sum().backward()
    assert c.grad.tolist() == [0.0, 0.0]


def test_lpgd_beside_an_instance_without_a_solution():
    A, b = torch.ones(1, 2, dtype=F64), torch.tensor([[1.0], [-1.0]], dtype=F64)
    c = torch.tensor([1.0, 1.5], dtype=F64).repeat(2, 1).requires_grad_()
    layer = LinearProgram(LPGD(1.0))
    with pytest.warns(NotConvergedWarning, match="instances 1"):
        x = layer(c, A, b.requires_grad_(), lo=0.0)
    with pytest.warns(NotConvergedWarning, match="instances 1"):
        x[:, 0].sum().backward()
    assert torch.isnan(c.grad).tolist() == torch.isnan(x.detach()).tolist()
    assert torch.isnan(b.grad).tolist() == [[False], [True]]


@pytest.mark.parametrize("gradient", [Entropic(), Perturbed()])
def test_gradients_that_take_no_start_say_so(gradient):
    A, b, c = torch.ones(1, 2), torch.ones(1), torch.tensor([1.0, 1.5])
    start = LinearProgram().solve(c, A, b, lo=0.0)
    with pytest.raises(InputError, match="no use for a start"):
        LinearProgram(gradient).solve(c, A, b, lo=0.0, start=start)


def test_perturbed_programs_move_with_the_end_that_holds_each_sample():
    """Of x₁ + x₂ = 1 on x ≥ 0 each sample's cost, min (c + σZ), has a sign of its own."""
    c, kept = torch.tensor([0.3, 0.0], dtype=F64), torch.Generator().manual_seed(0)
    Z = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    lower = torch.ones(1, dtype=F64, requires_grad=True)
    upper = torch.ones(1, dtype=F64, requires_grad=True)
    layer = LinearProgram(Perturbed(1.0, 200, kept))
    one = torch.ones(1, 2, dtype=F64)
    layer(c, G=one, lower=lower, upper=upper, lo=0.0, hi=5.0).sum().backward()
    held_below = ((c + Z).amin(-1) > 0).double().mean()
    torch.testing.assert_close(lower.grad, held_below[None])
    torch.testing.assert_close(upper.grad, 1 - held_below[None])


def test_perturbed_programs_name_shapes_that_do_not_fit():
    with pytest.raises(InputError, match="does not fit a batch"):
        LinearProgram(Perturbed())(torch.zeros(3, 2), A=torch.ones(2, 1, 2), b=torch.ones(1))
