r"""
Write your own algorithm
========================

An algorithm is a map on states, and every gradient strategy can differentiate it.

Here is Douglas and Rachford's splitting for two terms of which neither is smooth, by the proxes
that legato knows:

.. math:: x = \mathrm{prox}_{αf}(z), \qquad z ← z + \mathrm{prox}_{αg}(2x − z) − x
"""

from dataclasses import dataclass
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.testing import check_algorithm


class TwoTerms(NamedTuple):
    first: lg.Function
    second: lg.Function


class State(NamedTuple):
    z: torch.Tensor
    x: torch.Tensor


@dataclass(frozen=True)
class DouglasRachford(lg.Algorithm):
    alpha: float = 1.0

    def init(self, problem, x0):
        return State(x0, x0)

    def step(self, problem, state):
        x = lg.prox(problem.first, lg.Euclidean(), state.z, self.alpha)
        other = lg.prox(problem.second, lg.Euclidean(), 2 * x - state.z, self.alpha)
        return State(state.z + other - x, x)

    def solution(self, state):
        return state.x

    def points(self, state):
        return state.z  # what must stand still: x may rest while z moves on


# %%
# A portfolio near wishes c with at most a share k in each asset: box and simplex have a prox each.
c = torch.softmax(1.5 * torch.cos(torch.arange(8.0) ** 2), 0).double()


def portfolio(cap):
    return TwoTerms(lg.Box(0.0, cap) + lg.SquaredDistance(c), lg.Simplex())


def invest(cap, strategy, stop=lg.Stop(2000, tol=1e-14)):
    return lg.solve(portfolio(cap), DouglasRachford(), 0 * c, gradient=strategy, stop=stop)


print(check_algorithm(DouglasRachford(), portfolio(2 * c.mean()), 0 * c))  # does it keep the laws?

# %%
# All shares as the cap is lifted, and the slope of the least wanted one, three ways.
caps, h, slopes = torch.linspace(0.14, 0.4, 20).double(), 1e-6, {}
for name, strategy in (("Unroll", lg.Unroll()), ("Implicit", lg.Implicit())):
    cap = caps.clone().requires_grad_()
    shares = torch.stack([invest(k, strategy).x for k in cap])
    (slopes[name],) = torch.autograd.grad(shares[:, c.argmin()].sum(), cap)
ends = [torch.stack([invest(k + s * h, lg.Unroll()).x for k in caps]) for s in (1, -1)]
slopes["differences"] = (ends[0] - ends[1])[:, c.argmin()] / (2 * h)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
axes[0].plot(caps, shares.detach())
for (name, slope), style in zip(slopes.items(), ("-", "--", "k."), strict=True):
    axes[1].plot(caps, slope, style, label=name)
for axis, label in zip(axes, ("shares", "slope of the smallest share"), strict=True):
    axis.set(xlabel="cap k", ylabel=label)
axes[1].legend(loc="lower right")
worst = max(float((slopes[n] - slopes["differences"]).abs().max()) for n in ("Unroll", "Implicit"))
print(f"slopes at most {worst:.0e} apart")
assert worst < 1e-5
