r"""
Write your own function
=======================

A new term needs a value and one closed form: its prox.

Here is one that legato does not have, the largest entry, :math:`g(x) = w‖x‖_∞`, which spreads a
signal as evenly as it can. By Moreau's identity its prox is what is left after projecting onto the
ℓ1 ball of radius αw:

.. math:: \mathrm{prox}_{αg}(y) = y − \mathrm{proj}_{‖·‖_1 ≤ αw}(y)
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.testing import check_prox


@dataclass(frozen=True, eq=False)
class LargestEntry(lg.Function):
    weight: torch.Tensor | float = 1.0

    def value(self, x):
        return self.weight * x.abs().amax(-1).sum()


@lg.register_prox(LargestEntry, lg.Euclidean)
def largest_entry_prox(g, geometry, y, alpha):
    radius = alpha * g.weight
    face = y.sign() * radius * lg.prox(lg.Simplex(), lg.Euclidean(), y.abs() / radius, 1.0)
    return y - torch.where(y.abs().sum(-1, keepdim=True) > radius, face, y)


# %%
# Before trusting it: is it a prox? At x = prox(y) no other point may be better, and the
# derivatives, in y and in the weight, have to be those of finite differences.
torch.manual_seed(0)
w = torch.tensor(0.8).double()
print(check_prox(LargestEntry(w), lg.Euclidean(), torch.randn(3, 6).double(), step=0.5))

# %%
# Now it goes wherever functions go. A message b is sent as x with Ax ≈ b, by an amplifier that
# must not exceed 0.1: the weight that keeps the peak there is learned through the solution.
A, b = torch.randn(10, 40).double(), torch.randn(10).double()


def send(term):
    problem = lg.Composite(lg.LeastSquares(A, b), term)
    return lg.solve(problem, lg.ForwardBackward(inertia=0.5), stop=lg.Stop(300)).x


weight = torch.tensor(1.0).double().requires_grad_()
for _ in range(8):  # Newton's method on peak(w) = 0.1
    peak = send(LargestEntry(weight)).abs().max()
    (slope,) = torch.autograd.grad(peak, weight)
    with torch.no_grad():
        weight -= (peak - 0.1) / slope
spread = send(LargestEntry(weight)).detach()
figure, axis = plt.subplots(figsize=(9, 3), layout="constrained")
axis.stem(
    send(lg.L1(0.1)), linefmt="0.7", markerfmt=".", basefmt=" ", label="ℓ1: a few loud entries"
)
axis.stem(spread, linefmt="C0", markerfmt="C0o", basefmt=" ", label="ℓ∞: many quiet ones")
axis.axhspan(-0.1, 0.1, color="C0", alpha=0.1)
axis.set(xlabel="entry", ylabel="x")
axis.legend()
print(f"weight {float(weight.detach()):.3f}, peak {float(spread.abs().max()):.4f}")
assert abs(float(spread.abs().max()) - 0.1) < 1e-6
assert int((spread.abs() > 0.099).sum()) > 20
