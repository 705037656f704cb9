r"""
SLOPE with a learned sequence
=============================

A norm of sorted entries weighs the largest most; how fast its weights fall is learned.

.. math:: \min_x\; \tfrac12‖Ax − b‖^2 + \sum_i λ_i |x|_{(i)}, \qquad λ_1 ≥ … ≥ λ_n ≥ 0

Equal weights are the lasso; falling ones make entries of nearly one size equal, and so find groups
of features that were never named. The weights are a falling sequence by construction, sums of
positive numbers from the right, and follow the loss on held-out rows.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import softplus

import legato as lg

torch.manual_seed(0)
rows, features = 90, 24
shared = torch.randn(rows, 4)
A = 0.6 * torch.randn(rows, features) + shared.repeat_interleave(6, 1)  # four correlated groups
truth = torch.tensor([1.0, 0.0, -0.6, 0.0]).repeat_interleave(6)
b = A @ truth + 1.5 * torch.randn(rows)
train, held_out = slice(0, 45), slice(45, 90)


def fitted(weights):
    energy = lg.LeastSquares(A[train], b[train]) + lg.SortedL1(weights)
    return lg.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(2000, tol=1e-5)).x


def loss_of(x):
    return (A[held_out] @ x - b[held_out]).square().mean()


# %%
# Both models take the same number of steps: one weight for all, and one for each rank.
found, losses = {}, {}
for name, free in (("one weight", 1), ("a sequence", features)):
    raw = torch.full((free,), -1.0 if free > 1 else 2.0, requires_grad=True)
    optimizer = torch.optim.Adam([raw], lr=0.2)
    losses[name] = []
    for _ in range(25):
        steps = softplus(raw)
        weights = steps.flip(0).cumsum(0).flip(0) if free > 1 else steps.expand(features)
        x = fitted(weights)
        loss = loss_of(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[name].append(float(loss.detach()))
    found[name] = (weights.detach(), x.detach())

errors = {name: float((x - truth).norm() / truth.norm()) for name, (_, x) in found.items()}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for name, (weights, x) in found.items():
    axes[0].plot(losses[name], label=name)
    axes[1].plot(weights, label=name)
    axes[2].plot(x, ".", label=f"{name}: {100 * errors[name]:.0f} % off")
axes[2].plot(truth, "k_", label="truth")
axes[0].set(xlabel="step", ylabel="loss on held-out rows")
axes[1].set(xlabel="rank", ylabel="weight λ")
axes[2].set(xlabel="feature", ylabel="coefficient")
for axis in axes:
    axis.legend(fontsize=8)
print(", ".join(f"{name}: loss {losses[name][-1]:.2f}" for name in losses), errors)
assert losses["a sequence"][-1] < losses["one weight"][-1]
assert errors["a sequence"] < errors["one weight"]
