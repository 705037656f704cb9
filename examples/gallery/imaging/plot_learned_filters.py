r"""
Filters that know what pictures look like
=========================================

Total variation penalises differences of neighbours; which filters are better is learned here.

Filters :math:`d_k` and weights :math:`λ_k` come from pairs of noisy and clean patches, through

.. math:: x = \arg\min_x \tfrac12‖x − y‖² + \textstyle\sum_k ‖λ_k (d_k * x)‖₁
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

from legato.nn import AnalysisDenoiser, TotalVariation

torch.manual_seed(0)


def psnr(x, clean):
    return float(-10 * (x - clean).square().mean().log10())


photo = torch.from_numpy(load_sample_image("china.jpg").copy()).float().mean(-1) / 255
patches = photo.unfold(0, 32, 32).unfold(1, 32, 32).reshape(-1, 1, 32, 32)
clean = patches[torch.randperm(len(patches))[:64]]
noisy = clean + 0.1 * torch.randn_like(clean)
train, test = slice(0, 32), slice(32, 64)

# %%
# Eight filters of 3 × 3 pixels start as cosines; thirty steps of Adam change them.
denoiser = AnalysisDenoiser(size=3, iterations=20, weight=0.03)
optimizer = torch.optim.Adam(denoiser.parameters(), lr=0.05)
for step in range(30):
    batch = slice(8 * (step % 4), 8 * (step % 4) + 8)
    loss = (denoiser(noisy[batch]) - clean[batch]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Measured on other patches, beside total variation with the λ that is best for them.
tv = TotalVariation(iterations=60)
best_tv = max((tv(noisy[test], w) for w in (0.04, 0.05, 0.06, 0.07, 0.08)),
              key=lambda u: psnr(u, clean[test]))  # fmt: skip
learned = denoiser(noisy[test]).detach()
images = {"truth": clean[test], "noisy": noisy[test], "best TV": best_tv, "learned": learned}
figure, axes = plt.subplots(1, 5, figsize=(10, 2.6), layout="constrained")
size = denoiser.weights.detach()[:, None, None]
shown = (size * denoiser.filters.detach()[:, 0])[denoiser.weights.argsort(descending=True)]
tiles = torch.nn.functional.pad(shown, (0, 1, 0, 1), value=torch.nan)  # a frame around each
tiles = tiles.reshape(4, 2, 4, 4).transpose(1, 2).reshape(16, 8)
axes[0].imshow(tiles.numpy(), cmap="RdBu", vmin=-shown.abs().max(), vmax=shown.abs().max())
axes[0].set_title("filters · weights,\nlearned", fontsize=9)
busiest = clean[test].flatten(1).std(1).topk(2).indices
for axis, (name, image) in zip(axes[1:], images.items(), strict=True):
    axis.imshow(torch.cat([*image[busiest, 0]]).numpy(), cmap="gray", vmin=0, vmax=1)
    score = "" if name == "truth" else f"\n{psnr(image, clean[test]):.2f} dB"
    axis.set_title(name + score, fontsize=9)
for axis in axes:
    axis.set_axis_off()
gain = psnr(learned, clean[test]) - psnr(best_tv, clean[test])
print(f"learned filters: {gain:+.2f} dB over total variation with its best λ")
assert gain > 0.15
