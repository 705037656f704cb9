r"""
How far back must back-propagation go?
======================================

Where one iteration contracts by ρ, what happened K steps before the end counts with weight ρᴷ.

So does its part in the gradient: ``Unroll(last=K)`` keeps K iterates in memory, and forgets the
rest.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

torch.manual_seed(0)
A, b = torch.randn(30, 12).double(), torch.randn(30).double()
target = torch.randn(12).double()


def gradient(ridge, strategy):
    """Of ‖x(λ) − target‖² in the weights λ of a lasso; ``ridge`` decides how fast it contracts."""
    weight = torch.full((12,), 0.5, dtype=torch.float64, requires_grad=True)
    energy = lg.LeastSquares(A, b) + lg.SquaredNorm(ridge) + lg.L1(weight)
    plain = lg.ForwardBackward(inertia=0.0)
    solution = lg.solve(energy, plain, gradient=strategy, stop=lg.Stop(600))
    (solution.x - target).square().sum().backward()
    return weight.grad, solution.backward


def error(found, truth):
    return float((found - truth).norm() / truth.norm())


# %%
# Three problems of different ρ. Every implicit gradient reports its estimate of ρ; ρᴷ then predicts
# the error, before a single truncated gradient has been computed.
lengths = [1, 2, 4, 8, 16, 32, 64, 128]
truncated = {}
for ridge in (300.0, 30.0, 3.0):
    truth, _ = gradient(ridge, lg.Unroll())
    implicit, report = gradient(ridge, lg.Implicit(lg.GMRES(tol=1e-10)))
    rho = report.spectral_radius
    truncated[rho] = [error(gradient(ridge, lg.Unroll(last=K))[0], truth) for K in lengths]
    assert all(e <= 2 * rho**K + 1e-9 for e, K in zip(truncated[rho], lengths, strict=True))
    assert error(implicit, truth) < 1e-8

# %%
# Where ρ is not known, ``Unroll(tol=…)`` goes back until what is still passed on has become small.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for colour, (rho, errors) in zip(("C0", "C1", "C2"), truncated.items(), strict=True):
    left.loglog(lengths, errors, "o-", color=colour, label=f"ρ = {rho:.3f}")
    left.loglog(lengths, [rho**K for K in lengths], ":", color=colour)
left.set(xlabel="K", ylabel="relative error of the gradient", ylim=(1e-12, 2), title="dotted: ρᴷ")
left.legend()
truth, _ = gradient(30.0, lg.Unroll())
for tol in (1e-2, 1e-4, 1e-6, 1e-8):
    found, report = gradient(30.0, lg.Unroll(tol=tol))
    right.loglog(tol, error(found, truth), "ko")
    right.annotate(f"{report.iterations} of 600", (tol, error(found, truth)),
                   textcoords="offset points", xytext=(6, -3))  # fmt: skip
    assert error(found, truth) < 10 * tol
right.set(xlabel="tol", ylabel="relative error", title="Unroll(tol): back-iterations it took")
right.set_xlim(right=0.2)  # room for the last label
right.axline((1e-8, 1e-8), (1e-2, 1e-2), color="0.8", zorder=-1)
print("The error of truncation falls as predicted, ρᴷ, in all three problems.")
