r"""
Denoising photon counts
=======================

Where few photons arrive, noise grows with brightness, and the Kullback–Leibler divergence knows it.

Counts follow Poisson's law: their deviation is the root of their mean. The divergence
:math:`\sum_i x_i − y_i \log x_i` is the negative logarithm of that law.
"""

import matplotlib.pyplot as plt
import torch

import legato as lg

generator = torch.Generator().manual_seed(0)
rows, columns = torch.meshgrid(*[torch.linspace(0, 1, 48)] * 2, indexing="ij")
truth = torch.where(columns > 0.5, 30.0, 1.0)
truth = torch.where((rows - 0.5) ** 2 + (columns - 0.25) ** 2 < 0.03, 3.0, truth)
truth = torch.where((rows - 0.5) ** 2 + (columns - 0.75) ** 2 < 0.03, 40.0, truth)
counts = torch.poisson(truth, generator=generator)

# %%
# The larger the weight, the smoother the picture. Errors are those of the root, in which Poisson's
# noise is alike everywhere.


def smoothed(weight):
    energy = lg.KullbackLeibler(counts) + lg.IsotropicTV(weight)
    return lg.solve(energy, lg.PrimalDual(balance=20.0), counts, stop=lg.Stop(150)).x


pictures = {"truth": truth, "counts": counts, "λ = 0.3": smoothed(0.3), "λ = 0.8": smoothed(0.8)}
errors = {
    name: float((x.clamp(min=0).sqrt() - truth.sqrt()).square().mean().sqrt())
    for name, x in pictures.items()
}
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(picture.clamp(min=0).sqrt().numpy(), cmap="gray", vmin=0, vmax=6.5)
    axis.set_title(name if name == "truth" else f"{name}\nerror {errors[name]:.2f}", fontsize=10)
    axis.set_axis_off()
print(", ".join(f"{name}: {error:.3f}" for name, error in errors.items() if name != "truth"))
assert errors["λ = 0.8"] < 0.5 * errors["counts"]
