r"""
Which gradient should I use?
============================

Measure every strategy on your own problem, and be told which to use and why.

``lg.diagnose`` tries every strategy that applies, measures each against a reference that it checks
by finite differences, and gives its advice in one sentence.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.diagnostics import Symptom

torch.manual_seed(0)
A, b = torch.randn(40, 20).double(), torch.randn(40).double()
target = torch.randn(20).double()

# %%
# A lasso with a weight for each feature.
weight = torch.full((20,), 2.0, dtype=torch.float64, requires_grad=True)
lasso = lg.LeastSquares(A, b) + lg.L1(weight)


def loss(x):
    return (x - target).square().sum()


good = lg.diagnose(lasso, lg.ForwardBackward(), loss, stop=lg.Stop(200))
print(good)

# %%
# The same with every feature twice: there are many solutions, and the one that is found depends on
# the start. Strategies that rely on one solution still return numbers; the diagnosis says not to
# believe them, and that unrolling differentiates what was done.
twice = lg.LeastSquares(torch.cat([A, A], 1), b) + lg.L1(weight.repeat(2))
bad = lg.diagnose(
    twice, lg.ForwardBackward(), lambda x: (x[:20] - target).square().sum(), stop=lg.Stop(200)
)
for finding in bad.findings:
    print("!", finding.message)

# %%
# A point is a strategy, its area the memory it needed; a line ends at the error it might have had.
figure, axes = plt.subplots(2, 1, figsize=(8, 8), layout="constrained")
good.plot(axes[0])
bad.plot(axes[1])
axes[0].set_title("unique solution: " + axes[0].get_title(), fontsize=10)
axes[1].set_title("every feature twice", fontsize=10)

chosen = next(r for r in good.rows if r.gradient == good.recommendation.gradient)
assert chosen.error < 1e-3
assert not chosen.warnings
assert good.reference.disagreement < 1e-5
assert isinstance(good.recommendation.gradient, lg.Implicit)
assert not good.symptoms
assert Symptom.NOT_UNIQUE in bad.symptoms
assert isinstance(bad.recommendation.gradient, lg.Unroll)
