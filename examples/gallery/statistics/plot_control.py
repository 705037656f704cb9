r"""
What a driver wants, learned from what it does
==============================================

A controller that plans ahead is a program, and its costs can be learned by watching it.

.. math:: u(s) = \arg\min_{|u_k| ≤ 1}\; \sum_k w_1 p_k^2 + w_2 v_k^2 + u_k^2, \quad
          (p, v)_{k+1} = F (p, v)_k + (0, h)^⊤ u_k, \; (p, v)_0 = s
"""

import matplotlib.pyplot as plt
import torch

from legato.nn import QuadraticProgram

torch.manual_seed(0)
horizon, h = 12, 0.3
step = torch.tensor([[1.0, h], [0.0, 1.0]], dtype=torch.float64)
push = torch.tensor([0.0, h], dtype=torch.float64)
# States along the plan: (p, v)_k = F^k s + Σ_j F^{k−1−j} (0, h) u_j.
powers = [torch.linalg.matrix_power(step, k) for k in range(horizon + 1)]
free = torch.stack(powers[1:])
driven = torch.zeros(horizon, 2, horizon, dtype=torch.float64)
for k in range(horizon):
    for j in range(k + 1):
        driven[k, :, j] = powers[k - j] @ push
layer = QuadraticProgram()


def plan(weights, states):
    """Positions and speeds are linear in the controls: a program in these alone, box and all."""
    Q = 2 * torch.einsum("kin,i,kim->nm", driven, weights, driven)
    c = 2 * torch.einsum("kin,i,kij,bj->bn", driven, weights, free, states)
    return layer(Q + 2 * torch.eye(horizon, dtype=torch.float64), c, lo=-1.0, hi=1.0)


# %%
# Plans are seen, with noise, and many of their controls are at a limit. What the driver minimises
# is not: the derivative through the program says how other weights would have moved the plans.
truth = torch.tensor([3.0, 0.4], dtype=torch.float64)
states = 1.5 * torch.randn(80, 2, dtype=torch.float64)
observed = plan(truth, states) + 0.05 * torch.randn(80, horizon, dtype=torch.float64)
logarithm = torch.zeros(2, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([logarithm], lr=0.1)
path = [logarithm.detach().exp()]
for _ in range(80):
    optimizer.zero_grad()
    (plan(logarithm.exp(), states) - observed).square().mean().backward()
    optimizer.step()
    path.append(logarithm.detach().exp())

# %%
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for values, goal, name in zip(torch.stack(path).T, truth, ("position", "speed"), strict=True):
    (line,) = axis.plot(values, label=f"weight of the {name}")
    axis.axhline(float(goal), color=line.get_color(), linestyle=":")
axis.set(xlabel="step", ylabel="weight", title="learned, and true (dotted)")
axis.legend()
print(f"weights {path[-1][0]:.2f}, {path[-1][1]:.2f}; true {truth[0]:.2f}, {truth[1]:.2f}")
assert ((path[-1] / truth).log().abs() < 0.15).all()
