r"""
Deblurring with a learned weight
================================

A blurred and noisy picture comes back sharp, with the weight of total variation learned on others.

The layer minimises :math:`\tfrac12‖k * x − y‖² + λ\,|∇x|` and is differentiated in λ.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import TV, Reconstruction

torch.manual_seed(0)
n = torch.arange(-4, 5.0)
line = torch.exp(-(n**2) / 4)
blur = lg.Blur(line[:, None] * line / line.sum() ** 2)


def draw(count, size=32):
    """Bright and dark discs, blurred and noisy."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    clean = torch.full((count, 1, size, size), 0.5)
    for _ in range(6):
        row, column, radius = (
            torch.rand(3, count, 1, 1, 1)
            * torch.tensor([size, size, 8.0])[:, None, None, None, None]
        )
        inside = (rows - row) ** 2 + (columns - column) ** 2 < (4 + radius) ** 2
        clean = torch.where(inside, torch.rand(count, 1, 1, 1), clean)
    return clean, blur(clean) + 0.02 * torch.randn_like(clean)


# %%
# From a weight that is much too large, a dozen steps on pictures with known truth.
layer = Reconstruction(blur, TV(0.02), iterations=20, balance=20.0)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
clean, seen = draw(2)
for _ in range(12):
    loss = (layer(seen) - clean).square().mean().log()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
learned = float(layer.regulariser.weight(seen).detach())
print(f"λ = {learned:.4f}")

# %%
# On a new picture.
clean, seen = draw(1)
with torch.no_grad():
    first = Reconstruction(blur, TV(0.02), iterations=20, balance=20.0)(seen)
    sharp = layer(seen)
pictures = {"truth": clean, "seen": seen, "λ = 0.02": first, "learned λ": sharp}
scores = {name: float(-10 * (x - clean).square().mean().log10()) for name, x in pictures.items()}
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(picture[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(name if name == "truth" else f"{name}\n{scores[name]:.1f} dB", fontsize=10)
    axis.set_axis_off()
assert scores["learned λ"] > max(scores["seen"], scores["λ = 0.02"]) + 1
