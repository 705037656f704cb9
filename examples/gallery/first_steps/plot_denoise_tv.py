r"""
How much should total variation smooth?
=======================================

Total variation denoising has one parameter; its slope finds it, without trial and error.

.. math:: \min_λ ‖u(λ) − \text{clean}‖² \quad\text{with}\quad
          u(λ) = \arg\min_u \tfrac12‖u − y‖² + λ \sum |∇u|
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from legato.nn import TotalVariation

torch.manual_seed(0)
photo = torch.from_numpy(load_sample_image("china.jpg").copy()).double().mean(-1) / 255
clean = torch.stack([photo[180:276, 380:476], photo[150:246, 60:156]])[:, None]
noisy = clean + 0.1 * torch.randn_like(clean)
denoise = TotalVariation(iterations=60)


def psnr(u):
    return -10 * (u - clean).square().mean((1, 2, 3)).log10()


# %%
# The first picture teaches, the second tests. One number, learned by its derivative through sixty
# iterations: L-BFGS needs a handful of solves.
theta = torch.tensor(-5.0, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([theta], max_iter=12, line_search_fn="strong_wolfe")
path = []


def closure():
    optimizer.zero_grad()
    loss = (denoise(noisy[:1], theta.exp()) - clean[:1]).square().mean()
    loss.backward()
    path.append((float(theta.exp().detach()), float(loss.detach())))
    return loss


optimizer.step(closure)
learned = float(theta.exp().detach())

# %%
# A grid of sixty values finds the same λ, less exactly.
grid = torch.linspace(-5, -1, 60, dtype=torch.float64).exp()
losses = [float((denoise(noisy[:1], g) - clean[:1]).square().mean()) for g in grid]
best = float(grid[torch.tensor(losses).argmin()])
u = denoise(noisy, learned)
figure, axes = plt.subplots(2, 2, figsize=(8.5, 6.5), layout="constrained")
axes = axes.flat
axes[0].semilogx(grid, losses, label="grid of 60")
axes[0].plot(*zip(*path, strict=True), "o:", label=f"{len(path)} solves with slopes")
axes[0].set(xlabel="λ", ylabel="mean squared error", ylim=(0.8 * min(losses), 1.1 * max(losses)))
axes[0].legend()
for axis, image, title in zip(axes[1:], (clean, noisy, u), ("truth", "noisy", "TV"), strict=True):
    axis.imshow(image[1, 0].numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(f"{title}, {psnr(image)[1]:.1f} dB" if title != "truth" else title)
    axis.set_axis_off()
print(f"λ: learned {learned:.4f}, grid {best:.4f}; unseen picture {psnr(u)[1]:.2f} dB")
assert min(path, key=lambda p: p[1])[1] <= min(losses)
assert abs(learned / best - 1) < 0.07  # the grid's own spacing
assert psnr(u)[1] > psnr(noisy)[1] + 3
