r"""
Tomography from thirty angles
=============================

A picture inside a body, from thirty noisy projections: what a prior adds to least squares.

Projections are the integrals along parallel rays. Thirty of them do not determine the picture;
total variation and the range of its values do the rest.
"""

import math

import matplotlib.pyplot as plt
import torch

import legato as lg
from legato.nn import TV, Reconstruction

torch.manual_seed(0)
size, angles = 32, 30
radon = lg.Radon(tuple(math.pi * k / angles for k in range(angles)), size)
matrix = radon.matrix()  # which, for a small picture, is the fastest way to project
matrix = matrix / torch.linalg.matrix_norm(matrix, 2)
project = lg.operators.from_function(lambda x: x.flatten(-2) @ matrix.mT, (1, 1, size, size))

rows, columns = torch.meshgrid(*[torch.linspace(-1, 1, size)] * 2, indexing="ij")
truth = torch.zeros(1, 1, size, size)
for row, column, height, width, value in [
    (0, 0, 0.85, 0.65, 0.5), (-0.1, 0.25, 0.35, 0.15, 0.9), (0.1, -0.25, 0.4, 0.2, 0.1),
    (0.5, 0.1, 0.15, 0.15, 1.0), (-0.5, 0, 0.12, 0.2, 0.7),
]:  # fmt: skip
    inside = ((rows - row) / height) ** 2 + ((columns - column) / width) ** 2 < 1
    truth = torch.where(inside, value, truth)
seen = project(truth)
seen = seen + 0.02 * torch.randn_like(seen)

# %%
# The layer starts from ten conjugate gradients of least squares, its ``first`` image.
layer = Reconstruction(project, TV(4e-3), box=(0, 1), iterations=100)
with torch.no_grad():
    record = layer.solve(seen)
pictures = {"truth": truth, "least squares": record.first, "total variation": record.x}
scores = {name: float(-10 * (x - truth).square().mean().log10()) for name, x in pictures.items()}
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=False):
    axis.imshow(picture[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(name if name == "truth" else f"{name}\n{scores[name]:.1f} dB", fontsize=10)
    axis.set_axis_off()
axes[3].imshow(seen.reshape(angles, -1).numpy(), cmap="gray", aspect="auto")
axes[3].set_title("what was seen: a row\nfor each angle", fontsize=10)
axes[3].set_axis_off()
print(", ".join(f"{name} {score:.1f} dB" for name, score in scores.items() if name != "truth"))
assert scores["total variation"] > scores["least squares"] + 2
