r"""
Costs of streets, learned from routes
=====================================

Which costs make the routes that were driven the shortest ones, street by street?

.. math:: x(c) = \arg\min_{x ≥ 0}\; c^⊤x \;\text{ s.t. }\; Ax = b, \quad
          ∂_c ≈ \frac{x(c + τξ) - x(c)}{τ}
"""

import matplotlib.pyplot as plt
import torch

from legato.nn import LPGD, LinearProgram

torch.manual_seed(0)
side, kinds = 4, 3  # crossings in a row; what is known of a street: three numbers
node = {(i, j): i * side + j for i in range(side) for j in range(side)}
streets = [(p, (p[0] + i, p[1] + j)) for p in node for i, j in ((0, 1), (1, 0))]
streets = [(p, q) for p, q in streets if q in node]
flow = torch.zeros(side**2, len(streets), dtype=torch.float64)
for number, (p, q) in enumerate(streets):
    flow[node[p], number], flow[node[q], number] = 1.0, -1.0
A, b = flow[:-1], torch.zeros(side**2 - 1, dtype=torch.float64)  # what enters a crossing leaves it
b[0] = 1.0  # one traveller, from corner to corner; the last crossing's balance follows


# %%
# Each day streets look different, and their cost depends on what is seen by weights that only the
# drivers know. A route is a vertex, and does not move with its cost a little: LPGD asks instead
# what it would be if wrong streets were dearer by τ.
def routes(weights, seen, tau=3.0):
    cost = torch.nn.functional.softplus(seen @ weights)
    return LinearProgram(LPGD(tau))(cost, A, b, lo=0.0), cost


truth = torch.tensor([1.5, -1.0, 0.5], dtype=torch.float64)
seen = torch.randn(40, len(streets), kinds, dtype=torch.float64)
driven, prices = (t.detach() for t in routes(truth, seen))
# Not from zero, where all streets cost the same and many routes are best.
weights = torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([weights], lr=0.4)
wrong = []
for _ in range(8):
    optimizer.zero_grad()
    chosen, _ = routes(weights, seen[:20])
    (chosen - driven[:20]).square().sum(-1).mean().backward()
    optimizer.step()
    wrong.append(float((chosen.detach() - driven[:20]).abs().sum(-1).mean()) / 2)

# %%
found = routes(weights, seen[20:])[0].detach()
detour = (
    (prices[20:] * (found - driven[20:])).sum(-1) / (prices[20:] * driven[20:]).sum(-1)
).mean()
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.plot(wrong, marker="o")
axis.set(xlabel="step", ylabel="wrong streets on a route", title="routes of twenty days")
print(f"twenty other days: routes {100 * detour:.1f} % dearer than the best")
assert wrong[-1] < 0.2 * wrong[0]
assert 0 <= detour < 0.03
