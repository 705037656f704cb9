r"""
Solutions on the boundary
=========================

Where a constraint holds a solution at zero it does not move with θ, until it is let go.

.. math:: x(θ) = \arg\min_{x ≥ 0} \tfrac12(θx − 1)² + \tfrac12x² = \max(0, \tfrac{θ}{1 + θ²})

Every method here solves a whole axis of θ and is measured by the derivative in closed form.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

theta = torch.linspace(-1.5, 1.5, 120, dtype=torch.float64, requires_grad=True)
axis_of_theta = theta.detach()
inside = axis_of_theta > 0
slope = torch.where(inside, (1 - theta**2) / (1 + theta**2) ** 2, 0.0).detach()

# %%
# Projected steps reach the boundary. Entropic steps multiply x by a factor, so they only come
# close, until x underflows to zero. The solver stores 1 + log x, which stays finite.
algorithms = {
    "projected": lg.ForwardBackward(step_size=0.5),
    "entropic": lg.ForwardBackward(step_size=0.5, geometry=lg.Entropy()),
}
strategies = {"Unroll": lg.Unroll(), "Implicit": lg.Implicit(lg.GMRES(tol=1e-10))}
solutions, slopes = {}, {}
for name, algorithm in algorithms.items():
    for kind, strategy in strategies.items():
        data = lg.LeastSquares(lg.Diagonal(theta), torch.ones_like(theta))
        energy = data + lg.SquaredNorm() + lg.NonNegative()
        start = torch.full_like(theta, 0.5).detach()
        x = lg.solve(energy, algorithm, start, gradient=strategy, stop=lg.Stop(2000)).x
        (slopes[f"{name}, {kind}"],) = torch.autograd.grad(x.sum(), theta)
        solutions[name] = x.detach()

# %%
# At θ = 0 there is a kink: the slopes from both sides are 0 and 1, and no method is right or wrong.
# Near it the entropic iteration is slow, for nothing pulls x to 0; everywhere else all agree.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for name, x in solutions.items():
    axes[0].semilogy(axis_of_theta, x.clamp(min=1e-300), label=name)
axes[1].plot(axis_of_theta, slope, "k", linewidth=4, alpha=0.2, label="closed form")
for label, found in slopes.items():
    axes[1].plot(axis_of_theta, found, "--", label=label)
    axes[2].semilogy(axis_of_theta, (found - slope).abs().clamp(min=1e-17), label=label)
axes[0].set(title="x after 2000 steps", xlabel="θ", ylim=(1e-300, 1e12))
axes[1].set(title="dx/dθ", xlabel="θ", ylim=(-0.2, 2.3))
axes[2].set(title="error of dx/dθ", xlabel="θ")
axes[0].legend(loc="lower right")
axes[1].legend(fontsize=8, loc="upper left")
away = axis_of_theta.abs() > 0.1
worst = {label: float((found - slope)[away].abs().max()) for label, found in slopes.items()}
print({label: f"{error:.0e}" for label, error in worst.items()})
assert max(worst.values()) < 1e-6
