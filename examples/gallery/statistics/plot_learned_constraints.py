r"""
A region that nobody wrote down
===============================

From decisions alone: which constraints did those who decided have in mind?

.. math:: x(t) = \arg\min_x\; \tfrac12 ‖x - t‖^2 \;\text{ s.t. }\; Gx ≤ 1
"""

import matplotlib.pyplot as plt
import torch

from legato.nn import QuadraticProgram

torch.manual_seed(1)
sides, shown = 5, 120
angles = torch.tensor([0.2, 1.4, 2.7, 3.9, 5.2], dtype=torch.float64)
reach = torch.tensor([1.0, 1.3, 0.8, 1.1, 0.9], dtype=torch.float64)
truth = torch.stack([angles.cos(), angles.sin()], -1) / reach[:, None]
layer, eye = QuadraticProgram(), torch.eye(2, dtype=torch.float64)
one = torch.ones(sides, dtype=torch.float64)


def decide(G, wishes):
    """The nearest point to a wish that the constraints allow."""
    return layer(eye, -wishes, G=G, h=one)


# %%
# A wish and what was decided instead are seen, the constraints are not. The gradient in G of every
# program says how each side would have to move; a round region is where it begins.
wishes = 2 * torch.randn(shown, 2, dtype=torch.float64)
decisions = decide(truth, wishes)
start = torch.arange(sides, dtype=torch.float64) * (2 * torch.pi / sides)
begin = torch.stack([start.cos(), start.sin()], -1)
G = begin.clone().requires_grad_()
optimizer = torch.optim.Adam([G], lr=0.03)
losses = []
for _ in range(150):
    optimizer.zero_grad()
    loss = (decide(G, wishes) - decisions).square().sum(-1).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()


# %%
def outline(G):
    """Corners of the region: wishes from far away, in a circle."""
    around = torch.linspace(0, 2 * torch.pi, 400, dtype=torch.float64)
    return decide(G, 30 * torch.stack([around.cos(), around.sin()], -1)).T


figure, axis = plt.subplots(figsize=(5.5, 5), layout="constrained")
axis.plot(*wishes.T, ".", color="lightgrey", label="wishes")
for rows, style, name in (
    (begin, ":", "begin"),
    (truth, "-", "true"),
    (G.detach(), "--", "learned"),
):
    axis.plot(*outline(rows), style, label=name)
axis.set(xlabel="x₁", ylabel="x₂", xlim=(-3, 3), ylim=(-3, 3), title="the region of decisions")
axis.legend()
print(f"mean error of a decision: {losses[0] ** 0.5:.3f} → {losses[-1] ** 0.5:.5f}")
assert losses[-1] < 1e-4 * losses[0]
