r"""
A forecast trained by the portfolio it leads to
===============================================

The best forecast for a decision is not the one with the smallest error.

.. math:: x(μ) = \arg\min_{x ≥ 0,\; \sum x_i = 1}\; \tfrac{γ}{2} x^⊤Σx − μ^⊤x, \quad
          \max_W\; \text{mean of}\; r^⊤x(Ws) − \tfrac{γ}{2} x(Ws)^⊤Σx(Ws)
"""

import matplotlib.pyplot as plt
import torch

from legato.nn import QuadraticProgram

torch.manual_seed(0)
assets, days, risk = 6, 400, 2.0
factors = torch.randn(assets, assets, dtype=torch.float64)
covariance = 0.2 * factors @ factors.T / assets + 0.05 * torch.eye(assets, dtype=torch.float64)
signal = torch.randn(2 * days, 2, dtype=torch.float64)
design = torch.cat([signal, torch.ones(2 * days, 1, dtype=torch.float64)], 1)
truth = torch.randn(assets, 2, dtype=torch.float64)
# Returns depend on the signal by a curve; the forecast will only have a line.
expected = 0.3 * torch.tanh(3 * signal @ truth.T) - 0.3 * (signal @ truth.T > 1.5)
returns = expected + 0.1 * torch.randn(2 * days, assets, dtype=torch.float64)
budget, one = torch.ones(1, assets, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
layer = QuadraticProgram()


def utility(W, rows):
    """Of each day: what the portfolio of its forecast earned, less the price of its risk."""
    x = layer(risk * covariance, -design[rows] @ W, budget, one, lo=0.0)
    return (returns[rows] * x).sum(-1) - 0.5 * risk * (x @ covariance * x).sum(-1)


# %%
# Least squares first: the forecast with the smallest error. Then the same line, moved along the
# gradient of what it earns, through four hundred portfolios at a time.
train, test = slice(0, days), slice(days, 2 * days)
fitted = torch.linalg.lstsq(design[train], returns[train]).solution
W = fitted.clone().requires_grad_()
optimizer = torch.optim.Adam([W], lr=0.02)
path = []
for _ in range(60):
    optimizer.zero_grad()
    loss = -utility(W, train).mean()
    loss.backward()
    path.append(-float(loss.detach()))
    optimizer.step()

# %%
with torch.no_grad():
    before, after = utility(fitted, test), utility(W, test)
gain, error = (after - before).mean(), (after - before).std() / days**0.5
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.plot(path, label="trained by its portfolios")
axis.axhline(path[0], color="grey", linestyle=":", label="least squares")
axis.set(xlabel="step", ylabel="utility of a training day", title="the same line, another aim")
axis.legend()
print(f"unseen days: {before.mean():.4f} → {after.mean():.4f}, gain {gain:.4f} ± {error:.4f}")
assert gain > 2 * error
