r"""
Quantile regression
===================

A line that a tenth of the data lie below, and one that a tenth lie above, from the pinball loss.

Least squares finds the mean; :math:`\sum_i \max(−τ r_i, (1 − τ) r_i)` of the residuals
:math:`r = Ax − y` finds the line below which a share τ of the data lies.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

torch.manual_seed(0)
t = torch.linspace(0, 1, 200)
y = 1 + 2 * t + (0.2 + t) * torch.randn(200)
A = torch.stack((torch.ones_like(t), t), 1)

# %%
# One solve for each share; the term stands behind the matrix, so that it takes a dual variable.
lines = {}
for share in (0.1, 0.5, 0.9):
    energy = lg.Quantile(share).shifted(y) @ A
    lines[share] = A @ lg.solve(energy, lg.PrimalDual(balance=0.3), stop=lg.Stop(2000)).x

figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
axis.plot(t, y, ".", color="0.6")
for share, line in lines.items():
    below = float((y < line).float().mean())
    print(f"share {share}: {100 * below:.0f} % of the data lie below")
    axis.plot(t, line, label=f"τ = {share}")
    assert abs(below - share) < 0.03
axis.set(xlabel="t", ylabel="y", title="Noise that grows")
axis.legend()
assert bool((lines[0.1] < lines[0.9]).all())
