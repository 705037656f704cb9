r"""
Few iterations are a smoothing
==============================

A few steps give a slope to learn from, where the solution itself only jumps.

.. math:: x^*(θ) = \arg\min_{x ∈ [0, 1]} θx

jumps from 1 to 0 at θ = 0, where every x is a solution: there is no derivative to learn from. But n
entropic steps of size α from x = ½ do not jump. They return the *exact* solution of another
problem, θx + KL(x, ½)/(nα): the number of iterations is a smoothing parameter.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

theta = torch.linspace(-3, 3, 301, dtype=torch.float64, requires_grad=True)


def solve(iterations, step=0.5):
    """All θ at once; [0, 1] is the simplex of (x, 1 − x)."""
    cost = torch.stack([theta, torch.zeros_like(theta)], -1)
    energy = lg.Linear(cost) + lg.Simplex()
    algorithm = lg.ForwardBackward(step_size=step, geometry=lg.Entropy())
    return lg.solve(energy, algorithm, torch.full_like(cost, 0.5), stop=lg.Stop(iterations)).x


# %%
# The slope of the loss (x − 1)², by differentiating the iterations. At θ = 1 the solution is 0
# and wants to be 1, so θ should fall. With few iterations that can be seen from afar; with many,
# all slope gathers at the jump, and an optimiser that stands elsewhere gets no sign at all.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
at_one, steepest = {}, {}
for n in (2, 8, 32, 128):
    x = solve(n)[:, 0]
    loss = (x - 1).square()
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    at_one[n], steepest[n] = float(slope[200]), float(slope.max())
    for axis, curve in zip(axes, (x, loss, slope), strict=True):
        axis.plot(theta.detach(), curve.detach(), label=f"{n} iterations")
    smoothed = 1 / (1 + torch.exp(0.5 * n * theta.detach()))  # argmin of θx + KL(x, ½)/(nα)
    assert float((x.detach() - smoothed).abs().max()) < 1e-12
titles = ("x after n steps", "loss (x − 1)²", "its slope in θ")
for axis, title in zip(axes, titles, strict=True):
    axis.set(xlabel="θ", title=title)
axes[2].set_yscale("symlog", linthresh=1e-3)
axes[0].legend()

# %%
# Steps and iterations count as one: 8 steps of ½ are 2 steps of 2.
torch.testing.assert_close(solve(8, 0.5), solve(2, 2.0))
print("slope at θ = 1:", {n: f"{s:.1e}" for n, s in at_one.items()})
print("steepest slope:", {n: f"{s:.2f}" for n, s in steepest.items()})
assert at_one[2] > 0.1
assert at_one[128] < 1e-12
assert steepest[128] > 10 * steepest[2]
