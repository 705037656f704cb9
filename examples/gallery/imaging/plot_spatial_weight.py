r"""
A weight for every pixel, from a network
========================================

A small network says how much to smooth where, and total variation does the rest.

Where a picture is flat, smooth; where it is busy, leave it alone: the network looks at the noisy
picture and is trained by the error of what total variation returns.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from legato.nn import TotalVariation

torch.manual_seed(0)


def draw(count, size=40):
    """A step, with stripes of random period in a random disc."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre = torch.randint(8, size - 8, (count, 2, 1, 1))
    period = torch.randint(2, 4, (count, 1, 1))
    disc = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2 < 12**2
    stripes = ((rows + columns) // period % 2).float()
    clean = torch.where(disc, stripes, 0.3 + 0.4 * (columns > size // 2))[:, None]
    return clean, clean + 0.2 * torch.randn_like(clean)


denoise = TotalVariation(iterations=30)
network = nn.Sequential(
    nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(),
    nn.Conv2d(8, 1, 1), nn.Softplus(),
)  # fmt: skip

# %%
# Network and layer are trained as one.
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(120):
    clean, noisy = draw(6)
    loss = (denoise(noisy, network(noisy)) - clean).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# On new pictures, beside the one λ that is best for them.
clean, noisy = draw(8)
weight = network(noisy).detach()
ours = denoise(noisy, weight)
single = min((denoise(noisy, w) for w in torch.linspace(0.02, 0.4, 20)),
             key=lambda u: float((u - clean).square().mean()))  # fmt: skip
figure, axes = plt.subplots(1, 5, figsize=(10, 2.5), layout="constrained")
images = {"truth": clean, "noisy": noisy, "best single λ": single, "λ(y) per pixel": ours}
scores = {name: float(-10 * (u - clean).square().mean().log10()) for name, u in images.items()}
for axis, (name, image) in zip(axes, images.items(), strict=False):
    axis.imshow(image[0, 0].numpy(), cmap="gray", vmin=-0.2, vmax=1.2)
    axis.set_title(name if name == "truth" else f"{name}\n{scores[name]:.1f} dB", fontsize=9)
    axis.set_axis_off()
figure.colorbar(axes[4].imshow(weight[0, 0].numpy()), ax=axes[4], location="bottom")
axes[4].set_title("λ, as the network\nsees fit", fontsize=9)
axes[4].set_axis_off()
print(", ".join(f"{name} {score:.2f} dB" for name, score in scores.items() if name != "truth"))
assert scores["λ(y) per pixel"] > scores["best single λ"] + 1
