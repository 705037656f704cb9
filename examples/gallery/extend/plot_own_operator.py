r"""
Write your own operator
=======================

An operator is a linear map and its adjoint.

Here is the Haar wavelet transform, sums and differences of neighbours over and over. It is
orthogonal, so its adjoint is its inverse and its norm is one. Denoising with it penalises wavelet
coefficients, with a learned weight :math:`λ_j` for each scale:

.. math:: \min_x \tfrac12‖x − y‖² + \textstyle\sum_j λ_j ‖(Wx)_j‖₁
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.testing import check_operator


class Haar(lg.Operator):
    def __call__(self, x):
        found = []
        while x.shape[-1] > 1:
            even, odd = x[..., ::2], x[..., 1::2]
            found, x = [*found, (even - odd) / 2**0.5], (even + odd) / 2**0.5
        return torch.cat([*found, x], -1)

    def adjoint(self, y):
        x = y[..., -1:]
        while x.shape[-1] < y.shape[-1]:
            n = x.shape[-1]
            d = y[..., -2 * n : y.shape[-1] - n]
            x = torch.stack([x + d, x - d], -1).flatten(-2) / 2**0.5
        return x

    def norm(self, like=None):
        return torch.tensor(1.0)


# %%
# The law of an operator is the dot test, ⟨Kx, y⟩ = ⟨x, K*y⟩; its norm must not be too small.
torch.manual_seed(0)
print(check_operator(Haar(), torch.zeros(3, 256).double()))

# %%
# Signals with jumps; the weights are learned on eight and tried on eight others.
clean = torch.randn(16, 8).double().repeat_interleave(32, -1).roll(7, -1)
noisy = clean + 0.3 * torch.randn_like(clean)
scale = torch.cat([torch.full((128 >> j,), j) for j in range(8)] + [torch.tensor([8])])


def denoise(theta, noisy):
    energy = lg.SquaredDistance(noisy) + lg.L1(theta.exp()[scale]) @ Haar()
    return lg.solve(energy, lg.PrimalDual(), noisy, stop=lg.Stop(30)).x


theta = torch.full((9,), -2.0, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([theta], lr=0.2)
for _ in range(40):
    loss = (denoise(theta, noisy[:8]) - clean[:8]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = denoise(theta, noisy[8:]).detach()
same = [denoise(t.expand(9), noisy[8:]) for t in torch.linspace(-6, 1, 15).double()]
none, learned, *one = [float((u - clean[8:]).norm()) for u in (noisy[8:], found, *same)]
figure, axes = plt.subplots(1, 2, figsize=(10, 3), width_ratios=(3, 1), layout="constrained")
axes[0].plot(noisy[8], ".", color="0.7", label="noisy")
axes[0].plot(found[0], label="learned")
axes[0].set(xlabel="place", ylabel="value", title="a signal of the eight others")
axes[0].legend()
axes[1].bar(range(9), theta.detach().exp().numpy())
axes[1].set(xlabel="scale, finest first", ylabel="λ")
print(f"error: noisy {none:.2f}, one λ {min(one):.2f}, a λ for each scale {learned:.2f}")
assert learned < min(one) < none
