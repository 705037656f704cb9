r"""
Magnetic resonance with a quarter of the lines
==============================================

Four coils, one line of frequencies in four, and a complex image that total variation completes.

Each coil sees the image through its own map, and of its Fourier transform only some lines. The
unknown is complex; everything else is as with real pictures. For real data,
``legato reconstruct kspace scan.npy`` reads the coils' maps off the lowest frequencies.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import TV, Reconstruction

torch.manual_seed(0)
size = 48
rows, columns = torch.meshgrid(*[torch.linspace(-1, 1, size)] * 2, indexing="ij")
truth = torch.zeros(size, size)
for row, column, height, width, value in [
    (0, 0, 0.85, 0.65, 0.5), (-0.1, 0.25, 0.35, 0.15, 0.9), (0.1, -0.25, 0.4, 0.2, 0.1),
    (0.5, 0.1, 0.15, 0.15, 1.0), (-0.5, 0, 0.12, 0.2, 0.7),
]:  # fmt: skip
    inside = ((rows - row) / height) ** 2 + ((columns - column) / width) ** 2 < 1
    truth = torch.where(inside, value, truth)
truth = (truth * torch.exp(0.5j * rows))[None]

# %%
# Maps of norm one at each pixel; the lines are every fifth and the six lowest.
corners = torch.tensor([(-1, -1), (-1, 1), (1, -1), (1, 1)])[:, :, None, None]
near = torch.exp(-0.5 * ((rows - corners[:, 0]) ** 2 + (columns - corners[:, 1]) ** 2))
coils = (near / near.square().sum(0).sqrt()).to(torch.complex64)
line = torch.fft.fftfreq(size, 1 / size)
mask = ((line % 5 == 0) | (line.abs() < 3))[:, None]
seen = lg.Fourier(mask, coils)
y = seen(truth)
y = y + 0.01 * mask * torch.randn_like(y)

layer = Reconstruction(seen, TV(0.004), first=seen.adjoint, iterations=60)
with torch.no_grad():
    record = layer.solve(y)

pictures = {"truth": truth, "zero-filled": record.first, "total variation": record.x}
scores = {
    name: float(-10 * (x - truth).abs().square().mean().log10()) for name, x in pictures.items()
}
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=False):
    axis.imshow(picture[0].abs().numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(name if name == "truth" else f"{name}\n{scores[name]:.1f} dB", fontsize=10)
    axis.set_axis_off()
axes[3].imshow(torch.fft.fftshift(mask, 0).expand(size, size).numpy(), cmap="gray")
axes[3].set_title(f"lines measured,\n{100 * float(mask.float().mean()):.0f} %", fontsize=10)
axes[3].set_axis_off()
print(", ".join(f"{name} {score:.1f} dB" for name, score in scores.items() if name != "truth"))
assert scores["total variation"] > scores["zero-filled"] + 3
