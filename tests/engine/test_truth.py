"""Gradients by an engine against central differences in double precision."""

import pytest
import torch

import legato as lg
from engines import REPLAYED
from problems import PROBLEMS, random

NAMES = ["weighted lasso", "simplex least squares", "tv 1d", "smooth game"]


@pytest.mark.parametrize("gradient", [lg.Unroll(), lg.Implicit(lg.GMRES(1e-12))], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_small_problems(name, gradient):
    small = PROBLEMS[name]
    stop = lg.Stop(small.iterations)
    theta = small.leaves()
    x = lg.solve(*small.build(*theta), gradient=gradient, stop=stop, engine=REPLAYED).x
    found = torch.autograd.grad(small.loss(x), theta)

    def value(parameters):
        with torch.no_grad():
            return float(small.loss(lg.solve(*small.build(*parameters), stop=stop).x))

    for place, t in enumerate(theta):
        direction = random(place, *t.shape)
        ends = [
            value([p.detach() + (h * direction if p is t else 0) for p in theta])
            for h in (1e-6, -1e-6)
        ]
        expected = (ends[0] - ends[1]) / 2e-6
        assert float((found[place] * direction).sum()) == pytest.approx(
            expected, rel=1e-5, abs=1e-7
        )


def test_a_closed_form():
    """x = soft(b, w) has derivative −sign(b) where |b| > w, for any number of iterations ≥ 1."""
    b = torch.tensor([3.0, -2.0, 0.1], dtype=torch.float64)
    weight = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    x = lg.solve(lg.SquaredDistance(b) + lg.L1(weight), engine=REPLAYED).x
    x.sum().backward()
    torch.testing.assert_close(x.detach(), torch.tensor([2.5, -1.5, 0.0]).double())
    torch.testing.assert_close(weight.grad, torch.tensor([-1.0, 1.0, 0.0]).double())
