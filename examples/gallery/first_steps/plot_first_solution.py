r"""
Solve, differentiate, learn
===========================

A noisy signal, an energy whose solution is its clean version, and the derivative of that solution.

.. math:: x(λ) = \arg\min_x \tfrac12‖x − y‖² + λ \textstyle\sum_i |x_{i+1} − x_i|

The first term keeps x near the data y; the second makes neighbours equal, the more the larger λ.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

torch.manual_seed(0)
clean = torch.tensor([0.0, 1.0, 0.4]).double().repeat_interleave(20)
noisy = clean + 0.2 * torch.randn_like(clean)


def solve(weight):
    energy = lg.SquaredDistance(noisy) + lg.L1(weight) @ lg.Differences((-1,))
    return lg.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(5000, tol=1e-7)).x


# %%
# Any loss of the solution can be differentiated: here its distance to the clean signal. The slope
# agrees with what two further solves say.
weight = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
x = solve(weight)
loss = (x - clean).square().sum()
loss.backward()
h = 1e-4
up, down = (float((solve(0.2 + s * h) - clean).square().sum()) for s in (1, -1))
difference = (up - down) / (2 * h)
print(f"slope in λ: {weight.grad:.5f} by backward(), {difference:.5f} by finite differences")
assert abs(float(weight.grad) - difference) < 1e-3 * abs(difference)

# %%
# The slope is negative: a larger λ is better. A few steps along it learn the λ that is best.
path = []
optimizer = torch.optim.Adam([weight], lr=0.03)
for _ in range(15):
    loss = (solve(weight) - clean).square().sum()
    path.append((float(weight.detach()), float(loss.detach())))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(2, 1), layout="constrained")
axes[0].plot(noisy, ".", color="0.7", label="noisy")
axes[0].plot(x.detach(), label="λ = 0.2")
axes[0].plot(solve(path[-1][0]), label=f"λ = {path[-1][0]:.2f}, learned")
axes[0].set(xlabel="place", ylabel="value", title="the signal")
axes[0].legend()
axes[1].plot(*zip(*path, strict=True), "o-")
axes[1].set(xlabel="λ", ylabel="squared error", title="15 steps of Adam")
print(f"squared error: {path[0][1]:.2f} at first, {path[-1][1]:.2f} with the λ that was learned")
assert path[-1][1] < 0.8 * path[0][1]
