r"""
Solutions on the boundary
=========================

A solution that a constraint holds at zero does not move with the parameters, until it is let go:

.. math:: x(θ) = \arg\min_{x ≥ 0} \tfrac12(θx − 1)² + \tfrac12x² = \max(0, \tfrac{θ}{1 + θ²})

Every method here solves a whole axis of θ and is measured by the derivative in closed form.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

theta = torch.linspace(-1.5, 1.5, 120, dtype=torch.float64, requires_grad=True)
inside = theta.detach() > 0
exact = torch.where(inside, theta / (1 + theta**2), 0.0).detach()
slope = torch.where(inside, (1 - theta**2) / (1 + theta**2) ** 2, 0.0).detach()

# %%
# Projected steps reach the boundary. Entropic steps multiply x by a factor, so they only come
# close, until x underflows to zero. The solver stores 1 + log x, which stays finite.
algorithms = {
    "projected": lg.ForwardBackward(step_size=0.5),
    "entropic": lg.ForwardBackward(step_size=0.5, geometry=lg.Entropy()),
}
strategies = {"Unroll": lg.Unroll(), "Implicit": lg.Implicit(lg.GMRES(tol=1e-10))}
figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
axes[0].plot(theta.detach(), exact, "k", linewidth=3, alpha=0.2)
axes[1].plot(theta.detach(), slope, "k", linewidth=3, alpha=0.2, label="closed form")
away = theta.detach().abs() > 0.1
worst = {}
for name, algorithm in algorithms.items():
    for kind, strategy in strategies.items():
        data = lg.LeastSquares(lg.Diagonal(theta), torch.ones_like(theta))
        energy = data + lg.SquaredNorm() + lg.NonNegative()
        start = torch.full_like(theta, 0.5).detach()
        x = lg.solve(energy, algorithm, start, gradient=strategy, stop=lg.Stop(2000)).x
        (found,) = torch.autograd.grad(x.sum(), theta)
        label = f"{name}, {kind}"
        worst[label] = float((found - slope)[away].abs().max())
        axes[1].plot(theta.detach(), found, "--", label=label)
        axes[2].semilogy(theta.detach(), (found - slope).abs().clamp(min=1e-17), label=label)
    axes[0].semilogy(theta.detach(), x.detach().clamp(min=1e-300), label=f"{name}")

# %%
# At θ = 0 there is a kink: the slopes from both sides are 0 and 1, and no method is right or wrong.
# Near it the entropic iteration is slow, for nothing pulls x to 0; everywhere else all agree.
axes[0].set(title="x after 2000 steps", xlabel="θ", ylim=(1e-300, 10))
axes[1].set(title="dx/dθ", xlabel="θ")
axes[2].set(title="error of dx/dθ", xlabel="θ")
axes[0].legend()
axes[1].legend(fontsize=8)
print({label: f"{error:.0e}" for label, error in worst.items()})
assert max(worst.values()) < 1e-6
